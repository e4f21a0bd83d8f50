from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.canary_contributions import Declared
from dpspec.stats.conformance.evidence.measured import GroupSums, PlantedSums
from dpspec.stats.conformance.measurement import LEVEL

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
    (abstains,) = canary_contributions.checks([few])
    assert (abstains.p_value, abstains.detectable) == (1.0, None)
    assert abstains.note.startswith("of a planted record, relative to rate * clip norm, not tested")
    assert list(canary_contributions.checks([])) == []
    enough = replace(few, moments=(GroupSums(1, 0, 8, 0.0, 8.0), GroupSums(1, 1, 20, 120.0, 740.0)))
    (check,) = canary_contributions.checks([enough, enough])
    assert check.assumption == "contribution"
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
