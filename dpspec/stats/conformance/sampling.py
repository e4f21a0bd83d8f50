"""Tests of reported batches: sizes, numbers of inclusions per record, and records in common with earlier batches.

Tests of each step use the smallest tail of all steps with a Bonferroni correction: a sum over all steps lets steps
compensate each other. The values of the steps (squared norms of noise, batch sizes) have one distribution. If a value
may contain more than the noise, only small ones are tested (``both`` is False).
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import bisect
from dpspec.json_records import Amount, Positive, Record, Row
from dpspec.stats import binomial
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.conformance.noise_tests import StepNoise

#: Factor by which Chernoff's bound exceeds a tail near the level.
LOOSE = 20.0

#: Exponents of the likelihood ratios against independent batches.
_TILTS = np.geomspace(0.01, 20.0, 24)


@dataclass(frozen=True)
class BatchSize:
    """The distribution of a Poisson sample's size: Binomial(records, rate) (see :func:`each_step`)."""

    records: int
    rate: float

    both = True
    test = "binomial"

    @property
    def declared(self) -> float:
        return self.rate

    def below(self, value: float) -> float:
        return binomial.at_most(min(int(value), self.records), self.records, self.rate)

    def above(self, value: float) -> float:
        """If records are drawn twice, ``value`` may exceed the maximum."""
        return binomial.at_least(min(int(value), self.records), self.records, self.rate)

    def size(self, value: float) -> float:
        return value / self.records

    def detectable(self, most: float, level: float) -> float | None:
        """The relative deviation of the rate, in either direction, that is rejected at ``level``."""
        return detectable_rate(self.records, self.rate, level)


def inclusions(included: int, chances: int, rate: float) -> Measurement:
    """Test the rate: ``included`` of ``chances`` (records times steps) independent inclusion bits are 1.

    Exact two-sided binomial p = 2 min(P[Bin <= included], P[Bin >= included]), at most 1.
    """
    p_value = 2.0 * min(binomial.at_most(included, chances, rate), binomial.at_least(included, chances, rate))
    detectable = detectable_rate(chances, rate, 0.5 * LEVEL)
    return Measurement("binomial", rate, included / chances, min(1.0, p_value), detectable, details="two-sided")


def mean_size(steps: int, total: int, law: TruncatedSize) -> Measurement:
    """Test the mean of ``steps`` sizes with sum ``total`` by twice Chernoff's bound."""
    p_value = min(1.0, 2.0 * min(law.below(total, steps), law.above(total, steps)))
    detectable = law.detectable(total, 0.5 * LEVEL, steps)
    test = "mean of truncated batch sizes"
    return Measurement(test, law.mean, total / steps, p_value, detectable, details="two-sided")


def evenness(steps: int, total: int, squares: int, law: TruncatedSize) -> Measurement:
    """Test that batch sizes vary as declared.

    Batches of a fixed size, or of a shuffled loader, vary too little. If records enter together (windows of a series,
    the records of a user), sizes vary too much: the other records of a batch then show whether a record was drawn.

    ``total`` is the sum of the sizes of ``steps`` batches, ``squares`` the sum of the squares. p is twice Chernoff's
    bound on a tail of S, the sum of (size - mean)^2. ``measured`` is S over its mean.
    """
    spread = _spread(steps, total, squares, law.mean)
    even = (round(law.mean) - law.mean) ** 2 * steps
    is_detectable = law.variance > 0.0 and law.spread(even, steps, -1.0) <= 0.5 * LEVEL
    low, typical = _chi_square(steps, law, 0.5 * LEVEL / LOOSE), _chi_square(steps, law, POWER)
    ratio, p_value = 1.0, 1.0
    if law.variance > 0.0:
        ratio = spread / (steps * law.variance)
        p_value = min(1.0, 2.0 * min(law.spread(spread, steps, -1.0), law.spread(spread, steps, 1.0)))
    detectable = None
    if is_detectable and low > 0.0:
        high, typical_high = (_chi_square(steps, law, 1.0 - q) for q in (0.5 * LEVEL / LOOSE, POWER))
        detectable = max(1.0 - low / typical, high / typical_high - 1.0)
    return Measurement("variance of batch sizes", 1.0, ratio, p_value, detectable, details="two-sided")


