"""A step that first shows which of several mixtures of Gaussians it is, and then an output of that one.

Which one it is has the same law with the group and without, so that only the output leaks: with weights w_i and
profiles delta_i, delta(epsilon) = sum_i w_i delta_i(epsilon). Telling a case that people are not told is an upper
bound on what they learn: forgetting it again is a post-processing (joint convexity of the hockey-stick divergence).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from dpspec.accounting.arbitrary.slices import SlicedPair
from dpspec.accounting.grid.cells import Bins
from dpspec.accounting.mixture.masses import Masses
from dpspec.accounting.mixture.mixture import Mixture
from dpspec.accounting.mixture.truncated_mixture import truncate_outputs
from dpspec.accounting.numerics.floats import EPS, Direction, Floats, one_direction

#: How far the weights may sum from one; they are then divided by their sum.
_SUM_TOLERANCE = 1e-9

#: Slices of the first cut.
_FIRST = 256

#: ln of a tail of one case that is never left out.
_LEAST_TAIL = -0.7

#: What rounding can have changed of a case's weight or largest loss, relatively.
_ROUNDED = 1e-12


class Revealed(SlicedPair):
    """``cases``: (weight, mixture) each, weights above 0 and summing to one; sensitivities in units of one clip norm.

    All cases have the same sigma. Raises ``ValueError`` naming the argument.
    """

    def __init__(self, cases: Sequence[tuple[float, Mixture]]) -> None:
        if not cases or any(not 0.0 < weight <= 1.0 for weight, _ in cases):
            raise ValueError("cases must have weights above 0 and at most 1")
        total = math.fsum(weight for weight, _ in cases)
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"weights of cases must sum to 1, got {total!r}")
        if len({pair.sigma for _, pair in cases}) != 1:
            raise ValueError("all cases must have the same sigma")
        self.cases = tuple((weight / total, pair) for weight, pair in cases)

    def __repr__(self) -> str:
        return f"Revealed({', '.join(f'{weight:.3g}: {pair!r}' for weight, pair in self.cases)})"

    @property
    def key(self) -> Hashable:
        """The weights and the mixtures' own keys."""
        return ("revealed", *((weight, pair.key) for weight, pair in self.cases))

    @property
    def dominating_effect(self) -> float:
        """That of the worst case."""
        return max(pair.dominating_effect for _, pair in self.cases)

    def largest_loss(self, direction: Direction) -> float:
        """That of the worst case."""
        return max(pair.largest_loss(direction) for _, pair in self.cases)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The weighted sum of the cases' own profiles."""
        each = [(math.log(weight), pair.log_delta_bounds(epsilon, direction)) for weight, pair in self.cases]
        low = float(np.logaddexp.reduce([log + bounds[0] for log, bounds in each]))
        high = float(np.logaddexp.reduce([log + bounds[1] for log, bounds in each]))
        return low - _ROUNDED, min(0.0, high + _ROUNDED)

    def points(self, direction: Direction, log_edge: float, log_far: float) -> Floats:
        """Outputs in units of sigma, between those beyond which each case, by its weight, has little mass."""
        ends = []
        for weight, pair in self.cases:
            edge, far = log_edge - math.log(weight), log_far - math.log(weight)
            if edge < _LEAST_TAIL and far < _LEAST_TAIL:
                area = truncate_outputs(pair.ratio, one_direction(direction), edge, far)
                ends.append((area.low, area.high))
        return np.linspace(min(low for low, _ in ends), max(high for _, high in ends), _FIRST + 1)

    def bins(self, points: Floats, direction: Direction) -> tuple[Bins, Floats, Floats]:
        """A bin for each case and slice, and for what lies beyond either outermost point."""
        present = one_direction(direction) == "present-first"
        each = [_bins(pair, weight, points, present) for weight, pair in self.cases]
        left, right = np.concatenate((points[:1], points)), np.concatenate((points, points[-1:]))
        bins = Bins(
            mass=np.concatenate([one.mass for one in each]),
            loss=np.concatenate([one.loss for one in each]),
            low=np.concatenate([one.low for one in each]),
            high=np.concatenate([one.high for one in each]),
            error=np.concatenate([one.error for one in each]),
            loss_error=np.concatenate([one.loss_error for one in each]),
            shift=max(one.shift for one in each),
        )
        return bins, np.tile(left, len(each)), np.tile(right, len(each))


def _bins(pair: Mixture, weight: float, points: Floats, present: bool) -> Bins:
    """The bins of one case between neighbouring ``points`` (n,), and of both tails: (n + 1,)."""
    ratio = pair.ratio
    low, high = np.concatenate(([-np.inf], points)), np.concatenate((points, [np.inf]))
    masses = Masses.of(ratio, low, high)
    first, second = (masses.group, masses.none) if present else (masses.none, masses.group)
    error = (masses.group_error if present else masses.none_error) + 16.0 * EPS + _ROUNDED
    losses, noise = ratio.with_noise(points)
    least = np.concatenate(([ratio.log_zero], losses))
    most = np.concatenate((losses, [np.inf]))
    if not present:
        least, most = -most, -least
    known = np.isfinite(first) & np.isfinite(second)
    lost = np.isfinite(first) & ~known  # what cannot be told apart counts as infinite, and not from below
    most = np.where(lost, np.inf, most)
    shift = float(np.max(noise)) + 8.0 * EPS * float(np.max(np.abs(losses)))
    with np.errstate(invalid="ignore"):
        loss = np.where(known, np.clip(first - second, least - shift, most + shift), 0.0)
        beside = 8.0 * EPS * (1.0 + np.abs(first) + np.abs(second))
    loss_error = np.where(known, masses.group_error + masses.none_error + beside, 0.0)
    return Bins(
        mass=weight * np.exp(np.minimum(first, 0.0)),
        loss=loss,
        low=least,
        high=most,
        error=np.where(lost, 1.0, np.minimum(error, 1.0)),
        loss_error=loss_error,
        shift=shift,
    )
