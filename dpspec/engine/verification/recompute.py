"""Recomputation of one audit of a result, from its spec and the records of its trials.

Inputs that are not available are taken from the result and reported: the arrays of trials, which only the store holds;
a table of scores that trials read; the folder of a recorded run. The comparison includes the audit's values about its
spec: its name, its cell of a matrix, and the places of its claims.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from dpspec.contract import DataError, Finding, FrozenMap, MissingArrayError, Plan, Series, Spec, Trial, thaw
from dpspec.contract.audit import NO_TRIALS
from dpspec.contract.catalog import Catalog
from dpspec.engine.judging.judge_input import Concluded, PendingTests
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.initial_weights import from_file, path_of
from dpspec.engine.preparing.prepare import Prepared, out_of_range, prepare, require_auditable
from dpspec.engine.redact import INTERNAL
from dpspec.engine.results.recording import ExecutedRun
from dpspec.engine.results.result import AuditResult, TrialRecord
from dpspec.engine.running.conclude import Bounded, Trained, conclude, stopped_after
from dpspec.engine.storage.origins import OtherOrigins, trials_from_other_revisions
from dpspec.engine.storage.trial_store import Store, StoredTrial
from dpspec.engine.verification.differences import Mismatch, compare, short
from dpspec.engine.verification.verify_redacted import merged
from dpspec.errors import DpspecError, SpecError
from dpspec.json_records import write
from dpspec.language.composing.matrix import Cell, place_cell, suffixes
from dpspec.language.load import from_document
from dpspec.language.reading.tree import from_plain, plain


def absent_file(prepared: Prepared) -> DataError | None:
    """Why a file that trials read in addition to the data is not available; None if it is, or without one."""
    if prepared.spec.audit is None:
        return None
    try:
        prepared.audit.trial_inputs(prepared.spec)
    except DataError as error:
        return error
    return None


def without_its_file(prepared: Prepared) -> Prepared:
    """The same without the error about the missing file."""
    kept = tuple(d for d in prepared.diagnostics if d.code != "data-unreadable")
    return dataclasses.replace(prepared, diagnostics=kept)


def recorded_plan(audit: AuditResult) -> Plan:
    """The plan of a result that depends on a missing file."""
    return Plan(
        chunks=(tuple(range(audit.planned_trials)),),
        seconds=0.0,
        memory_bytes=0,
        power=audit.power,
        notes=audit.notes,
        checks=audit.promised,
    )


def file_not_at_hand(audit: AuditResult, error: DataError) -> Mismatch:
    """The report that trials are taken as recorded because their file is missing."""
    return Mismatch(
        audit=audit.name,
        what="the file that its trials read",
        recorded=counted_trials(len(audit.trials)),
        recomputed=f"taken as recorded, without the file: {error}",
        differs=False,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )


def recording_of(audit: AuditResult, prepared: Prepared) -> tuple[ExecutedRun | None, list[Mismatch]]:
    """Evaluate the recorded run of a spec again, or use the result's values if its folder is missing or invalid."""
    reader = prepared.recording
    if reader is None:
        return None, []
    setup = audit.recording.setup if audit.recording is not None else audit.notes
    recorded = "; ".join(setup[-1:]) or "a recorded run"
    try:
        return reader.read(prepared.spec, prepared.facts), []
    except SpecError as error:  # there is no such folder
        differs, found = False, f"taken as recorded: {error}"
    except DpspecError as error:
        differs, found = True, str(error)
    gone = Mismatch(
        audit=audit.name,
        what="recording",
        recorded=recorded,
        recomputed=found,
        differs=differs,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )
    return reader.from_result(audit), [gone]


