"""Binomial tails and bounds, Chernoff's bound, truncated Poisson batches, and tests of inclusion bits.

*Chernoff*: P[X_1 + ... + X_n >= 0] <= exp(n K(u)) for every u >= 0, with K(u) = ln E[e^(u X)]. The minimum is at the
root of K', which is increasing. An inaccurate root costs tightness only.

*Inclusion bits*: the number of ones is Bin(n, 1/2), and the number of changes between consecutive bits Bin(n - 1, 1/2).
Too many changes are a pattern such as 0101. Few changes are allowed, because rows may be sorted.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import Floats, bisect, bisect_by_margin, crossing

#: Relative outward shift of bounds, larger than the error of the inverse beta function.
MARGIN = 1e-12


def at_least(successes: int, trials: int, probability: float) -> float:
    """P[Bin(trials, probability) >= successes]: p-value of a success probability of at most ``probability``.

    One minus the probability of fewer successes would have no digits below 1e-16.

    >>> f"{at_least(100, 100, 0.5):.3g}", f"{1.0 - special.bdtr(99, 100, 0.5):.3g}"
    ('7.89e-31', '1.11e-16')
    """
    _check(successes, trials)
    if successes == 0:
        return 1.0
    return float(special.betainc(successes, trials - successes + 1, probability))


def at_most(successes: int, trials: int, probability: float) -> float:
    """P[Bin(trials, probability) <= successes]: p-value of a success probability of at least ``probability``."""
    _check(successes, trials)
    if successes == trials:
        return 1.0
    return float(special.betaincc(successes + 1, trials - successes, probability))


def lower(successes: int, trials: int, confidence: float) -> float:
    """One-sided Clopper-Pearson lower bound: the p with P[Bin(trials, p) >= successes] = 1 - confidence, or 0."""
    _check(successes, trials, confidence)
    if successes == 0:
        return 0.0
    value = float(special.betaincinv(successes, trials - successes + 1, 1.0 - confidence))
    return value * (1.0 - MARGIN)


def upper(successes: int, trials: int, confidence: float) -> float:
    """One-sided Clopper-Pearson upper bound: the p with P[Bin(trials, p) <= successes] = 1 - confidence, or 1."""
    _check(successes, trials, confidence)
    if successes == trials:
        return 1.0
    value = float(special.betainccinv(successes + 1, trials - successes, 1.0 - confidence))
    return min(1.0, value * (1.0 + MARGIN))


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval (lower, upper), with an error of at most (1 - confidence) / 2 on each side.

    >>> low, high = clopper_pearson(8, 10, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.4439, 0.9748)
    """
    one_sided = 1.0 - (1.0 - confidence) / 2.0
    return lower(successes, trials, one_sided), upper(successes, trials, one_sided)


def _check(successes: int, trials: int, confidence: float = 0.5) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie between 0 and trials, got {successes} of {trials}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")


def largest_rejected(
    p_value: Callable[[float], float], level: float, *, relative: float, most: float = math.inf
) -> float:
    """The largest value, at most 2 ``most``, whose p-value, which rises with it, is at most ``level``; else 0."""
    if p_value(0.0) > level:
        return 0.0
    low, high = 0.0, 1.0
    while high < most and p_value(high) <= level:
        low, high = high, 2.0 * high

    def margin(value: float) -> float:
        """Difference of normal scores, which are nearly linear in the value; at least 0 if it is rejected."""
        return float(special.ndtri(level) - special.ndtri(p_value(value)))

    return bisect_by_margin(margin, low, high, relative=relative)[0]


#: Precision of ln u. The exponent n K is off by its square, because it is minimal there.
_PRECISION = 1e-5


