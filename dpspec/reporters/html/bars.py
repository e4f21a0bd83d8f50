"""The bar of a claim: the interval from the best lower to the best upper bound, and the claimed value as a tick."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpspec.engine.result import Verdict

#: The bar's scale ends this much beyond the largest number on it.
_ROOM = 1.12

#: Numbers further apart than this are shown on a logarithmic scale.
_SPREAD = 40.0


@dataclass(frozen=True)
class Bar:
    """Places on a bar in percent of its width.

    open_below, open_above: whether nothing bounds the value on that side. crossed: the bounds contradict each other.
    scale: ``linear`` or ``log``.
    """

    low: float
    high: float
    claimed: float | None
    open_below: bool
    open_above: bool
    crossed: bool
    scale: str

    @property
    def width(self) -> float:
        """Of the interval."""
        return max(self.high - self.low, 0.6)


def bar(verdict: Verdict) -> Bar | None:
    """The bar of a verdict; None where there is no number to draw."""
    ends = [x for x in (verdict.lower, verdict.upper, verdict.claimed) if x is not None and math.isfinite(x) and x >= 0]
    largest = max(ends, default=0.0)
    if largest <= 0.0 or (verdict.lower is None and verdict.upper is None):
        return None
    positive = [x for x in ends if x > 0.0]
    logarithmic = largest / min(positive) > _SPREAD
    least = min(positive) / _ROOM**4 if logarithmic else 0.0

    def at(value: float) -> float:
        if logarithmic:
            share = math.log(max(value, least) / least) / math.log(largest * _ROOM / least)
        else:
            share = value / (largest * _ROOM)
        return 100.0 * min(1.0, max(0.0, share))

    lower = verdict.lower if verdict.lower is not None and math.isfinite(verdict.lower) else None
    upper = verdict.upper if verdict.upper is not None and math.isfinite(verdict.upper) else None
    low, high = 0.0 if lower is None else at(lower), 100.0 if upper is None else at(upper)
    return Bar(
        low=min(low, high),
        high=max(low, high),
        claimed=None if verdict.claimed is None or not math.isfinite(verdict.claimed) else at(verdict.claimed),
        open_below=lower is None,
        open_above=upper is None,
        crossed=low > high,
        scale="log" if logarithmic else "linear",
    )
