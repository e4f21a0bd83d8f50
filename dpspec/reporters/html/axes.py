"""An axis of a figure: its range, the places of values, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpspec.engine.results import decimals

#: The margin on either side of the values, as a share of the range.
_MARGIN = 0.05

#: Logarithmic axes with a smaller ratio of their ends also have ticks at 2 and 5 times the powers of ten.
_FEW_DECADES = 300.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

#: The maximum distance of a place from the axis, in lengths of the axis.
_FAR = 1e4


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, different finite values; logarithms to base ten if ``log``."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool) -> Axis:
        """A margin around finite values, which are positive if ``log``."""
        placed = [math.log10(value) if log else value for value in values]
        if not placed:
            return cls(0.0, 1.0, log)
        low, high = min(placed), max(placed)
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            room = 0.5 if log else 0.05 * abs(low) or 0.05
        else:
            room = _MARGIN * (high - low)
        return cls(low - room, high + room, log)

    @classmethod
    def between(cls, low: float, high: float, *, log: bool) -> Axis:
        return cls(math.log10(low), math.log10(high), log) if log else cls(low, high, log)

    @property
    def ends(self) -> tuple[float, float]:
        """The values at both ends, positive if logarithmic."""
        if not self.log:
            return self.low, self.high
        return max(10.0 ** max(self.low, -323.0), 5e-324), 10.0 ** min(self.high, 308.0)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        placed = math.log10(value) if self.log else value
        return min(max((placed - self.low) / (self.high - self.low), -_FAR), 1.0 + _FAR)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """About ``most`` ticks at round values, as pairs of a place and a text."""
        found = list(self._powers(most)) if self.log else []
        if len(found) < 3:
            low, high = self.ends
            found = [
                (value, _plain(value, step)) for value, step in _round(low, high, most) if value > 0 or not self.log
            ]
        places: dict[str, float] = {}
        for value, text in found:  # subnormal numbers may have equal texts
            places.setdefault(text, value)
        return [(self.share(value), text) for text, value in places.items()]

    def _powers(self, most: int) -> Iterator[tuple[float, str]]:
        """Powers of ten, on a short axis also 2 and 5 times these."""
        first, last = max(-323, math.ceil(self.low - 1e-9)), min(308, math.floor(self.high + 1e-9))
        if self.high - self.low >= math.log10(_FEW_DECADES):
            stride = max(1, -(-(last - first + 1) // most))
            for power in range(-(-first // stride) * stride, last + 1, stride):
                yield 10.0**power, decimals.nearest(10.0**power, digits=4)
            return
        for power in range(max(-323, first - 1), last + 1):
            for times in (1.0, 2.0, 5.0):
                value = float(f"{times}e{power}")
                if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9:
                    yield value, decimals.nearest(value, digits=4)


def _round(low: float, high: float, most: int) -> list[tuple[float, float]]:
    """Multiples of a round step, at most ``most``, each with the step."""
    rough = max((high - low) / most, 5e-324)
    power = math.floor(math.log10(rough))
    scale = 10.0 ** max(power, -307)
    step = next(times * scale for times in _STEPS if times * scale >= rough * (1.0 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, step) for number in range(first, min(last, first + 2 * most) + 1)]


def _plain(value: float, step: float) -> str:
    """With the decimals that distinguish the value from adjacent multiples of ``step``."""
    largest = max(abs(value), step)
    if step < 1e-4 or largest >= 1e7:
        return decimals.nearest(value, digits=min(17, max(4, 2 + math.floor(math.log10(largest / step)))))
    quarter = abs(step / 10.0 ** math.floor(math.log10(step) + 1e-9) - 2.5) < 1e-6
    places = max(0, (1 if quarter else 0) - math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:.{places}f}" if abs(value) >= 0.5 * step else f"{0.0:.{places}f}"
