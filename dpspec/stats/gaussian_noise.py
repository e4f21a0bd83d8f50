"""Null distributions, valid at finite sizes, for tests that a run's noise is fresh, Gaussian and independent.

Values are in units of the declared standard deviation. Theorem R7 of ``docs/explanation/proofs/recorded-runs.md`` has
the distributions of repeated values, of dependent vectors and of steps, Theorem R8 of directions.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from dpspec.accounting import bisect, exceeded_by_float32
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Ends of the intervals whose shares are counted: 32 intervals of equal probability, the outer two divided further.
_INNER = special.ndtri(np.arange(17, 32) / 32.0)
_OUTER = np.array([2.25, 2.6, 3.0, 3.5, 4.0])
EDGES: Array = np.concatenate([-_OUTER[::-1], -_INNER[::-1], [0.0], _INNER, _OUTER])

#: The number of intervals.
INTERVALS = len(EDGES) + 1

#: Exponents t over which the bound on repeated values is minimized; each has an equal share of the level.
_EXPONENTS = np.array([0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])

#: Probability that a value of full precision ends in six or more zero bits, at most (2^-6, doubled).
COARSE = 2.0**-5

#: Absolute values from which torch's float32 numbers differ from normal ones in probability.
_FAR = 4.0

#: Largest absolute normal value of a sum of squares whose probability underflows.
_FARTHEST = 38.0

_Z = float(special.ndtri(POWER))


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
    """Test the largest of ``tried`` counts of small gaps; ``detectable`` is the share of values that repeat."""
    needed = math.log(LEVEL / tried / len(_EXPONENTS))
    rejected_count = float(((np.expm1(_EXPONENTS) * expected - needed) / _EXPONENTS).min())
    share = (rejected_count + _Z * math.sqrt(rejected_count)) / max(1, gaps)
    p_value = _bounded(math.log(tried) + log_repeats(count, expected))
    return Measurement(test, expected, float(count), p_value, share if share <= 1.0 else None)


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
    """ln of the bound on the probability of the most surprising event (Bonferroni), and the number of that event.

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

    ``edge_error`` bounds the rounding of a value. This is the most surprising of ``tried`` tests. ``detectable`` is the
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


def equal_extremes(equal: int, largest: float, numbers: float, rounding: float) -> float:
    """The probability that ``equal`` more of these normal numbers have the largest absolute value, up to rounding.

    Given the largest value m, the others are independent values below m: each is above m - t with probability
    (F(m) - F(m - t)) / F(m), where F(x) = 1 - 2 Q(x). Noise that is cut at c has several values of c.

    Args:
        equal: The number of further values.
        largest: The largest absolute value, in standard deviations.
        numbers: The number of values.
        rounding: The largest rounding error of a value.
    """
    if equal < 1 or not largest > 0.0:
        return 1.0
    low, high = special.ndtr(-largest - rounding), special.ndtr(3.0 * rounding - largest)
    share = min(1.0, 2.0 * float(high - low) / max(1e-300, float(special.erf((largest - rounding) / math.sqrt(2.0)))))
    return float(special.bdtrc(equal - 1, max(equal, round(numbers) - 1), share))


