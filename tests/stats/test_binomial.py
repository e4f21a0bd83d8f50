"""Binomial tails and bounds, tests of coins, Chernoff's bound and truncated batches, by enumeration."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from math import comb

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.stats import binom
from support.phases import phase_of

from dpspec.stats import binomial
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import sampling, table
from dpspec.stats.conformance.batch_checks import BatchSums, SamplingSums
from dpspec.stats.conformance.evidence import RunEvidence


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("probability", [0.0, 1e-9, 0.03, 0.5, 0.97, 1.0])
def test_tails_are_sums_of_the_mass_function(trials: int, probability: float) -> None:
    mass = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(trials + 1)]
    for k in range(trials + 1):
        assert binomial.at_least(k, trials, probability) == pytest.approx(math.fsum(mass[k:]), rel=1e-12, abs=1e-300)
        assert binomial.at_most(k, trials, probability) == pytest.approx(
            math.fsum(mass[: k + 1]), rel=1e-12, abs=1e-300
        )


@pytest.mark.parametrize(("trials", "confidence"), [(1, 0.5), (10, 0.95), (25, 0.999), (60, 0.9)])
def test_one_sided_bounds_cover_at_every_probability(trials: int, confidence: float) -> None:
    lows = [binomial.lower(k, trials, confidence) for k in range(trials + 1)]
    highs = [binomial.upper(k, trials, confidence) for k in range(trials + 1)]
    # The worst probabilities are the bounds themselves and their neighbours.
    for p in [0.0, 0.5, 1.0, *lows, *highs, *(x * (1 - 1e-9) for x in lows), *(min(1, x * (1 + 1e-9)) for x in highs)]:
        mass = stats.binom.pmf(range(trials + 1), trials, p)
        assert sum(m for m, low in zip(mass, lows, strict=True) if low > p) <= 1 - confidence + 1e-12
        assert sum(m for m, high in zip(mass, highs, strict=True) if high < p) <= 1 - confidence + 1e-12


def test_two_sided_interval_agrees_with_scipy() -> None:
    for successes in range(13):
        theirs = stats.binomtest(successes, 12).proportion_ci(0.95, method="exact")
        assert binomial.clopper_pearson(successes, 12, 0.95) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(-1, 3, 0.9), (4, 3, 0.9), (1, 3, 1.0), (1, 3, -1.0)])
def test_impossible_arguments_are_refused(successes: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="must lie"):
        binomial.clopper_pearson(successes, trials, confidence)


def tail(least: int, number: int) -> Fraction:
    return Fraction(sum(comb(number, k) for k in range(least, number + 1)), 2**number)


@pytest.mark.parametrize("number", [1, 2, 7, 40, 101])
def test_balance_is_exact(number: int) -> None:
    for ones in range(number + 1):
        both = 2 * min(tail(ones, number), tail(number - ones, number))
        assert binomial.balance(ones, number) == pytest.approx(float(min(Fraction(1), both)), rel=1e-9)


def test_alternation_is_exact_and_counts_changes_alone() -> None:
    for text, changes in (("0101010101", 9), ("0000011111", 1), ("0011001100", 4)):
        (_, _, balance), (_, p_value, alternation) = binomial.coin_tests([int(c) for c in text])
        assert p_value == pytest.approx(float(tail(changes, 9)))
        assert alternation == f"{changes} of 9 coins differ from the one before"
        assert balance == f"{text.count('1')} of 10 coins are 1"


@pytest.mark.parametrize("number", [8, 100, 10**6])
def test_the_least_share_that_is_seen_is_the_first_that_is_rejected(number: int) -> None:
    share = binomial.least_imbalance(number, 5e-7)
    if number == 8:
        assert share == 1.0  # eight coins of one kind have p = 1/128
    else:
        ones = round(share * number)
        assert binomial.balance(ones, number) <= 5e-7 < binomial.balance(ones - 1, number)


@pytest.mark.parametrize("wrong", [[], [0, 2], [[0, 1]]])
def test_others_than_coins_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        binomial.coin_tests(wrong)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("at", [-1.0, 0.5, 2.0, 3.0])
def test_it_is_no_less_than_the_exact_tail(number: int, at: float) -> None:
    values, chances = np.array([-2.0, 0.0, 1.0, 3.0]), np.array([0.2, 0.4, 0.3, 0.1])
    places = np.zeros(6)
    places[[0, 2, 3, 5]] = chances
    law = reduce(np.convolve, [places] * number)
    sums = np.arange(len(law)) - 2.0 * number
    exact = float(law[sums >= number * at].sum())
    found = binomial.chernoff_log_tail(binomial.cumulant_of(np.log(chances), values - at), number, 1e-6, 1e4)
    assert math.log(exact) <= found + 1e-9
    assert found <= 0.0


def test_closed_forms() -> None:
    gaussian = binomial.chernoff_log_tail(lambda u: (0.5 * u * u - 3.0 * u, u - 3.0), 7, 1e-6, 1e6)
    assert gaussian == pytest.approx(-0.5 * 7 * 3.0**2, rel=1e-10)
    logs, values = np.log(np.array([0.9, 0.1])), np.array([0.0, 1.0])
    found = binomial.chernoff_log_tail(binomial.cumulant_of(logs, values - 0.3), 100, 1e-6, 1e6)
    assert found == pytest.approx(-100 * (0.3 * math.log(3.0) + 0.7 * math.log(0.7 / 0.9)), rel=1e-10)


def test_what_is_not_surprising_is_not_bounded() -> None:
    logs = np.log(np.array([0.5, 0.5]))
    for value in (-1.0, 0.0):
        law = binomial.cumulant_of(logs, np.array([value, 1.0]))
        assert binomial.chernoff_log_tail(law, 10, 1e-6, 1e6) == 0.0


def test_a_sum_beyond_all_values_has_no_chance() -> None:
    law = binomial.cumulant_of(np.log(np.array([0.5, 0.5])), np.array([-2.0, -1.0]))
    assert binomial.chernoff_log_tail(law, 3, 1e-6, 1e3) == pytest.approx(-3e3, rel=1e-2)


RECORDS, RATE, CAP, STEPS = 400, 0.1, 44, 300

PHASE = phase_of("truncated-poisson", STEPS, rate=RATE, max_batch=CAP)

Sizes = npt.NDArray[np.int64]


def least(sizes: Sizes) -> float:
    sums = BatchSums(
        steps=len(sizes),
        total=int(sizes.sum()),
        squares=int((sizes**2).sum()),
        sizes=sampling.summary(sizes.astype(float)),
    )
    run = RunEvidence(sampling_log=SamplingSums(records=RECORDS, batches=(sums,)))
    checks = [c for c in table.of_runs([PHASE], [run]) if c.assumption == "sampling"]
    assert len(checks) >= 5
    return min(check.p_value for check in checks)


def drawn(rng: np.random.Generator, steps: int = STEPS, rate: float = RATE) -> Sizes:
    return rng.binomial(RECORDS, rate, steps)


def test_moments_and_tails_are_those_of_the_law() -> None:
    law = TruncatedSize(30, 0.4, 13)
    sizes = np.minimum(np.arange(31), 13)
    chances = binom.pmf(np.arange(31), 30, 0.4)
    mean = float(chances @ sizes)
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.variance == pytest.approx(float(chances @ (sizes - mean) ** 2), rel=1e-10)
    assert law.below(12, 1) == pytest.approx(binom.cdf(12, 30, 0.4))
    assert (law.below(13, 1), law.above(14, 1)) == (1.0, 0.0)
    never = TruncatedSize(30, 0.4, 99)
    assert (never.below(31, 1), never.above(31, 1), never.above(31 * 5, 5)) == (1.0, 0.0, 0.0)
    assert law.above(13, 1) == pytest.approx(binom.sf(12, 30, 0.4))
    three = np.convolve(np.convolve(*[np.bincount(sizes, chances)] * 2), np.bincount(sizes, chances))
    for total in (20, 30, 35, 39):
        assert law.below(total, 3) >= three[: total + 1].sum() * (1 - 1e-9)
        assert law.above(total, 3) >= three[total:].sum() * (1 - 1e-9)


@pytest.mark.ci
def test_runs_as_declared_are_hardly_ever_surprising() -> None:
    rng = np.random.default_rng(1)
    found = np.array([least(np.minimum(drawn(rng), CAP)) for _ in range(20)])
    assert np.sum(found <= 0.01) <= 6  # of 20 runs, with seven tests each: more has a chance below 1e-3
    assert found.min() > 1e-6


FAULTS: dict[str, Callable[[np.random.Generator], Sizes]] = {
    "the cap is left out": drawn,
    "another cap": lambda rng: np.minimum(drawn(rng), CAP - 4),
    "another rate": lambda rng: np.minimum(drawn(rng, rate=0.12), CAP),
    "batches of one size": lambda rng: np.full(STEPS, 39),
    "one batch over the cap": lambda rng: np.append(np.minimum(drawn(rng, STEPS - 1), CAP), CAP + 1),
    "one batch of nobody": lambda rng: np.append(np.minimum(drawn(rng, STEPS - 1), CAP), 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_as_declared_is_seen(fault: str) -> None:
    rng = np.random.default_rng(2)
    assert max(least(FAULTS[fault](rng)) for _ in range(2)) < 1e-6


def test_what_is_said_to_be_detectable_is_detected() -> None:
    law = TruncatedSize(RECORDS, RATE, CAP)
    rng = np.random.default_rng(3)
    total = int(np.minimum(drawn(rng), CAP).sum())
    promised = sampling.mean_size(STEPS, total, law).detectable
    assert promised is not None
    assert 0.0 < promised < 0.2
    lower = 0.1 * (1.0 - 1.5 * promised)
    rejected = 0
    for _ in range(50):
        sizes = np.minimum(drawn(rng, rate=lower), CAP)
        assert sizes.mean() < law.mean
        rejected += sampling.mean_size(STEPS, int(sizes.sum()), law).p_value <= 1e-6
    assert rejected >= 48


def test_always_full_batches_say_nothing_of_higher_rates() -> None:
    law = TruncatedSize(400, 0.5, 20)
    assert law.detectable(0.0, 1e-6, 100) is None
    assert sampling.mean_size(100, 2000, law).p_value == 1.0


def test_too_many_in_common_are_surprising_and_too_few_are_not() -> None:
    assert sampling.overlap(1, 300, 1000, 0.1, fewer=False).p_value < 1e-6
    assert sampling.overlap(1, 0, 1000, 0.1, fewer=False).p_value == 1.0
    assert sampling.overlap(1, 0, 1000, 0.1).p_value < 1e-6
