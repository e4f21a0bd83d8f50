"""A pair of laws on the line given by their cumulative functions, with a likelihood ratio that is monotone.

Nothing but masses of slices is ever computed. Where the ratio rises with the outcome, the losses of a slice lie between
the mean losses ln(mass / mass) of the slices on either side of it: that bounds what a slice hides, whatever the laws
look like inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TypeAlias

import numpy as np

from dpspec.accounting.arbitrary.slices import SlicedPair
from dpspec.accounting.grid.cells import Bins
from dpspec.accounting.numerics.floats import EPS, Direction, Floats, one_direction
from dpspec.accounting.numerics.search import bisect

#: A cumulative function and the survival function that complements it, each from (n,) to (n,).
Law: TypeAlias = tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]

#: Points of the first cut.
_FIRST = 64

#: How far a cumulative and a survival function may add up to something else than one, or turn back.
_TOLERANCE = 1e-9

#: Slices whose masses are known no better than this are not halved any more.
_UNSURE = 1e-4

#: ln of the least mass that tells an outcome that one law does not produce from one that it hardly does.
_TINY = -707.0


class Distributions(SlicedPair):
    """(cdf, sf) of the law ``present`` and of the law ``absent`` on the real line.

    cdf(x) = P[X <= x] and sf(x) = P[X > x], functions of arrays (n,): both are asked for because each is precise in its
    own tail. What is certified holds *given* what the caller asserts:

    * the ratio of the two laws is monotone in x (falling or rising, not necessarily continuous; checked on the slices);
    * values of either function are within ``accuracy`` of the truth, relatively (1e-14 unless said otherwise).

    Outcomes that have a probability of their own, as counts do, leave each other's losses uncertain and those at an end
    without a bound: an interval is true and wide. Give such laws as ``Discrete``.

    support: between which all outcomes lie, as far as is known. Raises ``ValueError`` naming the argument where one of
    these is seen not to hold.
    """

    def __init__(
        self, present: Law, absent: Law, support: tuple[float, float] = (-math.inf, math.inf), accuracy: float = 1e-14
    ) -> None:
        if not support[0] < support[1]:
            raise ValueError(f"support must be two ascending numbers, got {support!r}")
        if not 0.0 < accuracy < 1e-3:
            raise ValueError(f"accuracy must be above 0 and below 1e-3, got {accuracy!r}")
        self.present, self.absent = tuple(present), tuple(absent)
        self.support, self.accuracy = support, accuracy
        if len(self.present) != 2 or len(self.absent) != 2:
            raise ValueError("present and absent must be pairs of a cumulative and a survival function")
        self._rising = self._orientation()

    def __repr__(self) -> str:
        return f"Distributions(support {self.support})"

    @property
    def key(self) -> Hashable:
        """The functions themselves."""
        return ("distributions", self.present, self.absent, self.support)

    def largest_loss(self, direction: Direction) -> float:
        """Not known."""
        return math.inf

    def points(self, direction: Direction, log_edge: float, log_far: float) -> Floats:
        """Between outcomes beyond which the first law has little mass."""
        present = one_direction(direction) == "present-first"
        law, name = (self.present, "present") if present else (self.absent, "absent")
        below, above = (log_far, log_edge) if self._rising == present else (log_edge, log_far)
        low = self._quantile(law[0], name, below, -1.0)
        high = self._quantile(law[1], name, above, 1.0)
        if not low < high:
            low, high = low - 1e-9 * (1.0 + abs(low)), high + 1e-9 * (1.0 + abs(high))
        return np.linspace(low, high, _FIRST + 1)

    def bins(self, points: Floats, direction: Direction) -> tuple[Bins, Floats, Floats]:
        """One bin per slice, and one beyond either outermost point."""
        present = one_direction(direction) == "present-first"
        first, error_first = self._masses("present" if present else "absent", points)
        second, error_second = self._masses("absent" if present else "present", points)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(first) - np.log(np.maximum(second, 1e-307))
            error = np.where(first > 0.0, error_first / first, 0.0)
            other = np.where(second > 0.0, error_second / second, 0.0)
            loss_error = -np.log1p(-np.minimum(error, 0.5)) - np.log1p(-np.minimum(other, 0.5))
        is_known = (first > 0.0) & (second > 0.0) & (error < 0.5) & (other < 0.5)
        least = np.where(is_known, ratio - loss_error, -np.inf)
        most = np.where(is_known, ratio + loss_error, np.inf)
        rising = self._rising == present
        if not rising:
            least, most = least[::-1], most[::-1]
        low = np.concatenate(([-np.inf], np.maximum.accumulate(least)[:-1]))
        high = np.concatenate((np.minimum.accumulate(most[::-1])[::-1][1:], [np.inf]))
        turned = np.flatnonzero(low > np.minimum(high, most) + _TOLERANCE)
        if turned.size:
            raise ValueError("present and absent must have a monotone likelihood ratio, to within accuracy")
        low, high = np.minimum(low, high), np.maximum(low, high)
        if not rising:
            low, high = low[::-1], high[::-1]
        with np.errstate(invalid="ignore"):
            loss = np.where(
                is_known, np.clip(ratio, low, high), np.where(np.isfinite(low), low, np.minimum(high, _TINY))
            )
        # what only the first law seems to produce has at least the loss that the least double allows
        only_first = (first > 0.0) & (second == 0.0)
        loss = np.where(only_first, np.maximum(loss, np.log(np.maximum(first, 1e-307)) - _TINY), loss)
        is_unsure = ~is_known & ~only_first
        first = np.where(is_unsure, first + error_first, first)
        error = np.where(is_unsure, 1.0, error + 8.0 * EPS)
        loss_error = np.where(is_known, loss_error + 8.0 * EPS * (1.0 + np.abs(loss)), 0.0)
        left, right = np.concatenate((points[:1], points)), np.concatenate((points, points[-1:]))
        rough = np.maximum(np.where(first > 0.0, error_first / np.maximum(first, 1e-307), 0.0), other) > _UNSURE
        right = np.where(rough, left, right)
        return Bins(first, loss, low, high, np.minimum(error, 1.0), loss_error), left, right

    def _orientation(self) -> bool:
        """Whether the ratio rises with the outcome."""
        ends = [
            end
            for name, law in (("present", self.present), ("absent", self.absent))
            for end in (self._quantile(law[0], name, -7.0, -1.0), self._quantile(law[1], name, -7.0, 1.0))
        ]
        points = np.linspace(min(ends), max(ends), _FIRST + 1)
        first, _ = self._masses("present", points)
        second, _ = self._masses("absent", points)
        half = len(first) // 2
        # over the lower half, the law with the larger outcomes has less
        return bool(first[:half].sum() <= second[:half].sum())

    def _masses(self, name: str, points: Floats) -> tuple[Floats, Floats]:
        """The masses of slices and tails under one law, (n + 1,) for (n,) points, and bounds on their errors."""
        cdf, sf = self._values(name, points)
        below, above = np.concatenate(([0.0], cdf, [1.0])), np.concatenate(([1.0], sf, [0.0]))
        up, down = np.diff(below), -np.diff(above)
        if np.any(up < -_TOLERANCE) or np.any(down < -_TOLERANCE):
            raise ValueError(f"{name} must be a cumulative function that rises and a survival function that falls")
        error_up = self.accuracy * (below[1:] + below[:-1])
        error_down = self.accuracy * (above[1:] + above[:-1])
        from_below = error_up <= error_down
        masses = np.maximum(np.where(from_below, up, down), 0.0)
        return masses, np.where(from_below, error_up, error_down) + EPS * masses

    def _values(self, name: str, points: Floats) -> tuple[Floats, Floats]:
        law = self.present if name == "present" else self.absent
        cdf, sf = (np.asarray(function(points), dtype=np.float64) for function in law)
        if cdf.shape != points.shape or sf.shape != points.shape:
            raise ValueError(f"{name} must map arrays to arrays of one shape")
        if not np.all((cdf >= 0.0) & (cdf <= 1.0) & (sf >= 0.0) & (sf <= 1.0)):
            raise ValueError(f"{name} must have values from 0 to 1")
        if np.any(np.abs(cdf + sf - 1.0) > _TOLERANCE):
            raise ValueError(f"{name} must be a cumulative and a survival function that add up to 1")
        return cdf, sf

    def _quantile(self, function: Callable[[Floats], Floats], name: str, log_mass: float, sign: float) -> float:
        """The outcome nearest to the middle beyond which (``sign``) at most e^log_mass lies, to a thousandth."""

        def little(x: float) -> bool:
            cdf, sf = self._values(name, np.array([x]))
            tail = float(cdf[0] if sign < 0.0 else sf[0])
            return tail == 0.0 or math.log(tail) <= log_mass

        edge = self.support[0 if sign < 0.0 else 1]
        if math.isfinite(edge) and not little(edge):
            return edge
        start = self.support[1 if sign < 0.0 else 0]
        start = start if math.isfinite(start) else 0.0
        step = 1e-3
        if little(start):  # from the far side: walk back to where the tail is not little
            sign = -sign
            while little(start + sign * step):
                step *= 2.0
                if not step < 1e300:
                    raise ValueError(f"{name} must have mass on the support")
            inner, outer = start + sign * step, start + sign * 0.5 * step if step > 1e-3 else start
        else:
            while not little(start + sign * step):
                step *= 2.0
                if not step < 1e300:
                    raise ValueError(f"{name} must have tails that fall to nothing")
            inner, outer = start + sign * 0.5 * step if step > 1e-3 else start, start + sign * step

        def near(outer: float, inner: float) -> bool:
            return abs(outer - inner) <= 1e-3 * abs(outer - start)

        return bisect(little, outer, inner, halvings=60, enough=near)[0]
