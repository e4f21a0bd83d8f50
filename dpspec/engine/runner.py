"""Runs audits: bounds, the trials that the store lacks, conclusions, and one judgement over the whole invocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dpspec.contract import (
    Catalog,
    Diagnostic,
    Event,
    FrozenMap,
    Noticed,
    Plan,
    RunFinished,
    RunStarted,
    Spec,
)
from dpspec.engine.campaign import Campaign
from dpspec.engine.environment import environment
from dpspec.engine.judge import Unjudged, confidence_of, judge
from dpspec.engine.means import Means
from dpspec.engine.outcomes import Outcomes
from dpspec.engine.prepare import Prepared, prepare
from dpspec.engine.result import AuditResult, Result, TrialRecord
from dpspec.engine.store import Store
from dpspec.engine.trials import Listener
from dpspec.errors import NothingToRunError, SpecError
from dpspec.spec.tree import locate


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit up to its judgement."""

    prepared: Prepared
    plan: Plan
    outcomes: Outcomes
    trials: tuple[TrialRecord, ...]
    seconds: float
    settled_after: int | None = None


def run(
    specs: Sequence[Spec],
    catalog: Catalog,
    *,
    store: Store,
    device: str = "auto",
    listeners: Sequence[Listener] = (),
    deadline: float | None = None,
    train: bool = True,
    means: Means | None = None,
) -> Result:
    """Audit every spec and judge all claims as one family.

    device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    deadline: a ``time.monotonic()`` after which no training goes on; the result is then incomplete.
    train: whether trials may be made; without, bounds are computed and claims judged by them alone.
    means: with what; ``device`` and ``deadline`` are then those that it says.

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
    campaign = Campaign(
        prepared, catalog, store=store, means=means or Means(device=device, deadline=deadline), emit=emit
    )
    audited = [
        Audited(
            prepared=audit.prepared,
            plan=audit.plan,
            outcomes=audit.outcomes,
            trials=tuple(stored.record for stored in audit.trials.sorted),
            seconds=audit.seconds,
            settled_after=audit.settled_after,
        )
        for audit in campaign.run(train=train)
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
        errors.extend(_same_name(spec, other.spec) for other in ready if other.spec.name == spec.name)
        ready.append(prepared)
        errors.extend(d for d in prepared.diagnostics if d.severity == "error")
    if errors:
        raise SpecError(errors)
    return ready


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
            settled_after=a.settled_after,
            power=a.plan.power,
            notes=a.plan.notes,
            seconds=round(a.seconds, 3),
            places=_places(a.prepared.spec),
        )
        for a, j in zip(audited, judged, strict=True)
    )
    return Result(
        audits=audits,
        confidence=confidence_of([a.prepared.spec for a in audited]),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(catalog),
        notes=_notes(audits),
    )


def _same_name(spec: Spec, other: Spec) -> Diagnostic:
    first = other.origin.get(("name",))
    where = f", in {first.file}:{first.line}" if first is not None else ""
    diagnostic = Diagnostic(
        code="same-name",
        message=f"another audit of this run is named {spec.name!r} too{where}",
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
