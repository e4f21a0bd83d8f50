"""The detection limits of conformance tests, as one ranked figure of bars.

A bar has three parts: deviations that no test detects, that some tests detect, and that all tests detect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.contract import Check
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import labels, phrases
from dpspec.reporters.html.axes import Axis

#: The minimum and maximum relative deviation on the axis.
_LEAST, _MOST = 1e-4, 100.0

#: The maximum number of ticks.
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
    "limit detect it, with probability 0.99. 100 % = twice the declared value, or zero. Limits are rounded up."
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


@dataclass(frozen=True)
class Bar:
    """``low`` and ``high`` are the ends of the first two parts in percent of the width."""

    name: str
    text: str
    low: float
    high: float
    rejected: bool


@dataclass(frozen=True)
class Limits:
    """Bars, ticks as pairs of a place in percent and a text, and the rows of the table."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    rows: tuple[tuple[str, ...], ...]


def limits(audit: AuditResult, family: int) -> list[Limit]:
    """Rejected assumptions, then those without a detection limit, then the others by descending limit."""
    by_name: dict[str, list[tuple[Check, bool]]] = {}
    for check, is_rejected in phrases.ranked(audit.checks, family):
        by_name.setdefault(check.assumption, []).append((check, is_rejected))
    found = [_limit(name, checks) for name, checks in by_name.items()]
    return sorted([*found, *_untested(audit, set(by_name))], key=_rank)


def _limit(name: str, checks: Sequence[tuple[Check, bool]]) -> Limit:
    sizes = [check.detectable for check, _ in checks if check.detectable is not None]
    finite = [size for size in sizes if math.isfinite(size)]
    return Limit(
        name=name,
        low=min(finite, default=None),
        high=max(finite, default=None),
        sized=len(finite),
        tests=len(checks),
        rejected=any(is_rejected for _, is_rejected in checks),
    )


def _untested(audit: AuditResult, tested: set[str]) -> Iterator[Limit]:
    """Assumptions of upper bounds that no test of this audit covers."""
    held = [one for finding in audit.findings if finding.bound == "upper" for one in finding.assumptions]
    for one in phrases.by_status(held):
        if one.name not in tested and one.test is None and one.status in _UNTESTED:
            tested.add(one.name)
            yield Limit(one.name, untested=_UNTESTED[one.status])


def _rank(limit: Limit) -> tuple[int, int, float]:
    if limit.rejected:
        return 0, 0, 0.0
    if limit.low is None:
        return 1, limit.tests > 0, 0.0
    return 2, 0, -limit.low


def figure(audit: AuditResult, family: int) -> Limits | None:
    ranked = limits(audit, family) if audit.checks else []
    if not ranked:
        return None
    sizes = [size for one in ranked for size in (one.low, one.high) if size]
    axis = Axis.between(100.0 * max(_LEAST, min([0.01, *sizes])), 100.0 * min(_MOST, max([1.0, *sizes])), log=True)
    ticks = tuple((100.0 * share, f"{text}%") for share, text in axis.ticks(_TICKS))
    return Limits(tuple(_bar(one, axis) for one in ranked), ticks, tuple(one.row for one in ranked))


def _bar(limit: Limit, axis: Axis) -> Bar:
    subject = labels.CHECKED.get(limit.name, "")
    name = f"{subject} ({limit.name})" if subject else limit.name
    if limit.low is None or limit.high is None or limit.rejected:
        return Bar(name, limit.text, 100.0, 100.0, limit.rejected)
    low, high = (
        100.0 * min(1.0, max(0.0, axis.share(100.0 * size))) if size else 0.0 for size in (limit.low, limit.high)
    )
    return Bar(name, limit.text, low, high, rejected=False)


def _percent(size: float) -> str:
    return f"{decimals.upper(100.0 * size, digits=2)}%" if size > 0.0 else "any"


def reason(audit: AuditResult) -> str:
    """Without the limits that the figure shows."""
    if audit.conformance.status != "no-deviation-found":
        return audit.conformance.reason
    tests = labels.count(len(audit.checks), "test")
    return f"{tests}, none rejected. The figure shows the smallest deviation that each kind of test detects."
