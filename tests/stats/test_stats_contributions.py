from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpspec.stats import contributions
from dpspec.stats.measurement import LEVEL

DRAWS, STEPS, RATE = 6.0, 60, 0.1


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
    p = np.array([contributions.contribution(groups(rng, 1.0), DRAWS).p_value for _ in range(2000)])
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= stats.binom.ppf(0.999, 2000, level)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_detectable_weight_is_detected(sign: int) -> None:
    rng = np.random.default_rng(1)
    detectable = np.mean([contributions.contribution(groups(rng, 1.0), DRAWS).detectable for _ in range(50)])
    found = [contributions.contribution(groups(rng, 1 + sign * 1.1 * detectable), DRAWS) for _ in range(200)]
    assert sum(f.p_value <= LEVEL for f in found) >= stats.binom.ppf(0.001, 200, 0.97)
    assert np.mean([f.measured for f in found]) == pytest.approx(1 + sign * 1.1 * detectable, rel=0.05)


def test_one_group_size_is_welchs_test() -> None:
    rng = np.random.default_rng(2)
    out, there = rng.standard_normal(40) * 3, 5.0 + rng.standard_normal(40) * 4
    moments = [(1, *((40, float(s.sum()), float((s**2).sum())) for s in (out, there)))]
    found = contributions.contribution(moments, 2.0)
    t = (there.mean() - out.mean() - 2.0) / np.sqrt(there.var(ddof=1) / 40 + out.var(ddof=1) / 40)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 39))
    assert found.measured == pytest.approx((there.mean() - out.mean()) / 2.0)


def test_too_few_groups_are_not_compared() -> None:
    few = {"draws": 6.0, "moments": [[1, 0, 5, 0.0, 5.0], [1, 1, 40, 200.0, 1100.0]]}
    assert list(contributions.checks([few])) == []
    assert list(contributions.checks([])) == []
    enough = {"draws": 6.0, "moments": [[1, 0, 8, 0.0, 8.0], [1, 1, 20, 120.0, 740.0]]}
    (check,) = contributions.checks([enough, enough])
    assert check.assumption == "contribution"
    assert check.measured == pytest.approx(1.0)


def test_nothing_that_varies_says_nothing() -> None:
    still = [(1, (12, 0.0, 0.0), (12, 72.0, 432.0))]
    assert contributions.contribution(still, 6.0).p_value == 1.0