def extreme(largest: float, numbers: float, rounding: float, test: str) -> Measurement:
    """Test the largest absolute value of ``numbers`` independent normal values, two-sided.

    Noise that is cut at c standard deviations has no value above c, although ``numbers`` 2 Q(c) of them should be. An
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
    median, cut = _largest_at(math.log(0.5), numbers), _largest_found_cut(numbers)
    detectable = 1.0 - (cut - rounding) / median if median > 0.0 else 1.0
    return Measurement(test, median, largest, p_value, detectable if cut > rounding else None)


@functools.cache
def _largest_found_cut(numbers: float) -> float:
    """The largest value at which a cut of ``numbers`` is rejected."""
    most = _largest_at(math.log(0.5), numbers)
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


def _largest_at(log_p: float, numbers: float) -> float:
    """The value that the largest absolute one of ``numbers`` normal values exceeds with probability 1 - exp(log_p)."""
    return -float(special.ndtri(-0.5 * math.expm1(log_p / numbers)))


def dependence(vectors: Array) -> tuple[float, int]:
    """Sum of the squared components of vectors along the earlier ones, and its degrees of freedom.

    ``vectors`` (p, q) has one vector in each row; if p > q, in each column.
    """
    tall = vectors.T if len(vectors) <= vectors.shape[1] else vectors
    upper = np.linalg.qr(tall, mode="r")
    count = len(upper)
    return float(np.square(np.triu(upper, 1)).sum()), count * (count - 1) // 2


def alignment(squares: float, terms: int, families: int, rounding: float, test: str) -> Measurement:
    """Test that vectors of noise have components of variance 1 along the earlier ones, one-sided (Theorem R8).

    Noise with the covariance S of trace d has tr(S^2) / d > 1 unless S = I: d / m for noise in m dimensions.

    Args:
        squares: The sum of ``terms`` squared components, of the family with the smallest probability.
        terms: Their number.
        families: The number of tests (Bonferroni).
        rounding: The standard deviation that rounding adds to a value, at most.
        test: The name.

    Returns:
        The measurement of the mean squared component; ``detectable`` is its excess.
    """
    explained = (1.0 + rounding) ** 2
    log_p = math.log(families) + log_upper_tail(squares / explained, terms)
    high = 2.0 * float(special.gammainccinv(0.5 * terms, LEVEL / families))
    detectable = explained * high / (2.0 * float(special.gammaincinv(0.5 * terms, 1.0 - POWER))) - 1.0
    return Measurement(test, 1.0, squares / terms, _bounded(log_p), detectable)


def log_upper_tail(total: float, count: int) -> float:
    """ln P[chi2(count) >= total], or Chernoff's bound on it if the probability underflows."""
    tail = float(special.gammaincc(0.5 * count, 0.5 * total))
    if tail > 1e-280:
        return math.log(tail)
    ratio = total / count
    return -0.5 * count * (ratio - 1.0 - math.log(ratio))


#: Exponents of Chernoff's bound on a volume, over the largest one.
_SHARES = np.geomspace(1e-6, 0.999, 64)


def log_volume_tail(ratio: float, vectors: int, dimensions: int) -> float:
    """ln of a bound on the probability that the geometric mean of the squared lengths is at most ``ratio``.

    Squared lengths are of p independent normal vectors across the earlier ones, over their degrees of freedom q, q - 1,
    ..., q - p + 1 (Theorem R8). For 0 < s < (q - p + 1) / 2

        P[mean <= ratio] <= ratio^(s p) prod over k of (k / 2)^s Gamma(k / 2 - s) / Gamma(k / 2).
    """
    if ratio <= 0.0:
        return -math.inf
    halves = 0.5 * (dimensions - np.arange(vectors))
    exponents = _SHARES * float(halves[-1])
    moments = special.gammaln(halves[:, None] - exponents) - special.gammaln(halves)[:, None]
    log_moments = (moments + exponents * np.log(halves)[:, None]).sum(axis=0)
    return min(0.0, float((exponents * vectors * math.log(ratio) + log_moments).min()))


def volume(ratio: float, vectors: int, dimensions: int, families: int, test: str) -> Measurement:
    """Test that ``vectors`` of noise span the volume of independent normal ones in a number of dimensions, one-sided.

    ``ratio``: see :func:`log_volume_tail`, with the smallest probability of ``families``. ``detectable`` is its
    relative shortfall.
    """
    log_p = math.log(families) + log_volume_tail(ratio, vectors, dimensions)
    needed = math.log(LEVEL / families)
    rejected, _ = bisect(lambda value: log_volume_tail(value, vectors, dimensions) <= needed, 0.0, 1.0, relative=1e-3)
    halves = 0.5 * (dimensions - np.arange(vectors))
    mean = float((special.psi(halves) - np.log(halves)).mean())
    std = math.sqrt(float(special.polygamma(1, halves).sum())) / vectors
    detectable = 1.0 - rejected * math.exp(-mean - _Z * std)
    return Measurement(test, math.exp(mean), ratio, _bounded(log_p), detectable)


