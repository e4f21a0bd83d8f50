"""The work of one task: the trials of a chunk, computed in this process, another one or another machine."""

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpspec.contract import Facts, FrozenMap, Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.frozen import canonical_json
from dpspec.engine.preparing.context import RunContext, WorkerCache
from dpspec.engine.preparing.providers import FAMILIES, providers_of
from dpspec.engine.preparing.trial_keys import code_of
from dpspec.engine.storage.stored_trials import NewTrial, environment, offers_for_trials, version_of
from dpspec.errors import UsageError
from dpspec.executors import TaskContext
from dpspec.registry.loader import mark, misbehaved, use_project, used_project
from dpspec.registry.project import ProjectFile

#: The cache of a worker process.
_CACHE = WorkerCache()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTrials:
    """Picklable work: the trials of one chunk, with the sender's ``versions`` and ``project``, and their folders."""

    spec: Spec
    catalog: Catalog
    facts: Facts
    indices: tuple[int, ...]
    threads: int = 1
    cache: WorkerCache | None = None
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    makers: FrozenMap = dataclasses.field(default_factory=FrozenMap)
    folders: Mapping[int, Path | None] = dataclasses.field(default_factory=dict)
    project: tuple[ProjectFile, ...] = ()

    def __call__(self, task_context: TaskContext) -> Iterator[NewTrial]:
        from dpspec.training import limited

        if self.versions:  # in another process
            use_project(self.project)
        if self.versions and (own_versions := _versions(self.catalog)) != self.versions:
            ours, theirs = (
                ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
                for versions in (own_versions, self.versions)
            )
            raise UsageError(
                f"a worker has {ours}, but the run was started by {theirs}: install the same versions everywhere"
            )
        with limited(self.threads):
            cache = self.cache or _CACHE
            context = cache.context(
                self.spec,
                self.catalog,
                self.facts,
                device=task_context.device,
                emit=task_context.tell,
                stop=task_context.stopped,
            )
            try:
                yield from self._train(context)
            except Exception as error:
                mark(error)
                raise

    def __getstate__(self) -> dict[str, Any]:
        """The sent state: without places in files, with the spec's providers only, and absolute folders."""
        catalog = named(self.spec, self.catalog)
        return {
            **self.__dict__,
            "spec": dataclasses.replace(self.spec, origin={}, directory=str(Path(self.spec.directory).absolute())),
            "catalog": catalog,
            "cache": None,
            "versions": _versions(catalog),
            "project": used_project(),
            "folders": {index: folder and folder.absolute() for index, folder in self.folders.items()},
        }

    def _train(self, context: RunContext) -> Iterator[NewTrial]:
        import numpy as np

        spec, model = context.prepared.spec, context.prepared.model
        context.state_folder = self._folder
        if model is not None:
            from dpspec.training.gradients.flat_model import check_model

            check_model(model, context.facts)
        began, missing = time.monotonic(), set(self.indices)
        _, mechanism = context.prepared.offers["mechanism"]
        for trial in context.prepared.audit.trials(context.inputs, context, self.indices):
            if trial.index not in missing:
                raise misbehaved(mechanism, f"trials() makes trial {trial.index}, which was not requested")
            missing.discard(trial.index)
            for name, array in trial.arrays.items():
                if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                    raise misbehaved(mechanism, f"trials(): the array {name!r} is not an array of numbers")
            try:
                canonical_json(trial.evidence)
            except (TypeError, ValueError, RecursionError) as error:
                raise misbehaved(mechanism, f"trials(): its evidence cannot be kept: {error}") from error
            seconds = time.monotonic() - began
            recorded = {
                **environment(None),
                "device": context.device_used,
                **({} if (gpu := gpu_name(context.device_used)) is None else {"gpu": gpu}),
                "threads": self.threads,
                "seconds": round(seconds, 3),
                "spec": spec.name,
                "kind": spec.mechanism.kind,
                "by": self.makers,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            yield NewTrial(trial=trial, seconds=seconds, recorded=FrozenMap(recorded))
            began = time.monotonic()
        if missing:
            raise misbehaved(mechanism, f"trials() ends without trial {min(missing)}")

    def _folder(self, index: int) -> Path | None:
        """The folder of a trial's state; in another process only if both share a disk."""
        folder = self.folders.get(index)
        return folder if folder is None or self.cache is not None or folder.is_dir() else None


def gpu_name(device: str | None) -> str | None:
    """The driver's name of a GPU, because its kernels determine a trial's last bits; None for other devices."""
    torch = sys.modules.get("torch")
    if torch is None or device is None or not device.startswith("cuda"):
        return None
    return str(torch.cuda.get_device_name(device))


def named(spec: Spec, catalog: Catalog) -> Catalog:
    offers: dict[str, Any] = {
        FAMILIES[part][0]: {kind: offered} for part, (kind, offered) in providers_of(spec, catalog).items()
    }
    return Catalog(**offers)


def _versions(catalog: Catalog) -> dict[str, str | None]:
    offers = offers_for_trials(catalog)
    versions = {name: version_of(name) for name in {"dpspec", *(offered.distribution for _, offered in offers)}}
    return versions | {f"the code of {kind!r}": code for kind, offered in offers if (code := code_of(offered)[0][:12])}
