"""Levels, power, and rounding of the test of the contribution; Student's t over steps for every adaptive model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.canary_contributions import (
    GroupSums,
    PlantedSums,
    SharedDraw,
    StepTotals,
    variance_over_steps,
)
from dpspec.stats.conformance.measurement import LEVEL, Abstention, Measurement

DRAWS, STEPS, RATE = 6.0, 60, 0.1


def planted(
    values: dict[int, Sequence[np.ndarray]],
    draws: float = DRAWS,
    outside: float = STEPS,
    inclusion: float = STEPS * RATE * (1 - RATE),
) -> PlantedSums:
    moments = (
        GroupSums(size, coin, len(s), float(s.sum()), float((s**2).sum()))
        for size, both in values.items()
        for coin, s in enumerate(both)
    )
    return PlantedSums(draws=draws, moments=tuple(moments), outside=outside, inclusion=inclusion, rounding=0.0)


def measured(*runs: PlantedSums) -> Measurement:
    found = canary_contributions.test(runs)
    assert isinstance(found, Measurement)
    return found


def drawn(rng: np.random.Generator, weight: float) -> PlantedSums:
    values = {}
    for size in (1, 4):
        out, there = np.sqrt(STEPS) * rng.standard_normal((2, 60))
        values[size] = out, there + weight * rng.binomial(STEPS * size, RATE, 60)
    return planted(values)


def test_p_values_hold_for_the_declared_contribution() -> None:
    rng = np.random.default_rng(0)
    p = np.array([measured(drawn(rng, 1.0)).p_value for _ in range(2000)])
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= stats.binom.ppf(0.999, 2000, level)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_detectable_weight_is_detected(sign: int) -> None:
    rng = np.random.default_rng(1)
    detectable = np.mean([measured(drawn(rng, 1.0)).detectable for _ in range(50)])
    found = [measured(drawn(rng, 1 + sign * 1.1 * detectable)) for _ in range(200)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 200, 0.97)
    assert np.mean([f.measured for f in found]) == pytest.approx(1 + sign * 1.1 * detectable, rel=0.05)


def test_one_group_size_is_welchs_test() -> None:
    rng = np.random.default_rng(2)
    out, there = rng.standard_normal(40) * 3, 5.0 + rng.standard_normal(40) * 4
    run = planted({1: (out, there)}, draws=2.0, outside=4.0, inclusion=0.1)
    found, difference = measured(run), there.mean() - out.mean()
    std = np.sqrt(there.var(ddof=1) / 40 + out.var(ddof=1) / 40)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(difference - 2.0) / std, 39))
    assert found.measured == pytest.approx(difference / 2.0)
    reach = stats.t.ppf(0.99, 39) * std
    ends = canary_contributions.interval([run], 0.01)
    assert ends == pytest.approx([(difference + sign * reach) / 2.0 for sign in (-1, 1)])


def test_too_few_groups_are_not_compared_and_trials_are_pooled() -> None:
    few = planted({1: (np.ones(5), np.full(40, 5.0))}, outside=1.0, inclusion=5.0)
    assert canary_contributions.test([few]) == Abstention("of some size fewer than 12 groups were inserted, or absent")
    assert canary_contributions.test([]) is None
    enough = planted({1: (np.zeros(8), np.full(20, 6.0))}, outside=1.0, inclusion=5.0)
    assert measured(enough, enough).measured == pytest.approx(1.0)


def test_sums_without_variance_have_no_power() -> None:
    assert measured(planted({1: (np.zeros(12), np.full(12, 6.0))}, outside=0.0, inclusion=0.0)).p_value == 1.0


@pytest.mark.family
@pytest.mark.parametrize(("rate", "count"), [(0.1, 15), (0.5, 15), (0.01, 40), (0.001, 200)])
def test_records_that_happen_not_to_be_drawn_are_no_deviation(rate: float, count: int) -> None:
    """One step with almost no noise: at rate 0.1 a fifth of all runs draws none of 15 records."""
    rng, p = np.random.default_rng(3), []
    for _ in range(2000):
        out, there = 0.01 * rng.standard_normal((2, count)) + [[0.0], [1.0]] * rng.binomial(1, rate, count)
        p.append(measured(planted({1: (out, there)}, rate, 1e-4, rate * (1 - rate))).p_value)
    for level in (0.1, 0.01, 0.001):
        assert (np.array(p) <= level).sum() <= stats.binom.ppf(0.999, 2000, level)
    assert min(p) > LEVEL


def test_what_rounding_can_have_changed_is_taken_off() -> None:
    lost = planted({size: (np.full(50, 60.0**0.5) * np.tile([1, -1], 25),) * 2 for size in (1, 4)})
    # The lost part is 6 clip norms along each of 50 directions, 24 along each of 50 others.
    length = float(np.sqrt(50 * 6.0**2 + 50 * 24.0**2))
    for rounding, deviates in ((0.0, True), (0.1 * length, True), (length, False), (1e300, False)):
        found = measured(replace(lost, rounding=rounding))
        assert found.measured == pytest.approx(0.0)
        assert (found.p_value <= LEVEL) == deviates
        assert found.detectable is not None
        assert (found.detectable > 1.0) == (not deviates)


@pytest.mark.parametrize("squares", [(4.0, 9.0), (0.25, 0.16), (1e-6, 400.0)])
def test_a_product_is_at_most_the_product_of_the_norms(squares: tuple[float, float]) -> None:
    """By Cauchy and Schwarz; each square alone decides the limit."""
    largest = float(np.sqrt(squares[0] * squares[1]))
    for product, is_valid in ((largest, True), (-largest, True), (1.001 * largest, False), (-1.001 * largest, False)):
        problem = StepTotals(steps=3, products=((squares[0],), (product, squares[1]))).problem()
        assert (problem is None) is is_valid
        assert is_valid or f"products must be at most the products of the norms, got {product:g}" == problem


def shown(seen: np.ndarray, sizes: np.ndarray, coins: np.ndarray) -> PlantedSums:
    """The evidence of a run of noise 0.1 whose groups show ``seen`` (steps, m) at each step."""
    steps = len(seen)
    rows = {s: [seen[:, (sizes == s) & (coins == c)] for c in (0, 1)] for s in np.unique(sizes).tolist()}
    totals = [one.sum(axis=1) - c * s * RATE * one.shape[1] for s, both in rows.items() for c, one in enumerate(both)]
    products = (np.cov(np.stack(totals)) * (steps - 1)).tolist()
    found = planted({s: [one.sum(axis=0) for one in both] for s, both in rows.items()}, steps * RATE, 0.01 * steps)
    totals_of_steps = StepTotals(steps=steps, products=tuple(tuple(row[: i + 1]) for i, row in enumerate(products)))
    return replace(found, inclusion=steps * RATE * (1.0 - RATE), by_step=totals_of_steps)


def made(rng: np.random.Generator, common: float, weight: float = 1.0, sizes: tuple[int, ...] = (1, 4)) -> PlantedSums:
    """A run of 60 groups of each size: what inserted groups share has the deviation ``common`` at each step."""
    size, coins = np.repeat(sizes, 60), np.tile((0, 1), 30 * len(sizes))
    hits = rng.binomial(size, RATE, (STEPS, len(size))) * coins
    part = common * rng.standard_normal((STEPS, 1)) * coins
    return shown(0.1 * rng.standard_normal(hits.shape) + weight * hits + part, size, coins)


def test_what_inserted_groups_share_of_a_step_is_no_deviation() -> None:
    """Welch's test alone rejects honest runs, as it takes groups to vary on their own; the level is 1e-3 at most."""
    rng = np.random.default_rng(7)
    runs = [made(rng, 0.3) for _ in range(200)]
    assert sum(measured(replace(one, by_step=None)).p_value <= LEVEL for one in runs) > 20
    assert sum(measured(one).p_value <= 1e-3 for one in runs) <= stats.binom.ppf(0.999, 200, 1e-3)


