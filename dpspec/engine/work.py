"""The steps of an audit as work that travels: a spec, the providers that it names, and what is to be done with them.

What is not sent is made anew where the work arrives, once per process: the data source, the model, and the rows, which
go on to the next audit where it reads the same ones.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpspec.contract import Catalog, DataError, Facts, Finding, FrozenMap, Offered, Place, Plan, Series, Spec, Trial
from dpspec.engine.context import RunContext
from dpspec.engine.environment import environment, version_of
from dpspec.engine.judge import Unjudged, test
from dpspec.engine.outcomes import Outcomes, conclude
from dpspec.engine.prepare import Prepared, prepare
from dpspec.errors import UsageError
from dpspec.stats import nulls


class Bench:
    """What one process keeps from one piece of work to the next: the audit that it last worked on, with its rows."""

    def __init__(self, prepared: Sequence[Prepared] = ()) -> None:
        """``prepared``: audits that need not be prepared again."""
        self._known = {_identity(p.spec): p for p in prepared}
        self._context: RunContext | None = None

    def context(self, work: Work, place: Place) -> RunContext:
        """A context for an audit; raises ``DataError`` where the data here are not those that the run began with."""
        prepared = self._known.get(_identity(work.spec))
        if prepared is None:
            prepared = prepare(work.spec, work.catalog)
            self._known = {_identity(work.spec): prepared}
        if prepared.facts != work.facts:
            raise DataError("the data are not those that the run began with: another file, or one that was changed")
        last = self._context
        if last is None or last.prepared is not prepared or last.wanted_device != place.device:
            self._context = RunContext(
                prepared, work.catalog, prepared.audit.trial_inputs(prepared.spec), device=place.device, like=last
            )
            if last is not None:
                last.close()
        assert self._context is not None
        self._context.attend(place.tell, place.stopped)
        return self._context

    def close(self) -> None:
        """Let go of everything."""
        if self._context is not None:
            self._context.close()
        self._context = None


#: The bench of a process that works for another one.
_BENCH = Bench()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A part of an outcome: number ``index`` of what was asked for, and the seconds that it took."""

    index: int
    value: Any
    seconds: float
    recorded: FrozenMap = dataclasses.field(default_factory=FrozenMap)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """One step of one audit.

    threads: the CPU threads to compute with. bench: that of the caller's process, which does not travel. versions: what
    it was sent by, once it has travelled.
    """

    spec: Spec
    catalog: Catalog
    facts: Facts
    threads: int = 1
    bench: Bench | None = None
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def __call__(self, place: Place) -> Iterator[Made]:
        """Do it, where it is; raises ``UsageError`` where that has other versions than it was sent by."""
        from dpspec.training.threads import limited

        if self.versions and (here := _versions(self.catalog)) != self.versions:
            ours, theirs = (
                ", ".join(f"{name} {v}" for name, v in sorted(each.items())) for each in (here, self.versions)
            )
            raise UsageError(f"a worker has {ours}, but the run was started by {theirs}: install the same everywhere")
        with limited(self.threads):
            yield from self.done((self.bench or _BENCH).context(self, place))

    def done(self, context: RunContext) -> Iterator[Made]:
        """The step itself."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """What travels: without places in files, without providers that the spec does not name, and with a folder that
        is the same from wherever the work is done."""
        spec = dataclasses.replace(self.spec, origin={}, directory=str(Path(self.spec.directory).absolute()))
        catalog = named(self.spec, self.catalog)
        return {**self.__dict__, "spec": spec, "catalog": catalog, "bench": None, "versions": _versions(catalog)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounding(Work):
    """Bounds from theory, and the plan: one ``Made`` with both. ``planned``: whether a plan is asked for."""

    planned: bool = True

    def done(self, context: RunContext) -> Iterator[Made]:
        """Bounds first: what data cannot be read is told before what is planned."""
        began, prepared = time.monotonic(), context.prepared
        bounds: list[Finding | Series] = list(prepared.audit.bound(prepared.spec, context))
        plan = prepared.plan() if self.planned else Plan(chunks=(), seconds=0.0, memory_bytes=0)
        yield Made(index=0, value=(bounds, plan), seconds=time.monotonic() - began)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Work):
    """Some trials of one chunk. ``folders``: where each may keep its state, as far as there is such a folder here."""

    indices: tuple[int, ...]
    folders: Mapping[int, Path | None] = dataclasses.field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """A worker may work in another folder than the caller."""
        folders = {index: None if folder is None else folder.absolute() for index, folder in self.folders.items()}
        return {**super().__getstate__(), "folders": folders}

    def done(self, context: RunContext) -> Iterator[Made]:
        """Each trial as it ends, with a record of where it was made."""
        spec = context.prepared.spec
        context.kept = self._folder
        began = time.monotonic()
        for trial in context.prepared.audit.trials(context.inputs, context, self.indices):
            seconds = time.monotonic() - began
            recorded = {
                **environment(None),
                "device": context.device_used,
                "threads": self.threads,
                "seconds": round(seconds, 3),
                "spec": spec.name,
                "kind": spec.mechanism.kind,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            yield Made(index=trial.index, value=trial, seconds=seconds, recorded=FrozenMap(recorded))
            began = time.monotonic()

    def _folder(self, index: int) -> Path | None:
        """In another process, a folder that the caller made is there only if the disk is the same."""
        folder = self.folders.get(index)
        return folder if folder is None or self.bench is not None or folder.is_dir() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Concluding(Work):
    """What follows from bounds and trials: one ``Made`` with that, and with the tests that its judgement will need.

    Judging is done for all audits together, but the tests themselves take longest and can be made anywhere.
    """

    bounds: Sequence[Finding | Series]
    trials: Sequence[Trial]

    def __getstate__(self) -> dict[str, Any]:
        """Memory maps travel as what is in them."""
        trials = [
            dataclasses.replace(t, arrays={name: array.__array__().copy() for name, array in t.arrays.items()})
            for t in self.trials
        ]
        return {**super().__getstate__(), "trials": trials}

    def done(self, context: RunContext) -> Iterator[Made]:
        """Pure: nothing of the context but the audit is used."""
        began = time.monotonic()
        outcomes: Outcomes = conclude(context.prepared, self.bounds, self.trials)
        tests = {} if self.bench is not None else _tests(context.prepared.spec, outcomes)
        yield Made(index=0, value=(outcomes, tests), seconds=time.monotonic() - began)


def _tests(spec: Spec, outcomes: Outcomes) -> dict[nulls.Made, float]:
    """What is tested when an audit is judged, alone as among others."""
    before = nulls.made()
    unjudged = Unjudged(
        spec=spec,
        findings=tuple(outcomes.findings),
        checks=tuple(outcomes.checks),
        evidence=tuple(outcomes.evidence),
    )
    test(unjudged)
    return {test: value for test, value in nulls.made().items() if test not in before}


def _versions(catalog: Catalog) -> dict[str, str | None]:
    """The versions of dpspec and of whatever offers the kinds of a catalog, as they are installed here."""
    offers = (catalog.mechanisms, catalog.datasets, catalog.models, catalog.backends)
    return {
        name: version_of(name) for name in {"dpspec", *(o.distribution for offer in offers for o in offer.values())}
    }


def named(spec: Spec, catalog: Catalog) -> Catalog:
    """The part of a catalog that a spec names."""
    return Catalog(
        mechanisms=_only(catalog.mechanisms, spec.mechanism.kind),
        datasets=_only(catalog.datasets, spec.data.kind),
        models=_only(catalog.models, None if spec.model is None else spec.model.kind),
        backends=_only(catalog.backends, spec.training.kind),
    )


def _only(offers: Mapping[str, Offered], kind: str | None) -> dict[str, Offered]:
    return {} if kind is None else {kind: offers[kind]}


def _identity(spec: Spec) -> tuple[str, str, str]:
    return spec.digest, spec.name, spec.directory
