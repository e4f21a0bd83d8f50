"""Tests of noise: its size against the chi-square distribution, and correlations between steps.

Values are in units of the declared standard deviation. A residual is noise plus something that the step's noise is
independent of, which only adds to the sum of squares: a small sum contradicts the declared noise, a large one does not.
Repeated noise shows in inner products of steps at one lag, or in single pairs of steps (noise from a small pool).

Tests of residuals hold for every adaptive run: sums along fixed directions, and noise that layers share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
from scipy import special

from dpspec.json_records import Amount, Positive, Real, Record
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: Number of pairs from which the normal tail has a relative error below 0.5 % at LEVEL, for one chain. Smaller
#: levels have more: 1 % at 1e-9, and 1.9 % at 1e-12.
_MANY_PAIRS = 100_000

#: Number of steps whose inner products with all others are computed at a time.
_BLOCK = 256

Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def lower_tail(squares: float, count: int) -> Measurement:
    """Test that values, which may contain more than noise, have at least the declared noise.

    p = P[chi2(count) <= squares]. ``detectable`` is the relative shortfall of the scale that is rejected, given the
    measured excess of the sum.
    """
    _check(squares, count)
    scale, p_value = math.sqrt(squares / count), math.exp(log_lower_tail(squares, count))
    detectable = _shortfall(LEVEL, count, max(0.0, squares - count))
    return Measurement("chi-square", 1.0, scale, p_value, detectable, details="lower tail")


def two_sided(squares: float, count: int, *, absolute: bool = False) -> Measurement:
    """Test that reported noise has exactly the declared scale; ``detectable`` is the larger limit of both sides.

    ``absolute``: ``squares`` is twice a sum of absolute values in scales of Laplace noise, two degrees of freedom each.
    """
    _check(squares, count)
    power = 2 if absolute else 1
    detectable = max(_shortfall(0.5 * LEVEL, count) or 0.0, _excess(0.5 * LEVEL, count))
    low = math.exp(log_lower_tail(squares, count))
    high = float(special.gammaincc(0.5 * count, 0.5 * squares))
    scale, p_value = math.sqrt(squares / count) ** power, min(1.0, 2.0 * min(low, high))
    detectable = (1.0 + detectable) ** power - 1.0 if absolute else detectable
    return Measurement("chi-square", 1.0, scale, p_value, detectable, details="two-sided")


@dataclass(frozen=True)
class StepNoise:
    """Chi-square distribution of a step's squared noise with ``count`` degrees of freedom (see ``sampling.each_step``).

    ``both``: whether the values are noise only. Otherwise they may contain more, and only small ones are tested.
    """

    count: int
    both: bool

    test = "chi-square"
    declared = 1.0

    def below(self, value: float) -> float:
        return math.exp(log_lower_tail(value, self.count))

    def above(self, value: float) -> float:
        return float(special.gammaincc(0.5 * self.count, 0.5 * value))

    def size(self, value: float) -> float:
        return math.sqrt(value / self.count)

    def detectable(self, most: float, level: float) -> float | None:
        """The shortfall of the scale that is rejected at ``level``, and the excess if ``both``."""
        less = _shortfall(level, self.count, 0.0 if self.both else max(0.0, most - self.count))
        return less if less is None or not self.both else max(less, _excess(level, self.count))


def correlation(
    products: float, pairs: int, count: int, tried: int = 1, test: str = "correlation of steps"
) -> Measurement:
    """Test that standard normal noise is fresh: ``products`` sums ``pairs`` products of values of different steps.

    It is the largest of ``tried`` sums (Bonferroni), over ``count`` values; a chain of T values has T - 1 pairs. Over
    the root of ``pairs`` it is nearly standard normal if there are many pairs. Otherwise p is twice Chernoff's bound,
    with E[e^(s products)] = det(I - s A)^(-1/2) for the adjacency matrix A of all chains. ``measured`` and
    ``detectable`` are correlations.
    """
    if pairs >= _MANY_PAIRS:
        p_value = math.erfc(abs(products) / math.sqrt(2.0 * pairs))
        threshold = -float(special.ndtri(0.5 * LEVEL / tried))
    else:
        chains = count - pairs
        length = count / chains
        # Every s gives a bound; the best one of the grid costs 0.01% of p at 5 standard deviations, or less.
        s = np.linspace(0.0, 0.5, 2001)[1:-1]
        root = np.sqrt(1.0 - 4.0 * s * s)
        # A chain has det = (a^(T+1) - b^(T+1)) / (a - b) with a, b = (1 +- root) / 2.
        ratio = (1.0 - root) / (1.0 + root)
        log_det = (length + 1.0) * np.log(0.5 * (1.0 + root)) + np.log1p(-(ratio ** (length + 1.0))) - np.log(root)
        p_value = 2.0 * math.exp(min(0.0, float(np.min(-0.5 * chains * log_det - s * abs(products)))))
        threshold = math.sqrt(2.0 * math.log(2.0 * tried / LEVEL))
    detectable = (threshold + float(special.ndtri(POWER))) / math.sqrt(pairs)
    limit = detectable if detectable <= 1.0 else None
    return Measurement(test, 0.0, products / pairs, min(1.0, tried * p_value), limit)


def least_coordinate(least: float, steps: int, count: int) -> Measurement:
    """Test that each of ``count`` coordinates has noise; ``least`` is the smallest sum of squares over the steps.

    p = count P[chi2(steps) <= least] (Bonferroni).
    """
    _check(least, steps)
    _, quiet = quietest({"": (least, steps)}, count)
    return replace(quiet, test="chi-square of the quietest coordinate", details="")


def quietest(squares_by_part: Mapping[str, tuple[float, int]], steps: int = 1) -> tuple[str, Measurement]:
    """Return the most surprising part and its test (Bonferroni); ``detectable`` applies to the smallest part.

    ``squares_by_part`` has each part's sum of squares, over all steps or at the quietest of ``steps``, and its degrees
    of freedom.
    """
    parts_squares = squares_by_part.items()
    surprises = {name: (log_lower_tail(least, n), least / n, least) for name, (least, n) in parts_squares}
    name = min(surprises, key=lambda n: surprises[n])
    tail, square, _ = surprises[name]
    tried = len(squares_by_part) * steps
    p_value = min(1.0, math.exp(math.log(tried) + tail))
    detectable = _shortfall(LEVEL / tried, min(count for _, count in squares_by_part.values()))
    return name, Measurement("chi-square of the quietest layer", 1.0, math.sqrt(square), p_value, detectable)


def log_lower_tail(total: float, count: float) -> float:
    """Return ln P[chi2(count) <= total], finite even if the probability underflows; -inf only at total = 0.

    P(a, x) = x^a e^-x / Gamma(a + 1) * (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...) with a = count/2, x = total/2; the
    series is summed only if the library function underflows, and then converges like a power of x/a.
    """
    a, x = 0.5 * count, 0.5 * total
    if x <= 0.0:
        return -math.inf
    ready = float(special.gammainc(a, x))
    if ready > 1e-280:
        return math.log(ready)
    # Terms shrink at least by x/(a+1) each; this many leave a remainder below 1e-17 of the sum.
    terms = min(1_000_000, 2 + math.ceil(40.0 / -math.log(min(max(x / (a + 1.0), 1e-300), 1.0 - 1e-9))))
    ratios = np.log(x) - np.log(a + np.arange(1, terms + 1, dtype=np.float64))
    series = special.logsumexp(np.concatenate(([0.0], np.cumsum(ratios))))
    return min(0.0, float(a * math.log(x) - x - special.gammaln(a + 1.0) + series))


def _shortfall(level: float, count: int, other_squares: float = 0.0) -> float | None:
    """Relative shortfall of the scale that is rejected at ``level``, if the sum has ``other_squares`` besides noise.

    None if not even the absence of noise is rejected.
    """
    low, typical = (2.0 * float(special.gammaincinv(0.5 * count, probability)) for probability in (level, POWER))
    noise_share = (low - other_squares) / typical
    return 1.0 - math.sqrt(noise_share) if noise_share > 0.0 else None


def _excess(level: float, count: int) -> float:
    high = float(special.gammainccinv(0.5 * count, level))
    return math.sqrt(high / float(special.gammaincinv(0.5 * count, 1.0 - POWER))) - 1.0


def _check(squares: float, count: int) -> None:
    if not (math.isfinite(squares) and squares >= 0.0):
        raise ValueError(f"sum_of_squares must be finite and not negative, got {squares}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")


def products(rows: Rows, earlier: Rows | None = None) -> tuple[Rows, float]:
    """Multiply each row (steps, width) with all ``earlier`` rows before it, by default its own.

    Returns the sum over t of <row t, row t - lag> at each lag, (steps,), and the largest product by absolute value.
    """
    before = rows if earlier is None else earlier
    count = len(rows)
    lags, largest = np.zeros(count), 0.0
    for start in range(0, count, _BLOCK):
        block = np.arange(start, min(count, start + _BLOCK))
        lag = block[:, None] - np.arange(block[-1])[None, :]
        block_products = np.where(lag > 0, rows[block] @ before[: block[-1]].T, 0.0)
        lags += np.bincount(np.maximum(lag, 0).ravel(), weights=block_products.ravel(), minlength=count)
        largest = _larger(largest, block_products)
    lags[:1] = 0.0
    return lags, largest


def largest_across(rows: Rows, other_rows: Rows) -> float:
    """Return the inner product with the largest absolute value of any two steps of two runs, rows (steps, width)."""
    largest = 0.0
    for start in range(0, len(rows), _BLOCK):
        largest = _larger(largest, rows[start : start + _BLOCK] @ other_rows.T)
    return largest


def _larger(largest: float, candidates: Rows) -> float:
    value = float(candidates.flat[int(np.argmax(np.abs(candidates)))]) if candidates.size else 0.0
    return value if abs(value) > abs(largest) else largest


def tested_lags(steps: int) -> int:
    """Return the largest tested lag: longer ones have few terms, and pairs of steps are tested as well."""
    return steps // 2


def worst_lag(sums: Rows) -> int:
    """Return the tested lag with the most surprising sum of products of standard normal rows; 0 without any."""
    last = tested_lags(len(sums))
    if last < 1:
        return 0
    return 1 + int(np.argmax(np.abs(sums[1 : last + 1]) / np.sqrt(len(sums) - np.arange(1, last + 1))))


#: Ratio of successive points of the grid of V.
_RATIO = 1.25

#: Largest finite ratio of V to its lower bound.
_LARGEST = 1e307


def drift(
    total: float, variance: float, least: float, unit: float, *, test: str, declared: float = 0.0, tried: int = 1
) -> Measurement:
    """Test that a sum along predictable directions is centered, two-sided, by Freedman's inequality.

    Theorem 10 of ``docs/explanation/proofs/residuals.md``: ``variance`` is V, ``least`` its lower bound, known
    beforehand, and V is rounded up to a grid that shares the level. The sum changes by ``unit`` if the tested quantity
    is larger by 1. It is the largest of ``tried`` sums (Bonferroni).
    """
    measured = declared + (total / unit if unit > 0.0 else 0.0)
    ratio = max(variance, least) / least
    if ratio > _LARGEST:  # the model diverged
        return Measurement(test, declared, measured, p_value=1.0, detectable=None, details="Freedman")
    point = max(0, math.ceil(math.log(ratio) / math.log(_RATIO) - 1e-9))
    v = least * _RATIO**point
    log_weight = math.log(2.0 * (point + 1) * (point + 2) * tried)
    x = abs(total)
    exponent = x if math.isinf(x) else x * x / (2.0 * (v + x / 3.0))
    needed = log_weight - math.log(LEVEL)
    threshold = needed / 3.0 + math.sqrt(needed * needed / 9.0 + 2.0 * needed * v)
    detectable = (threshold + float(special.ndtri(POWER)) * math.sqrt(v)) / unit if unit > 0.0 else None
    p_value = min(1.0, math.exp(log_weight - exponent))
    return Measurement(test, declared, measured, p_value, detectable, details="Freedman")


#: Name of the test of layers.
LAYERS_TEST = "products of residuals of two layers, Ville"

#: Maximum number of compared layers, the largest ones.
MOST_LAYERS = 8

#: a.
_MISSED = 1e-15

#: The p-value at which the bound is sharpest.
_AIMED = 1e-9


@dataclass(frozen=True, kw_only=True)
class SharedLayers(Record):
    """Products of the residuals of two layers, the worst of ``pairs`` pairs, in units of the declared noise.

    Layers with equally seeded generators share their noise: their difference has none. Theorem 11 of
    ``docs/explanation/proofs/residuals.md``, for all gradients: p = a + 2 exp(-l (|S| - sqrt(A H)) + l^2 A / 2).

    Attributes:
        squares: A and B, the squared norms of both residuals, including rounding.
        product: S, the sum over the steps of the inner products.
        rounding: Bound on the rounding error of ``product``.
        count: N, the number of coordinates of one layer, over all steps.
        planned: The same for all planned steps.
    """

    squares: Mapping[str, Amount]
    product: Real
    rounding: Amount
    count: Positive
    planned: Positive
    pairs: Positive

    def surprise(self) -> float:
        """The larger exponent of the p-value of both orders."""
        product = max(0.0, abs(self.product) - self.rounding)
        rate, (first, second) = _rate(self.planned), self.squares.values()

        def exponent(fixed_square: float, other_square: float) -> float:
            bound = math.sqrt(fixed_square) * math.sqrt(_others(other_square, self.count, self.planned))
            return rate * (product - bound) - 0.5 * rate * rate * fixed_square

        return max(exponent(first, second), exponent(second, first))

    def p_value(self) -> float:
        """At least 2e-15."""
        exponent = self.surprise()
        return min(1.0, 2.0 * self.pairs * (_MISSED + (2.0 * math.exp(-exponent) if exponent > 0.0 else 1.0)))

    def test(self) -> Measurement:
        test, correlation = f"{LAYERS_TEST}, {' and '.join(self.squares)}", self.product / self.count
        return Measurement(test, 0.0, correlation, self.p_value(), least_seen(self.count, self.pairs))

    def problem(self) -> str | None:
        if len(self.squares) != 2:
            return "squares must name two layers"
        if abs(self.product) > (1.0 + 1e-9) * prod(square**0.5 for square in self.squares.values()):
            return f"product must be at most the product of the norms, got {self.product:g}"
        if self.planned < self.count:
            return f"planned must be at least count ({self.count}), got {self.planned}"
        return None


def least_seen(count: int, pairs: int) -> float | None:
    """Return the smallest correlation of two layers' noise that is rejected at ``LEVEL`` with probability ``POWER``.

    For ``count`` coordinates and no gradients; None if no correlation is rejected.
    """
    if 2.0 * pairs * _MISSED >= LEVEL:
        return None
    needed = math.log(2.0 / (LEVEL / (2.0 * pairs) - _MISSED))
    rate = _rate(count)
    least = math.sqrt(count * _others(float(count), count, count)) + needed / rate + 0.5 * rate * count
    # The variance of a product is at most 2; the factor 1.5 covers A and B, which grow with it.
    correlation = (least + 1.5 * float(special.ndtri(POWER)) * math.sqrt(2.0 * count)) / count
    return correlation if correlation <= 1.0 else None


def _rate(planned: int) -> float:
    """l."""
    return math.sqrt(2.0 * math.log(2.0 / _AIMED) / planned)


def _others(squares: float, count: int, planned: int) -> float:
    """H."""
    q = math.sqrt(-math.log(_MISSED) / planned)
    return (1.0 + 2.0 * q) / q * max(0.0, q * squares - 0.5 * count * math.log1p(2.0 * q) - math.log(_MISSED))
