"""A pair on the line by the logarithms of its densities: an oracle that knows no closed form.

Outcomes are cut into slices that are halved until they are as fine as the grid. Masses of slices are integrals
by Gauss's rule with 16 nodes; their errors are at most the difference from the rule with 8 nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpspec.accounting.grid import Bins, Cells, Pair, TooLongError, TruncatedPair, place_nodes_densely, span_grid
from dpspec.accounting.numerics import EPS, Direction, Floats, bisect, gauss_rule, one_direction

#: How often slices are halved at most, and how many of them the table for estimates has about.
_SLICE_HALVINGS, _TABLE = 60, 1500

#: Widths of slices, as a share of the cell that they lie in.
_SHARE = 0.5

#: No loss beyond this is put on a grid.
_FAR = 1e6


@dataclass(frozen=True, eq=False)
class _SlicedPart(TruncatedPair):
    pair: Densities
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
        for turn in range(_SLICE_HALVINGS):
            bins, left, right = self.pair.bins(points, self.direction)
            cell = np.clip(np.searchsorted(nodes, bins.loss) - 1, 0, len(widths) - 1)
            wide = (right > left) & (bins.high - bins.low > _SHARE * widths[cell]) & (bins.mass > 0.0)
            if not wide.any() or turn == _SLICE_HALVINGS - 1:
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


#: ln of a density at many outcomes, (n,) to (n,).
LogDensity: TypeAlias = Callable[[Floats], Floats]

#: A log density is taken to be off by so many units in the last place of one or of itself.
_ACCURACY = 16.0

#: Slices on which the rules differ by more than this, relative to the mass, are halved, and how often.
_AGREE, _HALVINGS = 1e-14, 24


_RULES = (gauss_rule(16), gauss_rule(8))


def loss_noise(size: float | Floats) -> float:
    """How far a loss may be off whose log densities are up to ``size``."""
    return 2.0 * _ACCURACY * EPS * max(1.0, float(np.max(size)))


def evaluate(function: LogDensity, x: Floats) -> Floats:
    """``function`` at ``x`` (n,). Raises ``ValueError`` when what it returns is of another shape or not a number."""
    result = np.asarray(function(x), dtype=np.float64)
    if result.shape != x.shape:
        raise ValueError(f"present and absent must map arrays to arrays of one shape, got {result.shape} for {x.shape}")
    if np.any(np.isnan(result)):
        raise ValueError("present and absent must be numbers everywhere between the knots")
    return result


def integrate(
    present: LogDensity, absent: LogDensity, left: Floats, right: Floats, base: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """The masses of slices under the first law, ln of their ratios, and bounds on the errors: relative, and absolute.

    left, right: the slices' ends; base: a loss that none in the slice is below by much; all (n,).
    """
    count = len(left)
    sums, errors = np.zeros((3, count)), np.zeros((3, count))
    loss_error = np.zeros(count)
    owner = np.arange(count)
    for turn in range(_HALVINGS + 1):
        fine, rough, blur = _sums(present, absent, left, right, base[owner])
        gaps = np.abs(fine - rough)
        with np.errstate(invalid="ignore"):
            again = np.any(gaps > _AGREE * np.array([1.0, 1.0, 1.0])[:, None] * np.maximum(fine[0], fine[2]), axis=0)
        again &= (turn < _HALVINGS) & (right - left > 64.0 * EPS * np.maximum(np.abs(left), np.abs(right)))
        for row in range(3):
            np.add.at(sums[row], owner[~again], fine[row, ~again])
            np.add.at(errors[row], owner[~again], gaps[row, ~again])
        np.maximum.at(loss_error, owner, blur)
        if not again.any():
            break
        middle = left[again] + 0.5 * (right[again] - left[again])
        left, right = np.concatenate((left[again], middle)), np.concatenate((middle, right[again]))
        owner = np.concatenate((owner[again], owner[again]))
    return _read(sums, errors, base, loss_error)


def _sums(
    present: LogDensity, absent: LogDensity, left: Floats, right: Floats, base: Floats
) -> tuple[Floats, Floats, Floats]:
    """By either rule: the mass, what it exceeds e^base times the other by, and that, (3, n); and the loss's noise."""
    width = right - left
    results = []
    blur = np.zeros(len(left))
    for nodes, weights in _RULES:
        x = left[:, None] + width[:, None] * nodes
        first = evaluate(present, x.ravel()).reshape(x.shape)
        second = evaluate(absent, x.ravel()).reshape(x.shape)
        gap = base[:, None] - (first - second)
        density = np.exp(first) * (width[:, None] * weights)
        scaled = np.exp(np.minimum(second + base[:, None], 700.0)) * (width[:, None] * weights)
        results.append(
            np.stack(
                (density.sum(axis=1), -(density * np.expm1(np.minimum(gap, 700.0))).sum(axis=1), scaled.sum(axis=1))
            )
        )
        size = np.maximum(np.abs(first), np.abs(second)).max(axis=1)
        blur = np.maximum(blur, 2.0 * _ACCURACY * EPS * np.maximum(1.0, size))
    return results[0], results[1], blur


