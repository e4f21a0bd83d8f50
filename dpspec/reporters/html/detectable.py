"""The detection limits of conformance tests, as one ranked figure of bars.

A bar has three parts: deviations that no test detects, that some tests detect, and that all tests detect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

from dpspec.contract import Check
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels, phrases
from dpspec.reporters.html.axes import Axis

#: The minimum and maximum relative deviation on the axis.
_LEAST, _MOST = 1e-4, 100.0
_TICKS = 6

#: The text for an assumption without a test, by its status.
_UNTESTED = {
    "declared": "not tested, declared by the spec",
    "unchecked": "not tested",
    "reported": "not tested, reported by the backend",
}

TITLE = "Smallest detectable deviation"

CAPTION = (
    "Hatched: no test detects a deviation of that size. Light: some tests detect it. Full: all tests with a detection "
    "limit detect it, with probability 0.99. 100% = twice the declared value, or zero. Limits are rounded up."
)

HEAD = ("assumption", "some tests detect from", "all tests detect from", "tests with a detection limit")


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

    @property
    def row(self) -> tuple[str, ...]:
        ends = (self.text, "")
        if self.low is not None and self.high is not None and not self.rejected:
            ends = _percent(self.low), _percent(self.high)
        return self.name, *ends, f"{self.sized} of {self.tests}"


def limits(audit: AuditResult, family: int) -> list[Limit]:
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
    return sorted([*found, *reversed(untested.values())], key=_rank)


def _rank(limit: Limit) -> tuple[int, int, float]:
    if limit.rejected:
        return 0, 0, 0.0
    if limit.low is None:
        return 1, limit.tests > 0, 0.0
    return 2, 0, -limit.low


def figure(audit: AuditResult, family: int) -> SimpleNamespace | None:
    """Bars, ticks as pairs of a place in percent and a text, and the rows of the table."""
    ranked = limits(audit, family) if audit.checks else []
    if not ranked:
        return None
    sizes = [size for one in ranked for size in (one.low, one.high) if size]
    axis = Axis.between(100.0 * max(_LEAST, min([0.01, *sizes])), 100.0 * min(_MOST, max([1.0, *sizes])), log=True)
    ticks = tuple((100.0 * share, f"{text}%") for share, text in axis.ticks(_TICKS))
    bars = []
    for one in ranked:
        subject, low, high = labels.CHECKED.get(one.name, ""), 100.0, 100.0
        if one.low is not None and one.high is not None and not one.rejected:
            low, high = (
                100.0 * min(1.0, max(0.0, axis.share(100.0 * size))) if size else 0.0 for size in (one.low, one.high)
            )
        name = f"{subject} ({one.name})" if subject else one.name
        # The ends of a bar's first two parts are in percent of the width.
        bars.append(SimpleNamespace(name=name, text=one.text, low=low, high=high, rejected=one.rejected))
    return SimpleNamespace(bars=tuple(bars), ticks=ticks, rows=tuple(one.row for one in ranked))


def _percent(size: float) -> str:
    return f"{decimals.upper(100.0 * size, digits=2)}%" if size > 0.0 else "any"


def reason(audit: AuditResult) -> str:
    """Without the limits that the figure shows."""
    if audit.conformance.status != "no-deviation-found":
        return audit.conformance.reason
    tests = labels.count(len(audit.checks), "test")
    return f"{tests}, none rejected. The figure shows the smallest deviation that each kind of test detects."