def record_spread(records: int, total: int, squares: int, steps: int, rate: float) -> Measurement:
    """Test the numbers of inclusions of ``records`` records in Poisson samples: Binomial(steps, rate), independent.

    ``total`` is the sum of the numbers, ``squares`` the sum of the squares. p is twice Chernoff's bound on a tail of
    the sum of (number - steps rate)^2. Batches cut from an order vary too little, weighted sampling too much.
    """
    law = TruncatedSize(steps, rate, steps)
    spread = _spread(records, total, squares, law.mean)
    low, high = _chi_square(records, law, 0.5 * LEVEL / LOOSE), _chi_square(records, law, 1.0 - 0.5 * LEVEL / LOOSE)
    typical_low, typical_high = _chi_square(records, law, POWER), _chi_square(records, law, 1.0 - POWER)
    detectable = None
    if low > 0.0 and typical_high > 0.0:  # without inclusions no variance is too small
        detectable = max(1.0 - low / typical_low, high / typical_high - 1.0)
    ratio = spread / (records * law.variance)
    p_value = min(1.0, 2.0 * min(law.spread(spread, records, -1.0), law.spread(spread, records, 1.0)))
    return Measurement("variance of inclusions per record", 1.0, ratio, p_value, detectable, details="two-sided")


def _spread(number: int, total: int, squares: int, mean: float) -> float:
    return max(0.0, math.fsum((squares, -2.0 * mean * total, number * mean * mean)))


def _chi_square(number: int, law: TruncatedSize, probability: float) -> float:
    """Approximate quantile of S: chi-square with the variance of S, 2 + kurtosis instead of 2 per term."""
    variance = max(law.variance, 1e-300)
    half = 0.5 * number / max(0.5, 1.0 + 0.5 * (1.0 - 6.0 * law.rate * (1.0 - law.rate)) / variance)
    return float(special.gammaincinv(half, probability))


def excess(counts: npt.ArrayLike, mean: float) -> float:
    """Return the sum over records of max(0, N - mean)^2, for numbers of inclusions N."""
    return float(np.square(np.maximum(np.asarray(counts, dtype=np.float64) - mean, 0.0)).sum())


def record_excess(records: int, above: float, steps: int, rate: float) -> Measurement:
    """Test that no records are drawn more often than at ``rate``; ``above`` is the :func:`excess` of their inclusions.

    f(N) = max(0, N - steps rate)^2 grows with N. In batches of a fixed size the numbers N are negatively associated,
    each Binomial(steps, rate) (Joag-Dev & Proschan 1983, Theorem 2.11 and P2, P6, P7). In truncated batches each is at
    most that of the record's own inclusion bits, which are independent. Chernoff's bound for independent numbers holds
    for both. ``measured`` is the mean of f.
    """
    law = TruncatedSize(steps, rate, steps)
    test, mean = "excess of inclusions per record", law.moments_of_excess()[0]
    detectable = _detectable_excess(records, steps, rate)
    return Measurement(test, mean, above / records, law.excess(above, records), detectable, details="upper tail")


@lru_cache(maxsize=1024)
def _detectable_excess(records: int, steps: int, rate: float) -> float | None:
    """Relative increase of the mean of f that is rejected with probability POWER, for an unchanged spread."""
    law = TruncatedSize(steps, rate, steps)
    mean, std = law.moments_of_excess()
    most = (steps - law.mean) ** 2 / mean
    least = 1.0 + float(special.ndtri(POWER)) * std / (mean * math.sqrt(records))

    def rejects(ratio: float) -> bool:
        return law.excess(ratio * mean * records, records) <= LEVEL

    if not rejects(most):
        return None
    rejected_ratio = 1.0 if rejects(1.0) else bisect(rejects, most, 1.0, within=1e-3)[0]
    return rejected_ratio + least - 2.0


