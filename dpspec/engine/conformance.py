"""Whether what ran is what was declared: all checks of an invocation, as one family at level 1e-6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpspec.contract import Assumption, Check, Finding
from dpspec.engine.numbers import exact, upper
from dpspec.engine.result import Conformance, ConformanceName
from dpspec.stats.measurement import LEVEL


def rejected(check: Check, family: int) -> bool:
    """Whether a check rejects the declaration: p <= 1e-6 / family (Bonferroni over the ``family`` checks).

    Raises ``ValueError`` if the p-value is none.
    """
    if not 0.0 <= check.p_value <= 1.0:
        raise ValueError(f"the check of {check.assumption!r} has p-value {check.p_value}")
    return check.p_value * family <= LEVEL


def conforms(expect: str, checks: Sequence[Check], family: int) -> Conformance:
    """The conformance of one audit.

    ``deviates`` if any check is rejected, ``conforms-within`` the deviations that its checks would have seen if none
    is, ``not-run`` without checks. It is as expected if it deviates exactly where ``expect`` is ``deviates``.
    """
    bad = [check for check in checks if rejected(check, family)]
    status: ConformanceName = "deviates" if bad else "conforms-within" if checks else "not-run"
    expected = (status == "deviates") == (expect == "deviates")
    return Conformance(status=status, expect=expect, expected=expected, reason=reason(bad, checks))


def reason(bad: Sequence[Check], checks: Sequence[Check]) -> str:
    """The conformance in words: the checks that reject, or what those that do not would have seen."""
    if bad:
        shown = "; ".join(_deviation(check) for check in sorted(bad, key=lambda c: c.p_value)[:3])
        more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
        return f"What ran is not what was declared: {shown}{more}."
    return _limits(checks) if checks else "No check of an executed pipeline was made."


def join_checks(findings: Sequence[Finding], checks: Sequence[Check], family: int) -> tuple[Finding, ...]:
    """The findings, with what the checks say about the assumptions that they name.

    A rejected check makes the assumption ``false`` for findings about the ``executed`` pipeline. Findings about the
    ``declared`` mechanism keep its status and carry the rejected test beside it: conformance reports the deviation.
    A check that is not rejected raises ``declared``, ``reported`` and ``unchecked`` to ``not-rejected`` if it was
    measured from outside, ``unchecked`` to ``reported`` if the backend said so itself; a check that could have seen
    nothing raises ``unchecked`` to nothing.
    """
    by_name: dict[str, Check] = {}
    for check in sorted(checks, key=lambda c: (not rejected(c, family), c.observed != "measured", _sharpness(c))):
        by_name.setdefault(check.assumption, check)
    return tuple(
        replace(f, assumptions=tuple(_joined(a, by_name.get(a.name), f.scope.pipeline, family) for a in f.assumptions))
        for f in findings
    )


def _joined(assumption: Assumption, check: Check | None, pipeline: str, family: int) -> Assumption:
    if check is None or assumption.status == "false":
        return assumption
    known = replace(assumption, test=check.test, level=LEVEL / family, detectable=check.detectable)
    if rejected(check, family):
        if pipeline == "executed":
            return replace(known, status="false")
        return replace(known, test=f"{check.test}: rejected for what ran, p = {upper(check.p_value)}")
    if assumption.status == "by-construction" or (assumption.status == "unchecked" and check.detectable is None):
        return known
    if check.observed == "measured":
        return replace(known, status="not-rejected")
    return replace(known, status="reported") if assumption.status == "unchecked" else known


def _sharpness(check: Check) -> float:
    return float("inf") if check.detectable is None else check.detectable


def _deviation(check: Check) -> str:
    text = f"{check.assumption} ({check.test}, p = {upper(check.p_value)}"
    if check.declared is not None and check.measured is not None:
        text += f"; declared {exact(check.declared)}, {check.observed} {check.measured:.4g}"
    return text + ")"


def _limits(checks: Iterable[Check]) -> str:
    """The detectable deviations of each assumption: what may still be wrong without having been seen."""
    found: dict[str, list[float]] = {}
    for check in checks:
        found.setdefault(check.assumption, []).append(_sharpness(check))
    seen = [f"{name} {_range(finite)}" for name, values in found.items() if (finite := _finite(values))]
    blind = [name for name, values in found.items() if not _finite(values)]
    text = f"No check is rejected. A deviation of this size would have been seen: {', '.join(seen)}." if seen else ""
    if blind:
        text += f"{' ' if text else ''}The checks of {', '.join(blind)} are not rejected but could not have been."
    return text


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if value < float("inf")]


def _range(values: Sequence[float]) -> str:
    """``3%``, or ``3% to 120%`` where several tests look at several things; ``any`` where nothing escapes."""
    low, high = (f"{upper(100.0 * value, digits=2)}%" if value > 0.0 else "any" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
