"""A dominating pair of one step of truncated Poisson batches for a single record: Theorem 4b.

``docs/explanation/proofs/truncated-poisson.md`` has the proof. A batch in which the record displaced another one is
compared with batches of three sizes at once. Distances depend on the inner products of the others with the record.
Their median is unknown: the pair's profile is the largest one over intervals of the median.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpspec.accounting.discrete import Discrete
from dpspec.accounting.gaussian import normal_masses
from dpspec.accounting.numerics import Floats
from dpspec.accounting.truncated_poisson import Batches, TruncatedPoisson

#: Intervals of the median, and shares of the batches of cap - 2 records that are compared with displaced records.
_MEDIANS, _SHARES = np.linspace(0.0, 1.0, 11), (0.0, 0.5, 0.85)

#: Numbers of losses, of nodes of an integral, and of compositions of batches; their reach in standard deviations.
_LOSSES, _NODES, _COMPOSITIONS, _REACH = 180, 48, 7, 10.0

#: ln of the smallest relative distance of a loss from the lowest one.
_LOWEST = 16.0

#: Smallest distance of a smaller batch across the record's direction.
_ACROSS = 0.5

#: Bisections of a root: the error of an integral is of second order.
_BISECTIONS = 30

#: Relative errors charged to masses of batches, which have 4e-9, and to a profile.
_CHARGED, _ROUNDED = 8e-9, 1e-8

#: Noise multipliers in range, and the largest cap.
_NOISE, _LARGEST_CAP = (0.25, 1000.0), 20_000


@functools.lru_cache(maxsize=32)
def displacement_pair(step: TruncatedPoisson) -> Discrete | None:
    """A pair that dominates the step if the smaller dataset has exactly n records and the group is one record.

    Args:
        step: the step, with ``k`` = 1.

    Returns:
        The pair; None if the cap never or always binds, or out of the range of Theorem 4b.
    """
    batches = Batches.of(step)
    in_range = (
        step.group_size == 1
        and step.rate < 1.0
        and _NOISE[0] <= step.noise_multiplier <= _NOISE[1]
        and step.cap <= _LARGEST_CAP
    )
    if batches is None or not in_range or batches.without_group(step.cap - 1) <= 0.0:
        return None
    return _pair_above(*_Profile(step, batches).largest())


@dataclass(frozen=True, eq=False)
class _Profile:
    """Upper bounds of the profile of a step; in sums of masses the errors of the masses are rounded upward."""

    step: TruncatedPoisson
    batches: Batches

    @functools.cached_property
    def displaced(self) -> float:
        """The probability that the record is kept in a batch from which another one was displaced."""
        cap = self.step.cap
        return sum(weight for _, members, source, weight in self.batches.with_group() if members and source == cap)

    @functools.cached_property
    def ratios(self) -> Floats:
        """e^epsilon - 1 at the losses of Poisson batches, above -rate, (n,)."""
        slope = 1.0 / self.step.noise_multiplier
        lowest = max(-_REACH, 0.5 * slope - _LOWEST / slope)
        middle, highest = 0.7 * _REACH + slope, 2.0 * _REACH + 4.0 * slope
        z = np.append(np.linspace(lowest, middle, _LOSSES, endpoint=False), np.linspace(middle, highest, _LOSSES // 3))
        return np.asarray(self.step.rate * np.expm1(slope * z - 0.5 * slope * slope))

    def largest(self) -> tuple[Floats, Floats]:
        """e^epsilon - 1, from -rate on, and the profile there, (n + 1,) each."""
        rate, cap, ratios, slope = self.step.rate, self.step.cap, self.ratios, 1.0 / self.step.noise_multiplier
        poisson = _call(-(rate + ratios), rate, slope)
        two_before = self.batches.without_group(cap - 2)
        low = self._of_full(ratios) > 0.0
        profile = np.empty_like(ratios)
        profile[low] = two_before * poisson[low] + _call(
            self._of_one_fewer(ratios[low]), self._of_full(ratios[low]) + self._gain, slope
        )
        high = ratios[~low]
        opposed = self._compared(high, [(1.0, 1.0, 0.0)], 1.0, 0.0, 0.0) + two_before * poisson[~low]
        by_median = self._by_median(high, 0.0, 0.0, 0.0)
        for least, most in zip(_MEDIANS[:-1].tolist(), _MEDIANS[1:].tolist(), strict=True):
            alternatives = [self._by_median(high, least, most, share) for share in _SHARES]
            by_median = np.maximum(by_median, np.min(alternatives, axis=0))
        profile[~low] = np.minimum(opposed, by_median)
        profile = (profile + self.batches.fewer(cap - 2) * poisson) * (1.0 + _ROUNDED)
        return np.append(-rate, ratios), np.append(rate, profile)

    @property
    def _gain(self) -> float:
        """The probability of cap - 1 others and the record."""
        mass = self.batches.without_group(self.step.cap - 1) * self.step.rate + self.displaced
        return mass * (1.0 + _CHARGED)

    def _of_full(self, ratios: Floats) -> Floats:
        """The mass of batches of cap others with the record, less e^epsilon times the one without it, (n,)."""
        full = self.batches.without_group(self.step.cap)
        return -(self.displaced + full * ratios) + _CHARGED * (self.displaced + full * np.abs(ratios))

    def _of_one_fewer(self, ratios: Floats) -> Floats:
        """The same for cap - 1 others, if the record was not drawn."""
        return -(1.0 - _CHARGED) * self.batches.without_group(self.step.cap - 1) * (self.step.rate + ratios)

    def _by_median(self, ratios: Floats, least: float, most: float, share: float) -> Floats:
        """The profile of batches of cap - 2 or more others, if the median is from ``least`` to ``most``."""
        rate, cap = self.step.rate, self.step.cap
        two_before = self.batches.without_group(cap - 2)
        alone = _call(
            -(1.0 - share) * two_before * (rate + ratios), two_before * rate, 1.0 / self.step.noise_multiplier
        )
        return alone + self._compared(ratios, self._compositions, most, least, share)

    @functools.cached_property
    def _compositions(self) -> list[tuple[float, float, float]]:
        """Weights, and factors of the masses of batches of cap and of cap - 2 records: (w, rho, rho') of the theorem.

        Numbers t of favorable records between two nodes count as a mixture of the nodes, with smaller factors.
        """
        n, cap = self.step.n, self.step.cap
        favorable = (n + 1) // 2
        unfavorable = n - favorable
        t = np.arange(max(0, cap - 1 - unfavorable), min(favorable, cap - 1) + 1)
        odds = (favorable - t[:-1]) / (t[:-1] + 1.0) * (cap - 1.0 - t[:-1]) / (unfavorable - cap + 2.0 + t[:-1])
        logs = np.append(0.0, np.cumsum(np.log(odds)))
        weights = np.exp(logs - np.max(logs))
        weights /= math.fsum(weights)
        larger = (favorable - t) / (t + 1.0) * (cap / (n - cap + 1.0))
        smaller = (cap - 1.0 - t) / (unfavorable - cap + 2.0 + t) * ((n - cap + 2.0) / max(cap - 1.0, 1.0))
        mean = float(weights @ t)
        std = math.sqrt(max(float(weights @ (t - mean) ** 2), 0.0))
        chosen = np.rint(mean + std * np.linspace(-7.0, 7.0, _COMPOSITIONS)).astype(np.int64)
        nodes = np.unique(np.clip(chosen, t[0], t[-1])) - t[0]
        index = np.arange(len(t))
        after = np.clip(np.searchsorted(nodes, index, side="right"), 1, max(len(nodes) - 1, 1))
        totals = np.zeros(len(nodes) + 1)  # the last one for larger t, without the two other sizes
        for i, weight in enumerate(weights.tolist()):
            if i <= nodes[0] or len(nodes) == 1:
                totals[0 if i <= nodes[0] else -1] += weight
            elif i > nodes[-1]:
                totals[-1] += weight
            else:
                left, right = nodes[after[i] - 1], nodes[after[i]]
                falls = [(float(f[left] - f[right]), float(f[i] - f[right])) for f in (larger, smaller)]
                part = min([1.0, *(done / fall for fall, done in falls if fall > 0.0)])
                totals[after[i] - 1] += part * weight
                totals[after[i]] += (1.0 - part) * weight
        factors = [(*pair,) for pair in zip(larger[nodes].tolist(), smaller[nodes].tolist(), strict=True)]
        return [
            (float(total), above, below)
            for total, (above, below) in zip(totals, [*factors, (0.0, 0.0)], strict=True)
            if total > 0.0
        ]

    def _compared(
        self, ratios: Floats, compositions: list[tuple[float, float, float]], most: float, least: float, share: float
    ) -> Floats:
        """The part of batches with displaced records, where the excess of full batches is below 0, (n,)."""
        slope, gain = 1.0 / self.step.noise_multiplier, self._gain
        across = max(math.sqrt(1.0 - least * least), _ACROSS)
        far = math.sqrt(1.0 - most * most) if share == 0.0 else (1.0 + least * most) / across * (1.0 + 1e-12)
        far = max(far, 1e-3)
        u, node_weights, outside = _lognormal_nodes(slope * far)
        one_fewer = self._of_one_fewer(ratios)[:, None]
        larger = self._of_full(ratios)[:, None] * np.exp(slope * far * u - 0.5 * (slope * far) ** 2)
        two_before = share * (1.0 - _CHARGED) * self.batches.without_group(self.step.cap - 2)
        smaller = -two_before * (self.step.rate + ratios)[:, None]
        smaller = smaller * np.exp(slope * across * u - 0.5 * (slope * across) ** 2)
        total = np.zeros_like(ratios)
        for weight, above, below in compositions:
            terms = [
                (above * larger, -most * slope),
                (one_fewer, 0.0),
                (below * smaller, least * slope),
                (np.full((1, 1), gain), slope),
            ]
            if share == 0.0:
                del terms[2]
            total += weight * (_crossing(terms) @ node_weights + gain * outside)
        return total


def _call(loss: Floats, gain: Floats | float, slope: float) -> Floats:
    """E[max(loss + gain exp(slope z - slope^2 / 2), 0)] for standard normal z, ``loss`` < 0 < ``gain`` or both 0."""
    if not np.any(gain):
        return np.zeros_like(loss)
    middle = np.log(gain / -loss) / slope
    value: Floats = gain * ndtr(middle + 0.5 * slope) + loss * ndtr(middle - 0.5 * slope)
    return np.maximum(value, 0.0)


def _crossing(terms: list[tuple[Floats, float]]) -> Floats:
    """E[max(sum of c exp(a z - a^2 / 2), 0)] for pairs (c, a), the last a the largest and its c alone above 0."""
    shape = np.broadcast_shapes(*(c.shape for c, _ in terms))
    low, high = np.full(shape, -40.0), np.full(shape, 80.0)
    for _ in range(_BISECTIONS):
        z = 0.5 * (low + high)
        above = sum(c * np.exp(a * z - 0.5 * a * a) for c, a in terms) > 0.0
        low, high = np.where(above, low, z), np.where(above, z, high)
    z = 0.5 * (low + high)
    value: Floats = np.asarray(sum(c * ndtr(a - z) for c, a in terms))
    return np.maximum(value, 0.0)


def _lognormal_nodes(slope: float) -> tuple[Floats, Floats, float]:
    """Nodes u, weights whose sums are at least means of convex functions of exp(slope u), and the mass outside."""
    u = np.linspace(-_REACH, _REACH, _NODES)
    values = np.exp(slope * u - 0.5 * slope * slope)
    masses, means = normal_masses(u), normal_masses(u - slope)
    right = np.clip((means - values[:-1] * masses) / np.diff(values), 0.0, masses)
    weights = np.append(masses - right, 0.0) + np.insert(right, 0, 0.0)
    return u, weights, 2.0 * float(ndtr(-_REACH))


def _pair_above(ratios: Floats, profile: Floats) -> Discrete:
    """The pair whose profile is the convex hull of points, exact at and below the first ratio.

    Args:
        ratios: ascending e^epsilon - 1, (n,).
        profile: upper bounds of the profile there, (n,); the first one is the value 1 - e^epsilon.
    """
    hull: list[int] = []
    for i in range(len(ratios)):
        while len(hull) > 1 and _slope(ratios, profile, hull[-2], hull[-1]) >= _slope(ratios, profile, hull[-1], i):
            hull.pop()
        hull.append(i)
    x, y = ratios[hull], profile[hull]
    slopes = np.concatenate(([-1.0], np.clip(np.diff(y) / np.diff(x), -1.0, 0.0), [0.0]))
    absent = np.append(np.maximum(np.diff(slopes), 0.0), 0.0)
    present = np.append(absent[:-1] * (1.0 + x), y[-1])
    return Discrete(present / math.fsum(present), absent / math.fsum(absent))


def _slope(x: Floats, y: Floats, i: int, j: int) -> float:
    return float((y[j] - y[i]) / (x[j] - x[i]))