def dispersion(sums: Array, degrees: int) -> float:
    """Sum of squared deviations from their mean of chi-square values ``sums`` (n,), as normal values.

    If the sums are independent and have chi-square distributions with these degrees of freedom, the result has one
    with n - 1. Its mean does not matter, so that the scale of the noise is left to other tests.
    """
    lower, upper = special.chdtr(degrees, sums), special.chdtrc(degrees, sums)
    normal = np.where(lower < 0.5, special.ndtri(lower), -special.ndtri(upper)).clip(-_FARTHEST, _FARTHEST)
    return float(np.square(normal - normal.mean()).sum())


def spread(squares: float, terms: int, test: str, tried: int = 1) -> Measurement:
    """Test that ``terms`` independent normal values have variance 1; the most surprising of ``tried`` such tests."""
    two_sided = noise_tests.two_sided(squares, terms)
    return replace(two_sided, test=test, details="", p_value=min(1.0, tried * two_sided.p_value))


def coarse(count: int, values: int, test: str, tried: int = 1) -> Measurement:
    """Test that at most a share :data:`COARSE` of the values ends in six or more zero bits.

    ``tried``: the number of compared steps, if the values are of the step with the smallest probability.
    """
    needed = math.log(tried / LEVEL)
    detectable_share = COARSE + (math.sqrt(needed / 2.0) + 0.5 * _Z) / math.sqrt(values)
    detectable = detectable_share if detectable_share <= 1.0 else None
    return Measurement(test, COARSE, count / values, _bounded(math.log(tried) + log_coarse(count, values)), detectable)


def log_coarse(count: int, values: int) -> float:
    """Chernoff's bound on ln P(``count`` or more of ``values``), each with probability at most :data:`COARSE`."""
    share = max(count / values, COARSE)
    return -values * float(special.rel_entr(share, COARSE) + special.rel_entr(1.0 - share, 1.0 - COARSE))


def _bounded(log_p: float) -> float:
    return math.exp(min(0.0, log_p))


#: Rows of a block of products.
_BLOCK = 512


def pair_correlation(vectors: Array, test: str) -> Measurement:
    """Test the most correlated of all pairs of ``vectors`` (T, W); ``measured`` is n_k . n_j / (|n_j| sqrt(W))."""
    units, worst = _units(vectors), 0.0
    for start in range(0, len(vectors), _BLOCK):
        products = vectors[start : start + _BLOCK] @ units[: start + _BLOCK].T
        lower = np.tril(products, start - 1)
        worst = max((worst, float(lower.min()), float(lower.max())), key=abs)
    return _normal(worst, len(vectors) * (len(vectors) - 1) // 2, vectors.shape[1], test)


def lag_correlation(vectors: Array, test: str) -> Measurement:
    """Test the most extreme sum of products of ``vectors`` (T, W) at one distance; ``measured`` is a correlation."""
    count = len(vectors)
    length = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(vectors, length, axis=0) * np.conj(np.fft.rfft(_units(vectors), length, axis=0))
    sums = np.fft.irfft(spectrum.sum(axis=1), length)[1:count]
    number = count - np.arange(1.0, count)
    scores = sums / np.sqrt(number)
    worst = int(np.argmax(np.abs(scores)))
    return _normal(float(scores[worst]), count - 1, vectors.shape[1] * number[worst], test)


def _units(vectors: Array) -> Array:
    """The directions of vectors, 0 of a vector without length."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions: Array = vectors / np.where(lengths > 0.0, lengths, 1.0)
    return directions


def _normal(score: float, tried: int, dimensions: float, test: str) -> Measurement:
    """Test the most extreme of ``tried`` values that are N(0, 1); as correlations in ``dimensions`` dimensions."""
    detectable_correlation = (_Z - float(special.ndtri(0.5 * LEVEL / tried))) / math.sqrt(dimensions)
    p_value = min(1.0, 2.0 * tried * float(special.ndtr(-abs(score))))
    detectable = detectable_correlation if detectable_correlation <= 1.0 else None
    return Measurement(test, 0.0, score / math.sqrt(dimensions), p_value, detectable)