def test_a_detectable_weight_is_detected_if_steps_are_compared() -> None:
    rng = np.random.default_rng(9)
    check = measured(made(rng, 0.3))
    assert check.test.endswith("Student over the steps")
    assert check.detectable is not None
    found = [measured(made(rng, 0.3, 1.0 + 1.2 * check.detectable)).p_value for _ in range(50)]
    assert sum(p <= LEVEL for p in found) >= stats.binom.ppf(0.001, 50, 0.97)


def test_the_variance_over_steps_is_that_of_the_weighted_sums() -> None:
    """Compare with brute force over groups and steps, for two trials of two sizes."""
    rng, weights = np.random.default_rng(10), np.array([-0.2, 0.3, -0.5, 0.7])
    size, coins = np.repeat((1, 4), 60), np.tile((0, 1), 60)
    both = [rng.standard_normal((steps, 120)) for steps in (7, 11)]
    by_step = [one for run in both if (one := shown(run, size, coins).by_step) is not None]
    each = weights[2 * (size == 4) + coins]
    expected = sum(len(one) * np.var(one @ each, ddof=1) for one in both)
    assert variance_over_steps(by_step, 2, weights.tolist()) == pytest.approx(expected)
    assert variance_over_steps(by_step, 4, weights.tolist()) == pytest.approx(2.0 * expected)


