"""Which outputs of a step matter, and where to cut them: ranges, and nodes as dense as the mass asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting.checks import Direction, Floats, Index
from dpspec.accounting.grids import split
from dpspec.accounting.masses import lower_tail, upper_tail
from dpspec.accounting.pair import TooLongError
from dpspec.accounting.ratio import Ratio

#: Points of the table from which nodes are placed.
_TABLE = 2001

#: The widest cell in loss: its exponential stays a double.
_WIDEST = 300.0

#: Share of the discretisation error that wide cells may add to that of the grid's own spacing.
_WIDE = 0.5


@dataclass(frozen=True)
class Range:
    """Where the outputs are cut off, in units of sigma, and the components that are left out as negligible.

    dropped: the weight of the components left out; pull: how much that may change a loss for the lower bound.
    """

    low: float
    high: float
    ratio: Ratio
    dropped: float
    pull: float

    def losses(self) -> tuple[float, float]:
        """The span of l over the range."""
        values = self.ratio(np.array([self.low, self.high]))
        return float(values[0]), float(values[1])


def cut(ratio: Ratio, direction: Direction, log_edge: float, log_far: float) -> Range:
    """The range of outputs outside which the first distribution has little mass.

    log_edge: ln of the mass that may be lost at the end of large losses, where it counts as infinite.
    log_far: ln of the mass that may be lost at the other end.

    Components may be dropped whose whole weight is far below that. Present-first, their mass is added to what is
    infinite for the upper bound, and missing mass only lowers a lower bound. Absent-first, a smaller second
    distribution only raises the upper bound; for the lower bound the weight moves to c = 0 (a dominated pair by
    Lemma 2.9), which changes losses by at most ``pull``.
    """
    top = float(ratio.shifts[-1])
    if direction == "present-first":
        low = _search(lambda z: lower_tail(ratio, z) <= log_far, float(ndtri_exp(log_far)), top)
        high = _search(lambda z: upper_tail(ratio, z) > log_edge, -10.0, top - float(ndtri_exp(log_edge)))
        kept, dropped = _trim(ratio, log_edge - math.log(1e3))
        return Range(low, high, kept, dropped, 0.0)
    low, high = float(ndtri_exp(log_edge)), -float(ndtri_exp(log_far))
    largest = -float(ratio(np.array([low]))[0])
    kept, dropped = _trim(ratio, -42.0 - largest)
    return Range(low, high, kept, dropped, dropped * math.exp(min(largest + 1.0, 700.0)))


def place(
    area: Range,
    direction: Direction,
    origin: float,
    spacing: float,
    tilts: Sequence[float],
    widest: float,
    limit: int,
) -> Index:
    """Grid positions of nodes over the losses from ``origin`` on, starting 0, 1, 2: dense where mass is.

    A cell of width w and tilted mass t adds an error in proportion to t w^2; for a given number of cells the sum is
    least where w^3 is inversely proportional to the density of t. ``tilts`` are those at which answers are wanted;
    ``widest`` limits a cell's width, in grid steps. Raises ``TooLongError`` for more than about ``limit`` nodes.
    """
    z = np.linspace(area.low, area.high, _TABLE)
    losses, slopes = area.ratio.with_slope(z)
    slopes = np.maximum(slopes, 1e-200)
    signed = losses if direction == "present-first" else -losses
    logs = -0.5 * np.square(z) + (losses if direction == "present-first" else 0.0)
    density = np.zeros(_TABLE)
    for tilt in tilts:
        exponents = logs + tilt * signed
        weights = np.exp(exponents - exponents.max())
        density += weights / (_area(weights, z) * slopes)
    root = np.cbrt(density)
    total = _area(root * slopes, z)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore", over="ignore"):
        widths = np.clip(math.sqrt(_WIDE / total) / root, 1.0, cap)
    steps = slopes / (spacing * widths)
    count = np.concatenate(([0.0], np.cumsum(0.5 * (steps[1:] + steps[:-1]) * np.diff(z))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    grid = (losses - origin) / spacing
    wanted = np.rint(np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, grid)).astype(np.int64)
    end = max(4, math.ceil(float(grid[-1])))
    inner = np.concatenate(([0, 1, 2], wanted[wanted > 2]))
    inner = inner[np.concatenate(([True], np.diff(inner) > 0))]
    # The last cell is not much narrower than the one before it.
    inner = inner[inner < end - 0.7 * float(inner[-1] - inner[-2])] if len(inner) > 3 else inner[inner < end]
    return split(np.concatenate((inner, [end])), max(1, int(_WIDEST / spacing)), limit)


def _trim(ratio: Ratio, log_budget: float) -> tuple[Ratio, float]:
    """The components without those, at either end, whose weights add up to at most e^log_budget; and that sum."""
    half = log_budget - math.log(2.0)
    begin = int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights), half))
    end = len(ratio.shifts) - int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights[::-1]), half))
    if end - begin < 1 or ratio.shifts[end - 1] == 0.0:  # what remains must still be able to lose something
        return ratio, 0.0
    lost: Floats = np.concatenate((ratio.log_weights[:begin], ratio.log_weights[end:]))
    kept = Ratio(ratio.shifts[begin:end], ratio.log_weights[begin:end])
    return kept, float(np.exp(lost).sum() * (1.0 + 1e-9)) if lost.size else 0.0


def _area(values: Floats, z: Floats) -> float:
    return float(0.5 * (values[1:] + values[:-1]) @ np.diff(z))


def _search(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point, up to 1e-3, for which ``holds`` is true: true at ``low``, perhaps false at ``high``."""
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