def not_vouched(audit: AuditResult, stored: Sequence[StoredTrial | None]) -> Iterator[Mismatch]:
    """Yield a report of the trials that the store lacks."""
    if missing := [index for index, trial in enumerate(stored) if trial is None]:
        yield Mismatch(
            audit=audit.name,
            what="trials",
            recorded=counted_trials(len(missing)),
            recomputed=f"taken as recorded: the store has no seal of {'it' if len(missing) == 1 else 'them'}",
            differs=False,
            claims=tuple(verdict.claim for verdict in audit.verdicts),
        )


def counted_trials(number: int) -> str:
    return f"{number} trial{'' if number == 1 else 's'}"


#: Suffix of a cell's name if its values do not distinguish it.
_NUMBERED = re.compile(r"\[#[1-9][0-9]*\]")


def of_spec(audit: AuditResult, spec: Spec, catalog: Catalog) -> Iterator[Mismatch]:
    yield from compare(audit.name, "digest", audit.digest, spec.digest)
    yield from compare(audit.name, "document", write(audit.document), write(spec.document))
    cell = Cell({place: from_plain(thaw(value)) for place, value in audit.cell.items()})
    if not _is_cell(cell, spec, catalog):
        recorded = short(thaw(audit.cell))
        yield Mismatch(audit=audit.name, what="cell", recorded=recorded, recomputed="the document says otherwise")
    if not _is_named(audit, cell):
        says = f"the document is named {short(write(audit.document.get('name')))}"
        yield Mismatch(audit=audit.name, what="name", recorded=short(audit.name), recomputed=says)
    strange = [key for key in audit.places if key and key not in {claim.id for claim in spec.claims}]
    for key in strange:
        yield Mismatch(audit=audit.name, what=f"places.{key}", recorded="a place", recomputed="no such claim")


def same_names(audits: Sequence[AuditResult]) -> Iterator[Mismatch]:
    names = [audit.name for audit in audits]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        number = f"{names.count(name)} audits"
        yield Mismatch(audit=name, what="name", recorded=number, recomputed="an invocation has one audit of a name")


def _is_cell(cell: Cell, spec: Spec, catalog: Catalog) -> bool:
    placed, problems = place_cell(from_plain(spec.to_json()), cell)
    try:
        return not problems and from_document(plain(placed), catalog, spec.directory).digest == spec.digest
    except SpecError:
        return False


def _is_named(audit: AuditResult, cell: Cell) -> bool:
    name = str(audit.document.get("name", ""))
    if not audit.cell:
        return audit.name == name
    added = audit.name.removeprefix(name)
    # Among cells with other axes, labels say which axis they are of.
    other = Cell({"another": from_plain(None)})
    known = (suffixes([cell])[0], suffixes([cell, other])[0])
    return audit.name.startswith(name) and (added in known or _NUMBERED.fullmatch(added) is not None)


