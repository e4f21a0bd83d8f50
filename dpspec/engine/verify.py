"""Recompute what a result says, from the spec and the trials' evidence that it carries, and compare.

Nothing is trained. Bounds are computed anew, conclusions drawn anew from the embedded evidence, and all claims
judged anew; a number that was edited by hand no longer follows and is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from dpspec.contract import (
    Assumption,
    Catalog,
    Check,
    DataError,
    FrozenMap,
    Json,
    MissingArrayError,
    Plan,
    Spec,
    Trial,
    thaw,
)
from dpspec.engine.codec import encode
from dpspec.engine.context import RunContext
from dpspec.engine.joined import apart, join, split
from dpspec.engine.judge import as_expected
from dpspec.engine.outcomes import conclude
from dpspec.engine.prepare import Prepared, prepare
from dpspec.engine.recorded import as_recorded
from dpspec.engine.redact import INTERNAL, LEFT_OUT_REASON, redact_audit
from dpspec.engine.result import AuditResult, Result, TrialRecord
from dpspec.engine.revisions import Revisions, strangers
from dpspec.engine.runner import Audited, assemble
from dpspec.engine.settled import Rule, settled_after
from dpspec.engine.store import Store, StoredTrial
from dpspec.errors import SpecError
from dpspec.spec.load import from_document
from dpspec.spec.matrix import Cell, place_cell
from dpspec.spec.tree import from_plain, plain

#: Numbers that differ by less than this, relatively, are equal: other machines round differently.
TOLERANCE = 1e-9

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

#: What a verdict says of its claim, whatever it rests on.
_OF_THE_CLAIM = ("kind", "text", "expect", "expected")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One value of a result that does not follow from the rest.

    ``differs`` is False for a value that cannot be recomputed because what it rests on was left out of the result.
    """

    audit: str
    what: str
    recorded: str
    recomputed: str
    differs: bool = True


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
    rule = Rule(confidence=result.confidence, audits=len(result.audits))
    for audit in result.audits:
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
            new = redact_audit(new, sum(len(audit.checks) for audit in recomputed.audits))
            mismatches.extend(_left_out(old, new))
            gone = [v.claim for v in old.verdicts if v.reason == LEFT_OUT_REASON]
            old, new = _without(old, gone), _without(new, gone)
            old, new, found = _without_checks(old, new)
            mismatches.extend(found)
        for what in _RECOMPUTED:
            mismatches.extend(_compare(old.name, what, encode(getattr(old, what)), encode(getattr(new, what))))
    for what in ("confidence", "notes"):
        mismatches.extend(_compare("", what, encode(getattr(result, what)), encode(getattr(recomputed, what))))
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
    yield from _compare("", "names", encode(names_now), encode(names_then))
    for what in ("confidence", "created", "environment", "notes"):
        yield from _compare("", what, encode(getattr(result, what)), encode(getattr(again, what)))


def _recompute(
    audit: AuditResult, catalog: Catalog, directory: str | None, store: Store | None, rule: Rule
) -> tuple[Audited, list[Mismatch]]:
    folder = str(Path(audit.source).parent) if directory is None else directory
    spec = from_document(audit.document, catalog, folder, name=audit.name, cell=audit.cell)
    mismatches = list(_compare(audit.name, "digest", audit.digest, spec.digest))
    mismatches.extend(_misplaced(audit, spec, catalog))
    prepared = prepare(spec, catalog, recorded=audit.facts)
    mismatches.extend(_compare(audit.name, "facts", encode(audit.facts), encode(prepared.facts)))
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
        outcomes = conclude(prepared, bounds, trials)
        stopped = settled_after(prepared, bounds, plan, {trial.index: trial for trial in trials}, rule)
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
        recorded = _short(thaw(audit.cell))
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
            recorded=_short(", ".join(map(str, indices))),
            recomputed="every trial must be one of those planned, and be there once",
        )