def test_one_step_shows_no_shared_draw() -> None:
    one = made(np.random.default_rng(11), 0.0, sizes=(1,))
    one = replace(one, by_step=StepTotals(steps=1, products=((0.0,), (0.0, 0.0))))
    assert isinstance(canary_contributions.test([one]), Abstention)
    assert canary_contributions.interval([one], 0.01) is None


def test_an_interval_is_as_wide_as_steps_require() -> None:
    rng, missed = np.random.default_rng(12), 0
    for _ in range(100):
        low, high = canary_contributions.interval([made(rng, 0.3)], 0.05) or (2.0, 0.0)
        missed += not low <= 1.0 <= high
    assert missed <= stats.binom.ppf(0.999, 100, 0.1)
    one = made(rng, 0.3)
    alone = canary_contributions.interval([replace(one, by_step=None)], 0.05)
    together = canary_contributions.interval([one], 0.05)
    assert alone is not None
    assert together is not None
    assert together[0] < alone[0] < alone[1] < together[1]


@pytest.mark.parametrize(
    ("products", "rule"),
    [
        ([[1.0], [0.0]], "a triangle"),
        ([[1.0], [2.0, 1.0]], "at most the products of the norms"),
        ([[-1.0], [0.0, 1.0]], "at least 0"),
        ([[1.0]], "of 2 sizes and coins"),
        ([[1e400], [0.0, 1.0]], "a number from"),
    ],
)
def test_products_that_no_run_writes_are_refused(products: list[list[float]], rule: str) -> None:
    kept = json_records.write(made(np.random.default_rng(13), 0.1, sizes=(1,)))
    assert isinstance(kept, dict)
    assert json_records.read(PlantedSums, kept, "signal").by_step is not None
    with pytest.raises(ValueError, match=rule):
        json_records.read(PlantedSums, {**kept, "by_step": {"steps": 5, "products": products}}, "signal")


def test_products_beyond_floating_point_reject_nothing() -> None:
    one = made(np.random.default_rng(14), 0.0, 2.0, sizes=(1,))
    huge = StepTotals(steps=60, products=((1e304,), (-1e304, 1e304)))
    check = measured(*[replace(one, by_step=huge)] * 3)
    assert check.p_value == 1.0
    assert check.detectable is None or check.detectable > 1e100


RUNS = 1500

