"""Statistics of a run's noise, and their distributions if it is as declared, at finite sizes. Without torch.

Values are in units of the declared standard deviation. Theorem R7 of ``docs/explanation/proofs/recorded-runs.md`` has
the distributions of repeated values and of steps; ``dpspec.stats.conformance.noise_tests`` states sizes.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta
from scipy import special

from dpspec.accounting import bisect, exceeded_by_float32
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec_recording.folder.merging import Count, join_by

#: A statistic that is as large was not measured: NaN, infinity and numbers beyond all noise become this number.
UNKNOWN = 1e18

Statistic: TypeAlias = Annotated[float, Meta(ge=0.0, le=UNKNOWN)]
Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Ends of the intervals whose shares are counted: 32 intervals of equal probability, the outer two divided further.
_INNER = special.ndtri(np.arange(17, 32) / 32.0)
_OUTER = np.array([2.25, 2.6, 3.0, 3.5, 4.0])
EDGES: Array = np.concatenate([-_OUTER[::-1], -_INNER[::-1], [0.0], _INNER, _OUTER])

#: The number of intervals.
INTERVALS = len(EDGES) + 1

#: Exponents t over which the bound on repeated values is minimized; each has an equal share of the level.
_EXPONENTS = np.array([0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])

#: Absolute values from which torch's float32 numbers differ from normal ones in probability.
_FAR = 4.0

#: Rows of a block of products.
_BLOCK = 512

_Z = float(special.ndtri(POWER))


def statistic(value: float) -> float:
    """The number, or :data:`UNKNOWN`."""
    return float(value) if 0.0 <= value < UNKNOWN else UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Quietest:
    """The coordinate with the smallest sum of squares over the steps. rounding: of a value, in standard deviations."""

    squares: Statistic
    steps: Statistic
    coordinates: Statistic
    rounding: Statistic


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """The largest absolute value of all numbers, and the rounding of one, in standard deviations."""

    numbers: Statistic
    largest: Statistic
    rounding: Statistic


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Gaps between sorted values. small: that equal values can have; expected: the sum of their probabilities.

    tried: the number of sets of values; this one has the smallest probability.
    """

    small: Statistic
    expected: Statistic
    gaps: Statistic
    tried: Count


@dataclass(frozen=True, kw_only=True)
class AlongSums:
    """Squared components of the noise along the sum of each step: their sum, and the largest."""

    steps: Statistic
    squares: Statistic
    largest: Statistic


@dataclass(frozen=True, kw_only=True)
class NoiseStatistics:
    """Of the noise that one process added.

    quietest: None if unknown. counts: values in each interval, over all steps; worst_counts: of the step with the
    smallest probability; counted: the number of these steps. edge_error: the error of an edge of an interval, in
    standard deviations. repeats: within sampled steps; pooled: among the largest values of all steps. spacing: of the
    grid on which all noise and sums are, in standard deviations, 0 without one.
    """

    quietest: Quietest | None
    counts: tuple[Count, ...]
    worst_counts: tuple[Count, ...]
    counted: Count
    edge_error: Statistic
    extremes: Extremes
    repeats: Repeats
    pooled: Repeats
    along_sums: AlongSums
    spacing: Statistic


def _concatenated(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(rows))


@dataclass(frozen=True, kw_only=True)
class NoiseFacts:
    """Statistics of each process that adds noise, and of each part of a training: their steps are not one sample."""

    processes: tuple[NoiseStatistics, ...] = field(metadata=join_by(_concatenated))


def spread(squares: float, terms: int, test: str, tried: int = 1) -> Measurement:
    """Test that ``terms`` independent normal values have variance 1; the worst of ``tried`` such tests."""
    two_sided = noise_tests.two_sided(squares, terms)
    return replace(two_sided, test=test, details="", p_value=min(1.0, tried * two_sided.p_value))


def excess(squares: float, terms: int, test: str, tried: int = 1) -> Measurement:
    """Test that ``terms`` independent normal values have at most variance 1; ``detectable`` is the relative excess of
    the standard deviation."""
    high = float(special.gammainccinv(0.5 * terms, LEVEL / tried))
    detectable = math.sqrt(high / float(special.gammaincinv(0.5 * terms, 1.0 - POWER))) - 1.0
    p_value = min(1.0, tried * float(special.gammaincc(0.5 * terms, 0.5 * squares)))
    return Measurement(test, 1.0, math.sqrt(squares / terms), p_value, detectable)


