"""The Laplace mechanism, on all records or on a Poisson sample; its loss is bounded, and all outcomes are kept.

Without the record a step shows Lap(0, b), with it Lap(s, b), or, sampled at rate q, (1 - q) Lap(0, b) + q Lap(s, b).
In terms of the loss l = ln(Lap(s, b) / Lap(0, b)) in [-m, m], m = s / b, the pair is exact: Lap(0, b) has an atom 1/2
at -m, one of e^-m / 2 at m and the density e^(-(l + m) / 2) / 4 between them; Lap(s, b) that times e^l. Outcomes with l
between a and c, merged, have the loss (a + c) / 2. A sampled step's loss is x = ln(1 + q (e^l - 1)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid import (
    Bins,
    Cells,
    Pair,
    TruncatedPair,
    ascending,
    place_nodes_densely,
    positive_masses,
    span_grid,
)
from dpspec.accounting.numerics import (
    EPS,
    Direction,
    Floats,
    Index,
    bounded_effect,
    crossing,
    inside,
    log_or_minus_infinity,
    one_direction,
    positive,
)

#: Points of the table of losses.
_TABLE = 801

#: Iterations of a spacing that depends on the merged loss; each gains several digits. No further one, if a step
#: changes it by no more than the second, relatively.
_ALIGNMENTS, _ALIGNED = 6, 1e-13

#: The smallest rate: below, no exponential in float64 reaches its inverse.
_RAREST = 1e-300

#: From this l on, e^l nearly overflows.
_FAR = 700.0

#: The minimum number of steps of a grid.
_FEWEST = 4

#: Of moments: the number of cells, and the largest ln of a value.
_CELLS, _HIGHEST_MOMENT = 512, 200.0

#: No positions of nodes.
_NONE: Index = np.zeros(0, dtype=np.int64)


class Laplace(Pair):
    """Laplace noise on a sum, of all records or of a Poisson sample. Only sensitivity / scale matters.

    The pair dominates the mechanism for records added or removed; in many dimensions because the one-dimensional pair
    does (all of the sensitivity in one coordinate).

    Args:
        scale: b of the noise, above 0.
        sensitivity: the largest change of the sum by one record in L1 norm, above 0.
        rate: the Poisson sampling rate, 1e-300 <= q <= 1.
    """

    def __init__(self, scale: float, sensitivity: float = 1.0, rate: float = 1.0) -> None:
        self.edge = bounded_effect("scale", positive("sensitivity", sensitivity), positive("scale", scale))
        self.rate = inside("rate", rate, one=True)
        if self.rate < _RAREST:
            raise ValueError(f"rate must be at least {_RAREST:g}, got {rate!r}")
        self.key = ("laplace", self.edge, self.rate)
        ends = self.losses(np.array([-self.edge, self.edge]))
        self.bottom, self.top = float(ends[0]), float(ends[1])  # the losses of the two atoms

    def __repr__(self) -> str:
        return f"Laplace(sensitivity/scale {self.edge:g}, rate {self.rate:g})"

    def largest_loss(self, direction: Direction) -> float:
        """The loss of the atom at m present-first, at -m absent-first."""
        return abs(self.top if one_direction(direction) == "present-first" else self.bottom) * (1.0 + 1e-13)

    def losses(self, l: Floats) -> Floats:  # noqa: E741
        """x = ln(1 + q (e^l - 1)), within ``loss_error``."""
        if self.rate == 1.0:
            return l
        change = self.rate * np.expm1(np.minimum(l, 700.0))
        is_small = np.abs(change) <= 0.5
        if is_small.all():
            return np.asarray(np.log1p(change), dtype=np.float64)
        with np.errstate(over="ignore"):
            far = l + math.log(self.rate) + np.log1p((1.0 - self.rate) / self.rate * np.exp(-np.maximum(l, 0.0)))
            plain = np.log((1.0 - self.rate) + self.rate * np.exp(np.minimum(l, 0.0)))
            from_change = np.log1p(np.where(is_small, change, 0.0))
        return np.asarray(np.where(is_small, from_change, np.where(l > 0.0, far, plain)), dtype=np.float64)

    def loss_error(self, l: Floats, x: Floats) -> Floats:  # noqa: E741
        """A bound on the error of ``losses`` if ``l`` is off by its rounding."""
        slope = np.exp(np.minimum(math.log(self.rate) + l - x, 0.0))
        return np.asarray(EPS * (32.0 * np.abs(x) + 4.0 * np.abs(l) * slope), dtype=np.float64)

    def inverse(self, x: Floats) -> Floats:
        """l(x), clipped to [-m, m]; ``losses`` of the result shows its error."""
        if self.rate == 1.0:
            return np.clip(x, -self.edge, self.edge)
        q = self.rate
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            change = np.expm1(np.minimum(x, 30.0)) / q
            from_change = np.log1p(np.maximum(change, -1.0))
            far = x - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-np.maximum(x, 1.0)))
        return np.clip(np.where(x > 30.0, far, from_change), -self.edge, self.edge)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """With l(x) = epsilon: q (1 - e^((l - m) / 2)) present-first; absent-first, with l(x) = -epsilon,
        q e^(epsilon + l) (1 - e^(-(l + m) / 2)).
        """
        ((lower, upper),) = self.all_log_delta_bounds([epsilon], direction)
        return lower, upper

    def all_log_delta_bounds(self, epsilons: Sequence[float], direction: Direction) -> list[tuple[float, float]]:
        """``log_delta_bounds`` at several ``epsilons``, ascending."""
        present = one_direction(direction) == "present-first"
        x = np.array(epsilons if present else [-epsilon for epsilon in epsilons], dtype=np.float64)
        l = self.inverse(x)  # noqa: E741
        with np.errstate(over="ignore"):
            slack = EPS * (8.0 * np.abs(np.expm1(np.minimum(-l, 700.0))) + 4.0 * np.abs(l) + 4.0 * self.edge)
        lows, highs = np.maximum(l - slack, -self.edge).tolist(), np.minimum(l + slack, self.edge).tolist()
        bottom, top = self.bottom, self.top
        tell, log_rate = 64.0 * EPS * max(abs(bottom), abs(top)), math.log(self.rate)
        bounds = []
        for epsilon, threshold, ends in zip(epsilons, x.tolist(), zip(lows, highs, strict=True), strict=True):
            values = []
            for end in ends:
                gap = 0.5 * (self.edge - end) if present else 0.5 * (self.edge + end)
                log = log_rate + log_or_minus_infinity(-math.expm1(-gap)) + (0.0 if present else epsilon + end)
                values.append(log)
            if (threshold < bottom + tell) if present else (threshold > top - tell):  # all losses exceed epsilon
                log_delta_of_all = log_or_minus_infinity(-math.expm1(min(epsilon, 0.0)))
                values = (
                    [log_delta_of_all]
                    if (threshold < bottom - tell or threshold > top + tell)
                    else [*values, log_delta_of_all]
                )
            elif (threshold > top + tell) if present else (threshold < bottom - tell):
                values = [-math.inf]
            error = EPS * (32.0 + 8.0 * abs(epsilon) + 4.0 * self.edge)
            bounds.append((min(values) - error, min(0.0, max(values) + error)))
        return bounds

    def log_moments(self, tilts: Floats, direction: Direction) -> Floats | None:
        """E[e^(-s x)] without the record from above, by chords: e^(-s x) is a convex function of e^l.

        A cell of width w becomes atoms at its ends with the same mean of e^l: the share 1 / (1 + e^(w / 2)) at the
        upper one. Absent-first only: ``proofs/grids.md``, Theorem 60.
        """
        m = self.edge
        highest = -float(tilts.max()) * self.bottom
        if one_direction(direction) == "present-first" or not (highest <= _HIGHEST_MOMENT and m <= _FAR):
            return None
        l = np.linspace(-m, m, _CELLS + 1)  # noqa: E741
        half = m / _CELLS
        share = 1.0 / (1.0 + math.exp(half))
        masses = -0.5 * math.expm1(-half) * np.exp(-0.5 * (l[:-1] + m))
        weights = np.concatenate((masses * (1.0 - share), [0.5 * math.exp(-m)]))
        weights[1:] += masses * share
        weights[0] += 0.5
        losses = self.losses(l)
        sums = np.exp(-tilts[:, None] * (losses - self.loss_error(l, losses))) @ weights
        # of the sum, of terms above 1 (others are off by less than EPS), of the masses, and of l: dx / dl is below 1
        rounding = EPS * (64.0 + 2.0 * _CELLS + 4.0 * highest + 8.0 * m + 4.0 * m * tilts)
        return np.asarray(np.log(sums) + rounding, dtype=np.float64)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """All outcomes, absent-first except small losses: P[l > t] = e^(-(t + m) / 2) / 2. Large losses are bounded."""
        low, high = -self.edge, self.edge
        direction = one_direction(direction)
        if direction == "absent-first" and self.rate < 1.0:
            high = min(high, low - 2.0 * (log_far + math.log(2.0)))
        return _LaplacePart(self, direction, low, high)

    def log_masses(self, l: Floats) -> tuple[Floats, Floats]:  # noqa: E741
        """ln of the probabilities without the record of outcomes between neighboring ``l``, ascending from -m to m, and
        of the two atoms; and the merged l of each.
        """
        m = self.edge
        low, high = l[:-1], l[1:]
        inner = math.log(0.5) - 0.5 * (low + m) + np.log(-np.expm1(-0.5 * (high - low)))
        atoms = np.array([math.log(0.5), math.log(0.5) - m])
        return np.concatenate((inner, atoms)), np.concatenate((0.5 * (low + high), [-m, m]))

    def bins(self, l: Floats, direction: Direction) -> Bins:  # noqa: E741
        """The outcomes of ``log_masses`` as bins."""
        without, middle = self.log_masses(l)
        x, ends = self.losses(l), [self.bottom, self.top]
        low, high = np.concatenate((x[:-1], ends)), np.concatenate((x[1:], ends))
        return self._oriented(without, middle, low, high, float(np.max(self.loss_error(l, x))), direction)

    def _oriented(
        self, without: Floats, middle: Floats, low: Floats, high: Floats, shift: float, direction: Direction
    ) -> Bins:
        """Bins from ln of masses without the record. Logarithms are added: e^-m may underflow, and e^loss overflow."""
        loss = self.losses(middle)
        loss_error = 4.0 * self.loss_error(middle, loss)
        error = EPS * (32.0 + 4.0 * self.edge)
        if one_direction(direction) == "present-first":
            mass, errors = positive_masses(without + loss, error + loss_error)
            return Bins(mass, loss, low, high, errors, loss_error, shift)
        mass, errors = positive_masses(without, np.full(len(loss), error))
        return Bins(mass, -loss, -high, -low, errors, loss_error, shift)

    def pile(self, spacing: float) -> tuple[float, float] | None:
        """The l up to which outcomes are merged for a lower bound if most losses are within a cell of the smallest one,
        and the merged l; the losses of the two are ``spacing`` apart.
        """
        first = float(self.inverse(np.array([self.bottom + spacing]))[0])
        if self.rate == 1.0 or -0.5 * math.expm1(-0.5 * (first + self.edge)) < spacing:
            return None

        def merged(end: float) -> float:
            """With the record e^((l - m) / 2) / 2 up to l, without it 1 - e^-((l + m) / 2) / 2."""
            return 0.5 * (end - self.edge) + math.log(0.5) - math.log1p(-0.5 * math.exp(-0.5 * (end + self.edge)))

        def loss(end: float) -> float:
            """``losses`` of one l, without an error bound: outcomes up to any end may be merged."""
            return math.log1p(self.rate * math.expm1(end)) if end < _FAR else end + math.log(self.rate)

        def slack(end: float) -> float:
            return spacing - (loss(end) - loss(merged(end)))

        if slack(self.edge) >= 0.0:
            return None
        end, _ = crossing(slack, -self.edge, self.edge)
        return end, merged(end)

    def merged_bins(self, l: Floats, pile: tuple[float, float], direction: Direction) -> Bins:  # noqa: E741
        """``bins`` for a lower bound, with the outcomes of the ``pile`` as one."""
        end, merged = pile
        l = np.concatenate(([end], l[l > end]))  # noqa: E741
        without, middle = self.log_masses(l)
        without[-2], middle[-2] = math.log1p(-0.5 * math.exp(-0.5 * (end + self.edge))), merged
        x, ends = self.losses(l), self.losses(middle[-2:])
        low, high = np.concatenate((x[:-1], ends)), np.concatenate((x[1:], ends))
        return self._oriented(without, middle, low, high, float(np.max(self.loss_error(l, x))), direction)


@dataclass(frozen=True, eq=False)
class _LaplacePart(TruncatedPair):
    """The outcomes with l from ``low``, which is -m, to ``high``."""

    pair: Laplace
    direction: Direction
    low: float
    high: float

    def table(self) -> tuple[Floats, Floats]:
        logs, middle = self.pair.log_masses(np.linspace(self.low, self.high, _TABLE))
        inside = (middle >= self.low) & (middle <= self.high)  # both atoms are listed
        logs, middle = logs[inside], middle[inside]
        losses = self.pair.losses(middle)
        return (losses, logs + losses) if self.direction == "present-first" else (-losses, logs)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        pair = self.pair
        lowest, highest = self._ends
        pile = pair.pile(spacing)
        if pile is None:  # a node at the heavier of the atoms
            q, shrink = pair.rate, math.exp(-pair.edge)
            from_top = self._sign < 0.0 or q + (1.0 - q) * shrink > (1.0 - q) + q * shrink
            lowest, steps = span_grid(lowest, highest, spacing, from_top=from_top)
            inner = _NONE
        else:  # at the merged loss
            node = self._sign * float(pair.losses(np.array([pile[1]]))[0])
            under, over = (math.ceil(gap / spacing - 1e-9) for gap in (node - lowest, highest - node))
            lowest, steps = node - spacing * under, max(_FEWEST, under + over)
            inner = np.clip(np.arange(under - 1, under + 2, dtype=np.int64), 0, steps)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        index = ascending(index, inner)
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        l = ascending(pair.inverse(self._sign * nodes), np.array([-pair.edge, pair.edge]))  # noqa: E741
        bins = pair.bins(l, self.direction)
        merged = bins if pile is None else pair.merged_bins(l, pile, self.direction)
        return bins.cells_above(lowest, spacing, index), merged.cells_below(lowest, spacing, index)

    @property
    def period(self) -> float | None:
        """The distance between the two atoms; None if one is omitted."""
        return self._ends[1] - self._ends[0] if self.high == self.pair.edge else None

    def aligned(self, widest_spacing: float) -> float:
        """Both atoms on nodes, or the merged loss and the other atom."""
        period = self._ends[1] - self._ends[0]
        count = math.ceil(period / widest_spacing)
        spacing = period / count
        for _ in range(_ALIGNMENTS):
            pile = self.pair.pile(spacing)
            if pile is None:
                break
            merged = float(self.pair.losses(np.array([pile[1]]))[0])
            last, spacing = spacing, (self.pair.top - merged) / count
            if abs(spacing - last) <= _ALIGNED * spacing:
                break
        return spacing

    @property
    def _sign(self) -> float:
        return 1.0 if self.direction == "present-first" else -1.0

    @property
    def _ends(self) -> tuple[float, float]:
        """The smallest and the largest loss of the part."""
        ends = np.sort(self._sign * self.pair.losses(np.array([self.low, self.high])))
        return float(ends[0]), float(ends[1])
