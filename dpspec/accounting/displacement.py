"""A dominating pair of one step of truncated Poisson batches: Theorems 4b and 4d for a record, 4c for a group.

``docs/explanation/proofs/truncated-poisson.md`` has the proofs. Theorem 4b compares a batch in which the record
displaced another one with batches of three sizes at once, Theorem 4d (``averaged_displacement``) with averages over
batches; the smaller bound counts. All gradients may be taken for unit vectors. Distances then
depend on their inner products with the record, whose median is unknown: the pair's profile is the largest one over
intervals of the median and of one more inner product.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpspec.accounting.averaged_displacement import FEWER, Averaged
from dpspec.accounting.discrete import Discrete
from dpspec.accounting.gaussian import normal_masses
from dpspec.accounting.grid import SMALLEST
from dpspec.accounting.group_displacement import convex_pair, group_displacement_pair
from dpspec.accounting.numerics import Floats
from dpspec.accounting.truncated_poisson import Batches, TruncatedPoisson

#: Edges of intervals of the angle of the median beyond a right one, and of a favorable record's angle below that.
_MEDIANS = np.radians([*np.linspace(0.0, 45.0, 13), 50.0, 56.0, 64.0, 72.0, 81.0, 90.0])
_FAVORABLE = np.radians([0.0, 2.0, 6.0, 13.0, 25.0, 45.0, 70.0, 95.0])

#: The angle of the median beyond a right one that mostly is the worst: first, so that other ones need fewer bounds.
_WORST = 0.6

#: Shares of the batches of cap - 2 records that are compared with displaced records.
_SHARES = (0.5, 0.0, 0.3, 0.75)

#: The number of losses, and the reach of losses and integrals in standard deviations.
_LOSSES, _REACH = 180, 10.0

#: Numbers of favorable records in a batch in standard deviations. Fewer than the first count as this.
_COMPOSITIONS = np.array([-2.0, 0.0, 2.5, 5.0, 7.0])

#: Nodes of an integral in standard deviations.
_NODES = np.concatenate((np.linspace(-_REACH, -5.0, 4), np.linspace(-5.0, 5.0, 27)[1:-1], np.linspace(5.0, _REACH, 4)))

#: Outputs at whose losses all nodes have Theorem 4d; else every fourth.
_RELEVANT, _AROUND, _SPARSE = 3.0, 5.5, 4

#: ln of the smallest relative distance of a loss from the lowest one.
_LOWEST = 16.0

#: Smallest distance of the other batches across the record's direction.
_ACROSS = 1e-3

#: Steps of Newton's method, and the error of a root at which they end: an integral's error is of second order.
_STEPS, _CONVERGED = 60, 1e-6

#: The smallest slope of a root, and the range of roots: beyond it an integral is its limit.
_FLATTEST, _ROOTS = 1e-6, (-40.0, 80.0)

#: Relative errors charged to masses of batches, which have 4e-9, and to a profile.
_CHARGED, _ROUNDED = 8e-9, 1e-8

#: Noise multipliers in range, and the largest cap.
_NOISE, _LARGEST_CAP = (0.25, 1000.0), 20_000


@functools.lru_cache(maxsize=32)
def displacement_pair(step: TruncatedPoisson) -> Discrete | None:
    """A pair that dominates the step if the smaller dataset has exactly n records and the group exactly k.

    Args:
        step: the step.

    Returns:
        The pair; None if the cap never or always binds, or out of the range of Theorem 4b or, for k > 1, 4c.
    """
    if step.group_size > 1:
        return group_displacement_pair(step)
    batches = Batches.of(step)
    in_range = step.rate < 1.0 and _NOISE[0] <= step.noise_multiplier <= _NOISE[1] and step.cap <= _LARGEST_CAP
    if batches is None or not in_range or batches.without_group(step.cap - 1) <= 0.0:
        return None
    return convex_pair(*_Profile(step, batches).largest())


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
        z = np.append(np.linspace(lowest, middle, _LOSSES, endpoint=False), np.linspace(middle, highest, _LOSSES // 6))
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
        opposed = self._compared(high, [(1.0, 1.0, 0.0)], math.pi, 0.0, 0.0) + two_before * poisson[~low]
        other_bounds = np.minimum(opposed, self._averaged(high) + two_before * poisson[~low])
        by_median = self._by_median(high, 0.5 * math.pi, 0.5 * math.pi, 0.0)
        intervals = sorted(itertools.pairwise(_MEDIANS.tolist()), key=lambda ends: abs(sum(ends) / 2.0 - _WORST))
        for least, most in intervals:
            for angles in _angles(least, most):
                least_bound, still_larger = np.full_like(high, math.inf), np.flatnonzero(by_median < other_bounds)
                for share in _SHARES:
                    if not len(still_larger):
                        break
                    alternative = self._by_median(high[still_larger], *angles, share)
                    least_bound[still_larger] = np.minimum(least_bound[still_larger], alternative)
                    still_larger = still_larger[least_bound[still_larger] > by_median[still_larger]]
                by_median[still_larger] = least_bound[still_larger]
        profile[~low] = np.minimum(by_median, other_bounds)
        profile = (profile + self.batches.fewer(cap - 2) * poisson) * (1.0 + _ROUNDED)
        return np.append(-rate, ratios), np.append(rate, profile)

    def _averaged(self, ratios: Floats) -> Floats:
        """The profile of batches of cap - 1 or more others by Theorem 4d, (n,); infinite if it is not evaluated."""
        step, cap = self.step, self.step.cap
        bounds = np.full_like(ratios, math.inf)
        if cap < 2:
            return bounds
        slope = 1.0 / step.noise_multiplier
        z = (np.log1p(ratios / step.rate) + 0.5 * slope * slope) / slope
        is_chosen = (np.abs(z - _RELEVANT) < _AROUND) | (np.arange(len(ratios)) % _SPARSE == 0)
        chosen = ratios[is_chosen]
        excess = (1.0 - _CHARGED) * (step.rate + chosen)
        sizes = range(cap - 2, max(-1, cap - 2 - FEWER), -1)
        bounds[is_chosen] = Averaged(
            step,
            self._gain,
            -self._of_one_fewer(chosen),
            np.maximum(0.0, -self._of_full(chosen)),
            np.array([self.batches.without_group(b) * excess for b in sizes]),
            step.rate / excess,
        ).profile()
        return bounds

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

    def _by_median(self, ratios: Floats, favorable: float, unfavorable: float, share: float) -> Floats:
        """The profile of batches of cap - 2 or more others, whose means are at these angles to the record's gradient.

        Args:
            ratios: e^epsilon - 1, (n,).
            favorable: the angle of the mean of a batch with one record more.
            unfavorable: the angle of the mean of a batch with one record less.
            share: the share of the latter that is compared with displaced records.
        """
        rate, cap = self.step.rate, self.step.cap
        two_before = self.batches.without_group(cap - 2)
        alone = _call(
            -(1.0 - share) * two_before * (rate + ratios), two_before * rate, 1.0 / self.step.noise_multiplier
        )
        return alone + self._compared(ratios, self._compositions, favorable, unfavorable, share)

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
        chosen = np.rint(mean + std * _COMPOSITIONS).astype(np.int64)
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
        self,
        ratios: Floats,
        compositions: list[tuple[float, float, float]],
        favorable: float,
        unfavorable: float,
        share: float,
    ) -> Floats:
        """The part of batches with displaced records, where the excess of full batches is below 0, (n,)."""
        slope, gain = 1.0 / self.step.noise_multiplier, self._gain
        along_x, along_y = slope * math.cos(favorable), slope * math.cos(unfavorable)
        across_x, across_y = (slope * max(math.sin(angle), _ACROSS) for angle in (favorable, unfavorable))
        u, node_weights, outside = _lognormal_nodes(max(across_x, across_y) if share > 0.0 else across_x)
        one_fewer = self._of_one_fewer(ratios)[:, None]
        larger = self._of_full(ratios)[:, None] * np.exp(across_x * u - 0.5 * across_x * across_x)
        two_before = share * (1.0 - _CHARGED) * self.batches.without_group(self.step.cap - 2)
        smaller = -two_before * (self.step.rate + ratios)[:, None]
        smaller = smaller * np.exp(across_y * u - 0.5 * across_y * across_y)
        total = np.zeros_like(ratios)
        for weight, above, below in compositions:
            if above == below == 0.0:
                total += weight * _call(one_fewer[:, 0], gain, slope)
                continue
            losses = [(above * larger, along_x), (one_fewer, 0.0), (below * smaller, along_y)]
            if share == 0.0:
                del losses[2]
            total += weight * (_crossing(losses, gain, slope) @ node_weights + gain * outside)
        return total


def _angles(least: float, most: float) -> Iterator[tuple[float, float]]:
    """Angles to the record's gradient that cover all inner products with the others, for a median in an interval.

    The angle of the median is a right one and ``least`` to ``most``. The mean of a batch with one unfavorable record
    less has at most a right angle less ``least``. The angle of a favorable record, and of the mean of a batch with one
    more, is in one of several intervals: if it may be as small, both means may be one.
    """
    right = 0.5 * math.pi
    nearest = right - least
    for largest, smallest in itertools.pairwise([*(right + most - _FAVORABLE).tolist(), 0.0]):
        if smallest <= nearest:
            farthest = max(largest, nearest)
            yield farthest, farthest
            return
        yield largest, largest - (smallest - nearest)


def _call(loss: Floats, gain: Floats | float, slope: float) -> Floats:
    """E[max(loss + gain exp(slope z - slope^2 / 2), 0)] for standard normal z, ``loss`` < 0 < ``gain`` or both 0."""
    if not np.any(gain):
        return np.zeros_like(loss)
    middle = np.log(gain / -loss) / slope
    value: Floats = gain * ndtr(middle + 0.5 * slope) + loss * ndtr(middle - 0.5 * slope)
    return np.maximum(value, 0.0)


def _crossing(losses: list[tuple[Floats, float]], gain: float, slope: float) -> Floats:
    """E[max(gain exp(slope z - slope^2 / 2) + sum of c exp(a z - a^2 / 2), 0)] for pairs (c, a), c < 0, a < ``slope``.

    ln of the sum of the losses less ln of the gain is convex in z and falls. It is positive where a single loss equals
    the gain, and from there Newton's method rises to the root.
    """
    log_gain = math.log(gain) - 0.5 * slope * slope
    logs = [np.log(np.maximum(-c, SMALLEST)) - 0.5 * a * a - log_gain for c, a in losses]
    falls = [max(slope - a, _FLATTEST) for _, a in losses]
    z = functools.reduce(np.maximum, (log / fall for log, fall in zip(logs, falls, strict=True)))
    z = np.clip(z, *_ROOTS)
    for _ in range(_STEPS):
        ratios = [np.exp(np.clip(log - fall * z, -700.0, 600.0)) for log, fall in zip(logs, falls, strict=True)]
        total = functools.reduce(np.add, ratios)
        steepness = functools.reduce(np.add, (fall * part for fall, part in zip(falls, ratios, strict=True)))
        previous, z = z, np.clip(z + np.log(total) * total / steepness, *_ROOTS)
        if np.max(np.abs(z - previous), initial=0.0) < _CONVERGED:
            break
    excess: Floats = gain * ndtr(slope - z)
    for c, a in losses:
        excess = excess + c * ndtr(a - z)
    return np.maximum(excess, 0.0)


def _lognormal_nodes(slope: float) -> tuple[Floats, Floats, float]:
    """Nodes u, weights whose sums are at least means of convex functions of exp(slope u), and the mass outside."""
    u = _NODES
    values = np.exp(slope * u - 0.5 * slope * slope)
    masses, means = normal_masses(u), normal_masses(u - slope)
    right = np.clip((means - values[:-1] * masses) / np.diff(values), 0.0, masses)
    weights = np.append(masses - right, 0.0) + np.insert(right, 0, 0.0)
    return u, weights, 2.0 * float(ndtr(-_REACH))
