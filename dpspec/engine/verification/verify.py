"""Verification of a result: recompute it from its spec and its trials' evidence, and compare.

It trains nothing. Bounds, conclusions and verdicts are recomputed; a value that was edited no longer follows and is
reported. Values that cannot be recomputed because an input is missing are reported with the affected claims.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from dpspec.contract import DataError
from dpspec.contract.catalog import Catalog
from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import pending_tests
from dpspec.engine.results.joined import apart, join, split
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import assemble
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verification.differences import VERDICT, Mismatch, absent_packages, compare
from dpspec.engine.verification.recompute import Recomputed, recompute
from dpspec.engine.verification.verify_redacted import comparable
from dpspec.errors import PluginError, SpecError
from dpspec.json_records import write

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
    "promised",
    "power",
    "notes",
    "left_out",
    "recording",
)


def verify(
    result: Result, catalog: Catalog, *, directory: str | None = None, store: Store | None = None, vouched: bool = False
) -> tuple[Mismatch, ...]:
    """All values that do not follow, and all that could not be recomputed.

    Values that follow from nothing are not verified (``dpspec.engine.verification.differences``).

    Args:
        result: The result.
        catalog: The installed providers.
        directory: The base folder of the specs' data files; by default the folder of each spec's file.
        store: Provides arrays, and evidence to compare with.
        vouched: Whether to report trials that the store lacks.

    Raises:
        PluginError: A kind of the result is not installed.
    """
    if result.parts:
        return tuple(_of_parts(result, catalog, directory, store, vouched=vouched))
    names = Counter(audit.name for audit in result.audits)
    mismatches = [
        Mismatch(name, "name", f"{n} audits", "an invocation has one audit of a name")
        for name, n in names.items()
        if n > 1
    ]
    recomputed_audits: list[Recomputed] = []
    planned = [([v.kind for v in a.verdicts], a.planned_trials, a.power) for a in result.audits]
    for audit, others in zip(result.audits, pending_tests(planned, result.confidence), strict=True):
        try:
            again, differences = recompute(audit, catalog, directory, store, others, vouched=vouched)
        except PluginError as error:
            packages = ", ".join(absent_packages(result, catalog))
            text = f"{error} (made with {packages}, not installed here)" if packages else str(error)
            raise PluginError(text, error.diagnostics) from None
        except (SpecError, DataError, OSError, ValueError, KeyError) as error:
            text = str(error) or type(error).__name__
            mismatches.append(Mismatch(audit.name, "audit", "a result", text))
            continue
        mismatches.extend(differences)
        recomputed_audits.append(again)
    if len(recomputed_audits) < len(result.audits):
        mismatches.extend(
            Mismatch(
                again.recorded.name,
                "its verdicts",
                ", ".join(dict.fromkeys(v.verdict for v in again.recorded.verdicts)) or "none",
                "they share a family with an audit that cannot be recomputed",
                differs=False,
                claims=tuple(v.claim for v in again.recorded.verdicts),
            )
            for again in recomputed_audits
        )
        return tuple(mismatches)
    concluded = [again.concluded for again in recomputed_audits]
    try:
        judged = judge(concluded)
    except (TypeError, ValueError) as error:  # what was taken as recorded may be what no audit yields
        none = Mismatch("", "verdicts", "verdicts", f"none can be given: {error}")
        return (*mismatches, none)
    recomputed = assemble([again.trained for again in recomputed_audits], concluded, judged, catalog)
    family = sum(len(audit.checks) for audit in recomputed.audits)
    for again, new in zip(recomputed_audits, recomputed.audits, strict=True):
        old = again.recorded
        if old.left_out:
            old, new, differences = comparable(old, new, family, again.taken)
            mismatches.extend(differences)
        if new.promised and not old.promised:
            # Results of version 0.1.0 lack their plans' promises.
            told = f"taken from the plan, which promises {len(new.promised)}"
            without = Mismatch(new.name, "promised", "no checks", told, differs=False)
            mismatches.append(without)
            old = dataclasses.replace(old, promised=new.promised)
        for what in _RECOMPUTED:
            for mismatch in compare(old.name, what, write(getattr(old, what)), write(getattr(new, what))):
                if (verdict := VERDICT.fullmatch(mismatch.what)) is not None:
                    mismatch = dataclasses.replace(mismatch, because=new.verdicts[int(verdict[1])].reason)
                mismatches.append(mismatch)
    for what in ("confidence", "notes"):
        mismatches.extend(compare("", what, write(getattr(result, what)), write(getattr(recomputed, what))))
    return tuple(mismatches)


def _of_parts(
    result: Result, catalog: Catalog, directory: str | None, store: Store | None, *, vouched: bool
) -> Iterator[Mismatch]:
    parts = split(result)
    for source, part, named in zip((recorded.source for recorded in result.parts), parts, apart(result), strict=True):
        names = {old.name: new.name for old, new in zip(part.audits, named.audits, strict=True)}
        for mismatch in verify(part, catalog, directory=directory, store=store, vouched=vouched):
            what = mismatch.what if mismatch.audit else f"{source}: {mismatch.what}"
            yield dataclasses.replace(mismatch, audit=names.get(mismatch.audit, mismatch.audit), what=what)
    again = join([(recorded.source, part) for recorded, part in zip(result.parts, parts, strict=True)])
    names_now, names_then = ([audit.name for audit in whole.audits] for whole in (result, again))
    yield from compare("", "names", write(names_now), write(names_then))
    for what in ("confidence", "created", "environment", "notes"):
        yield from compare("", what, write(getattr(result, what)), write(getattr(again, what)))
