"""Tests of noise: its size against the chi-square distribution, and correlations between steps.

The sum of squares of ``count`` independent N(0, scale^2) numbers over scale^2 is chi-square with ``count`` degrees of
freedom. A residual is noise plus something that the step's noise is independent of, which only adds to the sum. So a
small sum contradicts the declared scale, and a large one does not.

Repeated noise shows in inner products of steps: at one lag (the same noise at each step, a generator seeded again each
epoch), or in single pairs of steps (noise drawn from a small pool).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import special

from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: Number of pairs from which the normal tail has a relative error below 0.5 % at the used levels.
_MANY_PAIRS = 100_000

#: Number of steps whose inner products with all others are computed at a time.
_BLOCK = 256

Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def lower_tail(sum_of_squares: float, scale: float, count: int) -> Measurement:
    """Test that values, which may contain more than noise, have noise of at least ``scale``.

    p = P[chi2(count) <= sum_of_squares / scale^2]. ``measured`` is the root mean square. ``detectable`` is the smallest
    relative shortfall of the scale that is rejected, given the measured excess of the sum; None if the excess hides
    even the absence of noise, or if no noise is declared.
    """
    _check(sum_of_squares, scale, count)
    measured = math.sqrt(sum_of_squares / count)
    if scale == 0.0:
        return Measurement(test="chi-square, lower tail", declared=0.0, measured=measured, p_value=1.0, detectable=None)
    total = sum_of_squares / scale**2
    rest = max(0.0, total - count)
    room = (_quantile(LEVEL, count) - rest) / _quantile(POWER, count)
    return Measurement(
        test="chi-square, lower tail",
        declared=scale,
        measured=measured,
        p_value=math.exp(log_lower_tail(total, count)),
        detectable=1.0 - math.sqrt(room) if room > 0.0 else None,
    )


def two_sided(sum_of_squares: float, scale: float, count: int) -> Measurement:
    """Test that reported noise has exactly ``scale``.

    p = 2 min(lower tail, upper tail), at most 1. ``measured`` is the root mean square; ``detectable`` is the larger of
    the limits in both directions.
    """
    _check(sum_of_squares, scale, count)
    measured = math.sqrt(sum_of_squares / count)
    test = "chi-square, two-sided"
    if scale == 0.0:
        p_value = 1.0 if sum_of_squares == 0.0 else 0.0
        return Measurement(test=test, declared=0.0, measured=measured, p_value=p_value, detectable=0.0)
    total = sum_of_squares / scale**2
    low = math.exp(log_lower_tail(total, count))
    high = float(special.gammaincc(0.5 * count, 0.5 * total))
    below = 1.0 - math.sqrt(_quantile(0.5 * LEVEL, count) / _quantile(POWER, count))
    above = math.sqrt(_upper_quantile(0.5 * LEVEL, count) / _quantile(1.0 - POWER, count)) - 1.0
    return Measurement(
        test=test,
        declared=scale,
        measured=measured,
        p_value=min(1.0, 2.0 * min(low, high)),
        detectable=max(below, above),
    )


@dataclass(frozen=True)
class StepNoise:
    """Chi-square distribution of a step's squared noise in units of the declared variance (see ``step_tests``).

    Attributes:
        count: Degrees of freedom of a step.
        both: Whether the values are noise only. Otherwise they may contain more, and only small ones are tested.
    """

    count: int
    both: bool

    test = "chi-square"
    declared = 1.0

    def below(self, total: float, steps: int) -> float:
        """P[chi2 <= total]."""
        return math.exp(log_lower_tail(total, self.count * steps))

    def above(self, total: float, steps: int) -> float:
        """P[chi2 >= total]."""
        return float(special.gammaincc(0.5 * self.count * steps, 0.5 * total))

    def size(self, total: float, steps: int) -> float:
        """The scale relative to the declared one."""
        return math.sqrt(total / (self.count * steps))

    def detectable(self, most: float, steps: int, level: float) -> float | None:
        """The shortfall of the scale that is rejected at ``level``, and the excess if ``both``."""
        count = self.count * steps
        rest = 0.0 if self.both else max(0.0, most - count)
        room = (_quantile(level, count) - rest) / _quantile(POWER, count)
        if room <= 0.0:
            return None
        below = 1.0 - math.sqrt(room)
        if not self.both:
            return below
        return max(below, math.sqrt(_upper_quantile(level, count) / _quantile(1.0 - POWER, count)) - 1.0)


def correlation(
    products: float, pairs: int, count: int, tried: int = 1, test: str = "correlation of steps"
) -> Measurement:
    """Test that standard normal noise is fresh: ``products`` sums ``pairs`` products of values of different steps.

    ``products`` over the root of ``pairs`` is nearly standard normal if there are many pairs. Otherwise p is twice
    Chernoff's bound, with E[e^(s products)] = det(I - s A)^(-1/2) for the adjacency matrix A of all chains.
    ``measured`` is the correlation, ``detectable`` the smallest detected one by the normal approximation; None if not
    even identical noise is detected.

    Args:
        products: The sum.
        pairs: Number of products.
        count: Number of values; a chain of T values has T - 1 pairs.
        tried: Number of such sums of which this is the largest (Bonferroni).
        test: Name of the test.
    """
    if not 1 <= pairs < count:
        raise ValueError(f"need 1 <= pairs < count, got {pairs} of {count}")
    if tried < 1:
        raise ValueError(f"tried must be at least 1, got {tried}")
    z = abs(products) / math.sqrt(pairs)
    if pairs >= _MANY_PAIRS:
        p_value, threshold = math.erfc(z / math.sqrt(2.0)), -float(special.ndtri(0.5 * LEVEL / tried))
    else:
        p_value = 2.0 * math.exp(_log_chernoff(abs(products), pairs, count))
        threshold = math.sqrt(2.0 * math.log(2.0 * tried / LEVEL))
    detectable = (threshold + float(special.ndtri(POWER))) / math.sqrt(pairs)
    return Measurement(
        test=test,
        declared=0.0,
        measured=products / pairs,
        p_value=min(1.0, tried * p_value),
        detectable=detectable if detectable <= 1.0 else None,
    )


def least_coordinate(least: float, steps: int, count: int) -> Measurement:
    """Test that each of ``count`` coordinates has noise; ``least`` is the smallest sum of squares over the steps.

    In units of the declared variance each sum is at least chi-square with ``steps`` degrees of freedom:
    p = count P[chi2(steps) <= least] (Bonferroni). ``measured`` is that coordinate's scale, ``detectable`` the smallest
    detected shortfall of one coordinate's scale; None if not even the absence of noise is detected.
    """
    _check(least, 1.0, steps)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    room = _quantile(LEVEL / count, steps) / _quantile(POWER, steps)
    return Measurement(
        test="chi-square of the quietest coordinate",
        declared=1.0,
        measured=math.sqrt(least / steps),
        p_value=min(1.0, math.exp(math.log(count) + log_lower_tail(least, steps))),
        detectable=1.0 - math.sqrt(room) if room > 0.0 else None,
    )


def quietest(parts: Mapping[str, tuple[float, int]], steps: int = 1) -> tuple[str, Measurement]:
    """Test every part of the model, at every step if ``steps`` are more than 1, with a Bonferroni correction.

    Args:
        parts: Per part, the sum of squares and its degrees of freedom: over all steps, or at the quietest of ``steps``.
        steps: Number of steps of which the sum is the smallest.

    Returns:
        The most surprising part and its measurement. ``detectable`` applies to the smallest part.
    """
    found = {name: (log_lower_tail(least, count), least / count, least) for name, (least, count) in parts.items()}
    name = min(found, key=lambda n: found[n])
    tail, square, _ = found[name]
    tried = len(parts) * steps
    smallest = min(count for _, count in parts.values())
    room = _quantile(LEVEL / tried, smallest) / _quantile(POWER, smallest)
    return name, Measurement(
        test="chi-square of the quietest layer",
        declared=1.0,
        measured=math.sqrt(square),
        p_value=min(1.0, math.exp(math.log(tried) + tail)),
        detectable=1.0 - math.sqrt(room) if room > 0.0 else None,
    )


def _log_chernoff(products: float, pairs: int, count: int) -> float:
    """Minimize ln E[e^(s X)] - s ``products`` over a grid of s, by the closed form of a path's determinant."""
    chains = count - pairs
    length = count / chains
    s = np.linspace(0.0, 0.5, 2001)[1:-1]
    root = np.sqrt(1.0 - 4.0 * s * s)
    # det = (a^(T+1) - b^(T+1)) / (a - b) with a, b = (1 +- root) / 2
    ratio = (1.0 - root) / (1.0 + root)
    log_det = (length + 1.0) * np.log(0.5 * (1.0 + root)) + np.log1p(-(ratio ** (length + 1.0))) - np.log(root)
    return min(0.0, float(np.min(-0.5 * chains * log_det - s * products)))


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


