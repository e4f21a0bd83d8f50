"""Upper bounds of the profile of a step of truncated Poisson batches for one record: Theorem 4d.

``docs/explanation/proofs/truncated-poisson.md`` has the proof. A batch without the record but with room for it is
compared with the average of all batches that have one other record more, and with the averages of those that have one,
two or three records less. The divergence is convex in these averages, so that it is at most the one of others that all
have the same gradient. A batch holds a random sample of the others, whose error is part of the bound.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, ndtr

from dpspec.accounting.gaussian import normal_masses
from dpspec.accounting.grid import SMALLEST
from dpspec.accounting.numerics import Floats, Index
from dpspec.accounting.truncated_poisson import TruncatedPoisson

#: The largest number of records less than cap - 1 of batches that are compared.
FEWER = 3

#: The cosine of the angle between gradients at which tangents are exact, at first, and its range.
_TYPICAL, _TYPICAL_RANGE = -0.2, (-0.8, 0.0)

#: The distance of this cosine from the one of the angle with the largest value, as others would exceed it.
_SHIFT = -0.05

#: The bound of a record's weight, in units of the weight at which the tangents touch.
_HEAVIEST = 3.0

#: The sampling error beyond which weights are cut, in standard deviations, and the largest cut.
_CUT, _LARGEST_CUT = 4.0, 3.0

#: Nodes of the sampling error in standard deviations, and the number of intervals of its mean.
_ERRORS, _MEANS = np.array([-2.0, -1.0, -0.35, 0.35, 1.0, 2.0]), 4000

#: The widths of cells of the outputs along a gradient, within some standard deviations and beyond, and their reach.
_NARROW, _NEAR, _WIDE, _REACH = 0.15, 3.5, 0.5, 10.0

#: Edges of wide intervals of the angle between gradients, and the number of narrow ones in each.
_ANGLES = np.array([0.0, 0.8, 1.3, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.6, math.pi])
_PARTS = 3

#: Angles: the worst one decides where tangents are exact.
_SOUGHT = np.array([1.5, 1.66, 1.82, 2.05, 2.4])

#: The smallest sine of an angle.
_SMALLEST_SINE = 1e-9

#: The number of pairs of a loss and an interval that are evaluated at once.
_TOGETHER = 300

#: Relative error charged for binomial probabilities.
_BINOMIAL = 1e-9


@dataclass(frozen=True, eq=False)
class Averaged:
    """The comparison at several losses; all masses are rounded in the unfavorable direction.

    Attributes:
        step: the step, with a cap of at least 2 and at least cap other records.
        gain: the mass of batches of cap - 1 others and the record.
        same: the excess of the mass without the record, times e^epsilon, over the one with it, of cap - 1 others, (m,).
        larger: the same of cap others, at least 0, (m,).
        fewer: the same of cap - 2, cap - 3, ... others, (j, m).
        record_odds: the mass of these with the record over ``fewer``, (m,).
    """

    step: TruncatedPoisson
    gain: float
    same: Floats
    larger: Floats
    fewer: Floats
    record_odds: Floats

    def profile(self) -> Floats:
        """Upper bounds of the divergence, without the one of batches of fewer than cap - 1 others alone, (m,)."""
        count = len(self.same)
        typical = np.full(count, _TYPICAL)
        if len(self.fewer) > 1:
            at_angles = self._in_intervals(*_pairs(count, _SOUGHT, _SOUGHT), np.repeat(typical, len(_SOUGHT)))
            worst = np.argmax(at_angles.reshape(count, -1), axis=1)
            typical = np.clip(np.cos(_SOUGHT[worst]) + _SHIFT, *_TYPICAL_RANGE)
        in_wide = self._in_intervals(
            *_pairs(count, _ANGLES[:-1], _ANGLES[1:]), np.repeat(typical, len(_ANGLES) - 1)
        ).reshape(count, -1)
        largest = np.zeros(count)
        for rank in range(in_wide.shape[1]):  # wide intervals from the largest bound on, until it is exceeded
            order = np.argsort(-in_wide, axis=1)[:, rank]
            chosen = np.flatnonzero(in_wide[np.arange(count), order] > largest)
            if not len(chosen):
                break
            start, width = _ANGLES[order[chosen]], np.diff(_ANGLES)[order[chosen]] / _PARTS
            for part in range(_PARTS):
                edge = start + part * width
                bound = self._in_intervals(chosen, edge, edge + width, typical[chosen])
                largest[chosen] = np.maximum(largest[chosen], bound)
        return np.asarray(largest + self._cut, dtype=np.float64)

    def _in_intervals(self, loss: Index, left: Floats, right: Floats, typical: Floats) -> Floats:
        """The divergence over angles in intervals, each for one loss, (p,)."""
        divergences = np.empty(len(loss))
        for start in range(0, len(loss), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            divergences[part] = self._largest(loss[part], left[part], right[part], typical[part])
        return divergences

    @property
    def _slope(self) -> float:
        return 1.0 / self.step.noise_multiplier

    @functools.cached_property
    def _cut(self) -> Floats:
        """What errors beyond the cut and outputs beyond the reach add, (m,)."""
        constant, _, _ = sampling_error(self.step.cap - 1, self.step.n)
        _, intercepts, _ = self._tangents
        start = (np.log(self.same / self.gain) + 0.5 * self._slope**2) / self._slope
        offset = self.same - np.sum(intercepts, axis=0)
        excess = self.gain * ndtr(self._slope - start) - offset * ndtr(-start)  # of outputs with an excess at all
        outside = 16.0 * float(ndtr(-_REACH)) * (self.gain + np.sum(intercepts, axis=0))
        return np.asarray(constant * np.maximum(excess, 0.0) + outside, dtype=np.float64)

    @functools.cached_property
    def _tangents(self) -> tuple[Floats, Floats, Floats]:
        """Slopes and intercepts of the tangents of ``fewer``, (j, m) each, and the bounds of weights, (m,)."""
        count, drawn, square = len(self.fewer), self.step.cap - 1, self._slope**2
        size = np.arange(1, count + 1)
        scales = self.fewer * np.exp(-0.5 * square * size * (size - 1))[:, None]
        m = np.exp(self._slope * np.linspace(-6.0, 6.0, 121) - 0.5 * square)[:, None]
        shared = np.ones_like(self.fewer)
        for _ in range(4):  # where the loss of the best output without the record is the smallest
            powers = np.sum(
                [share * scale * m**j for j, share, scale in zip(size, shared, scales, strict=True)], axis=0
            )
            losses = self.same + self.larger * math.exp(-square) / m + powers
            gain = np.min(losses, axis=0) / self.gain
            shared = np.maximum(0.05, 1.0 - self.record_odds * gain * np.exp(_TYPICAL * square * size)[:, None])
        middle = m[np.argmin(losses, axis=0), 0]
        heaviest = _HEAVIEST * middle
        slopes, intercepts = scales.copy(), np.zeros_like(self.fewer)
        for j in range(1, count):
            factors = [np.maximum(0.0, drawn * middle - i * heaviest) / (drawn - i) for i in range(j + 1)]
            product = np.prod(factors, axis=0)
            products = [drawn / (drawn - i) * np.prod(factors[:i] + factors[i + 1 :], axis=0) for i in range(j + 1)]
            rise = np.where(product > 0.0, np.sum(products, axis=0), 0.0)
            slopes[j], intercepts[j] = scales[j] * rise, scales[j] * (middle * rise - product)
        kinks = self.record_odds * np.exp(_TYPICAL_RANGE[1] * square * size)[:, None]
        too_steep = np.sum(intercepts * kinks, axis=0) > 0.5 * self.gain
        slopes[1:, too_steep] = intercepts[:, too_steep] = 0.0
        return slopes, intercepts, heaviest

    def _largest(self, loss: Index, left: Floats, right: Floats, typical: Floats) -> Floats:
        """Upper bounds of the divergence over the angles of intervals, each for one loss, (p,).

        The divergence is convex in the cosine and the sine, which are in a triangle of two edges and of the
        intersection of their tangents.

        Args:
            loss: indices of losses, (p,).
            left: (p,).
            right: (p,).
            typical: the cosines at which tangents are exact, (p,).
        """
        radius = 1.0 / np.cos(0.5 * (right - left))
        middle = radius * np.cos(0.5 * (left + right)), radius * np.sin(0.5 * (left + right))
        corners = [
            (along[:, None], np.maximum(across, _SMALLEST_SINE)[:, None])
            for along, across in ((np.cos(left), np.sin(left)), middle, (np.cos(right), np.sin(right)))
        ]
        slope, cells, typical = self._slope, _cells(self.step.noise_multiplier), typical[:, None]
        size = np.arange(1, len(self.fewer) + 1)
        odds = np.log(self.record_odds[loss])[:, None]
        ends = [(*corner, y) for corner in corners for y in (cells.edges[:-1], cells.edges[1:])]
        threshold = np.full((len(loss), len(cells.edges) - 1), np.inf)
        for along, across, y in ends:
            power = functools.reduce(np.maximum, [along, *(j * np.maximum(along, typical) for j in size[1:])])
            kink = (
                -odds - slope * slope * (power - 0.5) - slope * along * y
            )  # beyond it the record uses up batches of fewer others
            threshold = np.minimum(threshold, kink / (slope * across))
        lowest = functools.reduce(
            np.minimum, [slope * (along * y + across * threshold - 0.5 * slope) for along, across, y in ends]
        )
        values = [self._value(loss, *corner, typical, threshold, lowest) for corner in corners]
        return functools.reduce(np.maximum, values)

    def _value(
        self, loss: Index, along: Floats, across: Floats, typical: Floats, threshold: Floats, lowest: Floats
    ) -> Floats:
        """The divergence for gradients with these coordinates along the record's one and across it, (p,).

        Args:
            loss: indices of losses, (p,).
            along: (p, 1).
            across: (p, 1).
            typical: the cosines at which tangents are exact, (p, 1).
            threshold: of the other coordinate of outputs: beyond it batches of fewer others count for nothing, (p, n).
            lowest: the smallest ln G at it, (p, n).
        """
        slope, cells, spread = self._slope, _cells(self.step.noise_multiplier), self._slope * across
        slopes, intercepts, heaviest = (values[..., loss][..., None] for values in self._tangents)
        same, larger, odds = (values[loss][:, None] for values in (self.same, self.larger, self.record_odds))
        gain, offset, offset_beyond, regained = self.gain, same, same, slopes[0] * odds * np.exp(slope * slope * along)
        for j in range(2, len(slopes) + 1):
            kink = odds * np.exp(j * slope * slope * typical)
            gain, offset = gain - intercepts[j - 1] * kink, offset - intercepts[j - 1]
            offset_beyond = offset_beyond - intercepts[j - 1] * np.maximum(0.0, 1.0 - kink * np.exp(lowest))
            regained = regained + slopes[j - 1] * odds * np.exp(j * slope * slope * np.maximum(along, typical))
        shared = np.sum(slopes, axis=0)
        _, errors, weights = sampling_error(self.step.cap - 1, self.step.n)
        total = np.zeros(len(loss))
        for end, y in enumerate((cells.edges[:-1], cells.edges[1:])):
            middle = slope * along * y - 0.5 * slope * slope
            growth = np.exp(middle + 0.5 * spread * spread)
            lost = larger * cells.larger[end]
            lost_before = lost + shared * np.minimum(cells.fewer[end], heaviest)
            regained_here = regained * np.where(cells.heaviest[0] > heaviest, heaviest, cells.heaviest[end])
            grown, beyond_threshold = growth * ndtr(spread - threshold), ndtr(-threshold)
            value = np.zeros_like(threshold)
            for scale, weight in zip((1.0 + errors).tolist(), weights.tolist(), strict=True):
                rise, fall = scale * gain + regained_here, scale * offset + lost_before
                start = (np.log(np.maximum(fall, SMALLEST)) - np.log(rise) - middle) / spread
                before = rise * (growth * ndtr(spread - start) - grown) - fall * (ndtr(-start) - beyond_threshold)
                rise_beyond, fall_beyond = scale * self.gain, scale * offset_beyond + lost
                beyond = rise_beyond * grown - fall_beyond * beyond_threshold
                later = (np.log(np.maximum(fall_beyond, SMALLEST)) - math.log(rise_beyond) - middle) / spread
                is_later = later > threshold
                if np.any(is_later):
                    z = later[is_later]
                    growth_there, spread_there = (
                        np.broadcast_to(part, later.shape)[is_later] for part in (growth, spread)
                    )
                    beyond[is_later] = rise_beyond * growth_there * ndtr(spread_there - z) - fall_beyond[
                        is_later
                    ] * ndtr(-z)
                value += weight * (np.where(start < threshold, np.maximum(before, 0.0), 0.0) + np.maximum(beyond, 0.0))
            total += value @ cells.weights[end]
        return total


def _pairs(count: int, left: Floats, right: Floats) -> tuple[Index, Floats, Floats]:
    """Indices of losses and ends of intervals: each of n intervals for each of ``count`` losses, (count * n,)."""
    return np.repeat(np.arange(count), len(left)), np.tile(left, count), np.tile(right, count)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of the outputs y along a gradient, with values at the two ends of each, (2, n).

    On a cell a convex function of y is at most the line between its ends, and at least its tangent.

    Attributes:
        edges: (n + 1,).
        weights: masses of the cells, divided so that their means stay.
        larger: the tangent of the likelihood ratio of a batch with the record of this gradient.
        fewer: the tangent of the one of a batch without it.
        heaviest: the latter likelihood ratio.
    """

    edges: Floats
    weights: Floats
    larger: Floats
    fewer: Floats
    heaviest: Floats


