"""What the tests of a run would have seen, as one ranked figure: a bar for each thing that can be wrong.

From the left end to the least deviation that any of its tests would have seen a bar is hatched: nobody would have
noticed. From there to the size that the bluntest of them sees, some would have; beyond, all. What no test looked at is
hatched throughout, and stands first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.contract import Check
from dpspec.engine.results import decimals
from dpspec.engine.results.result import AuditResult
from dpspec.reporters.html.axes import Axis
from dpspec.reporters.html.bars import Bar, svg
from dpspec.reporters.html.figures import Figure
from dpspec.reporters.view import glossary, sentences, words

#: The axis ends here at least and at most: a ten-thousandth, a hundred times. Sizes beyond them are written.
_LEAST, _MOST = 1e-4, 100.0

#: What an assumption's status says where no test of what ran looked at it.
_UNTESTED = {
    "declared": "not tested, declared by the spec",
    "unchecked": "not tested",
    "reported": "not tested, reported by the backend",
}

_AXIS = "deviation, relative to the declared value"

_TITLE = "Smallest detectable deviation"

_CAPTION = (
    "Hatched: no test detects a deviation of that size. Light: some tests detect it. Full: all tests with a detection "
    "limit detect it, with probability 0.99. 100 % = twice the declared value, or zero. Limits are rounded up."
)


@dataclass(frozen=True)
class Row:
    """One thing that can be wrong. low, high: the least relative deviations that its sharpest and its bluntest test
    would have seen; None where none states any. sized, tests: how many of its tests state one, of how many.
    """

    name: str
    low: float | None
    high: float | None
    sized: int
    tests: int
    rejected: bool = False
    said: str = ""

    @property
    def text(self) -> str:
        """What stands beside the bar."""
        if self.said:
            return self.said
        if self.rejected:
            return "REJECTED: deviation found"
        if self.low is None or self.high is None:
            return "no detection limit: the tests cannot fail"
        low, high = (_percent(size) for size in (self.low, self.high))
        return low if low == high else f"{low} to {high}"


def _percent(size: float) -> str:
    return f"{decimals.upper(100.0 * size, digits=2)}%" if size > 0.0 else "any"


def rows(audit: AuditResult, family: int) -> list[Row]:
    """What is rejected first, then what no test could see, then the others, those that are seen last first.

    family: among how many checks those of the audit were judged.
    """
    by_name: dict[str, list[tuple[Check, bool]]] = {}
    for check, is_rejected in sentences.ranked(audit.checks, family):
        by_name.setdefault(check.assumption, []).append((check, is_rejected))
    found = [_row(name, checks) for name, checks in by_name.items()]
    return sorted([*found, *_untested(audit, by_name)], key=_rank)


def _row(name: str, checks: Sequence[tuple[Check, bool]]) -> Row:
    sizes = [check.detectable for check, _ in checks if check.detectable is not None]
    finite = [size for size in sizes if math.isfinite(size)]
    return Row(
        name=name,
        low=min(finite, default=None),
        high=max(finite, default=None),
        sized=len(finite),
        tests=len(checks),
        rejected=any(is_rejected for _, is_rejected in checks),
    )


def _untested(audit: AuditResult, tested: dict[str, list[tuple[Check, bool]]]) -> Iterator[Row]:
    """What upper bounds rest on and no test of this audit looked at."""
    held = [one for finding in audit.findings if finding.bound == "upper" for one in finding.assumptions]
    for one in sentences.by_status(held):
        if one.name not in tested and one.test is None and one.status in _UNTESTED:
            tested[one.name] = []
            yield Row(one.name, None, None, 0, 0, said=_UNTESTED[one.status])


def _rank(row: Row) -> tuple[int, int, float]:
    if row.rejected:
        return 0, 0, 0.0
    if row.low is None:
        return 1, row.tests > 0, 0.0
    return 2, 0, -row.low


def figure(audit: AuditResult, family: int, name: str) -> Figure | None:
    """The figure with its table; None where no test of what ran was made. ``name`` is unique on the page."""
    ranked = rows(audit, family) if audit.checks else []
    if not ranked:
        return None
    sizes = [size for row in ranked for size in (row.low, row.high) if size]
    axis = Axis.between(100.0 * max(_LEAST, min([0.01, *sizes])), 100.0 * min(_MOST, max([1.0, *sizes])), log=True)
    drawn = svg(_TITLE, [_bar(row, axis) for row in ranked], axis, _AXIS, name, unit="%")
    head = ("assumption", "some tests detect from", "all tests detect from", "tests with a detection limit")
    table = tuple((row.name, *_told(row), f"{row.sized} of {row.tests}") for row in ranked)
    return Figure(_TITLE, _CAPTION, drawn, head, table)


def _bar(row: Row, axis: Axis) -> Bar:
    said = glossary.CHECKED.get(row.name, "")
    if row.rejected:
        return Bar(row.name, row.text, 0.0, 0.0, said, bad=True)
    if row.low is None or row.high is None:
        return Bar(row.name, row.text, 1.0, 1.0, said)
    low, high = (min(1.0, max(0.0, axis.share(100.0 * size))) if size > 0.0 else 0.0 for size in (row.low, row.high))
    return Bar(row.name, row.text, low, high, said)


def _told(row: Row) -> tuple[str, str]:
    if row.low is None or row.high is None or row.rejected:
        return row.text, ""
    return _percent(row.low), _percent(row.high)


def reason(audit: AuditResult) -> str:
    """What is said of a conformance beside the figure: as recorded, but for the sizes, which the figure ranks."""
    if audit.conformance.status != "no-deviation-found":
        return audit.conformance.reason
    number = len(audit.checks)
    tests = words.count(number, "test")
    return f"{tests}, none rejected. The figure shows the smallest deviation that each kind of test detects."