#: Keys of a trial's record about its time.
_WHEN = ("made", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
    """An audit of a result and its recomputed stages.

    ``taken`` names, per value taken from the result, its part; None if nothing is missing.
    """

    recorded: AuditResult
    trained: Trained
    concluded: Concluded
    taken: tuple[str, ...] | None


def recompute(
    audit: AuditResult,
    catalog: Catalog,
    directory: str | None,
    store: Store | None,
    others: PendingTests,
    *,
    vouched: bool = False,
) -> tuple[Recomputed, list[Mismatch]]:
    """Recompute an audit; ``vouched``: whether the store must contain all of its trials."""
    folder = str(Path(audit.source).parent) if directory is None else directory
    spec = from_document(audit.document, catalog, folder, name=audit.name, cell=audit.cell)
    mismatches = list(of_spec(audit, spec, catalog))
    prepared = prepare(spec, catalog, recorded=audit.facts)
    absent = absent_file(prepared)
    prepared = require_auditable(prepared if absent is None else without_its_file(prepared))
    mismatches.extend(compare(audit.name, "facts", write(audit.facts), write(prepared.facts)))
    mismatches.extend(_unseen(audit, prepared))
    inputs = prepared.audit.trial_inputs(spec) if absent is None else FrozenMap()
    # Without planned trials, the result has bounds only.
    asked = bool(audit.planned_trials or audit.trials)
    plan = NO_TRIALS if not asked else prepared.plan() if absent is None else recorded_plan(audit)
    chunk_of = {index: chunk for chunk in plan.chunks for index in chunk}
    mismatches.extend(_uncounted([record.index for record in audit.trials], chunk_of, audit.name))
    if absent is None:
        origins = trials_from_other_revisions(audit.trials, chunk_of, inputs, prepared.facts, prepared.makers)
        mismatches.extend(_made_otherwise(audit.name, origins, prepared.revisions))
    else:
        mismatches.append(file_not_at_hand(audit, absent))
    recording, differences = recording_of(audit, prepared)
    mismatches.extend(differences)
    bounds = _bounds(prepared, catalog, inputs)
    bounded = Bounded(prepared=prepared, bounds=bounds, plan=plan, recording=recording)
    stored = [None if store is None else store.get(record.key) for record in audit.trials]
    pairs = list(zip(audit.trials, stored, strict=True))
    for record, stored_trial in pairs:
        mismatches.extend(_altered(audit.name, record, stored_trial))
    if vouched:
        mismatches.extend(not_vouched(audit, stored))
    trials = [_trial(record, stored_trial) for record, stored_trial in pairs]
    at_hand = all(stored_trial is not None or INTERNAL in record.evidence for record, stored_trial in pairs)
    taken: tuple[str, ...] | None = None
    if differences and audit.left_out:  # checks of a recording that is gone may be told without their digits
        taken = ("checks",) * len(audit.checks)
    try:
        concluded, stopped = _concluded(bounded, trials, others)
    except MissingArrayError as error:
        concluded, stopped, taken = _as_recorded(audit, conclude(bounded, ())), audit.settled_after, ()
        mismatches.append(
            _taken_as_recorded(audit, "what follows from the trials", f"{len(trials)} trials", f": {error}")
        )
    else:
        if audit.left_out and not at_hand:
            concluded, taken = merged(audit, concluded)
    trained = Trained(
        bounded=bounded,
        trials=tuple(StoredTrial(trial=t, record=record) for t, record in zip(trials, audit.trials, strict=True)),
        stopped_after=stopped,
        seconds=audit.seconds,
    )
    concluded = dataclasses.replace(concluded, needed=trained.needed_trials)
    return Recomputed(recorded=audit, trained=trained, concluded=concluded, taken=taken), mismatches


def _bounds(prepared: Prepared, catalog: Catalog, inputs: FrozenMap) -> list[Finding | Series]:
    context = RunContext(prepared, catalog, inputs, device="cpu")
    try:
        return list(prepared.audit.bound(prepared.spec, context))
    except ArithmeticError as error:
        raise SpecError([out_of_range(error, prepared.spec)]) from error
    finally:
        context.close()


def _concluded(bounded: Bounded, trials: Sequence[Trial], others: PendingTests) -> tuple[Concluded, int | None]:
    if not trials:
        return conclude(bounded, trials), None
    try:
        stopped = stopped_after(bounded, {trial.index: trial for trial in trials}, others)
        return conclude(bounded, trials), stopped
    except (MissingArrayError, MemoryError):
        raise
    except Exception as error:  # a plugin reads what its trials wrote, and here it may read anything
        raise ValueError(f"no conclusions follow from its trials: {str(error) or type(error).__name__}") from error


def _as_recorded(audit: AuditResult, bounds: Concluded) -> Concluded:
    """The recomputed bounds, with the result's own conclusions from the trials.

    A result lists what follows from bounds first; a redacted one lacks data-dependent bounds.
    """
    every: list[Finding | Series] = [*bounds.findings, *bounds.series]
    listed = [bound for bound in every if not audit.left_out or bound.privacy == "public"]
    findings = sum(isinstance(bound, Finding) for bound in listed)
    return dataclasses.replace(
        bounds,
        findings=(*bounds.findings, *audit.findings[findings:]),
        series=(*bounds.series, *audit.series[len(listed) - findings :]),
        checks=audit.checks,
        evidence=audit.evidence,
        trials=len(audit.trials),
    )


def _made_otherwise(audit: str, origins: OtherOrigins, installed: FrozenMap) -> Iterator[Mismatch]:
    for revisions, indices in origins.by_revisions.items():
        for part, kind, revision in revisions:
            yield Mismatch(
                audit=audit,
                what=f"{counted_trials(len(indices))}, {part} {kind!r}",
                recorded=f"made by its revision {revision}",
                recomputed=f"its revision {installed[part][1]} is installed, which trains or measures in another way",
            )
    if indices := origins.unexplained:
        yield Mismatch(
            audit=audit,
            what=f"trials[{indices[0]}].key" + (f" and of {len(indices) - 1} more" if len(indices) > 1 else ""),
            recorded="other inputs, data or revisions of plugins",
            recomputed=f"no {'trial' if len(indices) == 1 else 'trials'} of this spec",
        )
    for (part, then, now), indices in origins.by_code.items():  # whether that makes the same trials, nobody knows
        yield Mismatch(
            audit=audit,
            what=f"{counted_trials(len(indices))}, {part}",
            recorded=f"made by {then}",
            recomputed=f"taken as recorded: installed is {now}",
            differs=False,
        )


def _unseen(audit: AuditResult, prepared: Prepared) -> Iterator[Mismatch]:
    try:
        prepared.source.facts()
    except DataError as error:
        yield _taken_as_recorded(audit, "facts", f"{audit.facts.records} records", f", without the data: {error}")
    if prepared.facts.initial_weights is not None and not from_file(prepared.model):
        recorded = f"digest {prepared.facts.initial_weights[:12]}"
        yield _taken_as_recorded(audit, "initial weights", recorded, f", without the file {path_of(prepared.spec)}")


def _taken_as_recorded(audit: AuditResult, what: str, recorded: str, why: str) -> Mismatch:
    return Mismatch(
        audit=audit.name,
        what=what,
        recorded=recorded,
        recomputed=f"taken as recorded{why}",
        differs=False,
        claims=tuple(verdict.claim for verdict in audit.verdicts),
    )


def _uncounted(indices: Sequence[int], planned: Container[int], audit: str) -> Iterator[Mismatch]:
    if sorted(set(indices)) != list(indices) or not all(index in planned for index in indices):
        yield Mismatch(
            audit=audit,
            what="trials",
            recorded=short(", ".join(map(str, indices))),
            recomputed="every trial must be planned and occur once, in order",
        )


def _trial(record: TrialRecord, stored: StoredTrial | None) -> Trial:
    if stored is None:
        return Trial(index=record.index, evidence=record.evidence)
    more = {key: stored.record.evidence[key] for key in (INTERNAL,) if key in stored.record.evidence}
    return Trial(index=record.index, evidence=FrozenMap({**more, **record.evidence}), arrays=stored.trial.arrays)


def _altered(audit: str, record: TrialRecord, stored: StoredTrial | None) -> Iterator[Mismatch]:
    if stored is None:
        return
    ours = {key: value for key, value in stored.record.evidence.items() if key in record.evidence or key != INTERNAL}
    where = f"trials[{record.index}]"
    yield from compare(audit, f"{where}.evidence", write(record.evidence), write(ours))
    yield from compare(audit, f"{where}.arrays", write(record.arrays), write(stored.record.arrays))
    # A trial that was repeated with its chunk differs in its time only.
    of_result, of_store = ({k: v for k, v in r.recorded.items() if k not in _WHEN} for r in (record, stored.record))
    yield from compare(audit, f"{where}.recorded", write(of_result), write(of_store))