def _read(sums: Floats, errors: Floats, base: Floats, loss_error: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    mass, excess, other = sums
    safe = np.where(mass > 0.0, mass, 1.0)
    beside = np.where(other > 0.0, other, 1.0)
    near = np.abs(excess) <= 0.5 * mass
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = base + np.where(near, -np.log1p(-np.where(near, excess / safe, 0.0)), np.log(safe) - np.log(beside))
    off = np.where(near, 2.0 * (errors[0] + errors[1]) / safe, errors[0] / safe + errors[2] / beside)
    return mass, loss, errors[0] / safe + loss_error + 64.0 * EPS, off + loss_error + 64.0 * EPS


#: How far a loss may turn back, relative to its range.
_TURN = 1e-9

#: Points per piece of the first cut; slices that are integrated at once.
_FIRST, _BLOCK = 64, 1 << 14


class Densities(Pair):
    """ln of the densities ``present`` and ``absent``, functions of arrays (n,), between the first and the last knot.

    knots: at least two, ascending, at least one finite; the first may be -inf and the last inf. What is certified holds
    *given* what the caller thereby asserts:

    * each density integrates to one and is positive between the outermost knots;
    * between neighbouring knots the loss present - absent is monotone and both are
      smooth: the rule of Gauss with 16 nodes is off by no more than it differs from that with 8. Kinks are knots;
    * towards an infinite knot, from the finite one next to it, both log densities are concave, so that tails are at
      most density / slope;
    * the functions are accurate to 16 units in the last place, of one or of their value.

    Raises ``ValueError`` naming the argument where one of these is seen not to hold.
    """

    def __init__(self, present: LogDensity, absent: LogDensity, knots: Sequence[float]) -> None:
        self.present, self.absent = present, absent
        ends = np.array(knots, dtype=np.float64)
        if ends.ndim != 1 or len(ends) < 2 or np.any(np.isnan(ends)) or not np.all(np.diff(ends) > 0.0):
            raise ValueError(f"knots must be at least two ascending numbers, got {knots!r}")
        if not np.any(np.isfinite(ends)) or not np.all(np.isfinite(ends[1:-1])):
            raise ValueError(f"knots must be finite but for the first and the last, and not both alone, got {knots!r}")
        self.knots = ends

    def __repr__(self) -> str:
        return f"Densities(knots {[float(x) for x in self.knots]})"

    @property
    def key(self) -> Hashable:
        """The functions themselves and the knots."""
        return ("densities", self.present, self.absent, self.knots.tobytes())

    def largest_loss(self, direction: Direction) -> float:
        """Not known."""
        return math.inf

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The outcomes between the outermost points; beyond them only masses are known."""
        ends = [np.linspace(a, b, _FIRST + 1) for a, b in itertools.pairwise(self._ends(min(log_edge, log_far)))]
        points = np.unique(np.concatenate(ends))
        for _ in range(_SLICE_HALVINGS):
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

    def bins(self, points: Floats, direction: Direction) -> tuple[Bins, Floats, Floats]:
        """One bin per slice; at an infinite knot what lies beyond the outermost point."""
        present = one_direction(direction) == "present-first"
        slices, left, right = self._slices(points[:-1], points[1:]), points[:-1], points[1:]
        bins = slices if present else slices.reversed()
        for end in (0, -1):
            if math.isinf(self.knots[end]):
                mass, high = self._tail(points, end, present)
                bins = bins.with_tail(mass, high)
                left, right = np.append(left, 0.0), np.append(right, 0.0)
        return bins, left, right

    def _ends(self, log_budget: float) -> Floats:
        """The knots, with infinite ones replaced by where both tails are below e^log_budget."""
        ends = self.knots.copy()
        for end, sign in ((0, -1.0), (-1, 1.0)):
            if math.isinf(ends[end]):
                ends[end] = self._far(float(ends[end - int(sign)]), sign, log_budget)
        return ends

    def _far(self, knot: float, sign: float, log_budget: float) -> float:
        step = max(abs(knot), 1.0) * 1e-3
        while not self._log_tail(knot, knot + sign * step).max() <= log_budget:
            step *= 2.0
            if not step < 1e300:
                raise ValueError("knots may be infinite only where both densities fall off")

        def fits(distance: float) -> bool:
            return bool(self._log_tail(knot, knot + sign * distance).max() <= log_budget)

        return knot + sign * bisect(fits, step, 0.5 * step, halvings=30)[0]

    def _log_tail(self, knot: float, x: float) -> Floats:
        """ln of a bound on either law's mass beyond ``x``: a concave log density falls at least as fast as before."""
        back = (x - knot) * np.array([0.0, 0.125, 0.25])
        bounds = np.empty(2)
        for i, function in enumerate((self.present, self.absent)):
            here, near, far = evaluate(function, x - back)
            slack = 2.0 * loss_noise(max(abs(here), abs(near), abs(far)))
            slope = (near - here - slack) / abs(float(back[1]))
            if (far - near) > (near - here) + 4.0 * slack + _TURN * abs(near - here):
                raise ValueError("knots may be infinite only where both log densities are concave towards them")
            bounds[i] = here + slack - math.log(slope) if slope > 0.0 else math.inf
        return bounds

    def _tail(self, points: Floats, end: int, present: bool) -> tuple[float, float]:
        """The first distribution's mass beyond an outermost point, and what its loss is at most there."""
        knot, x = float(self.knots[1 if end == 0 else -2]), float(points[end])
        mass = math.exp(float(self._log_tail(knot, x)[0 if present else 1])) * (1.0 + 1e-12)
        inner, outer = (1.0 if present else -1.0) * self._loss(np.array([0.5 * (knot + x), x]))
        falls = outer < inner - _TURN * (1.0 + abs(inner))
        return mass, float(outer) + loss_noise(abs(outer)) if falls else math.inf

    def _loss(self, x: Floats) -> Floats:
        return np.asarray(evaluate(self.present, x) - evaluate(self.absent, x), dtype=np.float64)

    def _slices(self, left: Floats, right: Floats) -> Bins:
        """Present-first bins of slices, (n,) each."""
        inner = np.isin(left, self.knots), np.isin(right, self.knots)  # a loss may jump at a knot
        starts = self._loss(np.where(inner[0], np.nextafter(left, np.inf), left))
        stops = self._loss(np.where(inner[1], np.nextafter(right, -np.inf), right))
        parts = [
            integrate(self.present, self.absent, *(a[i : i + _BLOCK] for a in (left, right, np.minimum(starts, stops))))
            for i in range(0, len(left), _BLOCK)
        ]
        mass, loss, error, loss_error = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        low, high = np.minimum(starts, stops) - loss_error, np.maximum(starts, stops) + loss_error
        return Bins(mass, np.clip(loss, low, high), low, high, error, loss_error)