def chernoff_log_tail(
    cumulant: Callable[[float], tuple[float, float]], number: int, least: float, most: float
) -> float:
    """Log of the bound on P[a sum of ``number`` values >= 0], u from ``least`` to ``most``; 0 if their mean is >= 0.

    ``cumulant`` returns an upper bound on K(u), and its derivative.
    """
    mean, exponents = cumulant(0.0)[1], [0.0]

    def short(log_u: float) -> float:
        """Distance of the weighted mean from 0, linear in ln u for a normal distribution."""
        value, slope = cumulant(math.exp(log_u))
        exponents.append(number * value)
        return math.log(-mean / (slope - mean)) if slope > mean else math.inf

    if mean < 0.0:
        crossing(short, math.log(least), math.log(most), within=_PRECISION)
    return min(exponents)


def cumulant_of(logs: Floats, values: Floats) -> Callable[[float], tuple[float, float]]:
    """K and its derivative for a distribution with the probabilities e^``logs`` of ``values``, (n,) each."""

    def cumulant(u: float) -> tuple[float, float]:
        weighted = logs + u * values  # their exponentials overflow from 710 on
        top = float(weighted.max())
        weights = np.exp(weighted - top)
        total = float(weights.sum())
        return top + math.log(total), float(weights @ values) / total

    return cumulant


#: Power of ``detectable``, as in ``conformance.measurement``.
_POWER = 0.99

#: Half-width of the window of sizes around the mean, in standard deviations plus records.
_WINDOW = 40.0

#: Bound on the probability of a size outside the window: 2 exp(-1600 / 29) by Bernstein's inequality.
_OUTSIDE = 1e-23


@dataclass(frozen=True)
class TruncatedSize:
    """Distribution of min(Binomial(records, rate), cap), 0 < rate < 1."""

    records: int
    rate: float
    cap: int

    both = True
    test = "truncated binomial"

    @cached_property
    def _table(self) -> tuple[Floats, Floats]:
        """Sizes in the window, ascending, and the logs of their probabilities, (n,) each."""
        deviation = math.sqrt(self.records * self.rate * (1.0 - self.rate))
        low = max(0, math.floor(self.records * self.rate - _WINDOW * (deviation + 1.0)))
        high = min(self.records, self.cap, math.ceil(self.records * self.rate + _WINDOW * (deviation + 1.0)))
        low = min(low, high)
        sizes = np.arange(low, high + 1, dtype=np.float64)
        ways = special.gammaln(self.records + 1) - special.gammaln(sizes + 1)
        ways -= special.gammaln(self.records - sizes + 1)
        logs = ways + special.xlogy(sizes, self.rate) + special.xlog1py(self.records - sizes, -self.rate)
        if high == self.cap <= self.records:
            logs[-1] = math.log(max(at_least(self.cap, self.records, self.rate), 1e-300))
        return sizes, logs

    @property
    def declared(self) -> float:
        return self.mean

    @cached_property
    def mean(self) -> float:
        sizes, logs = self._table
        return float(np.exp(logs) @ sizes)

    @cached_property
    def variance(self) -> float:
        sizes, logs = self._table
        return float(np.exp(logs) @ np.square(sizes - self.mean))

    def below(self, total: float, steps: int = 1) -> float:
        """Bound on P[a sum of ``steps`` sizes <= ``total``]; exact for one step."""
        if steps == 1:
            most = min(self.cap, self.records)
            return 1.0 if total >= most else at_most(max(0, int(total)), self.records, self.rate)
        return self._tail(self._table[0], total, steps, -1.0)

    def above(self, total: float, steps: int = 1) -> float:
        """Bound on P[a sum of ``steps`` sizes >= ``total``]; exact for one step."""
        if total > min(self.cap, self.records) * steps:  # impossible unless records are drawn twice
            return 0.0
        if steps == 1:
            return at_least(max(0, int(total)), self.records, self.rate)
        return self._tail(self._table[0], total, steps, 1.0)

    def spread(self, squares: float, steps: int, sign: float) -> float:
        """Bound on P[a sum of squared distances from the mean <= (``sign`` -1) or >= (+1) ``squares``]."""
        return self._tail(np.square(self._table[0] - self.mean), squares, steps, sign)

    def excess(self, total: float, steps: int) -> float:
        """Bound on P[a sum of max(0, size - mean)^2 >= total]."""
        return self._tail(self._excess, total, steps, 1.0)

    def moments_of_excess(self) -> tuple[float, float]:
        logs = self._table[1]
        mean = float(np.exp(logs) @ self._excess)
        return mean, math.sqrt(max(0.0, float(np.exp(logs) @ np.square(self._excess - mean))))

    @cached_property
    def _excess(self) -> Floats:
        return np.square(np.maximum(self._table[0] - self.mean, 0.0))

    def size(self, value: float) -> float:
        return value

    def detectable(self, most: float, level: float, steps: int = 1) -> float | None:
        return _detectable(self.records, self.rate, self.cap, steps, level)

    def _tail(self, terms: Floats, total: float, steps: int, sign: float) -> float:
        """Chernoff bound on P[sign * (a sum of ``terms`` of ``steps`` batches) >= sign * ``total``]."""
        logs = self._table[1]
        mean = float(np.exp(logs) @ terms)
        if sign * (total - steps * mean) <= 0.0:
            return 1.0
        scale = max(float(np.exp(logs) @ np.square(terms - mean)), 1e-12) ** 0.5
        cumulant = cumulant_of(logs, sign * (terms - total / steps))
        return min(1.0, math.exp(chernoff_log_tail(cumulant, steps, 1e-6 / scale, 1e4 / scale)) + steps * _OUTSIDE)