def overlap(lag: int, common: int, chances: int, rate: float, *, fewer: bool = True) -> Measurement:
    """Test that batches ``lag`` steps apart are independent: ``common`` of the earlier ones' ``chances`` are in both.

    Given the past, the number of shared records is Binomial(size of the earlier batch, rate) under Poisson sampling,
    and at most as spread out in batches of a fixed size (Hoeffding 1963, Theorem 4). So exp(s common) /
    (1 - rate + rate e^s)^chances is a supermartingale for every s, and twice the inverse of its mean over a grid of s
    of one sign is a p-value (Ville). ``fewer``: whether too few records in common are tested as well; a truncated batch
    may have fewer.
    """
    test = f"records in common with the batch {lag} step{'s' if lag > 1 else ''} before"
    p_value, detectable = _betting(common, chances, rate, fewer=fewer), _detectable_overlap(chances, rate, fewer=fewer)
    return Measurement(test, rate, common / chances, p_value, detectable)


def _betting(common: int, chances: int, rate: float, *, fewer: bool) -> float:
    p_values = []
    for s in (_TILTS, -_TILTS) if fewer else (_TILTS,):
        log_values = s * common - chances * np.log1p(rate * np.expm1(s))
        top = float(log_values.max())
        log_mean = top + math.log(float(np.exp(log_values - top).mean()))
        p_values.append(2.0 * math.exp(min(0.0, -log_mean)))
    return min(1.0, *p_values)


@lru_cache(maxsize=1024)
def _detectable_overlap(chances: int, rate: float, *, fewer: bool) -> float | None:
    """Larger relative distance from ``rate`` to a rate that is rejected with probability POWER: a beta quantile."""

    def rejected(common: int) -> bool:
        return _betting(common, chances, rate, fewer=fewer) <= LEVEL

    distances, mean, counts = [], chances * rate, range(chances + 1)
    if fewer:
        if not rejected(0):
            return None
        low = bisect_left(counts, True, hi=math.ceil(mean), key=lambda common: not rejected(common)) - 1
        rejected_rate = float(special.betainccinv(low + 1, chances - low, POWER)) * (1.0 - binomial.MARGIN)
        distances.append(abs(rejected_rate / rate - 1.0))
    if not rejected(chances):
        return None
    high = bisect_left(counts, True, lo=math.floor(mean), key=rejected)
    rejected_rate = float(special.betaincinv(high, chances - high + 1, POWER)) * (1.0 + binomial.MARGIN)
    distances.append(abs(rejected_rate / rate - 1.0))
    return max(distances)


@lru_cache(maxsize=1024)
def detectable_rate(chances: int, rate: float, level: float) -> float | None:
    """Return the larger relative distance from ``rate`` to a rate that is rejected with probability POWER.

    ``level`` applies to each side. None if not even the rate 1 is rejected.
    """
    if rate in (0.0, 1.0):
        return 0.0
    # Rejected at ``low`` or fewer and at ``high`` or more; the rates at which that has probability POWER:
    counts = range(chances + 1)
    low = bisect_left(counts, True, key=lambda count: binomial.at_most(count, chances, rate) > level) - 1
    high = bisect_left(counts, True, key=lambda count: binomial.at_least(count, chances, rate) <= level)
    if high > chances:
        return None
    down = float(special.betainccinv(low + 1, chances - low, POWER)) if low >= 0 else 0.0
    up = float(special.betaincinv(high, chances - high + 1, POWER))
    return max(1.0 - down / rate, up / rate - 1.0)


Array: TypeAlias = np.ndarray[Any, Any]

#: Replaces values that are not finite, because evidence is JSON.
HUGE = 1e300


@dataclass(frozen=True)
class StepValue(Row):
    """The value at one step, and the step's number from 1."""

    value: Amount
    step: Positive


@dataclass(frozen=True, kw_only=True)
class StepExtremes(Record):
    """Minimum and maximum over ``steps`` steps of one number per step.

    ``count``: degrees of freedom of each step, if the values are squared norms of noise.
    """

    steps: Positive
    least: StepValue
    most: StepValue
    count: Positive | None = None

    def problem(self) -> str | None:
        if self.least.value > self.most.value:
            return f"least must be at most {self.most.value}, got {self.least.value}"
        return None


