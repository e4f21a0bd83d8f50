"""Are batches drawn as declared? Tests of Poisson sampling on counts that a sampling log boils down to.

Under Poisson sampling every record enters every batch by its own coin: the total number of inclusions is binomial,
and so is every batch size. A sampler of another rate shows in the total, one of fixed-size or correlated batches in
the spread of the sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from scipy import optimize, special, stats

from dpspec.stats import binomial
from dpspec.stats.measurement import LEVEL, POWER, Measurement

#: Probability of ever leaving the window of batch sizes that is summed over; it is added to the p-value.
_OUTSIDE = 1e-16


def inclusions(included: int, chances: int, rate: float) -> Measurement:
    """Test the rate: ``included`` of ``chances`` (records times steps) independent coins came up.

    Exact two-sided binomial p = 2 min(P[Bin <= included], P[Bin >= included]), at most 1. ``measured`` is the realised
    rate; ``detectable`` the larger of the smallest relative deviations of the rate seen downwards and upwards.
    """
    if not 0 <= included <= chances or chances < 1:
        raise ValueError(f"need 0 <= included <= chances and at least one chance, got {included} of {chances}")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    p_value = 2.0 * min(binomial.at_most(included, chances, rate), binomial.at_least(included, chances, rate))
    return Measurement(
        test="binomial, two-sided",
        declared=rate,
        measured=included / chances,
        p_value=min(1.0, p_value),
        detectable=_detectable_rate(chances, rate),
    )


def batch_variance(steps: int, total: int, total_of_squares: int, records: int, rate: float) -> Measurement:
    """Test the spread of the batch sizes: ``steps`` sizes with their sum and their sum of squares.

    The statistic is S = sum (size - records rate)^2 / (records rate (1 - rate)), about chi-square with ``steps``
    degrees of freedom. Its p-value is twice a Chernoff bound on the tail under the exact binomial law, so that it
    is valid for small batches too; it errs upwards. ``measured`` is S / steps, the variance over its declared value,
    and ``detectable`` the larger of the smallest deviations of that ratio from 1 seen downwards and upwards (by the
    chi-square law with the binomial's kurtosis; None where even equal sizes would not be seen).
    """
    if steps < 1 or records < 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"need steps, records >= 1 and a rate in [0, 1], got {steps}, {records}, {rate}")
    if total_of_squares * steps < total * total:
        raise ValueError("no batch sizes have this sum and this sum of squares")
    mean, variance = records * rate, records * rate * (1.0 - rate)
    spread = max(0.0, math.fsum((total_of_squares, -2.0 * mean * total, steps * mean * mean)))
    test = "batch-size variance, two-sided"
    if variance == 0.0:
        equal = spread <= 1e-9 * max(1.0, steps * mean * mean)
        measured = 1.0 if equal else steps * mean + 1.0
        return Measurement(test=test, declared=1.0, measured=measured, p_value=1.0 if equal else 0.0, detectable=0.0)
    statistic = spread / variance
    return Measurement(
        test=test,
        declared=1.0,
        measured=statistic / steps,
        p_value=min(1.0, 2.0 * _chernoff(statistic, steps, records, rate)),
        detectable=_detectable_variance(steps, variance, rate),
    )


def _detectable_rate(chances: int, rate: float) -> float:
    """The larger relative distance from ``rate`` to a rate that is rejected with the stated power, either way."""
    if rate in (0.0, 1.0):
        return 0.0
    # Rejected at ``low`` or fewer and at ``high`` or more; the rates at which that has probability POWER:
    low, high = _tails(chances, rate, 0.5 * LEVEL)
    down = float(special.betainccinv(low + 1, chances - low, POWER)) if low >= 0 else 0.0
    up = float(special.betaincinv(high, chances - high + 1, POWER)) if high <= chances else 1.0
    return max(1.0 - down / rate, up / rate - 1.0)


def _detectable_variance(steps: int, variance: float, rate: float) -> float | None:
    """From a scaled chi-square with the variance that S really has: 2 + kurtosis per step instead of 2."""
    # Chernoff's bound exceeds the tail by about this factor near the level.
    level = 0.5 * LEVEL / 20.0
    inflation = 1.0 + 0.5 * (1.0 - 6.0 * rate * (1.0 - rate)) / variance
    half = 0.5 * steps / max(inflation, 0.5)
    low, high = float(special.gammaincinv(half, level)), float(special.gammainccinv(half, level))
    down = 1.0 - low / float(special.gammaincinv(half, POWER))
    up = high / float(special.gammaincinv(half, 1.0 - POWER)) - 1.0
    return max(down, up) if down < 1.0 else None


def _tails(trials: int, rate: float, level: float) -> tuple[int, int]:
    """The largest count with P[Bin <= count] <= level, -1 if none, and the smallest with P[Bin >= count] <= level."""
    counts = range(trials + 1)
    low = bisect_left(counts, True, key=lambda count: binomial.at_most(count, trials, rate) > level) - 1
    high = bisect_left(counts, True, key=lambda count: binomial.at_least(count, trials, rate) <= level)
    return low, high


def _chernoff(statistic: float, steps: int, records: int, rate: float) -> float:
    """An upper bound on the probability that S lies as far from its mean, on the same side, as ``statistic``.

    exp(min over t > 0 of steps ln E[e^(-+ t Z^2)] +- t statistic), Z a standardised batch size. Sizes outside a
    window that is left with probability 1e-16 over all steps count as 1 below the mean and are charged above it.
    """
    mean, variance = records * rate, records * rate * (1.0 - rate)
    outside = 0.5 * _OUTSIDE / steps
    low, high = _tails(records, rate, outside)
    sizes = np.arange(low + 1, high, dtype=np.float64)
    log_mass = stats.binom.logpmf(sizes, records, rate)
    squares = (sizes - mean) ** 2 / variance
    sign = -1.0 if statistic < steps else 1.0

    def exponent(log_t: float) -> float:
        t = math.exp(log_t)
        log_moment = float(special.logsumexp(log_mass + sign * t * squares))
        if sign < 0.0:
            log_moment = float(np.logaddexp(log_moment, math.log(2.0 * outside)))
        return steps * log_moment - sign * t * statistic

    bounds = (math.log(1e-6), math.log(1e4 * max(1.0, variance)))
    best = float(optimize.minimize_scalar(exponent, bounds=bounds, method="bounded").fun)
    return min(1.0, math.exp(min(0.0, best)) + (_OUTSIDE if sign > 0.0 else 0.0))