def _quantile(probability: float, count: int) -> float:
    return 2.0 * float(special.gammaincinv(0.5 * count, probability))


def _upper_quantile(probability: float, count: int) -> float:
    return 2.0 * float(special.gammainccinv(0.5 * count, probability))


def _check(sum_of_squares: float, scale: float, count: int) -> None:
    if not (math.isfinite(sum_of_squares) and sum_of_squares >= 0.0):
        raise ValueError(f"sum_of_squares must be finite and not negative, got {sum_of_squares}")
    if not (math.isfinite(scale) and scale >= 0.0):
        raise ValueError(f"scale must be finite and not negative, got {scale}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")


@dataclass(frozen=True, kw_only=True)
class Products:
    """Inner products between rows.

    Attributes:
        lags: (steps,), the sum over t of <row t, row t - lag>; 0 at lag 0.
        largest: The inner product with the largest absolute value between rows of different steps.
    """

    lags: Rows
    largest: float


def products(rows: Rows, earlier: Rows | None = None) -> Products:
    """Multiply each row (steps, width) with all ``earlier`` rows before it, by default its own."""
    before = rows if earlier is None else earlier
    count = len(rows)
    lags, largest = np.zeros(count), 0.0
    for start in range(0, count, _BLOCK):
        some = np.arange(start, min(count, start + _BLOCK))
        lag = some[:, None] - np.arange(some[-1])[None, :]
        found = np.where(lag > 0, rows[some] @ before[: some[-1]].T, 0.0)
        lags += np.bincount(np.maximum(lag, 0).ravel(), weights=found.ravel(), minlength=count)
        largest = _larger(largest, found)
    lags[:1] = 0.0
    return Products(lags=lags, largest=largest)


def largest_across(one: Rows, other: Rows) -> float:
    """Return the inner product with the largest absolute value of any two steps of two runs, rows (steps, width)."""
    largest = 0.0
    for start in range(0, len(one), _BLOCK):
        largest = _larger(largest, one[start : start + _BLOCK] @ other.T)
    return largest


def _larger(largest: float, found: Rows) -> float:
    value = float(found.flat[int(np.argmax(np.abs(found)))]) if found.size else 0.0
    return value if abs(value) > abs(largest) else largest


def tested_lags(steps: int) -> int:
    """Return the largest tested lag: longer ones have few terms, and pairs of steps are tested as well."""
    return steps // 2


def worst_lag(sums: Rows) -> int:
    """Return the tested lag with the most surprising sum of products of standard normal rows; 0 without any."""
    count = len(sums)
    last = tested_lags(count)
    if last < 1:
        return 0
    return 1 + int(np.argmax(np.abs(sums[1 : last + 1]) / np.sqrt(count - np.arange(1, last + 1))))
