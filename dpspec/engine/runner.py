"""Runs audits: bounds, the trials that the store lacks, conclusions, and one judgement over the whole invocation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dpspec.contract import (
    Catalog,
    Check,
    DataError,
    Diagnostic,
    Event,
    Evidence,
    Finding,
    FrozenMap,
    Noticed,
    Outcome,
    Plan,
    RunFinished,
    RunStarted,
    Series,
    Spec,
    StageStarted,
    Trial,
)
from dpspec.engine.context import RunContext
from dpspec.engine.environment import environment
from dpspec.engine.judge import Unjudged, judge
from dpspec.engine.prepare import Prepared, prepare
from dpspec.engine.result import AuditResult, Result, TrialRecord
from dpspec.engine.store import Store
from dpspec.engine.trials import Listener, make_trials
from dpspec.errors import NothingToRunError, SpecError
from dpspec.spec.tree import locate


@dataclass
class Outcomes:
    """What an audit's steps yielded, sorted by type."""

    findings: list[Finding] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """File one outcome; raises ``TypeError`` on anything that is none."""
        match outcome:
            case Finding():
                self.findings.append(outcome)
            case Series():
                self.series.append(outcome)
            case Check():
                self.checks.append(outcome)
            case Evidence():
                self.evidence.append(outcome)
            case _:
                raise TypeError(f"an audit yielded {type(outcome).__name__}, which is no outcome")


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit up to its judgement."""

    prepared: Prepared
    plan: Plan
    outcomes: Outcomes
    trials: tuple[TrialRecord, ...]
    seconds: float


def run(
    specs: Sequence[Spec],
    catalog: Catalog,
    *,
    store: Store,
    device: str = "auto",
    listeners: Sequence[Listener] = (),
    deadline: float | None = None,
    train: bool = True,
) -> Result:
    """Audit every spec and judge all claims as one family.

    device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    deadline: a ``time.monotonic()`` after which no training goes on; the result is then incomplete.
    train: whether trials may be made; without, bounds are computed and claims judged by them alone.

    Raises ``SpecError`` with every diagnostic of every spec before any work begins, ``PluginError`` when a kind is
    not installed, ``NothingToRunError`` without specs.
    """
    if not specs:
        raise NothingToRunError("no spec to run")

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    prepared = prepare_all(specs, catalog)
    emit(RunStarted(audits=tuple(p.spec.name for p in prepared)))
    for p in prepared:
        for warning in p.diagnostics:
            emit(Noticed(audit=p.spec.name, message=f"warning[{warning.code}]: {warning.message}"))
    audited = [
        _audit(p, catalog, store=store, device=device, emit=emit, deadline=deadline, train=train) for p in prepared
    ]
    result = assemble(audited, catalog)
    emit(RunFinished(complete=result.complete))
    return result


def prepare_all(specs: Sequence[Spec], catalog: Catalog) -> list[Prepared]:
    """Prepare every spec; raises one ``SpecError`` with the errors of all of them."""
    ready: list[Prepared] = []
    errors: list[Diagnostic] = []
    for spec in specs:
        try:
            prepared = prepare(spec, catalog)
        except SpecError as error:
            errors.extend(error.diagnostics)
            continue
        if any(prepared.spec.name == other.spec.name for other in ready):
            errors.append(_same_name(spec))
        ready.append(prepared)
        errors.extend(d for d in prepared.diagnostics if d.severity == "error")
    if errors:
        raise SpecError(errors)
    return ready


def conclude(prepared: Prepared, bounds: Sequence[Finding | Series], trials: Sequence[Trial]) -> Outcomes:
    """Everything that the audit stands behind: its bounds, and what follows from the trials."""
    outcomes = Outcomes()
    for bound in bounds:
        outcomes.add(bound)
    if trials:
        for outcome in prepared.audit.conclude(prepared.spec, trials):
            outcomes.add(outcome)
    return outcomes


def assemble(audited: Sequence[Audited], catalog: Catalog) -> Result:
    """Judge all audits together and put the result together."""
    judged = judge(
        [
            Unjudged(
                spec=a.prepared.spec,
                findings=tuple(a.outcomes.findings),
                checks=tuple(a.outcomes.checks),
                evidence=tuple(a.outcomes.evidence),
            )
            for a in audited
        ]
    )
    audits = tuple(
        AuditResult(
            name=a.prepared.spec.name,
            source=_source(a.prepared.spec),
            digest=a.prepared.spec.digest,
            document=a.prepared.spec.document,
            cell=a.prepared.spec.cell,
            facts=a.prepared.facts,
            verdicts=j.verdicts,
            conformance=j.conformance,
            findings=j.findings,
            series=tuple(a.outcomes.series),
            checks=tuple(a.outcomes.checks),
            evidence=tuple(a.outcomes.evidence),
            trials=a.trials,
            planned_trials=a.plan.trials,
            power=a.plan.power,
            notes=a.plan.notes,
            seconds=round(a.seconds, 3),
            places=_places(a.prepared.spec),
        )
        for a, j in zip(audited, judged, strict=True)
    )
    return Result(
        audits=audits,
        confidence=max((a.prepared.spec.audit.confidence for a in audited if a.prepared.spec.audit), default=0.95),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(catalog),
        notes=_notes(audits),
    )


def _audit(
    prepared: Prepared,
    catalog: Catalog,
    *,
    store: Store,
    device: str,
    emit: Listener,
    deadline: float | None,
    train: bool,
) -> Audited:
    spec, started = prepared.spec, time.monotonic()
    inputs = prepared.audit.trial_inputs(spec)

    def stop() -> bool:
        return deadline is not None and time.monotonic() > deadline

    context = RunContext(prepared, catalog, inputs, device=device, emit=emit, stop=stop)
    try:
        emit(StageStarted(audit=spec.name, stage="bound"))
        bounds = list(prepared.audit.bound(spec, context))
        plan = prepared.plan() if train else Plan(chunks=(), seconds=0.0, memory_bytes=0)
        trials: list[Trial] = []
        records: list[TrialRecord] = []
        if plan.chunks:
            trials, records = make_trials(prepared, plan, inputs, context, store, emit)
        emit(StageStarted(audit=spec.name, stage="conclude"))
        outcomes = conclude(prepared, bounds, trials)
    except DataError as error:
        diagnostic = Diagnostic(code="data-unreadable", message=str(error), path=("data",))
        raise SpecError([locate(diagnostic, spec.origin)]) from error
    finally:
        context.close()
    return Audited(
        prepared=prepared,
        plan=plan,
        outcomes=outcomes,
        trials=tuple(records),
        seconds=time.monotonic() - started,
    )


def _same_name(spec: Spec) -> Diagnostic:
    diagnostic = Diagnostic(
        code="same-name",
        message=f"another audit of this run is named {spec.name!r} too",
        path=("name",),
        help="verdicts are told apart by the audit's name: rename one, or run them one by one",
    )
    return locate(diagnostic, spec.origin)


def _source(spec: Spec) -> str:
    span = spec.origin.get(())
    return span.file if span is not None else ""


def _places(spec: Spec) -> FrozenMap:
    """Where each claim stands, by its id; and under the empty id, the spec itself."""
    spans = {claim.id: spec.origin.get(("claims", i)) for i, claim in enumerate(spec.claims)}
    spans[""] = spec.origin.get(())
    return FrozenMap(
        {name: {"file": s.file, "line": s.line, "column": s.column} for name, s in spans.items() if s is not None}
    )


def _notes(audits: Sequence[AuditResult]) -> tuple[str, ...]:
    cells = [a for a in audits if a.cell]
    if len(cells) < 2:
        return ()
    return (
        f"{len(cells)} cells of a matrix were audited one by one; releasing more than one of them composes, "
        "and no claim here speaks of that.",
    )
