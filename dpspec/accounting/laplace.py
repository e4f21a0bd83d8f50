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

from dpspec.accounting.grid import Bins, Cells, Pair, TruncatedPair, place_nodes_densely, span_grid
from dpspec.accounting.numerics import EPS, Direction, Floats, inside, log_or_minus_infinity, one_direction, positive

#: Points of the table of losses.
_TABLE = 801


class Laplace(Pair):
    """Laplace noise on a sum, of all records or of a Poisson sample. Only sensitivity / scale matters.

    The pair dominates the mechanism for records added or removed; in many dimensions because the one-dimensional pair
    does (all of the sensitivity in one coordinate).

    Args:
        scale: b of the noise, above 0.
        sensitivity: the largest change of the sum by one record in L1 norm, above 0.
        rate: the Poisson sampling rate, 0 < q <= 1.
    """

    def __init__(self, scale: float, sensitivity: float = 1.0, rate: float = 1.0) -> None:
        self.edge = positive("sensitivity", sensitivity) / positive("scale", scale)
        self.rate = inside("rate", rate, one=True)
        if not 0.0 < self.edge < math.inf:
            raise ValueError(f"scale must leave sensitivity / scale above 0 and finite, got {scale!r}")
        self.key = ("laplace", self.edge, self.rate)

    def __repr__(self) -> str:
        return f"Laplace(sensitivity/scale {self.edge:g}, rate {self.rate:g})"

    def largest_loss(self, direction: Direction) -> float:
        """The loss of the atom at m present-first, at -m absent-first."""
        losses = self.losses(np.array([-self.edge, self.edge]))
        return abs(float(losses[1 if direction == "present-first" else 0])) * (1.0 + 1e-13)

    def losses(self, l: Floats) -> Floats:  # noqa: E741
        """x = ln(1 + q (e^l - 1)), within ``loss_error``."""
        if self.rate == 1.0:
            return l
        with np.errstate(over="ignore"):
            change = self.rate * np.expm1(np.minimum(l, 700.0))
            far = l + math.log(self.rate) + np.log1p((1.0 - self.rate) / self.rate * np.exp(-np.maximum(l, 0.0)))
            plain = np.log((1.0 - self.rate) + self.rate * np.exp(np.minimum(l, 0.0)))
            near = np.log1p(np.where(np.abs(change) <= 0.5, change, 0.0))
        return np.asarray(np.where(np.abs(change) <= 0.5, near, np.where(l > 0.0, far, plain)), dtype=np.float64)

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
            near = np.log1p(np.maximum(change, -1.0))
            far = x - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-np.maximum(x, 1.0)))
        return np.clip(np.where(x > 30.0, far, near), -self.edge, self.edge)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """With l(x) = epsilon: q (1 - e^((l - m) / 2)) present-first; absent-first, with l(x) = -epsilon,
        q e^(epsilon + l) (1 - e^(-(l + m) / 2)).
        """
        present = one_direction(direction) == "present-first"
        x = np.array([epsilon if present else -epsilon])
        l = self.inverse(x)  # noqa: E741
        with np.errstate(over="ignore"):
            slack = EPS * (8.0 * np.abs(np.expm1(np.minimum(-l, 700.0))) + 4.0 * np.abs(l) + 4.0 * self.edge)
        ends = [float(e[0]) for e in (np.maximum(l - slack, -self.edge), np.minimum(l + slack, self.edge))]
        bottom, top = (float(v) for v in self.losses(np.array([-self.edge, self.edge])))
        tell = 64.0 * EPS * max(abs(bottom), abs(top))
        values = []
        for end in ends:
            gap = 0.5 * (self.edge - end) if present else 0.5 * (self.edge + end)
            log = math.log(self.rate) + log_or_minus_infinity(-math.expm1(-gap)) + (0.0 if present else epsilon + end)
            values.append(log)
        threshold = float(x[0])
        if (threshold < bottom + tell) if present else (threshold > top - tell):  # every outcome's loss exceeds epsilon
            every = log_or_minus_infinity(-math.expm1(min(epsilon, 0.0)))
            values = [every] if (threshold < bottom - tell or threshold > top + tell) else [*values, every]
        elif (threshold > top + tell) if present else (threshold < bottom - tell):
            values = [-math.inf]
        error = EPS * (32.0 + 8.0 * abs(epsilon) + 4.0 * self.edge)
        return min(values) - error, min(0.0, max(values) + error)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """All outcomes: losses are bounded."""
        return _LaplacePart(self, 1.0 if one_direction(direction) == "present-first" else -1.0)

    def bins(self, l: Floats) -> Bins:  # noqa: E741
        """Present-first bins: outcomes between neighbouring ``l``, ascending from -m to m, and the two atoms."""
        m = self.edge
        low, high = l[:-1], l[1:]
        middle = 0.5 * (low + high)
        without = -0.5 * np.exp(-0.5 * (low + m)) * np.expm1(-0.5 * (high - low))
        atoms = np.array([-m, m])
        middle = np.concatenate((middle, atoms))
        without = np.concatenate((without, 0.5 * np.exp([0.0, -m])))
        loss = self.losses(middle)
        x = self.losses(l)
        ends = self.losses(atoms)
        return Bins(
            mass=without * np.exp(loss),
            loss=loss,
            low=np.concatenate((x[:-1], ends)),
            high=np.concatenate((x[1:], ends)),
            error=np.full(len(loss), EPS * (32.0 + 4.0 * m)) + self.loss_error(middle, loss),
            loss_error=self.loss_error(middle, loss),
            shift=float(np.max(self.loss_error(l, x))),
        )


@dataclass(frozen=True, eq=False)
class _LaplacePart(TruncatedPair):
    """``sign``: 1 present-first, -1 absent-first."""

    pair: Laplace
    sign: float

    def table(self) -> tuple[Floats, Floats]:
        bins = self._oriented(np.linspace(-self.pair.edge, self.pair.edge, _TABLE))
        with np.errstate(divide="ignore"):
            logs = np.log(bins.mass)
        return bins.loss[logs > -np.inf], logs[logs > -np.inf]

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        pair = self.pair
        lowest, highest = self._ends
        # a node at the heavier of the atoms
        q, shrink = self.pair.rate, math.exp(-self.pair.edge)
        from_top = self.sign < 0.0 or q + (1.0 - q) * shrink > (1.0 - q) + q * shrink
        lowest, steps = span_grid(lowest, highest, spacing, from_top=from_top)
        index = place_nodes_densely(*self.table(), lowest, spacing, steps, tilts, widest, limit)
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        l = np.unique(np.concatenate((pair.inverse(self.sign * nodes), [-pair.edge, pair.edge])))  # noqa: E741
        return self._oriented(l).cells(lowest, spacing, index)

    @property
    def period(self) -> float:
        """The distance between the two atoms."""
        return self._ends[1] - self._ends[0]

    @property
    def _ends(self) -> tuple[float, float]:
        """The smallest and the largest loss."""
        ends = np.sort(self.sign * self.pair.losses(np.array([-self.pair.edge, self.pair.edge])))
        return float(ends[0]), float(ends[1])

    def _oriented(self, l: Floats) -> Bins:  # noqa: E741
        bins = self.pair.bins(l)
        return bins if self.sign > 0.0 else bins.reversed()