@functools.lru_cache(maxsize=8)
def _cells(sigma: float) -> _Cells:
    slope, unit = 1.0 / sigma, min(2.0, max(0.5, sigma))
    reach = _REACH + 1.05 * slope
    inner = np.linspace(-_NEAR, _NEAR, 2 * math.ceil(_NEAR / (_NARROW * unit)) + 1)
    far = np.linspace(_NEAR, reach, math.ceil((reach - _NEAR) / (_WIDE * unit)) + 1)[1:]
    edges = np.concatenate((-far[::-1], inner, far))
    widths, middles, masses = np.diff(edges), 0.5 * (edges[1:] + edges[:-1]), normal_masses(edges)
    density = np.exp(-0.5 * edges * edges) / math.sqrt(2.0 * math.pi)
    right = np.clip((density[:-1] - density[1:] - edges[:-1] * masses) / widths, 0.0, masses)
    bends = np.array([-0.5, 0.5])[:, None] * slope * widths
    return _Cells(
        edges,
        np.array([masses - right, right]),
        np.exp(slope * middles - 0.5 * slope * slope) * (1.0 + bends),
        np.exp(-slope * middles - 0.5 * slope * slope) * (1.0 - bends),
        np.exp(-slope * np.array([edges[:-1], edges[1:]]) - 0.5 * slope * slope),
    )


