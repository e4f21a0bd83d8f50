from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.canary_contributions import ByStep, Declared
from dpspec.stats.conformance.evidence import GroupSums, PlantedSums, StepTotals
from dpspec.stats.conformance.measurement import LEVEL, Abstention, Measurement

DRAWS, STEPS, RATE = 6.0, 60, 0.1
DECLARED = Declared(draws=DRAWS, outside=float(STEPS), inclusion=STEPS * RATE * (1 - RATE))


def groups(
    rng: np.random.Generator, weight: float, sizes: tuple[int, ...] = (1, 4), count: int = 60, sigma: float = 1.0
):
    """Moments of sums over the steps: noise, and ``weight`` times a binomial number of drawn members."""
    found = []
    for size in sizes:
        out = sigma * np.sqrt(STEPS) * rng.standard_normal(count)
        there = sigma * np.sqrt(STEPS) * rng.standard_normal(count) + weight * rng.binomial(STEPS * size, RATE, count)
        found.append((size, *((count, float(s.sum()), float((s**2).sum())) for s in (out, there))))
    return found


def test_p_values_hold_where_records_weigh_what_they_should() -> None:
    rng = np.random.default_rng(0)
    p = np.array([canary_contributions.contribution(groups(rng, 1.0), DECLARED).p_value for _ in range(2000)])
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= stats.binom.ppf(0.999, 2000, level)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_detectable_weight_is_detected(sign: int) -> None:
    rng = np.random.default_rng(1)
    detectable = np.mean([canary_contributions.contribution(groups(rng, 1.0), DECLARED).detectable for _ in range(50)])
    found = [canary_contributions.contribution(groups(rng, 1 + sign * 1.1 * detectable), DECLARED) for _ in range(200)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 200, 0.97)
    assert np.mean([f.measured for f in found]) == pytest.approx(1 + sign * 1.1 * detectable, rel=0.05)


def test_one_group_size_is_welchs_test() -> None:
    rng = np.random.default_rng(2)
    out, there = rng.standard_normal(40) * 3, 5.0 + rng.standard_normal(40) * 4
    moments = [(1, *((40, float(s.sum()), float((s**2).sum())) for s in (out, there)))]
    found = canary_contributions.contribution(moments, Declared(draws=2.0, outside=4.0, inclusion=0.1))
    t = (there.mean() - out.mean() - 2.0) / np.sqrt(there.var(ddof=1) / 40 + out.var(ddof=1) / 40)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 39))
    assert found.measured == pytest.approx((there.mean() - out.mean()) / 2.0)


def test_too_few_groups_are_not_compared() -> None:
    moments = (GroupSums(1, 0, 5, 0.0, 5.0), GroupSums(1, 1, 40, 200.0, 1100.0))
    few = PlantedSums(draws=6.0, moments=moments, outside=1.0, inclusion=5.0, rounding=0.0)
    assert canary_contributions.test([few]) == Abstention("of some size fewer than 12 groups were inserted, or absent")
    assert canary_contributions.test([]) is None
    enough = replace(few, moments=(GroupSums(1, 0, 8, 0.0, 8.0), GroupSums(1, 1, 20, 120.0, 740.0)))
    check = canary_contributions.test([enough, enough])
    assert isinstance(check, Measurement)
    assert check.measured == pytest.approx(1.0)


def test_nothing_that_varies_says_nothing() -> None:
    still = [(1, (12, 0.0, 0.0), (12, 72.0, 432.0))]
    assert canary_contributions.contribution(still, Declared(draws=6.0, outside=0.0, inclusion=0.0)).p_value == 1.0


