"""The true privacy loss of the pair that the bound is about, composed by FFT: how tight the bound is.

The pair is the one-hot gradient, or p equal coordinates at clip_norm / sqrt(p). Its epsilon lies below the bound. It is
an estimate and no lower bound on the mechanism, unless a data set realises that gradient and that gap at every step;
and it is no upper bound either: a gradient spread over many coordinates has the larger delta where epsilon is small, so
that nothing here may stand in for the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from dpspec.accounting.checks import Floats, inside
from dpspec_modelmix import density
from dpspec_modelmix.theory import Segment

#: The width of a cell of one coordinate's output.
_CELL = 0.005

#: The spacing of summed losses, which is wider where the grid would have more points than this.
_SPACING, _POINTS = 1e-4, 1 << 21

#: The spacing of the losses of single coordinates that are added up within a step.
_WITHIN = 1e-3

#: What lies outside the window of a sum has less mass than this.
_LOST = 1e-13

#: Where the window of a sum ends is read off Chernoff's bound at these powers.
_POWERS = np.geomspace(1e-2, 300.0, 40)


class Law(NamedTuple):
    """Losses ascending with their probabilities, (n,) each."""

    losses: Floats
    masses: Floats


def step(segment: Segment) -> Law:
    """One step's loss ln((1 - q + q r)) under the law with the record; r is the ratio of all p coordinates."""
    present, absent = _coordinate(segment.shift, segment.gap)
    loss = np.log(present) - np.log(absent)
    if segment.sparsity > 1:
        loss, present, absent = _product(loss, present, absent, segment.sparsity)
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
def _coordinate(shift: float, width: float) -> tuple[Floats, Floats]:
    """One coordinate's cells, (n,) each: probabilities of N + U shifted and not. Cells lose a little of the loss."""
    half = 0.5 * width
    edges = _edges(-half - 11.0, half + shift + 11.0, half, shift)
    present, absent = _cells(edges - shift, width), _cells(edges, width)
    kept = (absent > 0.0) & (present > 0.0)
    return present[kept], absent[kept]


def _edges(low: float, high: float, half: float, shift: float) -> Floats:
    """Edges of cells: fine where densities change, coarse along the plateau."""
    left, right = np.arange(low, -half + shift + 12.0, _CELL), np.arange(half - 12.0, high, _CELL)
    if left[-1] >= right[0]:
        return np.linspace(low, high, math.ceil((high - low) / _CELL) + 1)
    return np.concatenate([left, np.linspace(left[-1], right[0], 2001)[1:-1], right])


def _cells(edges: Floats, width: float) -> Floats:
    """Probabilities of N + U between ``edges``; those above 0 by survival, whose digits are not lost near 1."""
    below, above = np.diff(_cumulative(edges, width)), -np.diff(_cumulative(-edges, width))
    return np.asarray(np.where(edges[:-1] >= 0.0, above, below), dtype=np.float64)


def _cumulative(o: Floats, width: float) -> Floats:
    """P[N + U <= o]."""
    if width < density.NARROW:
        return np.asarray(ndtr(o), dtype=np.float64)

    def integral(x: Floats) -> Floats:
        return np.asarray(x * ndtr(x) + np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi), dtype=np.float64)

    return np.asarray((integral(o + 0.5 * width) - integral(o - 0.5 * width)) / width, dtype=np.float64)


def _product(loss: Floats, present: Floats, absent: Floats, count: int) -> tuple[Floats, Floats, Floats]:
    """The loss of ``count`` independent coordinates and both its laws, (m,) each.

    Each law is known best where it is the larger one; the other follows from the loss.
    """
    finest = _WITHIN * min(1.0, 10.0 / math.sqrt(count))
    above, below = (_sum([(Law(loss, law), count)], finest) for law in (present, absent))
    up, down = above.losses > 0.0, below.losses <= 0.0
    losses = np.concatenate([below.losses[down], above.losses[up]])
    here, there = below.masses[down], above.masses[up]
    with_record = np.concatenate([here * np.exp(below.losses[down]), there])
    without = np.concatenate([here, there * np.exp(-above.losses[up])])
    return losses, with_record / with_record.sum(), without / without.sum()


def _sum(parts: Sequence[tuple[Law, int]], finest: float = _SPACING) -> Law:
    """The law of the sum of independent losses, ``count`` of each law, by FFT on a grid that keeps every mean."""
    low, high = _window(parts)
    spacing = max(finest, (high - low) / _POINTS)
    size = next_fast_len(math.ceil((high - low) / spacing) + 1, real=True)
    start = math.floor(low / spacing)
    transform, shifted = np.ones(size // 2 + 1, dtype=np.complex128), 0
    for (losses, masses), count in parts:
        at = losses / spacing
        cell = np.floor(at).astype(np.int64)
        upper = masses * (at - cell)
        base = int(cell[0] + cell[-1]) // 2
        law = np.bincount((cell - base) % size, masses - upper, size)
        law += np.bincount((cell + 1 - base) % size, upper, size)
        transform *= rfft(law) ** count
        shifted += base * count
    found = np.roll(irfft(transform, size), shifted - start)
    # What rounding leaves where there is nothing.
    found[found < 1e-18] = 0.0
    return Law((start + np.arange(size)) * spacing, found)


def _window(parts: Sequence[tuple[Law, int]]) -> tuple[float, float]:
    """Between these ends all of a sum lies but ``_LOST`` at either side."""
    ends = []
    for sign in (1.0, -1.0):
        logs = np.zeros(len(_POWERS))
        for (losses, masses), count in parts:
            edge = float(np.max(sign * losses))
            rest = sign * losses - edge
            logs += count * np.array([math.log(float(masses @ np.exp(p * rest))) + p * edge for p in _POWERS])
        ends.append(sign * float(np.min((logs - math.log(_LOST)) / _POWERS)))
    return ends[1], ends[0]
