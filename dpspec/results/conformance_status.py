"""Conformance of the executed run with its declaration: one family of checks at level 1e-6."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpspec.contract import Assumption, Check, Finding
from dpspec.contract.findings import CONSTANTS
from dpspec.contract.results import Conformance, ConformanceName
from dpspec.decimals import given, upper
from dpspec.stats.conformance.measurement import LEVEL


def rejected(check: Check, family: int) -> bool:
    """Whether p <= 1e-6 / family (Bonferroni)."""
    if not 0.0 <= check.p_value <= 1.0:
        raise ValueError(f"the check of {check.assumption!r} has p-value {check.p_value}")
    return check.p_value * family <= LEVEL


def inspections(there: int, needed: int) -> int:
    """The inspections of a run that share a check's level: at most one per trial if it is incomplete, else one."""
    return needed if there < needed else 1


def family_sizes(audits: Sequence[tuple[int, int, int]]) -> list[int]:
    """The checks that share the level of each audit, of (checks, trials, needed): all, times its inspections."""
    checks = sum(check_count for check_count, _, _ in audits)
    return [checks * inspections(there, needed) for _, there, needed in audits]


def missing(promised: Sequence[Check], performed: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that a plan promised and the run did not make.

    A check keeps a promise with the same assumption, ``observed`` and note. Each keeps one promise. An abstaining check
    keeps its promise.
    """
    left = Counter((check.assumption, check.observed, check.note) for check in performed)
    absent = []
    for promise in promised:
        compared = (promise.assumption, promise.observed, promise.note)
        if left[compared]:
            left[compared] -= 1
        else:
            absent.append(promise)
    return tuple(absent)


def conformance_of(
    expect: str, checks: Sequence[Check], family: int, promised: Sequence[Check] = (), *, executed: bool = False
) -> Conformance:
    """``deviates`` if a check is rejected; ``checks-missing`` if a promised one is missing; ``not-run`` if all
    abstain.

    Steps on a neighbor are not part of the run. Unless all trials exist (``executed``), ``not-run`` satisfies ``no-
    deviation-found``.
    """
    bad = [check for check in checks if rejected(check, family)]
    absent = missing(promised, checks) if executed else ()
    own_checks = [check for check in checks if not _on_a_neighbour(check)]
    looked = any(check.detectable is not None or check.p_value < 1.0 for check in own_checks)
    status: ConformanceName = (
        "deviates" if bad else "checks-missing" if absent else "no-deviation-found" if looked else "not-run"
    )
    waiting = expect == "no-deviation-found" and status == "not-run" and not executed
    return Conformance(
        status=status, expect=expect, expected=status == expect or waiting, reason=reason(bad, checks, absent)
    )


def reason(bad: Sequence[Check], checks: Sequence[Check], absent: Sequence[Check] = ()) -> str:
    if bad:
        named = []
        for check in sorted(bad, key=lambda c: c.p_value)[:3]:
            text = f"{check.assumption} ({check.test}, p = {upper(check.p_value)}"
            if check.declared is not None and check.measured is not None:
                text += f"; declared {given(check.declared)}, {check.observed} {check.measured:.4g}"
            named.append(f"{text})")
        shown = "; ".join(named)
        further = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
        text = f"The executed run deviates from its declaration: {shown}{further}."
        return f"{text} {_absent(absent)}" if absent else text
    if absent:
        explanation = (
            "The backend does not deliver what its capabilities declare, or its run is not of the declared length."
        )
        return f"{_absent(absent)} {explanation}"
    return _limits(checks) if checks else "No check of an executed pipeline was made."


def _absent(absent: Sequence[Check]) -> str:
    named = dict.fromkeys(f"{check.assumption} ({check.observed})" for check in absent)
    number = (
        "A check that the plan promised was"
        if len(absent) == 1
        else f"{len(absent)} checks that the plan promised were"
    )
    return f"{number} not made: {', '.join(named)}."


def join_checks(findings: Sequence[Finding], checks: Sequence[Check], family: int) -> tuple[Finding, ...]:
    """The findings, with the checks' results in their assumptions.

    A rejected check makes the assumption ``false`` for findings about the ``executed`` pipeline. Findings about the
    ``declared`` mechanism keep its status and carry the rejected test, because conformance reports the deviation. A
    check that is not rejected raises ``declared``, ``reported`` and ``unchecked`` to ``not-rejected`` if it was
    measured, and ``unchecked`` to ``reported`` if the backend reported it. A check without detectable deviation raises
    ``unchecked`` to nothing.

    Constants measured on one neighbor differ: if the check is rejected, the backend is not the declared mechanism, and
    the assumption is ``false`` for both pipelines; otherwise other neighbors are still unknown, and the status stays.
    """
    if not checks:
        return tuple(findings)
    by_name: dict[str, Check] = {}
    for check in sorted(checks, key=lambda c: (not rejected(c, family), c.observed != "measured", _sharpness(c))):
        by_name.setdefault(check.assumption, check)
    return tuple(
        replace(f, assumptions=tuple(_joined(a, by_name.get(a.name), f.scope.pipeline, family) for a in f.assumptions))
        for f in findings
    )


def _joined(assumption: Assumption, check: Check | None, pipeline: str, family: int) -> Assumption:
    if check is None or assumption.status == "false" or (assumption.settled and assumption.status == "unchecked"):
        return assumption
    tested = replace(
        assumption, test=check.test, level=LEVEL / family, detectable=check.detectable, privacy=check.privacy
    )
    constants = _on_a_neighbour(check)
    if rejected(check, family):
        if constants:
            return replace(tested, status="false", text=f"{check.note}: rejected by {check.test}")
        if pipeline == "executed":
            return replace(tested, status="false")
        return replace(tested, test=f"{check.test}: rejected for the executed run")
    if (
        constants
        or assumption.status == "by-construction"
        or (assumption.status == "unchecked" and check.detectable is None)
    ):
        return tested
    if check.observed == "measured":
        return replace(tested, status="not-rejected")
    return replace(tested, status="reported") if assumption.status == "unchecked" else tested


def _on_a_neighbour(check: Check) -> bool:
    return check.assumption == CONSTANTS and check.observed == "measured"


def _sharpness(check: Check) -> float:
    return float("inf") if check.detectable is None else check.detectable


def _limits(checks: Iterable[Check]) -> str:
    """The range of detectable deviations of each assumption: ``any`` if every deviation is detected."""
    detectable: dict[str, list[float]] = {}
    for check in checks:
        values = detectable.setdefault(check.assumption, [])
        if _sharpness(check) < float("inf"):
            values.append(_sharpness(check))
    limits = []
    for name, values in detectable.items():
        if values:
            ends = (
                f"{upper(100.0 * v, digits=2)}%" if v > 0.0 else "any deviation" for v in (min(values), max(values))
            )
            limits.append(f"{name}: {' to '.join(dict.fromkeys(ends))}")
    text = f"No check is rejected. Smallest detectable deviations: {'; '.join(limits)}." if limits else ""
    if blind := [name for name, values in detectable.items() if not values]:
        names = ", ".join(blind)
        text += f"{' ' if text else ''}The checks of {names} are not rejected, but no deviation could have failed them."
    return text