@lru_cache(maxsize=1024)
def _detectable(records: int, rate: float, cap: int, steps: int, level: float) -> float | None:
    """Larger relative distance, up or down, to a mean size that is rejected with power 0.99; None if there is none.

    If most batches are full, no rate above the declared one can be detected.
    """
    law = TruncatedSize(records, rate, cap)

    def tilted(shift: float) -> TruncatedSize:
        odds = math.log(rate) - math.log1p(-rate) + shift
        return TruncatedSize(records, min(max(float(special.expit(odds)), 1e-300), 1.0 - 1e-16), cap)

    distances = []
    for sign in (-1.0, 1.0):

        def is_rejected(shift: float, sign: float = sign) -> bool:
            alternative = tilted(sign * shift)
            deviation = math.sqrt(steps * alternative.variance)
            surely = steps * alternative.mean - sign * float(special.ndtri(_POWER)) * deviation
            if sign > 0.0:
                return surely > steps * law.mean and law.above(surely, steps) <= level
            return surely < steps * law.mean and law.below(max(0.0, surely), steps) <= level

        if not is_rejected(40.0):
            return None
        distances.append(abs(tilted(sign * bisect(is_rejected, 40.0, 0.0, halvings=20)[0]).mean / law.mean - 1.0))
    return max(distances)


#: Level of all tests of one table together.
COIN_LEVEL = 1e-6


def coin_tests(coins: npt.ArrayLike) -> list[tuple[str, float, str]]:
    """Name, p-value and text of the tests of inclusion bits (n,): balance (two-sided), alternation (too many changes).

    >>> [round(p_value, 3) for _, p_value, _ in coin_tests([0, 1] * 10)]
    [1.0, 0.0]
    """
    values = np.asarray(coins)
    if values.ndim != 1 or not len(values) or not np.isin(values, (0, 1)).all():
        raise ValueError("coins must be a vector of 0 and 1")
    ones, number = int(values.sum()), len(values)
    changes = int((values[1:] != values[:-1]).sum())
    alternation = at_least(changes, number - 1, 0.5) if number > 1 else 1.0
    return [
        ("balance", balance(ones, number), f"{ones} of {number} coins are 1"),
        ("alternation", alternation, f"{changes} of {number - 1} coins differ from the one before"),
    ]


def balance(ones: int, number: int) -> float:
    return min(1.0, 2.0 * min(at_least(ones, number, 0.5), at_most(ones, number, 0.5)))


def least_imbalance(number: int, level: float) -> float:
    """Smallest share of ones above one half that the test of balance rejects at ``level``; 1 if none."""
    ones = bisect_left(range(number + 1), True, lo=number // 2, key=lambda ones: balance(ones, number) <= level)
    return min(1.0, ones / number)
