"""Privacy loss of the pair behind the bound, composed by FFT, to show the tightness of the bound.

The pair is the one-hot gradient, or p equal coordinates at clip_norm / sqrt(p). The value is an estimate: not a lower
bound on the mechanism unless a dataset has that gradient and that gap at every step, and not an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from dpspec.accounting import Floats, inside
from dpspec_modelmix import density
from dpspec_modelmix.options import Segment

#: Cell width of one coordinate's output.
_CELL = 0.005

#: Spacing of summed losses, and number of grid points above which the spacing grows.
_SPACING, _POINTS = 1e-4, 1 << 21

#: Spacing of the coordinates' losses in a step.
_WITHIN = 1e-3

#: Maximum mass outside the window of a sum.
_LOST = 1e-13

#: Powers in the Chernoff bound that determines the window of a sum.
_POWERS = np.geomspace(1e-2, 300.0, 40)


#: Probabilities of one coordinate's cells with the record and without it, (n,) each.
Cells: TypeAlias = tuple[Floats, Floats]


class Law(NamedTuple):
    """A discrete distribution: losses in ascending order with their probabilities, (n,) each."""

    losses: Floats
    masses: Floats


def step(segment: Segment) -> Law:
    """One step's loss ln(1 - q + q r) if the record is present; r is the likelihood ratio of all p coordinates."""
    present, absent = _coordinate(segment.shift, segment.gap, segment.noise)
    loss = np.log(present) - np.log(absent)
    if not segment.one_dimensional:
        parts = [((present, absent), segment.sparsity)]
        if segment.embedded > 0.0:
            parts.append((_coordinate(segment.embedded, 0.0, "gaussian"), 1))
        loss, present, absent = _product(parts)
    if segment.rate == 1.0:
        return Law(loss, present)
    mixed = np.where(
        loss < 1.0,
        np.log1p(segment.rate * np.expm1(np.minimum(loss, 1.0))),
        np.logaddexp(math.log1p(-segment.rate), math.log(segment.rate) + loss),
    )
    return Law(mixed, (1.0 - segment.rate) * absent + segment.rate * present)


def deltas(segments: Sequence[Segment], epsilons: Sequence[float]) -> list[float]:
    """delta of all steps of the pair at each epsilon, present-first: E[(1 - e^(epsilon - loss))_+]."""
    total = _total(segments)
    return [_delta(total, epsilon) for epsilon in epsilons]


def epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Epsilon at ``delta`` of all steps of the pair, present-first, at least 0."""
    total, target = _total(segments), inside("delta", delta)
    low, high = 0.0, float(total.losses[-1])
    if _delta(total, low) <= target:
        return 0.0
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _delta(total, middle) > target else (low, middle)
    return high


def _total(segments: Sequence[Segment]) -> Law:
    if not segments:
        raise ValueError("segments must not be empty")
    if sum(segment.steps for segment in segments) == 1:
        return step(segments[0])
    return _sum([(step(segment), segment.steps) for segment in segments])


def _delta(law: Law, epsilon: float) -> float:
    return float(law.masses @ -np.expm1(np.minimum(epsilon - law.losses, 0.0)))


@lru_cache(maxsize=16)
def _coordinate(shift: float, width: float, noise: str) -> Cells:
    """Cells of one coordinate, (n,) each: probabilities of N + U with and without shift."""
    law = _LAWS[noise]
    shift, width = law.units * shift, law.units * width
    half = 0.5 * width
    edges = _edges(half, shift, law.reach)
    if law.straight:  # the loss is constant beyond both ends
        edges = np.concatenate([[-math.inf], edges[(edges > -half) & (edges < half + shift)], [math.inf]])
    present, absent = _cells(edges - shift, width, law), _cells(edges, width, law)
    possible = (absent > 0.0) & (present > 0.0)
    return present[possible], absent[possible]


def _edges(half: float, shift: float, reach: float) -> Floats:
    """Cell edges: fine at the ends of the uniform, coarse on its plateau."""
    low, high = -half - reach, half + shift + reach
    left, right = np.arange(low, -half + shift + reach, _CELL), np.arange(half - reach, high, _CELL)
    if left[-1] >= right[0]:
        return np.linspace(low, high, math.ceil((high - low) / _CELL) + 1)
    return np.concatenate([left, np.linspace(left[-1], right[0], 2001)[1:-1], right])


def _cells(edges: Floats, width: float, law: Noise) -> Floats:
    """Probabilities between ``edges``. Above 0 they use the survival function to avoid cancellation."""
    below, above = np.diff(_cumulative(edges, width, law)), -np.diff(_cumulative(-edges, width, law))
    return np.asarray(np.where(edges[:-1] >= 0.0, above, below), dtype=np.float64)


def _cumulative(o: Floats, width: float, law: Noise) -> Floats:
    """P[noise + U <= o]."""
    if width < density.NARROW:
        return law.cumulative(o)
    within = law.integral(o + 0.5 * width) - law.integral(o - 0.5 * width)
    return np.asarray(np.where(np.isinf(o), o > 0.0, within / width), dtype=np.float64)


def _gaussian_integral(x: Floats) -> Floats:
    return np.asarray(x * ndtr(x) + np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi), dtype=np.float64)


def _laplace(x: Floats) -> Floats:
    tail = 0.5 * np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0.0, tail, 1.0 - tail), dtype=np.float64)


def _laplace_integral(x: Floats) -> Floats:
    finite = np.where(np.isinf(x), 0.0, x)
    return np.asarray(np.maximum(finite, 0.0) + 0.5 * np.exp(-np.abs(x)), dtype=np.float64)


class Noise(NamedTuple):
    """A noise distribution: its cdf, the integral of the cdf, the standard deviation in their units, the range of
    cells, and whether its log-density is linear on either side.
    """

    cumulative: Callable[[Floats], Floats]
    integral: Callable[[Floats], Floats]
    units: float
    reach: float
    straight: bool


_LAWS = {
    "gaussian": Noise(lambda x: np.asarray(ndtr(x), dtype=np.float64), _gaussian_integral, 1.0, 11.0, False),
    "laplace": Noise(_laplace, _laplace_integral, math.sqrt(2.0), 37.0, True),
}


def _product(coordinates: Sequence[tuple[Cells, int]]) -> tuple[Floats, Floats, Floats]:
    """Loss of independent coordinates with their multiplicities, and its two distributions, (m,) each.

    Each distribution is computed where it is the larger one; the other follows from the loss.
    """
    finest = _WITHIN * min(1.0, 10.0 / math.sqrt(sum(count for _, count in coordinates)))
    losses = [np.log(present) - np.log(absent) for (present, absent), _ in coordinates]
    above, below = (
        _sum([(Law(loss, laws[side]), count) for loss, (laws, count) in zip(losses, coordinates, strict=True)], finest)
        for side in (0, 1)
    )
    up, down = above.losses > 0.0, below.losses <= 0.0
    losses_of_all = np.concatenate([below.losses[down], above.losses[up]])
    here, there = below.masses[down], above.masses[up]
    with_record = np.concatenate([here * np.exp(below.losses[down]), there])
    without = np.concatenate([here, there * np.exp(-above.losses[up])])
    return losses_of_all, with_record / with_record.sum(), without / without.sum()


def _sum(parts: Sequence[tuple[Law, int]], finest: float = _SPACING) -> Law:
    """Distribution of a sum of independent losses, ``count`` of each, by FFT on a grid that preserves means."""
    low, high = _window(parts)
    spacing = max(finest, (high - low) / _POINTS)
    size = next_fast_len(math.ceil((high - low) / spacing) + 1, real=True)
    start = math.floor(low / spacing)
    transform, shifted = np.ones(size // 2 + 1, dtype=np.complex128), 0
    for (losses, masses), count in parts:
        position = losses / spacing
        cell = np.floor(position).astype(np.int64)
        upper = masses * (position - cell)
        base = int(cell[0] + cell[-1]) // 2
        law = np.bincount((cell - base) % size, masses - upper, size)
        law += np.bincount((cell + 1 - base) % size, upper, size)
        transform *= rfft(law) ** count
        shifted += base * count
    masses_of_sum = np.roll(irfft(transform, size), shifted - start)
    # Remove rounding errors at empty points.
    masses_of_sum[masses_of_sum < 1e-18] = 0.0
    return Law((start + np.arange(size)) * spacing, masses_of_sum)


def _window(parts: Sequence[tuple[Law, int]]) -> tuple[float, float]:
    """Window of a sum with mass of at most ``_LOST`` on either side."""
    ends = []
    for sign in (1.0, -1.0):
        logs = np.zeros(len(_POWERS))
        for (losses, masses), count in parts:
            edge = float(np.max(sign * losses))
            rest = sign * losses - edge
            logs += count * np.array([math.log(float(masses @ np.exp(p * rest))) + p * edge for p in _POWERS])
        ends.append(sign * float(np.min((logs - math.log(_LOST)) / _POWERS)))
    return ends[1], ends[0]
