"""Recompute what a result says, from the spec and the trials' evidence that it carries, and compare.

Nothing is trained. Bounds are computed anew, conclusions drawn anew from the embedded evidence, and all claims
judged anew; a number that was edited by hand no longer follows and is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import Catalog, Json, Trial
from dpspec.engine.codec import encode
from dpspec.engine.context import RunContext
from dpspec.engine.keys import trial_key
from dpspec.engine.prepare import prepare
from dpspec.engine.redact import LEFT_OUT_REASON, redact_audit
from dpspec.engine.result import AuditResult, Result, TrialRecord
from dpspec.engine.runner import Audited, assemble, conclude
from dpspec.engine.store import Store
from dpspec.errors import SpecError
from dpspec.spec.load import from_document

if TYPE_CHECKING:
    import numpy as np

#: Numbers that differ by less than this, relatively, are equal: other machines round differently.
TOLERANCE = 1e-9


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
    store: where arrays that conclusions need are looked up; without it such conclusions are named as not recomputed.

    Raises ``PluginError`` when a kind that the result names is not installed.
    """
    mismatches: list[Mismatch] = []
    audited: list[Audited] = []
    for audit in result.audits:
        try:
            again, found = _recompute(audit, catalog, directory, store)
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
            new = redact_audit(new)
            mismatches.extend(_left_out(old))
            gone = [v.claim for v in old.verdicts if v.reason == LEFT_OUT_REASON]
            old, new = _without(old, gone), _without(new, gone)
        for what in ("findings", "series", "checks", "evidence", "verdicts", "conformance"):
            mismatches.extend(_compare(old.name, what, encode(getattr(old, what)), encode(getattr(new, what))))
    mismatches.extend(_compare("", "confidence", result.confidence, recomputed.confidence))
    return tuple(mismatches)


def _recompute(
    audit: AuditResult, catalog: Catalog, directory: str | None, store: Store | None
) -> tuple[Audited, list[Mismatch]]:
    folder = str(Path(audit.source).parent) if directory is None else directory
    spec = from_document(audit.document, catalog, folder, name=audit.name, cell=audit.cell)
    mismatches = list(_compare(audit.name, "digest", audit.digest, spec.digest))
    prepared = prepare(spec, catalog, recorded=audit.facts)
    mismatches.extend(_compare(audit.name, "facts", encode(audit.facts), encode(prepared.facts)))
    inputs = prepared.audit.trial_inputs(spec)
    plan = prepared.plan()
    chunk_of = {index: chunk for chunk in plan.chunks for index in chunk}
    for record in audit.trials:
        chunk = chunk_of.get(record.index, ())
        key = trial_key(inputs, prepared.facts, prepared.revisions, chunk, record.index)
        mismatches.extend(_compare(audit.name, f"trials[{record.index}].key", record.key, key))
    context = RunContext(prepared, catalog, inputs, device="cpu")
    try:
        bounds = list(prepared.audit.bound(spec, context))
    finally:
        context.close()
    trials = [_trial(record, store) for record in audit.trials]
    outcomes = conclude(prepared, bounds, trials)
    again = Audited(prepared=prepared, plan=plan, outcomes=outcomes, trials=audit.trials, seconds=audit.seconds)
    return again, mismatches


def _left_out(audit: AuditResult) -> Iterator[Mismatch]:
    for verdict in audit.verdicts:
        if verdict.reason == LEFT_OUT_REASON:
            yield Mismatch(
                audit=audit.name,
                what=f"the verdict of {verdict.claim}",
                recorded=verdict.verdict,
                recomputed="rests on values that were left out of this result",
                differs=False,
            )


def _without(audit: AuditResult, claims: Sequence[str]) -> AuditResult:
    return dataclasses.replace(audit, verdicts=tuple(v for v in audit.verdicts if v.claim not in claims))


def _trial(record: TrialRecord, store: Store | None) -> Trial:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if record.arrays and store is not None:
        stored = store.get(record.key)
        if stored is not None:
            arrays = dict(stored.trial.arrays)
    return Trial(index=record.index, evidence=record.evidence, arrays=arrays)


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
