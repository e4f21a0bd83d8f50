"""The lower bound on mu from ranked independent runs: its distribution, by integrals, simulation and brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpspec.stats.attacks import ranked_runs
from dpspec.stats.attacks.ranked_runs import Guesses


@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
def test_the_law_of_one_guess_on_either_side_is_an_integral(mu: float) -> None:
    """Guess "out" for the smallest of m runs and "in" for the largest; compare with an integral of the density."""
    m, x = 5, np.linspace(-8.0, 8.0 + mu, 2001)
    step = x[1] - x[0]
    out, into = 0.5 * stats.norm.pdf(x), 0.5 * stats.norm.pdf(x - mu)
    law = 0.5 * (stats.norm.cdf(x) + stats.norm.cdf(x - mu))
    between = np.clip(law[None, :] - law[:, None], 0.0, None)  # rows: the minimum; columns: the maximum
    exact = float(m * (m - 1) * (out @ between ** (m - 2) @ into)) * step**2
    assert ranked_runs.p_value(Guesses(m, 1, 1), 2, mu) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("run", "mu"), [(Guesses(40, 10, 7), 1.2), (Guesses(12, 3, 3), 2.5)])
def test_the_law_is_what_simulation_shows(run: Guesses, mu: float) -> None:
    """40,000 runs, seed 0: each share within five standard deviations."""
    runs, source = 40_000, np.random.default_rng(0)
    coins = source.integers(0, 2, (runs, run.runs), dtype=np.int8)
    order = (source.standard_normal((runs, run.runs)) + mu * coins).argsort(axis=1)
    sorted_coins = np.take_along_axis(coins, order, axis=1)
    found = (1 - sorted_coins[:, : run.low]).sum(axis=1) + sorted_coins[:, run.runs - run.high :].sum(axis=1)
    for correct in range(run.low + run.high + 1):
        share, exact = float((found >= correct).mean()), ranked_runs.p_value(run, correct, mu)
        assert abs(share - exact) <= 5.0 * math.sqrt(exact * (1.0 - exact) / runs) + 1e-5


@pytest.mark.ci
@settings(max_examples=5, deadline=None)
@given(runs=st.integers(4, 60), share=st.floats(0.5, 1.0), mu=st.floats(0.0, 3.0), more=st.floats(1e-3, 1.0))
def test_p_values_rise_with_mu_and_fall_with_right_guesses(runs: int, share: float, mu: float, more: float) -> None:
    run = ranked_runs.design(runs)
    correct = math.ceil(share * (run.low + run.high))
    p = ranked_runs.p_value(run, correct, mu)
    assert 0.0 <= p <= 1.0
    assert ranked_runs.p_value(run, correct, mu + more) >= p * (1.0 - 1e-6) - 1e-13
    assert ranked_runs.p_value(run, correct + 1, mu) <= p
    low = ranked_runs.mu_lower(run, correct, 0.95)
    assert low == 0.0 or ranked_runs.p_value(run, correct, low) <= 0.05
    assert ranked_runs.p_value(run, correct, 1.001 * low + 1e-3) > 0.05
