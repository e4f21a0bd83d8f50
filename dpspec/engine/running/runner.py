"""The pipeline: load, prepare, bounds, trials, conclude, judge, result. Each stage is one function.

``load`` is ``dpspec.language.load.load_specs``; :func:`run` calls the others in order. All run in the caller's process,
except trials, which go to an executor.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn, TypeAlias

from dpspec.contract import DataError, FrozenMap, Spec
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, Noticed, Progressed, RunFinished, RunStarted, StageStarted
from dpspec.contract.results import AuditResult, Remedy, Result
from dpspec.engine.judging.claim_tests import Concluded, confidence_of
from dpspec.engine.judging.judge import Judged, judge
from dpspec.engine.preparing.context import RunContext, WorkerCache
from dpspec.engine.preparing.diagnostics import data_unreadable, out_of_range
from dpspec.engine.preparing.prepare import Prepared, prepare_all
from dpspec.engine.running.conclude import conclude
from dpspec.engine.running.failures import FailureListener, Failures
from dpspec.engine.running.train import RunOptions, Training
from dpspec.engine.storage.stored_trials import AuditState, Listener, environment
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import DpspecError, NothingToRunError, SpecError, UsageError
from dpspec.language.compose import OVERRIDES_FILE
from dpspec.language.rewrite import best_of
from dpspec.language.yaml_source import source_file
from dpspec.registry.loader import describe

#: Values that would prove the failed claims of an audit, from its result and its bounds (``engine.remedies``).
FindRemedies: TypeAlias = Callable[[AuditResult, AuditState], tuple[Remedy, ...]]

#: Seconds after which the time of bounds is estimated from those that are computed.
_MEASURED_SECONDS = 2.0


def run(
    specs: Sequence[Spec],
    catalog: Catalog,
    *,
    store: Store,
    device: str = "auto",
    listeners: Sequence[Listener] = (),
    train: bool = True,
    options: RunOptions | None = None,
    on_failure: FailureListener | None = None,
    remedies: FindRemedies | None = None,
) -> Result:
    """Audit every spec and judge all claims in one family.

    Without ``train`` only bounds judge the claims. ``options`` replace ``device``. ``on_failure`` receives the error of
    a file of specs that fails during the work, such as one of its data; the run continues with the other files.
    ``remedies`` receives each audit and its bounds, and returns other values that would prove its failed claims.

    Raises:
        SpecError: With all diagnostics of all specs before any work begins, or if no file is left.
        UsageError: Nothing follows from stored trials.
    """
    if not specs:
        raise NothingToRunError("no spec to run")
    options = options or RunOptions(device=device)

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    prepared = prepare_all(specs, catalog)
    emit(RunStarted(audits=tuple(audit.spec.name for audit in prepared)))
    for notice in warnings_of(prepared):
        emit(notice)
    cache = WorkerCache(prepared)
    failures = Failures(specs, on_failure)
    bounded = bound_all(prepared, catalog, cache, plan=train, emit=emit, failures=failures)
    planned = train and any(state.plan.chunks for state in bounded)
    trained = Training(bounded, catalog, store, options, cache, emit, failures).run() if planned else bounded
    trained, concluded = conclude_all(trained, store, emit, failures)
    bounded = failures.without_failed(bounded)
    judged = judge(concluded)
    result = assemble(trained, concluded, judged, catalog)
    if remedies is not None:
        pairs = zip(result.audits, bounded, strict=True)
        result = replace(result, audits=tuple(replace(a, remedies=remedies(a, state)) for a, state in pairs))
    emit(RunFinished(complete=result.complete))
    return result


def bound_all(
    prepared: Sequence[Prepared],
    catalog: Catalog,
    cache: WorkerCache,
    *,
    plan: bool,
    emit: Listener,
    failures: Failures | None = None,
) -> list[AuditState]:
    """The bounds of all audits and, with ``plan``, their plans; progress counts over all audits."""
    from dpspec.training import limited

    failures = failures or Failures()

    bounded: list[AuditState] = []

    def emit_with_overall(event: Event) -> None:
        if isinstance(event, Progressed):
            event = replace(event, overall=(len(bounded) + event.done / max(1, event.total)) / len(prepared))
        emit(event)

    with limited(1):
        for audit in prepared:
            if failures.include(audit.spec):
                continue
            emit(StageStarted(audit=audit.spec.name, stage="bound"))
            if bounded:  # an audit may report no progress
                emit_with_overall(Progressed(audit=audit.spec.name, what="bound", done=0, total=0))
            try:
                bounded.append(_bound(audit, catalog, cache, plan=plan, emit=emit_with_overall))
            except SpecError as error:
                failures.add(audit.spec, error)
    return failures.without_failed(bounded)


class _WithoutRows(RunContext):
    """A context for bounds that do not depend on the rows."""

    @property
    def data(self) -> NoReturn:
        raise DataError("the rows are not read")


def measure_bounds(prepared: Sequence[Prepared], catalog: Catalog) -> tuple[float, int]:
    """The seconds of one core for the bounds of all audits, and the number of audits that the estimate is from.

    Audits are drawn until ``_MEASURED_SECONDS`` have passed. The first one, which imports libraries, counts only if it
    is the only one. Bounds that read rows are not measured.
    """
    from dpspec.training import limited

    seconds: list[float] = []
    with limited(1):
        for audit in random.Random(0).sample(prepared, len(prepared)):
            if sum(seconds) > _MEASURED_SECONDS:
                break
            inputs = audit.trial_inputs() if audit.spec.audit is not None else FrozenMap()
            context = _WithoutRows(audit, catalog, inputs, device="cpu")
            began = time.process_time()
            try:
                for _ in audit.audit.bound(audit.spec, context):
                    pass
            except (DpspecError, DataError, ArithmeticError):  # the run reports it
                continue
            seconds.append(time.process_time() - began)
    counted = seconds[1:] or seconds
    return (sum(counted) / len(counted) * len(prepared) if counted else 0.0), len(counted)


def _bound(prepared: Prepared, catalog: Catalog, cache: WorkerCache, *, plan: bool, emit: Listener) -> AuditState:
    """The bounds of an audit, with ``plan`` its planned trials, and its recording if it has one."""
    began, spec = time.monotonic(), prepared.spec
    try:
        context = cache.context(spec, catalog, prepared.facts, device="cpu", emit=emit)
        bounds, comparisons = prepared.compare(list(prepared.audit.bound(spec, context)))
        planned = prepared.plan() if plan else NO_TRIALS
        recording = None if prepared.recording is None else prepared.recording.read(spec, prepared.facts)
    except DataError as error:
        raise SpecError([data_unreadable(error, spec)]) from error
    except ZeroDivisionError:
        raise
    except ArithmeticError as error:
        raise SpecError([out_of_range(error, spec)]) from error
    seconds = time.monotonic() - began
    return AuditState(
        prepared=prepared,
        bounds=bounds,
        comparisons=comparisons,
        plan=planned,
        seconds=seconds,
        recording=recording,
    )


def conclude_all(
    trained: Sequence[AuditState], store: Store, emit: Listener, failures: Failures
) -> tuple[list[AuditState], list[Concluded]]:
    """All audits without a failure, and their conclusions; an error that stored trials may cause names the store."""
    from dpspec.training import limited

    concluded: list[tuple[AuditState, Concluded]] = []
    with limited(1):
        for state in trained:
            spec = state.prepared.spec
            if not failures.include(spec):
                emit(StageStarted(audit=spec.name, stage="conclude"))
                try:
                    concluded.append((state, _conclude(state, store, emit)))
                except SpecError as error:
                    failures.add(spec, error)
    remaining = [pair for pair in concluded if not failures.include(pair[0].prepared.spec)]
    return [state for state, _ in remaining], [conclusions for _, conclusions in remaining]


def _conclude(state: AuditState, store: Store, emit: Listener) -> Concluded:
    name = state.prepared.spec.name
    try:
        return conclude(state, [stored.trial for stored in state.trials])
    except DataError as error:
        raise SpecError([data_unreadable(error, state.prepared.spec)]) from error
    except Exception as error:
        if not state.from_store:
            raise
        advice = f"{state.from_store} of its trials are from {store.location}: use another --store, or remove it"
        if isinstance(error, DpspecError | MemoryError):
            emit(Noticed(audit=name, message=advice))
            raise
        raise UsageError(f"{name}: nothing follows from its trials ({describe(error)}); {advice}") from error


def assemble(
    trained: Sequence[AuditState], concluded: Sequence[Concluded], judged: Sequence[Judged], catalog: Catalog
) -> Result:
    audits: list[AuditResult] = []
    for state, concluded_audit, judged_audit in zip(trained, concluded, judged, strict=True):
        spec = concluded_audit.spec
        spans = {claim.id: spec.origin.get(("claims", i)) for i, claim in enumerate(spec.claims)}
        spans[""] = spec.origin.get(())
        positions = {
            name: {"file": s.file, "line": s.line, "column": s.column}
            for name, s in spans.items()
            if s is not None and s.file != OVERRIDES_FILE
        }
        audits.append(
            AuditResult(
                name=spec.name,
                source=source_file(spec.origin),
                digest=spec.digest,
                document=spec.document,
                cell=spec.cell,
                facts=state.prepared.facts,
                verdicts=judged_audit.verdicts,
                conformance=judged_audit.conformance,
                findings=judged_audit.findings,
                series=concluded_audit.series,
                checks=concluded_audit.checks,
                evidence=concluded_audit.evidence,
                trials=tuple(stored.record for stored in state.trials),
                planned_trials=state.plan.trials,
                power=state.plan.power,
                notes=(*state.plan.notes, *state.prepared.audit.notes(state.bounds)),
                seconds=round(state.seconds + concluded_audit.seconds, 3),
                places=FrozenMap(positions),
                stored_trials=state.from_store,
                promised=state.plan.checks,
                recording=concluded_audit.recording,
            )
        )
    return Result(
        audits=tuple(audits),
        confidence=confidence_of([of_audit.spec for of_audit in concluded]),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(catalog),
        notes=_notes(audits, [bool(state.prepared.components) for state in trained]),
    )


def _notes(audits: Sequence[AuditResult], composed: Sequence[bool]) -> tuple[str, ...]:
    chosen = {
        (a.source, best_of(str(a.document["name"]))): a.name
        for a, of_cells in zip(audits, composed, strict=True)
        if of_cells
    }
    cells = [(a.source, str(a.document["name"])) for a in audits if a.cell]
    judged = [cell for cell in cells if cell in chosen]
    notes = []
    if len(cells) - len(judged) > 1:
        notes.append(
            f"Each of {len(cells) - len(judged)} cells of a matrix was audited alone. No claim covers the release of "
            "several models from the same data: their privacy losses compose."
        )
    for source, name in dict.fromkeys(judged):
        notes.append(
            f"Each of the {judged.count((source, name))} cells of a matrix was audited alone; "
            f"{chosen[source, name]!r} judges the privacy loss of publishing the best of them."
        )
    return tuple(notes)


def warnings_of(prepared: Sequence[Prepared]) -> Iterator[Noticed]:
    """The warnings of all audits. One that concerns several, such as cells of a matrix, is emitted once."""
    audits: dict[str, list[str]] = {}
    for audit in prepared:
        for warning in audit.diagnostics:
            audits.setdefault(f"warning[{warning.code}]: {warning.message}", []).append(audit.spec.name)
    for message, names in audits.items():
        suffix = f" (also {len(names) - 1} other audit{'s' * (len(names) > 2)})" if len(names) > 1 else ""
        yield Noticed(audit=names[0], message=message + suffix)
