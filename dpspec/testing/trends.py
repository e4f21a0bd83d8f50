"""In which direction an upper bound moves when one key of the spec grows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpspec.contract import Json

#: Relative error that a numerical bound may have; certified bounds computed on different grids need it.
SLACK = 1e-3


@dataclass(frozen=True)
class Trend:
    """``values`` of a key, ascending, along which every upper bound is ``increasing`` or ``decreasing``."""

    direction: Literal["increasing", "decreasing"]
    values: tuple[Json, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or list(self.values) != sorted(self.values):
            raise ValueError(f"a trend needs two values or more in ascending order, got {self.values!r}")

    def problem(self, bounds: Sequence[float]) -> str | None:
        """Say where the bounds move the wrong way, or that they do not move at all."""
        for (value, bound), (next_value, next_bound) in itertools.pairwise(zip(self.values, bounds, strict=True)):
            low, high = (bound, next_bound) if self.direction == "increasing" else (next_bound, bound)
            if low > high and not math.isclose(low, high, rel_tol=SLACK):
                return f"is not {self.direction}: {bound} at {value}, {next_bound} at {next_value}"
        if bounds[0] == bounds[-1] and math.isfinite(bounds[0]):
            return f"does not move: {bounds[0]} at {self.values[0]} and at {self.values[-1]}"
        return None


def increasing(*values: Json) -> Trend:
    """Upper bounds grow along these ascending values: ``{"mechanism.steps": increasing(10, 100)}``."""
    return Trend("increasing", values)


def decreasing(*values: Json) -> Trend:
    """Upper bounds shrink along these ascending values: ``{"mechanism.noise_multiplier": decreasing(1.0, 2.0)}``."""
    return Trend("decreasing", values)