@pytest.mark.parametrize(("rate", "count"), [(0.1, 15), (0.5, 15), (0.01, 40), (0.001, 200)])
def test_records_that_happen_not_to_be_drawn_are_no_deviation(rate: float, count: int) -> None:
    """One step with hardly any noise: at rate 0.1 no record of 15 is drawn in a fifth of all runs."""
    rng, declared = np.random.default_rng(3), Declared(draws=rate, outside=1e-4, inclusion=rate * (1 - rate))
    p = []
    for _ in range(2000):
        out, there = 0.01 * rng.standard_normal((2, count)) + [[0.0], [1.0]] * rng.binomial(1, rate, count)
        moments = [(1, *((count, float(s.sum()), float((s**2).sum())) for s in (out, there)))]
        p.append(canary_contributions.contribution(moments, declared).p_value)
    for level in (0.1, 0.01, 0.001):
        assert (np.array(p) <= level).sum() <= stats.binom.ppf(0.999, 2000, level)
    assert min(p) > LEVEL


def test_what_rounding_can_have_changed_is_taken_off() -> None:
    """Updates that are lost in rounding add nothing: no deviation within the bound on it, and one beyond."""
    lost = [(1, (50, 0.0, 3000.0), (50, 0.0, 3000.0)), (4, (50, 0.0, 3000.0), (50, 0.0, 3000.0))]
    # What was lost: 6 clip norms along each of 50 directions, 24 along each of 50 others.
    length = float(np.sqrt(50 * 6.0**2 + 50 * 24.0**2))
    for rounding, deviates in ((0.0, True), (0.1 * length, True), (length, False), (1e300, False)):
        found = canary_contributions.contribution(lost, replace(DECLARED, rounding=rounding))
        assert found.measured == pytest.approx(0.0)
        assert (found.p_value <= LEVEL) == deviates
        assert found.detectable is not None
        assert (found.detectable > 1.0) == (not deviates)


def test_trials_are_pooled_with_their_rounding() -> None:
    one = PlantedSums(draws=6.0, moments=(), outside=60.0, inclusion=5.4, rounding=3.0)
    pooled = Declared.of([one, replace(one, outside=62.0, rounding=4.0)])
    assert pooled == Declared(draws=6.0, outside=61.0, inclusion=5.4, rounding=5.0)


def shown(seen: np.ndarray, sizes: np.ndarray, coins: np.ndarray, rate: float = RATE) -> PlantedSums:
    """The evidence of a run of noise 0.1 whose groups show ``seen`` (steps, m) at each step."""
    steps, moments, totals = len(seen), [], []
    for size in np.unique(sizes):
        for coin in (0, 1):
            rows = seen[:, (sizes == size) & (coins == coin)]
            sums = rows.sum(axis=0)
            moments.append(GroupSums(int(size), coin, len(sums), float(sums.sum()), float((sums**2).sum())))
            totals.append(rows.sum(axis=1) - coin * size * rate * len(sums))
    products = (np.cov(np.stack(totals)) * (steps - 1)).tolist()
    return PlantedSums(
        draws=steps * rate,
        moments=tuple(moments),
        outside=0.01 * steps,
        inclusion=steps * rate * (1.0 - rate),
        rounding=0.0,
        by_step=StepTotals(steps=steps, products=tuple(tuple(row[: i + 1]) for i, row in enumerate(products))),
    )


def made(rng: np.random.Generator, shared: float, weight: float = 1.0, sizes: tuple[int, ...] = (1, 4)) -> PlantedSums:
    """A run of 60 groups of each size: what planted groups share has the deviation ``shared`` a step."""
    size, coins = np.repeat(sizes, 60), np.tile((0, 1), 30 * len(sizes))
    drawn = rng.binomial(size, RATE, (STEPS, len(size))) * coins
    luck = shared * rng.standard_normal((STEPS, 1)) * coins
    return shown(0.1 * rng.standard_normal(drawn.shape) + weight * drawn + luck, size, coins)


def p_of(one: PlantedSums) -> float:
    check = canary_contributions.test([one])
    assert isinstance(check, Measurement)
    return check.p_value


