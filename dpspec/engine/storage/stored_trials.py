"""The trials of one audit in a store (existing, missing and new ones), and the origins of trials."""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from dpspec.contract import Finding, FrozenMap, Json, Plan, Series, Trial
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.events import Event, Noticed, TrialFinished
from dpspec.contract.results import ExecutedRun
from dpspec.engine.preparing.prepare import Prepared
from dpspec.engine.preparing.trial_keys import TrialKeys, code_in, code_of
from dpspec.engine.storage.bundle_file import TRIALS
from dpspec.engine.storage.trial_store import Store, StoredTrial, bundles_of
from dpspec.registry.loader import used_project
from dpspec.regular_files import make_private_folder
from dpspec.results.origins import version_notices

Listener = Callable[[Event], None]

#: Shorter trials, in seconds, survive a power failure as soon as their bundle of 256 trials is complete: synchronizing
#: each one takes longer than training it.
_DURABLE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class NewTrial:
    trial: Trial
    seconds: float
    recorded: FrozenMap = field(default_factory=FrozenMap)

    @property
    def index(self) -> int:
        return self.trial.index


@dataclass(frozen=True, kw_only=True)
class AuditState:
    """An audit with its bounds and trials by index; ``seconds`` excludes trials ``from_store``."""

    prepared: Prepared
    bounds: Sequence[Finding | Series] = ()
    comparisons: Sequence[tuple[Offered, Sequence[Finding]]] = ()
    plan: Plan = NO_TRIALS
    recording: ExecutedRun | None = None
    trials: tuple[StoredTrial, ...] = ()
    from_store: int = 0
    seconds: float = 0.0


class StoredTrials:
    """The planned trials of one audit in one store."""

    def __init__(self, state: AuditState, store: Store, emit: Listener) -> None:
        self.state = state
        self.name = state.prepared.spec.name
        self.available: dict[int, StoredTrial] = {}
        self.seconds = state.seconds
        self.judged_chunks = self._whole = 0
        self._from_store: frozenset[int] = frozenset()
        self._store = store
        self._emit = emit
        prepared, plan = state.prepared, state.plan
        inputs = prepared.trial_inputs()
        code = code_in(prepared.makers) if plan.chunks else FrozenMap()
        keys = TrialKeys(inputs, prepared.facts, prepared.revisions, code)
        self._keys = {index: keys.of(chunk, index) for chunk in plan.chunks for index in chunk}
        self._bundles = bundles_of(self._keys)
        self._lacking: dict[int, set[int]] = {}
        self._unbundled: set[int] = set()

    def look(self) -> None:
        self.available = self._store.get_all(self._keys, self._notice)
        self._lacking = {number: keys.keys() - self.available.keys() for number, keys in self._bundles.items()}
        self._from_store = frozenset(self.available)
        for part, (kind, offered) in self.state.prepared.offers.items():
            if reason := code_of(offered)[1]:
                self._notice(
                    f"cannot read the code of {part} {kind!r} ({offered.distribution}): {reason}; its trials are made "
                    "again in every run"
                )

    def missing(self) -> Iterator[list[int]]:
        for chunk in self.state.plan.chunks:
            if missing_indices := [index for index in chunk if index not in self.available]:
                yield missing_indices

    def whole_chunks(self) -> int:
        """The number of chunks, from the first one on, without a missing trial. It never decreases."""
        chunks = self.state.plan.chunks
        while self._whole < len(chunks) and all(index in self.available for index in chunks[self._whole]):
            self._whole += 1
        return self._whole

    @property
    def missing_trials(self) -> int:
        return sum(map(len, self.missing()))

    def folders(self, indices: Sequence[int], *, create: bool) -> dict[int, Path | None]:
        folders = {index: self._store.unfinished(self._keys[index]) for index in indices}
        for folder in folders.values():
            if create and folder is not None:
                with suppress(OSError):  # without one, a trial that is lost begins anew
                    make_private_folder(folder)
        return folders

    def keep(self, new: NewTrial) -> None:
        number = new.index // TRIALS
        name = next(iter(self._bundles[number].values()))
        durable = new.seconds >= _DURABLE_SECONDS
        self.available[new.index] = self._store.put(
            self._keys[new.index], new.trial, new.recorded, name, durable=durable
        )
        self._emit(TrialFinished(audit=self.name, index=new.index, seconds=new.seconds))
        self._lacking[number].discard(new.index)
        if not self._lacking[number]:
            self._bundle(self._bundles[number])
        else:
            self._unbundled.add(number)

    def _bundle_planned(self) -> None:
        """Bundle the new trials of a plan that was cut."""
        planned = bundles_of({index: self._keys[index] for chunk in self.state.plan.chunks for index in chunk})
        for number in self._unbundled:
            keys = planned.get(number, {})
            if self._lacking[number] and keys.keys() <= self.available.keys():
                self._bundle(keys)

    def _bundle(self, indices: Iterable[int]) -> None:
        self._store.bundle([self.available[index] for index in indices])

    def trained(self) -> AuditState:
        self._bundle_planned()
        planned = {index for chunk in self.state.plan.chunks for index in chunk}
        trials = [self.available[index] for index in sorted(planned & set(self.available))]
        records = [stored.record for stored in trials]
        for notice in version_notices(records, environment(None)):
            self._notice(notice)
        from_store = sum(record.index in self._from_store for record in records)
        return replace(self.state, trials=tuple(trials), from_store=from_store, seconds=self.seconds)

    def _notice(self, message: str) -> None:
        self._emit(Noticed(audit=self.name, message=message))


_ENVIRONMENT = ("dpspec", "numpy", "scipy", "scikit-learn", "torch")


def offers_for_trials(catalog: Catalog) -> list[tuple[str, Offered]]:
    families = (
        *(catalog.mechanisms, catalog.datasets, catalog.models, catalog.backends),
        *(catalog.canaries, catalog.scores, catalog.losses, catalog.sampling_schemes, catalog.noises),
    )
    return [offered for family in families for offered in family.items()]


def environment(catalog: Catalog | None) -> FrozenMap:
    values: dict[str, Json] = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    values |= {library: version_of(library) for library in _ENVIRONMENT}
    if catalog is not None:
        offers = offers_for_trials(catalog)
        values["plugins"] = {offered.plugin: f"{offered.distribution} {offered.version}" for _, offered in offers}
        if trusted := sorted({offered.distribution for _, offered in offers if offered.signed_off}):
            values["trusted"] = trusted
        if files := used_project():
            values["project"] = {file.name: f"sha256 {file.digest}, named by {file.named_by}" for file in files}
    return FrozenMap(values)


@cache
def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
