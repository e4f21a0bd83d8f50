from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dpspec.stats.conformance import sampling
from dpspec.stats.conformance.measurement import LEVEL, POWER


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.4, 0.9, 1.0])
def test_rate_p_values_are_valid_by_enumeration(rate: float) -> None:
    n = 40
    p = np.array([sampling.inclusions(k, n, rate).p_value for k in range(n + 1)])
    mass = stats.binom.pmf(range(n + 1), n, rate)
    for level in [1e-6, 0.01, 0.05, 0.5, *p]:
        assert mass[p <= level].sum() <= level + 1e-12


@pytest.mark.parametrize(("chances", "rate"), [(20_000, 0.01), (100_000, 0.3)])
def test_a_detectable_rate_is_detected(chances: int, rate: float) -> None:
    detectable = sampling.inclusions(0, chances, rate).detectable
    assert detectable is not None
    rng = np.random.default_rng(2)
    for sign in (-1, 1):
        drawn = rng.binomial(chances, rate * (1 + sign * detectable), 400)
        assert sum(sampling.inclusions(int(k), chances, rate).p_value <= LEVEL for k in drawn) >= 400 * 0.97
        drawn = rng.binomial(chances, rate * (1 + sign * 0.5 * detectable), 400)
        assert sum(sampling.inclusions(int(k), chances, rate).p_value <= LEVEL for k in drawn) < 200


@pytest.mark.parametrize("rate", [1e-300, 1e-320])
def test_a_record_that_is_hardly_ever_drawn_is_surprising(rate: float) -> None:
    assert sampling.batch_variance(200, 1, 1, 1437, rate).p_value == pytest.approx(2e-16)
    assert sampling.batch_variance(200, 0, 0, 1437, rate).p_value == 1.0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_variance_p_values_are_valid_by_enumeration(rate: float) -> None:
    steps, records = 3, 5
    mass = stats.binom.pmf(range(records + 1), records, rate)
    outcomes = []
    for sizes in product(range(records + 1), repeat=steps):
        probability = math.prod(mass[s] for s in sizes)
        found = sampling.batch_variance(steps, sum(sizes), sum(s * s for s in sizes), records, rate)
        outcomes.append((found.p_value, probability))
    for level in {1e-6, 0.01, 0.05, 0.2, *(p for p, _ in outcomes)}:
        assert math.fsum(probability for p, probability in outcomes if p <= level) <= level + 1e-12


@pytest.mark.parametrize(("steps", "records", "rate"), [(300, 5000, 0.02), (1000, 200, 0.5), (500, 10_000, 0.0002)])
def test_poisson_batches_pass_and_fixed_ones_do_not(steps: int, records: int, rate: float) -> None:
    for seed in range(50):
        sizes = np.random.default_rng(seed).binomial(records, rate, steps)
        found = sampling.batch_variance(steps, int(sizes.sum()), int((sizes**2).sum()), records, rate)
        assert found.p_value > 1e-3
    size = round(records * rate)
    assert sampling.batch_variance(steps, steps * size, steps * size**2, records, rate).p_value < 1e-12
    # Pairs of steps that share one batch of twice the size keep the mean and double the spread.
    doubled = 2 * np.random.default_rng(3).binomial(records, 0.5 * rate, steps)
    found = sampling.batch_variance(steps, int(doubled.sum()), int((doubled**2).sum()), records, rate)
    assert found.p_value < LEVEL
    assert found.measured > 1.5


@pytest.mark.parametrize("steps", [200, 2000])
def test_a_detectable_spread_is_detected(steps: int) -> None:
    records, rate = 100_000, 0.1
    detectable = sampling.batch_variance(steps, 0, 0, records, rate).detectable
    assert detectable is not None
    mean, variance = records * rate, records * rate * (1 - rate)
    rng = np.random.default_rng(4)
    for ratio in (max(0.0, 1 - detectable), 1 + detectable):
        rejected = 0
        for _ in range(100):
            sizes = np.rint(mean + math.sqrt(variance * ratio) * rng.standard_normal(steps)).astype(int)
            found = sampling.batch_variance(steps, int(sizes.sum()), int((sizes**2).sum()), records, rate)
            rejected += found.p_value <= LEVEL
        assert rejected >= stats.binom.ppf(0.001, 100, 0.99)


def test_full_batches_have_no_spread() -> None:
    assert sampling.batch_variance(10, 500, 25_000, 50, 1.0).p_value == 1.0
    assert sampling.batch_variance(10, 499, 24_901, 50, 1.0).p_value == 0.0


def test_too_few_small_batches_can_show_nothing() -> None:
    assert (
        sampling.batch_variance(2, 2, 2, 100, 0.01).detectable is None
        or sampling.batch_variance(2, 2, 2, 100, 0.01).detectable > 1
    )


