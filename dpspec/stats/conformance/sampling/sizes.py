"""Are batches of the declared size? Tests of the total and the spread of their sizes.

Under Poisson sampling every record enters every batch by its own coin: the total number of inclusions is binomial,
and so is every batch size. A sampler of another rate shows in the total, one of fixed-size or correlated batches in the
spread of the sizes. Of truncated batches another cap or rate shows in the mean size, and sizes that are all alike in
their spread.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.stats import binomial, chernoff
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.truncated_binomial import TruncatedSize

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
        detectable=detectable_rate(chances, rate, 0.5 * LEVEL),
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


@dataclass(frozen=True)
class BatchSize:
    """The law of a batch's size under Poisson sampling: Binomial(records, rate) (see ``step_tests``)."""

    records: int
    rate: float

    both = True
    test = "binomial"

    @property
    def declared(self) -> float:
        """The rate."""
        return self.rate

    @property
    def mean(self) -> float:
        """Of one batch."""
        return self.records * self.rate

    def below(self, total: float, steps: int) -> float:
        """P[Bin <= total]."""
        trials = self.records * steps
        return binomial.at_most(min(int(total), trials), trials, self.rate)

    def above(self, total: float, steps: int) -> float:
        """P[Bin >= total]; where records are drawn twice, total may be above what can be."""
        trials = self.records * steps
        return binomial.at_least(min(int(total), trials), trials, self.rate)

    def size(self, total: float, steps: int) -> float:
        """The realised rate."""
        return total / (self.records * steps)

    def detectable(self, most: float, steps: int, level: float) -> float | None:
        """The relative deviation of the rate in some steps that is rejected at ``level``, upwards and downwards."""
        return detectable_rate(self.records * steps, self.rate, level)

    def log_ratios(self, values: npt.NDArray[np.float64]) -> Iterator[tuple[float, npt.NDArray[np.float64]]]:
        """Rates whose log-odds are off by s, further and further: s x - records ln(1 - rate + rate e^s)."""
        first = 0.5 / math.sqrt(self.records * self.rate * (1.0 - self.rate))
        apart = first * 2.0 ** np.arange(max(1, math.ceil(math.log2(max(2.0, 8.0 / first)))))
        for s in np.concatenate([-apart, apart]).tolist():
            log_mean = math.log1p(self.rate * math.expm1(s))
            yield math.exp(s - log_mean), s * values - self.records * log_mean


def mean_size(steps: int, total: int, law: TruncatedSize) -> Measurement:
    """Test the mean size over ``steps`` batches, whose sizes add up to ``total``; p by Chernoff's bound, doubled."""
    return Measurement(
        test="mean of truncated batch sizes, two-sided",
        declared=law.mean,
        measured=total / steps,
        p_value=min(1.0, 2.0 * min(law.below(total, steps), law.above(total, steps))),
        detectable=law.detectable(total, steps, 0.5 * LEVEL),
    )


def size_variance(steps: int, total: int, squares: int, law: TruncatedSize) -> Measurement:
    """Test the spread of the sizes about their declared mean; p by Chernoff's bound, doubled.

    ``measured`` is the variance over its declared value. What it would see: sizes that are all alike (1), or nothing.
    """
    about = max(0.0, math.fsum((squares, -2.0 * law.mean * total, steps * law.mean**2)))
    low, high = law.spread(about, steps, -1.0), law.spread(about, steps, 1.0)
    least = (round(law.mean) - law.mean) ** 2 * steps
    seen = law.variance > 0.0 and 2.0 * law.spread(least, steps, -1.0) <= LEVEL
    return Measurement(
        test="variance of truncated batch sizes, two-sided",
        declared=1.0,
        measured=about / (steps * law.variance) if law.variance > 0.0 else 1.0,
        p_value=min(1.0, 2.0 * min(low, high)),
        detectable=1.0 if seen else None,
    )


