"""Are batches drawn as declared? Tests of Poisson sampling on counts that a sampling log boils down to.

Under Poisson sampling every record enters every batch by its own coin: the total number of inclusions is binomial,
and so are every batch size and every record's number of inclusions. A sampler of another rate shows in the total, one
of fixed-size or correlated batches in the spread of the sizes, weights in the spread of the records' counts, and an
order that is gone through in what batches have in common.

Truncated ones: a cap that was left out shows in a batch that is larger, another cap or rate in the mean size, and sizes
that are all alike in their spread. A record that is drawn is one that Poisson sampling would draw too, so that no more
of an earlier batch come again than there; fewer may, so that what batches have in common is tested from above alone. So
are the records' counts, of these batches and of those of a fixed size: they find records that are drawn too often.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from dpspec.stats import binomial
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.truncated_binomial import TruncatedSize

#: Probability of ever leaving the window of batch sizes that is summed over; it is added to the p-value.
_OUTSIDE = 1e-16

#: Exponents at which a likelihood ratio against independent batches is tried.
_TILTS = np.geomspace(0.01, 20.0, 24)


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
        detectable=_detectable_rate(chances, rate, 0.5 * LEVEL),
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


def record_spread(records: int, total: int, total_of_squares: int, steps: int, rate: float) -> Measurement:
    """Test that records are drawn alike and each afresh: ``records`` inclusion counts, with their sum and squares' sum.

    Under Poisson sampling each count is Binomial(steps, rate), independently: the same test as of the batch sizes, with
    records and steps exchanged. Shuffled batches give counts that are too even, weighted ones too uneven.
    """
    found = batch_variance(records, total, total_of_squares, steps, rate)
    return replace(found, test="variance of inclusions per record")


def most_inclusions(records: int, most: int, steps: int, rate: float) -> Measurement:
    """Test that no single record is drawn more often than at ``rate``; ``most``: the largest of all ``records`` counts.

    Each is Binomial(steps, rate), or where batches are truncated at most that: p = records P[Bin >= most], at most 1.
    ``measured`` is the realised rate of that record.
    """
    return Measurement(
        test="inclusions of the record drawn most often, binomial, Bonferroni",
        declared=rate,
        measured=most / steps,
        p_value=min(1.0, records * binomial.at_least(min(most, steps), steps, rate)),
        detectable=_detectable_most(records, steps, rate),
    )


@lru_cache(maxsize=1024)
def _detectable_most(records: int, steps: int, rate: float) -> float | None:
    """How much more often than at ``rate`` one record is drawn that is rejected with the stated power."""
    if not 0.0 < rate < 1.0:
        return None
    high = _tails(steps, rate, LEVEL / records)[1]
    if high > steps:
        return None
    return float(special.betaincinv(high, steps - high + 1, POWER)) / rate - 1.0


def excess(counts: npt.ArrayLike, mean: float) -> float:
    """The sum over records of max(0, N - mean)^2 of their numbers of inclusions N: what :func:`record_excess` tests."""
    return float(np.square(np.maximum(np.asarray(counts, dtype=np.float64) - mean, 0.0)).sum())


def record_excess(records: int, above: float, steps: int, rate: float) -> Measurement:
    """Test that no records are drawn more often than at ``rate``: ``above`` is the :func:`excess` of their inclusions.

    f(N) = max(0, N - steps rate)^2 grows with N. In batches of a fixed size the counts are negatively associated, each
    Binomial(steps, rate) with rate = size / records (Joag-Dev & Proschan 1983, Theorem 2.11 and P2, P6, P7): the
    mean of the product of their exp(s f(N)), s > 0, is at most the product of the means. In truncated batches no count
    is above that of the record's own coins, which are independent. So p, Chernoff's bound for independent counts, holds
    for both; what is left out at the ends of their law is charged. ``measured`` is the mean of f.
    """
    law = TruncatedSize(steps, rate, steps)
    return Measurement(
        test="excess of inclusions per record, upper tail",
        declared=law.moments_of_excess()[0],
        measured=above / records,
        p_value=law.excess(above, records),
        detectable=_detectable_excess(records, steps, rate),
    )


@lru_cache(maxsize=1024)
def _detectable_excess(records: int, steps: int, rate: float) -> float | None:
    """How much larger a mean of f is rejected with the stated power, spread as it should be; None where none is."""
    law = TruncatedSize(steps, rate, steps)
    mean, deviation = law.moments_of_excess()
    most = (steps - law.mean) ** 2 / mean
    least = 1.0 + float(special.ndtri(POWER)) * deviation / (mean * math.sqrt(records))

    def rejects(ratio: float) -> bool:
        return law.excess(ratio * mean * records, records) <= LEVEL

    if not rejects(most):
        return None
    seen = 1.0 if rejects(1.0) else float(optimize.bisect(lambda r: rejects(r) - 0.5, 1.0, most, xtol=1e-3)) + 1e-3
    return seen + least - 2.0


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
        return _detectable_rate(self.records * steps, self.rate, level)

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


def overlap_at_a_step(lag: int, common: int, chances: int, rate: float, tried: int) -> Measurement:
    """Test that no single batch has too much, or too little, in common with that ``lag`` steps before.

    common, chances: as for :func:`overlap`, of the most surprising of ``tried`` steps. p = 2 tried exp(-chances KL), by
    Chernoff's bound, which holds for batches of a fixed size too (Hoeffding 1963, Theorem 4).
    """
    if not 0 <= common <= chances or chances < 1 or lag < 1 or tried < 1 or not 0.0 < rate < 1.0:
        raise ValueError(
            f"need 0 <= common <= chances, lag, tried >= 1 and a rate in (0, 1), got {common}, {chances}, {rate}"
        )
    log_level = math.log(LEVEL / (2.0 * tried))
    again = common_divergence(chances, chances, rate)
    return Measurement(
        test=f"records in common with the batch {lag} step{'s' if lag > 1 else ''} before at a single step",
        declared=rate,
        measured=common / chances,
        p_value=min(1.0, 2.0 * tried * math.exp(-common_divergence(common, chances, rate))),
        # What the same batch again would be: nothing less is spoken of.
        detectable=1.0 / rate - 1.0 if -again <= log_level else None,
    )


def common_divergence(common: float, chances: float, rate: float) -> float:
    """chances KL(common / chances, rate), in nats: how surprising so many records in common are."""
    if chances <= 0:
        return 0.0
    return float(special.rel_entr(common, chances * rate) + special.rel_entr(chances - common, chances * (1.0 - rate)))


def overlap(lag: int, common: int, chances: int, rate: float, *, fewer: bool = True) -> Measurement:
    """Test that batches ``lag`` steps apart are independent: ``common`` of the earlier ones' ``chances`` were in both.

    Given the past, the records that a batch shares with an earlier one are Binomial(size of the earlier, rate) under
    Poisson sampling, and no more spread out than that in batches of a fixed size (Hoeffding 1963, Theorem 4). So
    exp(s common) / (1 - rate + rate e^s)^chances is a supermartingale for every s, and twice the inverse of its mean
    over a grid of s of one sign is a p-value, however sizes and batches follow from the past (Ville). ``measured`` is
    the rate of inclusion among the earlier batches' records. fewer: whether too few in common are surprising as well.
    """
    if not 0 <= common <= chances or chances < 1 or lag < 1 or not 0.0 < rate < 1.0:
        raise ValueError(f"need 0 <= common <= chances, lag >= 1 and a rate in (0, 1), got {common}, {chances}, {rate}")
    return Measurement(
        test=f"records in common with the batch {lag} step{'s' if lag > 1 else ''} before",
        declared=rate,
        measured=common / chances,
        p_value=_betting(common, chances, rate, fewer=fewer),
        detectable=_detectable_overlap(chances, rate, fewer=fewer),
    )


def _betting(common: float, chances: int, rate: float, *, fewer: bool = True) -> float:
    p_values = []
    for s in (_TILTS, -_TILTS) if fewer else (_TILTS,):
        log_values = s * common - chances * np.log1p(rate * np.expm1(s))
        p_values.append(2.0 * math.exp(min(0.0, math.log(len(s)) - float(special.logsumexp(log_values)))))
    return min(1.0, *p_values)


@lru_cache(maxsize=1024)
def _detectable_overlap(chances: int, rate: float, *, fewer: bool = True) -> float | None:
    """The larger relative distance from ``rate`` to one whose count is rejected with the stated power, either way."""

    def rejects(shift: float) -> bool:
        other = rate * (1.0 + shift)
        deviation = math.sqrt(chances * other * max(0.0, 1.0 - other))
        surely = chances * other - math.copysign(float(special.ndtri(POWER)) * deviation, shift)
        return (surely - chances * rate) * shift > 0.0 and _betting(
            max(0.0, surely), chances, rate, fewer=fewer
        ) <= LEVEL

    found = []
    for sign, most in ((-1.0, 1.0), (1.0, (1.0 - rate) / rate))[0 if fewer else 1 :]:
        if not rejects(sign * most):
            return None
        found.append(float(optimize.bisect(lambda d, s=sign: rejects(s * d) - 0.5, 0.0, most, xtol=1e-3)) + 1e-3)
    return max(found)


@lru_cache(maxsize=1024)
def _detectable_rate(chances: int, rate: float, level: float) -> float | None:
    """The larger relative distance from ``rate`` to a rate that is rejected with the stated power, either way.

    level: of each side. None where not even the rate 1 would be rejected; a rate of 0 is, where it is not, at least 1
    away, and so are then all that are rejected upwards.
    """
    if rate in (0.0, 1.0):
        return 0.0
    # Rejected at ``low`` or fewer and at ``high`` or more; the rates at which that has probability POWER:
    low, high = _tails(chances, rate, level)
    if high > chances:
        return None
    down = float(special.betainccinv(low + 1, chances - low, POWER)) if low >= 0 else 0.0
    up = float(special.betaincinv(high, chances - high + 1, POWER))
    return max(1.0 - down / rate, up / rate - 1.0)


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


def _tails(trials: int, rate: float, level: float) -> tuple[int, int]:
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
    low, high = _tails(records, rate, outside)
    sizes = np.arange(low + 1, high, dtype=np.float64)
    ways = special.gammaln(records + 1) - (special.gammaln(sizes + 1) + special.gammaln(records - sizes + 1))
    log_mass = ways + special.xlogy(sizes, rate) + special.xlog1py(records - sizes, -rate)  # scipy.stats takes 0.4 s
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