@pytest.mark.parametrize("bad", [(0, 0, 0, 5, 0.5), (3, 9, 1, 5, 0.5), (3, 9, 30, 5, 1.5), (3, 9, 30, 0, 0.5)])
def test_impossible_batch_counts_are_refused(bad: tuple[int, int, int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"need|no batch sizes"):
        sampling.batch_variance(*bad)


def test_impossible_inclusion_counts_are_refused() -> None:
    for bad in [(5, 4, 0.5), (1, 4, -0.1), (0, 0, 0.5)]:
        with pytest.raises(ValueError, match=r"need|rate"):
            sampling.inclusions(*bad)


def overlaps(batches: np.ndarray, lag: int) -> tuple[int, int]:
    """How many records batches (steps, records) share with those ``lag`` steps before, and how many those hold."""
    return int((batches[lag:] & batches[:-lag]).sum()), int(batches[:-lag].sum())


@pytest.mark.parametrize("lag", [1, 5])
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_independent_batches_pass(lag: int, scheme: str) -> None:
    rng = np.random.default_rng(7)
    p = []
    for _ in range(200):
        coins = rng.random((25, 60))
        batches = coins < 0.2 if scheme == "poisson" else np.argsort(coins, axis=1) < 12
        p.append(sampling.overlap(lag, *overlaps(batches, lag), 0.2).p_value)
    for level in (0.3, 0.1, 0.01):
        assert (np.array(p) <= level).mean() <= level


def test_an_order_that_is_gone_through_does_not() -> None:
    rng = np.random.default_rng(8)
    shuffled = np.concatenate([rng.permutation(500).reshape(10, 50) for _ in range(20)])
    batches = np.zeros((200, 500), dtype=bool)
    batches[np.arange(200)[:, None], shuffled] = True
    found = sampling.overlap(1, *overlaps(batches, 1), 0.1)
    assert found.p_value < LEVEL
    assert found.measured < 0.02
    always = np.zeros((200, 500), dtype=bool)
    always[np.arange(200)[:, None], np.arange(500).reshape(10, 50)[np.arange(200) % 10]] = True
    assert sampling.overlap(10, *overlaps(always, 10), 0.1).p_value < LEVEL
    counts = batches.sum(0)
    even = sampling.record_spread(500, int(counts.sum()), int((counts**2).sum()), 200, 0.1)
    assert even.p_value < LEVEL
    assert even.measured < 0.1


def test_a_detectable_overlap_is_detected() -> None:
    chances, rate = 3000, 0.1
    detectable = sampling.overlap(1, 300, chances, rate).detectable
    assert detectable is not None
    rng = np.random.default_rng(9)
    for sign in (-1, 1):
        common = rng.binomial(chances, rate * (1 + sign * detectable), 300)
        rejected = sum(sampling.overlap(1, int(k), chances, rate).p_value <= LEVEL for k in common)
        assert rejected >= stats.binom.ppf(0.001, 300, 0.98)
        common = rng.binomial(chances, rate * (1 + sign * 0.4 * detectable), 300)
        assert sum(sampling.overlap(1, int(k), chances, rate).p_value <= LEVEL for k in common) < 150
    assert sampling.overlap(1, 1, 20, 0.1).detectable is None


@settings(max_examples=25)
@given(chances=st.integers(20, 300), rate=st.floats(0.02, 0.9), fewer=st.booleans())
@example(chances=27, rate=0.535, fewer=False)  # where a normal law promised 0.99 and the binomial keeps 0.906
def test_what_a_test_of_overlaps_would_see_it_sees_with_the_stated_power(
    chances: int, rate: float, fewer: bool
) -> None:
    """Oracle: the binomial law, summed over all counts that are rejected."""
    detectable = sampling.overlap(1, round(chances * rate), chances, rate, fewer=fewer).detectable
    assume(detectable is not None)
    assert detectable is not None
    counts = np.arange(chances + 1)
    seen = np.array([sampling.overlap(1, int(k), chances, rate, fewer=fewer).p_value <= LEVEL for k in counts])
    others = [rate * (1.0 + detectable), *([rate * (1.0 - detectable)] if fewer else [])]
    powers = [float(stats.binom.pmf(counts, chances, other)[seen].sum()) for other in others if 0.0 < other < 1.0]
    assert all(power >= POWER - 1e-9 for power in powers)


def test_impossible_overlaps_are_refused() -> None:
    for bad in [(0, 1, 5, 0.5), (1, 6, 5, 0.5), (1, 1, 0, 0.5), (1, 1, 5, 1.0)]:
        with pytest.raises(ValueError, match="need"):
            sampling.overlap(*bad)


def test_weighted_records_are_uneven() -> None:
    rng = np.random.default_rng(10)
    rates = np.where(np.arange(400) % 2, 0.05, 0.15)
    counts = (rng.random((150, 400)) < rates).sum(0)
    assert sampling.record_spread(400, int(counts.sum()), int((counts**2).sum()), 150, 0.1).p_value < LEVEL
    counts = (rng.random((150, 400)) < 0.1).sum(0)
    assert sampling.record_spread(400, int(counts.sum()), int((counts**2).sum()), 150, 0.1).p_value > 1e-3