@lru_cache(maxsize=1024)
def detectable_rate(chances: int, rate: float, level: float) -> float | None:
    """The larger relative distance from ``rate`` to a rate that is rejected with the stated power, either way.

    level: of each side. None where not even the rate 1 would be rejected; a rate of 0 is, where it is not, at least 1
    away, and so are then all that are rejected upwards.
    """
    if rate in (0.0, 1.0):
        return 0.0
    # Rejected at ``low`` or fewer and at ``high`` or more; the rates at which that has probability POWER:
    low, high = tails(chances, rate, level)
    if high > chances:
        return None
    down = float(special.betainccinv(low + 1, chances - low, POWER)) if low >= 0 else 0.0
    up = float(special.betaincinv(high, chances - high + 1, POWER))
    return max(1.0 - down / rate, up / rate - 1.0)


@lru_cache(maxsize=1024)
def detectable_more(chances: int, rate: float, level: float) -> float | None:
    """The smallest relative excess of the rate that an upper tail at ``level`` rejects with the stated power."""
    if not 0.0 < rate < 1.0:
        return None
    high = tails(chances, rate, level)[1]
    if high > chances:
        return None
    return float(special.betaincinv(high, chances - high + 1, POWER)) / rate - 1.0


def _detectable_variance(steps: int, variance: float, rate: float) -> float | None:
    """From a scaled chi-square with the variance that S really has: 2 + kurtosis per step instead of 2."""
    # Chernoff's bound exceeds the tail by about this factor near the level.
    level = 0.5 * LEVEL / 20.0
    inflation = 1.0 + 0.5 * (1.0 - 6.0 * rate * (1.0 - rate)) / variance
    half = 0.5 * steps / max(inflation, 0.5)
    low, high = float(special.gammaincinv(half, level)), float(special.gammainccinv(half, level))
    likely, seldom = float(special.gammaincinv(half, POWER)), float(special.gammaincinv(half, 1.0 - POWER))
    if not (low > 0.0 and seldom > 0.0):  # hardly any batch is drawn: no variance is too small to be this one
        return None
    return max(1.0 - low / likely, high / seldom - 1.0)


def tails(trials: int, rate: float, level: float) -> tuple[int, int]:
    """The largest count with P[Bin <= count] <= level, -1 if none, and the smallest with P[Bin >= count] <= level."""
    counts = range(trials + 1)
    low = bisect_left(counts, True, key=lambda count: binomial.at_most(count, trials, rate) > level) - 1
    high = bisect_left(counts, True, key=lambda count: binomial.at_least(count, trials, rate) <= level)
    return low, high


@lru_cache(maxsize=1024)  # a plan asks the same of every run
def _chernoff(statistic: float, steps: int, records: int, rate: float) -> float:
    """An upper bound on the probability that S lies as far from its mean, on the same side, as ``statistic``.

    exp(min over t > 0 of steps ln E[e^(-+ t Z^2)] +- t statistic), Z a standardised batch size. Sizes outside a
    window that is left with probability 1e-16 over all steps count as 1 below the mean and are charged above it.
    """
    mean, variance = records * rate, records * rate * (1.0 - rate)
    outside = 0.5 * _OUTSIDE / steps
    low, high = tails(records, rate, outside)
    sizes = np.arange(low + 1, high, dtype=np.float64)
    ways = special.gammaln(records + 1) - (special.gammaln(sizes + 1) + special.gammaln(records - sizes + 1))
    log_mass = ways + special.xlogy(sizes, rate) + special.xlog1py(records - sizes, -rate)  # scipy.stats takes 0.4 s
    squares = (sizes - mean) ** 2 / variance
    sign = -1.0 if statistic < steps else 1.0
    if sign < 0.0:
        log_mass, squares = np.append(log_mass, math.log(2.0 * outside)), np.append(squares, 0.0)
    # hardly any record is drawn, and the statistic may be infinite: a smaller one is no less likely to be exceeded
    one = chernoff.discrete(log_mass, sign * (squares - min(statistic / steps, 1e300)))
    log_tail = chernoff.log_tail(one, steps, 1e-6, 1e4 * max(1.0, variance))
    return min(1.0, math.exp(log_tail) + (_OUTSIDE if sign > 0.0 else 0.0))
