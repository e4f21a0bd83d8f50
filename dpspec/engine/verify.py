"""Recompute what a result says, from the spec and the trials' evidence that it carries, and compare.

Nothing is trained. Bounds are computed anew, conclusions drawn anew from the embedded evidence, and all claims
judged anew; a number that was edited by hand no longer follows and is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from dpspec.contract import (
    Catalog,
    DataError,
    Finding,
    FrozenMap,
    MissingArrayError,
    Plan,
    Series,
    Spec,
    Trial,
    thaw,
)
from dpspec.engine.codec import encode
from dpspec.engine.context import RunContext
from dpspec.engine.joined import apart, join, split
from dpspec.engine.judge import Among
from dpspec.engine.mismatch import Mismatch, compare, short
from dpspec.engine.outcomes import Outcomes, conclude
from dpspec.engine.prepare import Prepared, prepare
from dpspec.engine.recorded import as_recorded
from dpspec.engine.redact import INTERNAL
from dpspec.engine.result import AuditResult, Result, TrialRecord
from dpspec.engine.revisions import Revisions, strangers
from dpspec.engine.runner import Audited, assemble
from dpspec.engine.settled import Share, among, settled_after
from dpspec.engine.store import Store, StoredTrial
from dpspec.engine.verify_redacted import comparable
from dpspec.errors import SpecError
from dpspec.spec.load import from_document
from dpspec.spec.matrix import Cell, place_cell
from dpspec.spec.tree import from_plain, plain

#: The parts of an audit that follow from its spec and its trials.
_RECOMPUTED = (
    "findings",
    "series",
    "checks",
    "evidence",
    "verdicts",
    "conformance",
    "planned_trials",
    "settled_after",
    "power",
    "notes",
)


def verify(
    result: Result, catalog: Catalog, *, directory: str | None = None, store: Store | None = None
) -> tuple[Mismatch, ...]:
    """Every value that does not follow; empty when all do.

    directory: what relative data files of the specs are relative to (bounds may read the data); by default the
        folder of the file that each spec came from.
    store: where arrays that conclusions need are looked up, and evidence is compared with what was stored.

    Raises ``PluginError`` when a kind that the result names is not installed.
    """
    if result.parts:
        return tuple(_of_parts(result, catalog, directory, store))
    mismatches: list[Mismatch] = []
    audited: list[Audited] = []
    shares = [Share.of((v.kind for v in a.verdicts), a.planned_trials, a.power) for a in result.audits]
    for audit, rule in zip(result.audits, among(shares, result.confidence), strict=True):
        try:
            again, found = _recompute(audit, catalog, directory, store, rule)
        except (SpecError, OSError, ValueError, KeyError) as error:
            text = str(error) or type(error).__name__
            mismatches.append(Mismatch(audit=audit.name, what="audit", recorded="a result", recomputed=text))
            continue
        mismatches.extend(found)
        audited.append(again)
    if len(audited) < len(result.audits):
        return tuple(mismatches)
    recomputed = assemble(audited, catalog)
    for old, new in zip(result.audits, recomputed.audits, strict=True):
        if old.left_out:
            old, new, found = comparable(old, new, sum(len(audit.checks) for audit in recomputed.audits))
            mismatches.extend(found)
        for what in _RECOMPUTED:
            mismatches.extend(compare(old.name, what, encode(getattr(old, what)), encode(getattr(new, what))))
    for what in ("confidence", "notes"):
        mismatches.extend(compare("", what, encode(getattr(result, what)), encode(getattr(recomputed, what))))
    return tuple(mismatches)


def _of_parts(result: Result, catalog: Catalog, directory: str | None, store: Store | None) -> Iterator[Mismatch]:
    """Every part by itself, as it was judged, and that the whole is no more than these."""
    parts = split(result)
    for source, part, named in zip((one.source for one in result.parts), parts, apart(result), strict=True):
        names = {old.name: new.name for old, new in zip(part.audits, named.audits, strict=True)}
        for found in verify(part, catalog, directory=directory, store=store):
            what = found.what if found.audit else f"{source}: {found.what}"
            yield dataclasses.replace(found, audit=names.get(found.audit, found.audit), what=what)
    again = join([(one.source, part) for one, part in zip(result.parts, parts, strict=True)])
    names_now, names_then = ([audit.name for audit in one.audits] for one in (result, again))
    yield from compare("", "names", encode(names_now), encode(names_then))
    for what in ("confidence", "created", "environment", "notes"):
        yield from compare("", what, encode(getattr(result, what)), encode(getattr(again, what)))


def _recompute(
    audit: AuditResult, catalog: Catalog, directory: str | None, store: Store | None, rule: Among
) -> tuple[Audited, list[Mismatch]]:
    folder = str(Path(audit.source).parent) if directory is None else directory
    spec = from_document(audit.document, catalog, folder, name=audit.name, cell=audit.cell)
    mismatches = list(compare(audit.name, "digest", audit.digest, spec.digest))
    mismatches.extend(_misplaced(audit, spec, catalog))
    prepared = prepare(spec, catalog, recorded=audit.facts)
    mismatches.extend(compare(audit.name, "facts", encode(audit.facts), encode(prepared.facts)))
    mismatches.extend(_unseen(audit, prepared))
    inputs = prepared.audit.trial_inputs(spec)
    # Bounds alone were asked for where no trial was planned.
    plan = prepared.plan() if audit.planned_trials or audit.trials else Plan(chunks=(), seconds=0.0, memory_bytes=0)
    chunk_of = {index: chunk for chunk in plan.chunks for index in chunk}
    mismatches.extend(_uncounted([record.index for record in audit.trials], chunk_of, audit.name))
    strange = strangers(audit.trials, chunk_of, inputs, prepared.facts, prepared.revisions)
    for others, indices in strange.items():
        mismatches.extend(_made_otherwise(audit.name, others, indices, prepared.revisions))
    context = RunContext(prepared, catalog, inputs, device="cpu")
    try:
        bounds = list(prepared.audit.bound(spec, context))
    finally:
        context.close()
    held = [None if store is None else store.get(record.key) for record in audit.trials]
    for record, stored in zip(audit.trials, held, strict=True):
        mismatches.extend(_altered(audit.name, record, stored))
    trials = [_trial(record, stored) for record, stored in zip(audit.trials, held, strict=True)]
    try:
        outcomes, stopped = _concluded(prepared, bounds, plan, trials, rule)
    except MissingArrayError as error:
        outcomes, stopped = as_recorded(audit, bounds), audit.settled_after
        mismatches.append(
            Mismatch(
                audit=audit.name,
                what="what follows from the trials",
                recorded=f"{len(trials)} trials",
                recomputed=f"taken as recorded: {error}",
                differs=False,
            )
        )
    again = Audited(
        prepared=prepared,
        plan=plan,
        outcomes=outcomes,
        trials=audit.trials,
        seconds=audit.seconds,
        settled_after=stopped,
    )
    return again, mismatches


def _concluded(
    prepared: Prepared, bounds: Sequence[Finding | Series], plan: Plan, trials: Sequence[Trial], rule: Among
) -> tuple[Outcomes, int | None]:
    """What follows from the trials, and when they were to stop. Raises ``ValueError`` where nothing follows."""
    if not trials:
        return conclude(prepared, bounds, trials), None
    try:
        stopped = settled_after(prepared, bounds, plan, {trial.index: trial for trial in trials}, rule)
        return conclude(prepared, bounds, trials), stopped
    except (MissingArrayError, MemoryError):
        raise
    except Exception as error:  # a plugin reads what its trials wrote, and here it may read anything
        raise ValueError(f"no conclusions follow from its trials: {str(error) or type(error).__name__}") from error


def _made_otherwise(audit: str, others: Revisions, indices: Sequence[int], installed: FrozenMap) -> Iterator[Mismatch]:
    """A line for every provider whose revision has changed since the trials were made, or one for whatever else has."""
    number = f"{len(indices)} trial{'' if len(indices) == 1 else 's'}"
    for part, kind, revision in others:
        yield Mismatch(
            audit=audit,
            what=f"{number}, {part} {kind!r}",
            recorded=f"made by its revision {revision}",
            recomputed=f"its revision {installed[part][1]} is installed, which trains or measures in another way",
        )
    if not others:
        yield Mismatch(
            audit=audit,
            what=f"trials[{indices[0]}].key" + (f" and of {len(indices) - 1} more" if len(indices) > 1 else ""),
            recorded="other inputs, data or revisions of plugins",
            recomputed=f"no {'trial' if len(indices) == 1 else 'trials'} of this spec",
        )


def _misplaced(audit: AuditResult, spec: Spec, catalog: Catalog) -> Iterator[Mismatch]:
    """A cell of a matrix must say what its document says."""
    cell = Cell({place: from_plain(thaw(value)) for place, value in audit.cell.items()})
    placed, problems = place_cell(from_plain(spec.to_json()), cell)
    try:
        same = not problems and from_document(plain(placed), catalog, spec.directory).digest == spec.digest
    except SpecError:
        same = False
    if not same:
        recorded = short(thaw(audit.cell))
        yield Mismatch(audit=audit.name, what="cell", recorded=recorded, recomputed="the document says otherwise")


def _unseen(audit: AuditResult, prepared: Prepared) -> Iterator[Mismatch]:
    """Facts of data that is not at hand are taken from the result as they stand."""
    try:
        prepared.source.facts()
    except DataError as error:
        yield Mismatch(
            audit=audit.name,
            what="facts",
            recorded=f"{audit.facts.records} records",
            recomputed=f"taken as recorded, without the data: {error}",
            differs=False,
        )


def _uncounted(indices: Sequence[int], planned: Container[int], audit: str) -> Iterator[Mismatch]:
    """Every trial must be one of those planned, and be there once."""
    if len(set(indices)) < len(indices) or not all(index in planned for index in indices):
        yield Mismatch(
            audit=audit,
            what="trials",
            recorded=short(", ".join(map(str, indices))),
            recomputed="every trial must be one of those planned, and be there once",
        )


def _trial(record: TrialRecord, stored: StoredTrial | None) -> Trial:
    arrays = {} if stored is None else stored.trial.arrays
    return Trial(index=record.index, evidence=record.evidence, arrays=arrays)


def _altered(audit: str, record: TrialRecord, stored: StoredTrial | None) -> Iterator[Mismatch]:
    """Where the trial is at hand, the result's evidence must be what was stored, but for what was left out."""
    if stored is None:
        return
    ours = {key: value for key, value in stored.record.evidence.items() if key in record.evidence or key != INTERNAL}
    where = f"trials[{record.index}]"
    yield from compare(audit, f"{where}.evidence", encode(record.evidence), encode(ours))
    yield from compare(audit, f"{where}.arrays", encode(record.arrays), encode(stored.record.arrays))