@functools.lru_cache(maxsize=64)
def sampling_error(drawn: int, population: int) -> tuple[float, Floats, Floats]:
    """The function S of Theorem 4d for samples of ``drawn`` of a ``population``: a constant and positive parts.

    Returns:
        The constant, errors r and weights w: S(f) is at most the constant plus the sum of w max(f + r, 0) for f <= 1.
        The largest error is the cut less 1.
    """
    odds = drawn / (population - drawn)
    count, width = (drawn, 1.0 + odds) if odds <= 1.0 else (population - drawn, 1.0 + 1.0 / odds)
    share = _CUT * width / (2.0 * math.sqrt(count))
    cut = min(_LARGEST_CUT, 1.0 / (1.0 - share)) if share < 1.0 else _LARGEST_CUT
    width *= cut
    std = width / (2.0 * math.sqrt(count))
    nodes = np.unique(np.clip(np.concatenate(([1.0 - cut], std * _ERRORS, [1.0])), 1.0 - cut, 1.0))
    means = np.linspace(0.0, 1.0, _MEANS + 1)
    margin = nodes[:, None] + width * means[1:]
    most = np.floor(np.clip(margin / width * count, 0.0, count))
    shortfall = margin * bdtr(most, count, means[:-1]) - width * means[:-1] * np.where(
        most >= 1.0, bdtr(np.maximum(most - 1.0, 0.0), count - 1, means[:-1]) if count > 1 else 1.0, 0.0
    )
    values = np.max(np.where(margin > 0.0, shortfall, 0.0), axis=1) * (1.0 + _BINOMIAL) + _BINOMIAL**2
    slopes = np.maximum.accumulate(np.diff(values) / np.diff(nodes))
    return float(values[0]), -nodes[:-1], np.diff(np.insert(slopes, 0, 0.0))
