"""The work that executors run: some trials of one audit, with the spec and the providers that it names.

What is not sent is made anew where the task arrives, once per process: the data source, the model, and the rows, which
the next audit reuses where it reads the same ones.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpspec.contract import DataError, Facts, FrozenMap, Spec
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.events import Event
from dpspec.engine.preparing.attacks import offers_of
from dpspec.engine.preparing.checked_providers import require_storable
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.preparing.trial_keys import known_code
from dpspec.engine.storage.origins import environment, version_of
from dpspec.engine.storage.stored_trials import NewTrial
from dpspec.errors import UsageError
from dpspec.executors import TaskContext
from dpspec.registry.foreign_code import misbehaved
from dpspec.registry.loader import mark


class WorkerCache:
    """What a process keeps from task to task: prepared audits, and the context of the last one with its rows."""

    def __init__(self, prepared: Sequence[Prepared] = ()) -> None:
        """``prepared``: audits that need not be prepared again."""
        self._prepared = {_identity(p.spec): p for p in prepared}
        self._context: RunContext | None = None

    def context(
        self,
        spec: Spec,
        catalog: Catalog,
        facts: Facts,
        *,
        device: str,
        emit: Callable[[Event], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunContext:
        """A context for an audit. Raises ``DataError`` where the facts of the data here are not ``facts``."""
        prepared = self._prepared.get(_identity(spec))
        if prepared is None:
            prepared = prepare(spec, catalog)
            self._prepared = {_identity(spec): prepared}
        if prepared.facts != facts:
            raise DataError("the data differ from those that the run began with: another file, or one that was changed")
        last = self._context
        if last is None or last.prepared is not prepared or last.wanted_device != device:
            inputs = prepared.audit.trial_inputs(prepared.spec)
            self._context = RunContext(prepared, catalog, inputs, device=device, like=last)
            if last is not None:
                last.close()
        assert self._context is not None
        self._context.attend(emit, stop)
        return self._context

    def close(self) -> None:
        """Remove temporary files, and forget the rows."""
        if self._context is not None:
            self._context.close()
        self._context = None


#: The cache of a process that works for another one.
_CACHE = WorkerCache()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditTask:
    """Some work on one audit, which can be pickled.

    threads: the CPU threads to compute with. cache: that of the caller's process, which is not sent. versions: the
    sender's, once the task has been sent.
    """

    spec: Spec
    catalog: Catalog
    facts: Facts
    threads: int = 1
    cache: WorkerCache | None = None
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def __call__(self, place: TaskContext) -> Iterator[Any]:
        """Run it. Raises ``UsageError`` where other versions are installed than the sender's."""
        from dpspec.training.threads import limited

        if self.versions and (here := _versions(self.catalog)) != self.versions:
            ours, theirs = (
                ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
                for versions in (here, self.versions)
            )
            raise UsageError(
                f"a worker has {ours}, but the run was started by {theirs}: install the same versions everywhere"
            )
        with limited(self.threads):
            cache = self.cache or _CACHE
            context = cache.context(
                self.spec, self.catalog, self.facts, device=place.device, emit=place.tell, stop=place.stopped
            )
            try:
                yield from self.run(context)
            except Exception as error:
                mark(error)
                raise

    def run(self, context: RunContext) -> Iterator[Any]:
        """The work itself, part by part."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """What is sent: no places in files, only providers that the spec names, and an absolute folder."""
        spec = dataclasses.replace(self.spec, origin={}, directory=str(Path(self.spec.directory).absolute()))
        catalog = named(self.spec, self.catalog)
        return {**self.__dict__, "spec": spec, "catalog": catalog, "cache": None, "versions": _versions(catalog)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTrials(AuditTask):
    """Some trials of one chunk.

    makers: who makes them, as the caller knows. folders: where each may keep its state, by index; None for nowhere.
    """

    indices: tuple[int, ...]
    makers: FrozenMap = dataclasses.field(default_factory=FrozenMap)
    folders: Mapping[int, Path | None] = dataclasses.field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """A worker may work in another folder than the caller."""
        folders = {index: None if folder is None else folder.absolute() for index, folder in self.folders.items()}
        return {**super().__getstate__(), "folders": folders}

    def run(self, context: RunContext) -> Iterator[NewTrial]:
        """Each trial as it ends, with a record of where it was made."""
        spec, model = context.prepared.spec, context.prepared.model
        context.state_folder = self._folder
        if model is not None:
            from dpspec.training.model_check import check_model

            check_model(model, context.facts)
        began, missing = time.monotonic(), set(self.indices)
        _, mechanism = context.prepared.offers["mechanism"]
        for trial in context.prepared.audit.trials(context.inputs, context, self.indices):
            if trial.index not in missing:
                raise misbehaved(mechanism, f"trials() makes trial {trial.index}, which was not requested")
            missing.discard(trial.index)
            require_storable(mechanism, trial)
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
        """In another process, a folder that the caller made is there only if the disk is the same."""
        folder = self.folders.get(index)
        return folder if folder is None or self.cache is not None or folder.is_dir() else None


def gpu_name(device: str | None) -> str | None:
    """What a GPU is called by its driver, as its kernels decide a trial's last bits; None for what is no GPU."""
    torch = sys.modules.get("torch")
    if torch is None or device is None or not device.startswith("cuda"):
        return None
    return str(torch.cuda.get_device_name(device))


def named(spec: Spec, catalog: Catalog) -> Catalog:
    """The part of a catalog that a spec names."""
    chosen = offers_of(spec, catalog)
    return Catalog(
        mechanisms=_only(catalog.mechanisms, spec.mechanism.kind),
        datasets=_only(catalog.datasets, spec.data.kind),
        models=_only(catalog.models, None if spec.model is None else spec.model.kind),
        backends=_only(catalog.backends, spec.training.kind),
        canaries=_only(catalog.canaries, chosen["canary"][0] if "canary" in chosen else None),
        scores=_only(catalog.scores, chosen["score"][0] if "score" in chosen else None),
    )


def _versions(catalog: Catalog) -> dict[str, str | None]:
    """The versions of dpspec and of whatever offers the kinds of a catalog, as they are here, and its code."""
    offers = (
        *(catalog.mechanisms, catalog.datasets, catalog.models, catalog.backends),
        *(catalog.canaries, catalog.scores),
    )
    versions = {
        name: version_of(name) for name in {"dpspec", *(o.distribution for offer in offers for o in offer.values())}
    }
    return versions | {
        f"the code of {kind!r}": code
        for offer in offers
        for kind, o in offer.items()
        if (code := known_code(o)) is not None
    }


def _only(offers: Mapping[str, Offered], kind: str | None) -> dict[str, Offered]:
    return {} if kind is None else {kind: offers[kind]}


def _identity(spec: Spec) -> tuple[str, str, str]:
    return spec.digest, spec.name, spec.directory