def _left_out(old: AuditResult, new: AuditResult) -> Iterator[Mismatch]:
    """What can still be said of verdicts that rest on values which were left out."""
    again = {verdict.claim: verdict for verdict in new.verdicts}
    for verdict in old.verdicts:
        if verdict.reason != LEFT_OUT_REASON:
            continue
        what, found = f"the verdict of {verdict.claim}", again.get(verdict.claim)
        if found is None:
            yield Mismatch(audit=old.name, what=what, recorded=verdict.verdict, recomputed="no such claim")
            continue
        found = dataclasses.replace(found, expected=as_expected(verdict.verdict, found.expect))
        for key in _OF_THE_CLAIM:
            yield from _compare(old.name, f"{what}: {key}", encode(getattr(verdict, key)), encode(getattr(found, key)))
        # No value that was left out can turn what an attack rejects: the tests of privacy are a family of their own.
        rejected = verdict.kind != "metric" and found.verdict in ("refuted", "contradicted")
        differs = rejected and verdict.verdict not in ("refuted", "contradicted")
        yield Mismatch(
            audit=old.name,
            what=what,
            recorded=verdict.verdict,
            recomputed=found.verdict if differs else "rests on values that were left out of this result",
            differs=differs,
        )


def _without(audit: AuditResult, claims: Sequence[str]) -> AuditResult:
    return dataclasses.replace(audit, verdicts=tuple(v for v in audit.verdicts if v.claim not in claims))


def _without_checks(old: AuditResult, new: AuditResult) -> tuple[AuditResult, AuditResult, list[Mismatch]]:
    """Both without the checks that rest on evidence which was left out, and what these had joined elsewhere."""
    there = {_key(check) for check in new.checks}
    missing = [check for check in old.checks if _key(check) not in there]
    if not missing:
        return old, new, []
    differs = new.conformance.status == "deviates" and old.conformance.status != "deviates"
    found = Mismatch(
        audit=old.name,
        what="conformance",
        recorded=old.conformance.status,
        recomputed="deviates" if differs else f"{len(missing)} checks rest on values that were left out of this result",
        differs=differs,
    )
    kept = tuple(check for check in old.checks if _key(check) in there)
    old = _plainly(dataclasses.replace(old, checks=kept))
    return old, _plainly(dataclasses.replace(new, conformance=old.conformance)), [found]


def _key(check: Check) -> tuple[str, str, str, str]:
    return (check.assumption, check.test, check.note, check.observed)


def _plainly(audit: AuditResult) -> AuditResult:
    """Without what checks say of assumptions."""

    def plainly(held: Sequence[Assumption]) -> tuple[Assumption, ...]:
        return tuple(Assumption(name=a.name, status="declared", text=a.text) for a in held)

    return dataclasses.replace(
        audit,
        findings=tuple(dataclasses.replace(f, assumptions=plainly(f.assumptions)) for f in audit.findings),
        evidence=tuple(dataclasses.replace(e, assumptions=plainly(e.assumptions)) for e in audit.evidence),
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
    yield from _compare(audit, f"{where}.evidence", encode(record.evidence), encode(ours))
    yield from _compare(audit, f"{where}.arrays", encode(record.arrays), encode(stored.record.arrays))


def _compare(audit: str, what: str, recorded: Json, recomputed: Json) -> Iterator[Mismatch]:
    """Walk two JSON values and yield a mismatch at every leaf where they differ."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in [*recorded, *(k for k in recomputed if k not in recorded)]:
            yield from _compare(audit, f"{what}.{key}", recorded.get(key), recomputed.get(key))
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for i, (old, new) in enumerate(zip(recorded, recomputed, strict=True)):
            yield from _compare(audit, f"{what}[{i}]", old, new)
    elif not _equal(recorded, recomputed):
        yield Mismatch(audit=audit, what=what, recorded=_short(recorded), recomputed=_short(recomputed))


def _equal(a: Json, b: Json) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return bool(a == b)
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0) or a == b


def _short(value: Json) -> str:
    text = f"a list of {len(value)}" if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