#: Declared distribution of the value of a step.
Law: TypeAlias = StepNoise | BatchSize | TruncatedSize


def summary(values: Array, numbers: Array | None = None, count: int | None = None) -> StepExtremes:
    """Return minimum and maximum of ``values`` (T,), T >= 1, at the steps ``numbers`` (T,), by default 1 to T."""
    finite = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=HUGE, posinf=HUGE, neginf=0.0)
    step = np.arange(1, len(finite) + 1) if numbers is None else numbers

    def value_at(index: np.intp) -> StepValue:
        """Round to nine digits, and keep integers."""
        value = float(np.clip(finite[index], -HUGE, HUGE))
        whole = value.is_integer() and abs(value) < 2.0**53
        return StepValue(int(value) if whole else float(f"{value:.9g}"), int(step[index]))

    return StepExtremes(
        steps=len(finite), least=value_at(np.argmin(finite)), most=value_at(np.argmax(finite)), count=count
    )


def constant(value: float, steps: int, count: int | None = None) -> StepExtremes:
    """Return the summary of ``steps`` >= 1 equal values."""
    return replace(summary(np.array([value]), count=count), steps=steps)


#: The names of the tests of :func:`largest` and :func:`smallest`.
LARGEST_SIZE, SMALLEST_SIZE = "largest-size", "smallest-size"

#: The minimum size that :func:`smallest` tests: loaders that omit empty batches have a rule.
_FEWEST = 2


def largest(extremes: StepExtremes, law: BatchSize) -> Measurement:
    """Test that the largest of T batch sizes is not too small, as if batches were cut to a maximum size.

    A record that fills a cut batch pushes another one out of it, so that it moves the sum by two clip norms.

    P[all T sizes <= m] is P[Bin(records, rate) <= m]^T, for independent sizes. At the largest size m it is a p-value.
    ``declared`` is the median of the largest size.
    """
    most, declared = float(extremes.most.value), float(typical_largest(extremes.steps, law))
    p_value = law.below(most) ** extremes.steps
    return Measurement("largest batch size", declared, most, p_value, None, name=LARGEST_SIZE, details="lower tail")


def smallest(extremes: StepExtremes, law: BatchSize) -> Measurement:
    """Test that the smallest of T batch sizes is not too large, as if small batches were drawn again or filled.

    The mirror image of :func:`largest`. Sizes of 0 and 1 are not tested.
    """
    least, declared = float(extremes.least.value), float(typical_smallest(extremes.steps, law))
    p_value = 1.0 if least < _FEWEST else law.above(least) ** extremes.steps
    return Measurement("smallest batch size", declared, least, p_value, None, name=SMALLEST_SIZE, details="upper tail")


def typical_smallest(steps: int, law: BatchSize) -> int:
    """The median of the smallest of ``steps`` batch sizes."""
    return bisect_left(range(law.records), -(0.5 ** (1.0 / steps)), key=lambda size: -law.above(size + 1))


def typical_largest(steps: int, law: BatchSize) -> int:
    """The median of the largest of ``steps`` batch sizes."""
    return bisect_left(range(law.records), 0.5 ** (1.0 / steps), key=law.below)


def each_step(extremes: StepExtremes, law: Law) -> Measurement:
    """Test each step; ``detectable`` is the deviation of one step, even of the step with the largest value."""
    tails = [(law.below(extremes.least.value), extremes.least.value, extremes.least.step)]
    if law.both:
        tails.append((law.above(extremes.most.value), extremes.most.value, extremes.most.step))
    tried = extremes.steps * len(tails)
    p_value, value, step = min(tails)
    test, detectable = f"{law.test} at each step", law.detectable(extremes.most.value, LEVEL / tried)
    adjusted = min(1.0, tried * p_value)
    return Measurement(test, law.declared, law.size(value), adjusted, detectable, details=f"step {step}")
