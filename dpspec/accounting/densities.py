"""A pair of laws on the line given by the logarithms of their densities; see ``integrals`` for their masses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np

from dpspec.accounting.bins import Bins
from dpspec.accounting.checks import Direction, Floats, one_direction
from dpspec.accounting.integrals import LogDensity, integrate, noise, values
from dpspec.accounting.slices import Sliced

#: How far the masses may sum from one, and how far a loss may turn back, relative to its range.
_SUM_TOLERANCE, _TURN = 1e-7, 1e-9

#: Points per piece: of the first cut, and where monotonicity is checked; slices that are integrated at once.
_FIRST, _CHECKED, _BLOCK = 64, 257, 1 << 14


class Densities(Sliced):
    """ln of the densities ``present`` and ``absent``, functions of arrays (n,), between the first and the last knot.

    knots: at least two, ascending, at least one finite; the first may be -inf and the last inf. What is certified holds
    *given* what the caller thereby asserts:

    * each density integrates to one and is positive between the outermost knots (checked up to 1e-7);
    * between neighbouring knots the loss present - absent is monotone (checked at some hundred points) and both are
      smooth: the rule of Gauss with 16 nodes is off by no more than it differs from that with 8. Kinks are knots;
    * towards an infinite knot, from the finite one next to it, both log densities are concave, so that tails are at
      most density / slope. Heavier tails: ``Distributions``;
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
        self._check()

    def __repr__(self) -> str:
        return f"Densities(knots {[float(x) for x in self.knots]})"

    @property
    def key(self) -> Hashable:
        """The functions themselves and the knots."""
        return ("densities", self.present, self.absent, self.knots.tobytes())

    def largest_loss(self, direction: Direction) -> float:
        """Not known."""
        return math.inf

    def points(self, direction: Direction, log_edge: float, log_far: float) -> Floats:
        """The knots, and some between; infinite ones replaced by points beyond which either law has little mass."""
        return self._spread(self._ends(min(log_edge, log_far)), _FIRST)

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

    def _check(self) -> None:
        ends = self._ends(-46.0)
        points = self._spread(ends, _CHECKED)
        losses = self._loss(points[1:-1])
        if not np.all(np.isfinite(losses)):
            raise ValueError("present and absent must be finite between the outermost knots")
        for low, high in itertools.pairwise(ends):
            inner = self._loss(np.linspace(low, high, _CHECKED)[1:-1])
            turns = np.diff(inner)
            slack = _TURN * float(np.ptp(inner)) + 4.0 * noise(np.abs(inner).max())
            if np.any(turns > slack) and np.any(turns < -slack):
                raise ValueError(f"knots must leave the loss monotone between them: it is not from {low:g} to {high:g}")
        slices = self._slices(points[:-1], points[1:])
        for name, masses in (("present", slices.mass), ("absent", slices.reversed().mass)):
            total = math.fsum(masses)
            if not abs(total - 1.0) <= _SUM_TOLERANCE:
                raise ValueError(f"{name} must be ln of a density that integrates to 1, got {total!r}")

    def _ends(self, log_budget: float) -> Floats:
        """The knots, with infinite ones replaced by where both tails are below e^log_budget."""
        ends = self.knots.copy()
        for end, sign in ((0, -1.0), (-1, 1.0)):
            if math.isinf(ends[end]):
                ends[end] = self._far(float(ends[end - int(sign)]), sign, log_budget)
        return ends

    @staticmethod
    def _spread(ends: Floats, pieces: int) -> Floats:
        parts = [np.linspace(a, b, pieces + 1) for a, b in itertools.pairwise(ends)]
        return np.unique(np.concatenate(parts))

    def _far(self, knot: float, sign: float, log_budget: float) -> float:
        step = max(abs(knot), 1.0) * 1e-3
        while not self._log_tail(knot, knot + sign * step).max() <= log_budget:
            step *= 2.0
            if not step < 1e300:
                raise ValueError("knots may be infinite only where both densities fall off")
        low = 0.5 * step
        for _ in range(30):
            middle = 0.5 * (low + step)
            fits = self._log_tail(knot, knot + sign * middle).max() <= log_budget
            low, step = (low, middle) if fits else (middle, step)
        return knot + sign * step

    def _log_tail(self, knot: float, x: float) -> Floats:
        """ln of a bound on either law's mass beyond ``x``: a concave log density falls at least as fast as before."""
        back = (x - knot) * np.array([0.0, 0.125, 0.25])
        bounds = np.empty(2)
        for i, function in enumerate((self.present, self.absent)):
            here, near, far = values(function, x - back)
            slack = 2.0 * noise(max(abs(here), abs(near), abs(far)))
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
        return mass, float(outer) + noise(abs(outer)) if falls else math.inf

    def _loss(self, x: Floats) -> Floats:
        return np.asarray(values(self.present, x) - values(self.absent, x), dtype=np.float64)

    def _slices(self, left: Floats, right: Floats) -> Bins:
        """Present-first bins of slices, (n,) each."""
        inner = np.isin(left, self.knots), np.isin(right, self.knots)  # a loss may jump at a knot
        starts = self._loss(np.where(inner[0], np.nextafter(left, np.inf), left))
        stops = self._loss(np.where(inner[1], np.nextafter(right, -np.inf), right))
        parts = [
            integrate(self.present, self.absent, *(a[i : i + _BLOCK] for a in (left, right, np.minimum(starts, stops))))
            for i in range(0, len(left), _BLOCK)
        ]
        mass, loss, error, doubt = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        low, high = np.minimum(starts, stops) - doubt, np.maximum(starts, stops) + doubt
        return Bins(mass, np.clip(loss, low, high), low, high, error, doubt)
