"""Pairs of laws on the line, cut into slices of outcomes that are refined until they are as fine as the grid.

A kind of pair says how to make bins of the outcomes between neighbouring points; how fine the points have to be is
found by halving slices whose range of losses is wide for the mass that they hold. Nothing has to be inverted, and a
loss that is constant somewhere, or jumps, makes no difference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid.cells import Bins, Cells, TooLongError
from dpspec.accounting.grid.discretise import place_nodes_densely, span_grid
from dpspec.accounting.numerics.floats import Direction, Floats
from dpspec.accounting.pair import Pair, TruncatedPair

#: How often slices are halved at most, and how many of them the table for estimates has about.
_HALVINGS, _TABLE = 60, 1500

#: Widths of slices, as a share of the cell that they lie in.
_SHARE = 0.5

#: No loss beyond this is put on a grid.
_FAR = 1e6


class SlicedPair(Pair):
    """A pair on the line; see the module."""

    @abstractmethod
    def points(self, direction: Direction, log_edge: float, log_far: float) -> Floats:
        """Some points, ascending, of the range to which a step may be cut; see ``truncate``. More are put between."""

    @abstractmethod
    def bins(self, points: Floats, direction: Direction) -> tuple[Bins, Floats, Floats]:
        """Bins of all outcomes, and the ends of each bin's slice, (n,) each: equal for what cannot be refined."""

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The outcomes between the outermost points; beyond them only masses are known."""
        points = self.points(direction, log_edge, log_far)
        for _ in range(_HALVINGS):
            bins, left, right = self.bins(points, direction)
            divisible = right > left
            wide = np.where(divisible, bins.mass * np.minimum(bins.high - bins.low, 10.0) ** 2, 0.0)
            if len(points) >= _TABLE or not wide.any():
                break
            # the worse half of those that matter at all
            worst = (wide >= np.median(wide[divisible])) & (wide > 1e-9 * wide.max())
            finer = _with_middles(points, left[worst], right[worst])
            if len(finer) == len(points):
                break
            points = finer
        bins, _, _ = self.bins(points, direction)
        return _SlicedPart(self, direction, points, bins)


@dataclass(frozen=True, eq=False)
class _SlicedPart(TruncatedPair):
    pair: SlicedPair
    direction: Direction
    points: Floats
    coarse: Bins

    def table(self) -> tuple[Floats, Floats]:
        used = (self.coarse.mass > 0.0) & (np.abs(self.coarse.loss) < _FAR)
        return self.coarse.loss[used], np.asarray(np.log(self.coarse.mass[used]), dtype=np.float64)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        losses, logs = self.table()
        ends = np.concatenate((losses, self.coarse.low[np.isfinite(self.coarse.low)], self.coarse.high))
        ends = ends[np.abs(ends) < _FAR]
        lowest, steps = span_grid(float(ends.min()) - spacing, float(ends.max()) + spacing, spacing)
        index = place_nodes_densely(losses, logs, lowest, spacing, steps, tilts, widest, limit)
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        widths = np.diff(nodes)
        points, bins = self.points, self.coarse
        left = right = points[:0]
        for turn in range(_HALVINGS):
            bins, left, right = self.pair.bins(points, self.direction)
            cell = np.clip(np.searchsorted(nodes, bins.loss) - 1, 0, len(widths) - 1)
            wide = (right > left) & (bins.high - bins.low > _SHARE * widths[cell]) & (bins.mass > 0.0)
            if not wide.any() or turn == _HALVINGS - 1:
                break
            finer = _with_middles(points, left[wide], right[wide])
            if len(finer) == len(points):
                break
            if len(finer) > 4 * limit:
                raise TooLongError(len(finer), 4 * limit)
            points = finer
        return bins.cells(lowest, spacing, index)


def _with_middles(points: Floats, left: Floats, right: Floats) -> Floats:
    """``points`` and the middles of some slices."""
    return np.unique(np.concatenate((points, left + 0.5 * (right - left))))