def test_what_planted_groups_share_of_a_step_is_no_deviation() -> None:
    """Welch's test alone rejects honest runs, as it takes groups to vary on their own; the level is 1e-3 at most."""
    rng = np.random.default_rng(7)
    runs = [made(rng, 0.3) for _ in range(200)]
    alone = [p_of(replace(one, by_step=None)) for one in runs]
    assert sum(p <= LEVEL for p in alone) > 20
    assert sum(p_of(one) <= 1e-3 for one in runs) <= stats.binom.ppf(0.999, 200, 1e-3)


@pytest.mark.parametrize("weight", [0.0, 0.2, 2.0])
def test_records_that_weigh_otherwise_are_seen_all_the_same(weight: float) -> None:
    rng = np.random.default_rng(8)
    assert all(p_of(made(rng, 0.0, weight)) <= LEVEL for _ in range(20))


def test_a_detectable_weight_is_detected_where_steps_are_compared() -> None:
    rng = np.random.default_rng(9)
    check = canary_contributions.test([made(rng, 0.3)])
    assert isinstance(check, Measurement)
    assert check.test.endswith("Student over the steps")
    assert check.detectable is not None
    found = [p_of(made(rng, 0.3, 1.0 + 1.2 * check.detectable)) for _ in range(50)]
    assert sum(p <= LEVEL for p in found) >= stats.binom.ppf(0.001, 50, 0.97)


def test_the_variance_over_steps_is_that_of_the_weighted_sums() -> None:
    """By brute force from what each group shows at each step, of two trials of two sizes."""
    rng, weights = np.random.default_rng(10), np.array([-0.2, 0.3, -0.5, 0.7])
    size, coins = np.repeat((1, 4), 60), np.tile((0, 1), 60)
    both = [rng.standard_normal((steps, 120)) for steps in (7, 11)]
    found = ByStep.of([shown(one, size, coins) for one in both])
    assert found is not None
    assert found.degrees == 16
    each = (
        np.where(size == 1, weights[0], weights[2]) * (1 - coins) + np.where(size == 1, weights[1], weights[3]) * coins
    )
    expected = sum(len(one) * np.var(one @ each, ddof=1) for one in both)
    assert found.variance(weights.tolist()) == pytest.approx(expected)


def test_one_step_tells_nothing_of_what_is_shared() -> None:
    rng = np.random.default_rng(11)
    one = made(rng, 0.0, sizes=(1,))
    one = replace(one, by_step=StepTotals(steps=1, products=((0.0,), (0.0, 0.0))))
    assert isinstance(canary_contributions.test([one]), Abstention)
    assert canary_contributions.interval([one], 0.01) is None


def test_an_interval_is_as_wide_as_steps_say() -> None:
    """It holds what a record adds where groups share luck, and ends where the check would begin to reject."""
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
    ("products", "told"),
    [
        ([[1.0], [0.0]], "a triangle"),
        ([[1.0], [2.0, 1.0]], "at most the products of the norms"),
        ([[-1.0], [0.0, 1.0]], "at least 0"),
        ([[1.0]], "of 2 sizes and coins"),
        ([[1e400], [0.0, 1.0]], "a number from"),
    ],
)
def test_products_that_no_run_writes_are_refused(products: list[list[float]], told: str) -> None:
    kept = json_records.write(made(np.random.default_rng(13), 0.1, sizes=(1,)))
    assert isinstance(kept, dict)
    assert json_records.read(PlantedSums, kept, "signal").by_step is not None
    with pytest.raises(ValueError, match=told):
        json_records.read(PlantedSums, {**kept, "by_step": {"steps": 5, "products": products}}, "signal")


def test_products_beyond_floating_point_reject_nothing() -> None:
    one = made(np.random.default_rng(14), 0.0, 2.0, sizes=(1,))
    huge = StepTotals(steps=60, products=((1e304,), (-1e304, 1e304)))
    check = canary_contributions.test([replace(one, by_step=huge)] * 3)
    assert isinstance(check, Measurement)
    assert check.p_value == 1.0
    assert check.detectable is None or check.detectable > 1e100
