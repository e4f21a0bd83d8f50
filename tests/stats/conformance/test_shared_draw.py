"""What steps tell of a sum keeps its level whatever a model makes of its past; without luck it is Student's t.

Monte Carlo runs are honest: given the past every step has mean zero. Counts of p-values are held against the binomial
quantile that is exceeded once in a thousand times.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpspec.stats.conformance.canary_contributions import SharedDraw

RUNS = 1500

Turning = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: By how much real gradients turn to what was planted, from the sum until now and that of squares: at most 1.
MODELS: dict[str, Turning] = {
    "always": lambda sums, squares: np.ones_like(sums),
    "never": lambda sums, squares: np.zeros_like(sums),
    "until the sum is large": lambda sums, squares: (np.abs(sums) < 2.5 * np.sqrt(squares + 1e-9)) * 1.0,
    "the more the larger it is": lambda sums, squares: np.minimum(1.0, np.abs(sums) / 20.0 + 0.02),
    "the less the larger it is": lambda sums, squares: 1.0 / (1.0 + np.abs(sums) / 3.0),
    "away from the sum": lambda sums, squares: -np.sign(sums + 1e-9),
    "towards it": lambda sums, squares: np.sign(sums + 1e-9),
}


def p_values(turn: Turning, steps: int, records: int, rate: float, sigma: float, seed: int) -> np.ndarray:
    """Two-sided, of ``RUNS`` honest runs; one draw of a real record adds at most 1 along the vector."""
    rng = np.random.default_rng(seed)
    sums, squares = np.zeros(RUNS), np.zeros(RUNS)
    for _ in range(steps):
        drawn = rng.binomial(records, rate, RUNS) - records * rate
        found = sigma * rng.standard_normal(RUNS) + turn(sums, squares) * drawn
        sums, squares = sums + found, squares + found**2
    declared = steps * sigma**2
    variances = np.maximum(declared, (squares - sums**2 / steps) * steps / (steps - 1))
    told = (SharedDraw(variance=v, declared=declared, degrees=steps - 1, single=1.0) for v in variances)
    return np.array([2.0 * one.tail(abs(total)) for one, total in zip(told, sums, strict=True)])


@pytest.mark.parametrize(("steps", "records", "rate"), [(3, 20, 0.1), (12, 40, 0.1), (60, 20, 0.1), (60, 3, 0.02)])
@pytest.mark.parametrize("model", MODELS)
def test_levels_hold_whatever_a_model_does(model: str, steps: int, records: int, rate: float) -> None:
    p = p_values(MODELS[model], steps, records, rate, 0.1, seed=steps)
    for level in (0.1, 0.01, 0.001):
        assert (p <= level).sum() <= stats.binom.ppf(0.999, RUNS, level), level
    assert p.min() > 1e-6


def test_without_steps_the_same_runs_would_be_rejected() -> None:
    """The control of the test above: by the declared variance alone one in three of them deviates at 1e-6."""
    rng = np.random.default_rng(4)
    sums = (rng.binomial(20, 0.1, (RUNS, 60)) - 2.0 + 0.1 * rng.standard_normal((RUNS, 60))).sum(axis=1)
    assert (2.0 * stats.norm.sf(np.abs(sums) / (0.1 * math.sqrt(60))) <= 1e-6).mean() > 0.3


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
    """By the exact Poisson law of how few were drawn: the sum lacks what they would have added, and shows the rest."""
    tried = 0
    for mean in range(5, 80):
        for drawn in range(mean):
            chance = stats.poisson.cdf(drawn, mean)
            if 1e-9 <= chance <= 0.01:
                found = SharedDraw(variance=max(0.05, drawn), declared=0.05, degrees=10_000, single=1.0)
                assert 2.0 * found.tail(mean - drawn) >= chance
                tried += 1
    assert tried > 500


@settings(max_examples=200)
@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e4), st.integers(1, 1000), st.floats(0.0, 100.0), st.floats(1e-9, 0.4))
def test_the_reach_of_an_error_is_where_it_is_the_tail(
    declared: float, ratio: float, degrees: int, single: float, error: float
) -> None:
    found = SharedDraw(variance=declared * ratio, declared=declared, degrees=degrees, single=single)
    reach = found.reach(error)
    assert found.tail(reach) == pytest.approx(error, rel=1e-6)
    assert found.tail(1.01 * reach) <= found.tail(reach) <= found.tail(0.99 * reach)
    more = SharedDraw(variance=2.0 * declared * ratio, declared=declared, degrees=degrees, single=single)
    assert more.tail(reach) > error


def test_what_cannot_be_told_rejects_nothing() -> None:
    found = SharedDraw(variance=math.inf, declared=1.0, degrees=10, single=1.0)
    assert (found.tail(1e300), found.reach(1e-3)) == (1.0, math.inf)