def _events(counts: Array) -> Array:
    """Counts (..., intervals) in the intervals, then below each edge, then beyond each positive edge on both sides."""
    below = np.cumsum(counts, axis=-1)
    half = len(EDGES) // 2 + 1
    beyond = below[..., : half - 1][..., ::-1] + (below[..., -1:] - below[..., half:-1])
    return np.concatenate([counts, below[..., :-1], beyond], axis=-1)


@functools.lru_cache(maxsize=16)
def _probabilities(edge_error: float) -> tuple[Array, Array]:
    """Lower and upper probabilities of the events when each edge is uncertain by ``edge_error``."""
    low, high = special.ndtr(EDGES - edge_error), special.ndtr(EDGES + edge_error)
    positive = EDGES[len(EDGES) // 2 + 1 :]
    lower, upper = np.concatenate([[0.0], low, [1.0]]), np.concatenate([[0.0], high, [1.0]])
    inside = np.maximum(lower[1:] - upper[:-1], 0.0), np.minimum(upper[1:] - lower[:-1], 1.0)
    outside = 2.0 * special.ndtr(-positive - edge_error), np.minimum(2.0 * special.ndtr(edge_error - positive), 1.0)
    return np.concatenate([inside[0], low, outside[0]]), np.concatenate([inside[1], high, outside[1]])


def log_shares(counts: Array, edge_error: float) -> tuple[Any, Any]:
    """ln of the bound on the probability of the worst event (Bonferroni), and the number of that event.

    counts: (..., intervals); each row of counts gives a bound and an event.
    """
    total = np.asarray(counts.sum(axis=-1), dtype=np.float64)
    observed = _events(np.asarray(counts, dtype=np.float64)) / np.maximum(total, 1.0)[..., None]
    low, high = _probabilities(edge_error)
    nearest = np.clip(observed, low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = special.rel_entr(observed, nearest) + special.rel_entr(1.0 - observed, 1.0 - nearest)
    worst = np.argmax(divergence, axis=-1)
    most = np.where(total > 0.0, divergence.max(axis=-1), 0.0)
    return np.minimum(math.log(2.0 * observed.shape[-1]) - total * most, 0.0), worst


def shares(counts: Sequence[int], edge_error: float, tried: int, test: str) -> Measurement:
    """Test the distribution of values by the ``counts`` in the :data:`INTERVALS` between :data:`EDGES`, in shares.

    ``edge_error`` bounds the rounding of a value. This is the worst of ``tried`` tests. ``detectable`` is the
    difference of the share below an edge, at most.
    """
    interval_counts = np.asarray(counts, dtype=np.float64)
    total = float(interval_counts.sum())
    log_p, worst = log_shares(interval_counts, edge_error)
    low, high = _probabilities(edge_error)
    needed = math.log(2.0 * len(low) * tried / LEVEL)
    detectable_shift = (math.sqrt(needed / 2.0) + 0.5 * _Z) / math.sqrt(total) + edge_error if total else math.inf
    declared = 0.5 * float(low[worst] + high[worst])
    measured = float(_events(interval_counts)[worst]) / total if total else 0.0
    p_value = _bounded(math.log(tried) + float(log_p))
    return Measurement(test, declared, measured, p_value, detectable_shift if detectable_shift < 0.5 else None)


def extreme(largest: float, numbers: float, rounding: float, test: str) -> Measurement:
    """Test the largest absolute value of ``numbers`` independent normal values, two-sided.

    Noise that is cut at c standard deviations has no value above c, although ``numbers`` 2 Q(c) values should be. An
    output beyond the cut is impossible without the record that moved it there, so that no epsilon is finite.

    The numbers of torch's float32 generator end at 5.77, which shows from two billion numbers on. They count as normal
    here: the result states the delta that they reveal.

    Args:
        largest: The largest absolute value, in standard deviations.
        numbers: The number of values.
        rounding: The largest rounding error of a value.
        test: The name.

    Returns:
        The measurement; ``detectable`` is the distance of a cut that is found from the median of the largest value,
        relative to this median. P[max <= m] = (1 - 2 Q(m))^numbers.
    """
    log_below = _log_below(largest + rounding, numbers)
    with np.errstate(divide="ignore"):  # all values are 0, or less than their rounding errors
        log_not_below = numbers * float(np.log1p(-min(1.0, 2.0 * float(special.ndtr(rounding - largest)))))
    p_value = min(1.0, 2.0 * min(math.exp(log_below), -math.expm1(log_not_below)))
    median, cut = -float(special.ndtri(-0.5 * math.expm1(math.log(0.5) / numbers))), _largest_found_cut(numbers)
    detectable = 1.0 - (cut - rounding) / median if median > 0.0 else 1.0
    return Measurement(test, median, largest, p_value, detectable if cut > rounding else None)


@functools.cache
def _largest_found_cut(numbers: float) -> float:
    """The largest value at which a cut of ``numbers`` is rejected."""
    most = -float(special.ndtri(-0.5 * math.expm1(math.log(0.5) / numbers)))
    cut, _ = bisect(lambda end: _log_below(end, numbers) <= math.log(0.5 * LEVEL), 0.0, most, relative=1e-12)
    return cut


def _log_below(value: float, numbers: float) -> float:
    """Logarithm of the probability that none of ``numbers`` exceeds ``value`` in absolute value.

    The larger one of the probabilities of normal numbers and of torch's in float32.
    """
    exceeded = 2.0 * float(special.ndtr(-value))
    if value >= _FAR:
        exceeded = min(exceeded, exceeded_by_float32(value))
    return -math.inf if exceeded >= 1.0 else numbers * math.log1p(-exceeded)


def small_gaps(values: Array, tolerance: float, gap: float) -> tuple[int, float]:
    """Return the number of gaps up to ``tolerance`` between the largest absolute ``values`` (n,), descending, and the
    sum of their conditional probabilities.

    ``gap``: the largest true gap that rounding can reduce to ``tolerance``.
    """
    if len(values) < 2:
        return 0, 0.0
    start = values[1:] + 2.0 * gap
    hazard = 0.5 * (start + np.sqrt(start * start + 4.0))
    expected = -np.expm1(-np.arange(1, len(values)) * gap * hazard)
    small = values[:-1] - values[1:] <= tolerance
    return int(small.sum()), float(expected.sum())


def log_repeats(count: int, expected: float) -> float:
    """ln of the bound on P[``count`` or more small gaps], when their probabilities sum to ``expected``."""
    exponents = np.expm1(_EXPONENTS) * expected - _EXPONENTS * count
    return min(0.0, float(exponents.min()) + math.log(len(_EXPONENTS)))


def repeats(count: int, expected: float, gaps: int, tried: int, test: str) -> Measurement:
    """Test the worst of ``tried`` numbers of small gaps; ``detectable`` is the share of repeated values."""
    needed = math.log(LEVEL / tried / len(_EXPONENTS))
    rejected_count = float(((np.expm1(_EXPONENTS) * expected - needed) / _EXPONENTS).min())
    share = (rejected_count + _Z * math.sqrt(rejected_count)) / max(1, gaps)
    p_value = _bounded(math.log(tried) + log_repeats(count, expected))
    return Measurement(test, expected, float(count), p_value, share if share <= 1.0 else None)


def correlations(vectors: Array, of_pair: str, of_distance: str) -> tuple[Measurement, Measurement]:
    """Test the largest correlation of two ``vectors`` (T, W), and the largest sum of products at one distance.

    ``measured`` is n_k . n_j / (|n_j| sqrt(W)), and its mean at the distance. Both arguments are names of tests.
    """
    (count, width), largest = vectors.shape, 0.0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0.0, lengths, 1.0)
    for start in range(0, count, _BLOCK):
        products = np.tril(vectors[start : start + _BLOCK] @ units[: start + _BLOCK].T, start - 1)
        largest = max((largest, float(products.min()), float(products.max())), key=abs)
    length = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(vectors, length, axis=0) * np.conj(np.fft.rfft(units, length, axis=0))
    numbers = count - np.arange(1.0, count)
    scores = np.fft.irfft(spectrum.sum(axis=1), length)[1:count] / np.sqrt(numbers)
    worst = int(np.argmax(np.abs(scores)))
    pair = _normal(largest, count * (count - 1) // 2, width, of_pair)
    return pair, _normal(float(scores[worst]), count - 1, width * numbers[worst], of_distance)


def _normal(score: float, tried: int, dimensions: float, test: str) -> Measurement:
    """Test the largest of ``tried`` values that are N(0, 1); as correlations in ``dimensions`` dimensions."""
    detectable_correlation = (_Z - float(special.ndtri(0.5 * LEVEL / tried))) / math.sqrt(dimensions)
    p_value = min(1.0, 2.0 * tried * float(special.ndtr(-abs(score))))
    detectable = detectable_correlation if detectable_correlation <= 1.0 else None
    return Measurement(test, 0.0, score / math.sqrt(dimensions), p_value, detectable)


def _bounded(log_p: float) -> float:
    return math.exp(min(0.0, log_p))
