"""Bars on the page: the interval of a claim, and the detection limits of conformance tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

from dpspec.contract import Check
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult, Verdict
from dpspec.reporters import labels, phrases
from dpspec.reporters.drawing import Axis

#: The ratio of the bar's end to the largest number on it.
_ROOM = 1.12

#: Numbers with a larger ratio are on a logarithmic scale.
_SPREAD = 40.0


def interval_bar(verdict: Verdict) -> SimpleNamespace | None:
    """Places in percent of the width; None without a positive finite number."""
    lower, upper, claimed = (
        number if number is not None and math.isfinite(number) else None
        for number in (verdict.lower, verdict.upper, verdict.claimed)
    )
    ends = [number for number in (lower, upper, claimed) if number is not None and number >= 0.0]
    largest = max(ends, default=0.0)
    if largest <= 0.0 or (verdict.lower is None and verdict.upper is None):
        return None
    positive = [number for number in ends if number > 0.0]
    logarithmic = largest / min(positive) > _SPREAD
    least, most = min(positive) / _ROOM**4 if logarithmic else 0.0, largest * _ROOM
    axis = Axis.between(least, most, log=logarithmic)
    low, high, place = (
        None if number is None else 100.0 * min(1.0, max(0.0, axis.share(max(number, least))))
        for number in (lower, upper, claimed)
    )
    low, high = low or 0.0, 100.0 if high is None else high
    return SimpleNamespace(
        low=min(low, high),
        width=max(abs(high - low), 0.6),
        claimed=place,
        open_below=lower is None,
        open_above=upper is None,
        crossed=low > high,
        logarithmic=logarithmic,
        least=decimals.nearest(least, digits=2),
        most=decimals.nearest(most, digits=2),
    )


#: The minimum and maximum relative deviation on the axis.
_LEAST, _MOST = 1e-4, 100.0
_TICKS = 6

#: The text for an assumption without a test, by its status.
_UNTESTED = {
    "declared": "not tested, declared by the spec",
    "unchecked": "not tested",
    "reported": "not tested, reported by the backend",
}


@dataclass(frozen=True)
class Limit:
    """The range of detection limits of ``sized`` of ``tests`` tests of one assumption."""

    name: str
    low: float | None = None
    high: float | None = None
    sized: int = 0
    tests: int = 0
    rejected: bool = False
    untested: str = ""

    @property
    def text(self) -> str:
        if self.untested or self.rejected:
            return self.untested or "REJECTED: deviation found"
        if self.low is None or self.high is None:
            return "no detection limit: the tests cannot fail"
        low, high = _percent(self.low), _percent(self.high)
        return low if low == high else f"{low} to {high}"


def detection_limits(audit: AuditResult, family: int) -> list[Limit]:
    """Rejected assumptions, then those without a detection limit, then the others by descending limit."""
    by_name: dict[str, list[tuple[Check, bool]]] = {}
    for check, is_rejected in phrases.ranked(audit.checks, family):
        by_name.setdefault(check.assumption, []).append((check, is_rejected))
    found = []
    for name, checks in by_name.items():
        sizes = [check.detectable for check, _ in checks if check.detectable is not None]
        finite = [size for size in sizes if math.isfinite(size)]
        low, high = min(finite, default=None), max(finite, default=None)
        rejected = any(is_rejected for _, is_rejected in checks)
        found.append(Limit(name, low, high, sized=len(finite), tests=len(checks), rejected=rejected))
    held = [one for finding in audit.findings if finding.bound == "upper" for one in finding.assumptions]
    untested = {
        one.name: Limit(one.name, untested=_UNTESTED[one.status])
        for one in reversed(phrases.by_status(held))  # the first of each name
        if one.name not in by_name and one.test is None and one.status in _UNTESTED
    }

    def rank(limit: Limit) -> tuple[int, int, float]:
        if limit.rejected:
            return 0, 0, 0.0
        return (1, limit.tests > 0, 0.0) if limit.low is None else (2, 0, -limit.low)

    return sorted([*found, *reversed(untested.values())], key=rank)


def detection_figure(audit: AuditResult, family: int) -> SimpleNamespace | None:
    """Bars of three parts: deviations that no test detects, that some tests detect, and that all tests detect.

    ``ticks`` are pairs of a place in percent and a text; the ends of a bar's first two parts are in percent too.
    """
    ranked = detection_limits(audit, family) if audit.checks else []
    if not ranked:
        return None
    sizes = [size for one in ranked for size in (one.low, one.high) if size]
    axis = Axis.between(100.0 * max(_LEAST, min([0.01, *sizes])), 100.0 * min(_MOST, max([1.0, *sizes])), log=True)
    bars, rows = [], []
    for one in ranked:
        low, high, ends = 100.0, 100.0, (one.text, "")
        if one.low is not None and one.high is not None and not one.rejected:
            low, high = (
                100.0 * min(1.0, max(0.0, axis.share(100.0 * size))) if size else 0.0 for size in (one.low, one.high)
            )
            ends = _percent(one.low), _percent(one.high)
        subject = labels.CHECKED.get(one.name, "")
        name = f"{subject} ({one.name})" if subject else one.name
        bars.append(SimpleNamespace(name=name, text=one.text, low=low, high=high, rejected=one.rejected))
        rows.append((one.name, *ends, f"{one.sized} of {one.tests}"))
    ticks = tuple((100.0 * share, f"{text}%") for share, text in axis.ticks(_TICKS))
    return SimpleNamespace(bars=bars, ticks=ticks, rows=rows)


def _percent(size: float) -> str:
    return f"{decimals.upper(100.0 * size, digits=2)}%" if size > 0.0 else "any"