Turning = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: The alignment of real gradients with the canaries, at most 1, given the running sum and sum of squares.
MODELS: dict[str, Turning] = {
    "always": lambda sums, squares: np.ones_like(sums),
    "never": lambda sums, squares: np.zeros_like(sums),
    "until the sum is large": lambda sums, squares: (np.abs(sums) < 2.5 * np.sqrt(squares + 1e-9)) * 1.0,
    "the more the larger it is": lambda sums, squares: np.minimum(1.0, np.abs(sums) / 20.0 + 0.02),
    "the less the larger it is": lambda sums, squares: 1.0 / (1.0 + np.abs(sums) / 3.0),
    "away from the sum": lambda sums, squares: -np.sign(sums + 1e-9),
    "towards it": lambda sums, squares: np.sign(sums + 1e-9),
}


@pytest.mark.parametrize(("steps", "records", "rate"), [(3, 20, 0.1), (60, 20, 0.1)])
@pytest.mark.parametrize("model", MODELS)
def test_levels_of_the_shared_draw_hold_for_every_model(model: str, steps: int, records: int, rate: float) -> None:
    """Two-sided p-values of honest runs; one draw of a real record adds at most 1 along the vector."""
    rng, sigma = np.random.default_rng(steps), 0.1
    sums, squares = np.zeros(RUNS), np.zeros(RUNS)
    for _ in range(steps):
        hits = rng.binomial(records, rate, RUNS) - records * rate
        found = sigma * rng.standard_normal(RUNS) + MODELS[model](sums, squares) * hits
        sums, squares = sums + found, squares + found**2
    declared = steps * sigma**2
    variances = np.maximum(declared, (squares - sums**2 / steps) * steps / (steps - 1))
    laws = (SharedDraw(variance=v, declared=declared, degrees=steps - 1, single=1.0) for v in variances)
    p = np.array([2.0 * one.tail(abs(total)) for one, total in zip(laws, sums, strict=True)])
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= stats.binom.ppf(0.999, RUNS, level), level
    assert p.min() > 1e-6
    if (model, records) == ("always", 20) and steps == 60:  # by the declared variance alone they would be rejected
        assert (2.0 * stats.norm.sf(np.abs(sums) / math.sqrt(declared)) <= 1e-6).mean() > 0.3


@given(st.lists(st.floats(-5.0, 5.0), min_size=3, max_size=30))
def test_with_the_declared_variance_it_is_students_test(values: list[float]) -> None:
    count, sample = len(values), np.array(values)
    variance = count * sample.var(ddof=1)
    if not variance > 1e-6:
        return
    found = SharedDraw(variance=variance, declared=variance, degrees=count - 1, single=0.0)
    assert found.among == pytest.approx(2.0)
    once = stats.ttest_1samp(sample, 0.0).pvalue
    assert 2.0 * found.tail(abs(sample.sum())) == pytest.approx(min(2.0, 2.0 * once), rel=1e-9)


def test_records_that_were_not_drawn_are_no_likelier_than_it_says() -> None:
    """Compare with the exact Poisson distribution of the number of drawn records."""
    tried = 0
    for mean in range(5, 80):
        for hits in range(mean):
            chance = stats.poisson.cdf(hits, mean)
            if 1e-9 <= chance <= 0.01:
                found = SharedDraw(variance=max(0.05, hits), declared=0.05, degrees=10_000, single=1.0)
                assert 2.0 * found.tail(mean - hits) >= chance
                tried += 1
    assert tried > 500


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e4), st.integers(1, 1000), st.floats(0.0, 100.0), st.floats(1e-9, 0.4))
def test_the_reach_of_an_error_is_where_it_is_the_tail(declared, ratio, degrees, single, error):
    found = SharedDraw(variance=declared * ratio, declared=declared, degrees=degrees, single=single)
    reach = found.reach(error)
    assert found.tail(reach) == pytest.approx(error, rel=1e-6)
    assert found.tail(1.01 * reach) <= found.tail(reach) <= found.tail(0.99 * reach)
    assert replace(found, variance=2.0 * declared * ratio).tail(reach) > error
    infinite = replace(found, variance=math.inf)
    assert (infinite.tail(1e300), infinite.reach(1e-3)) == (1.0, math.inf)
