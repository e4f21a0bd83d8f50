"""The lower bound on mu from ranked independent runs: its distribution, by integrals, simulation and brute force."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpspec.stats.attacks import ranked_runs
from dpspec.stats.attacks.ranked_runs import Guesses


@pytest.mark.family
@pytest.mark.parametrize("mu", [0.7, 0.0, 2.0])
def test_the_law_of_one_guess_on_either_side_is_an_integral(mu: float) -> None:
    """Guess "out" for the smallest of m runs and "in" for the largest; compare with an integral of the density."""
    m, x = 5, np.linspace(-8.0, 8.0 + mu, 2001)
    step = x[1] - x[0]
    out, into = 0.5 * stats.norm.pdf(x), 0.5 * stats.norm.pdf(x - mu)
    law = 0.5 * (stats.norm.cdf(x) + stats.norm.cdf(x - mu))
    between = np.clip(law[None, :] - law[:, None], 0.0, None)  # rows: the minimum; columns: the maximum
    exact = float(m * (m - 1) * (out @ between ** (m - 2) @ into)) * step**2
    assert ranked_runs.p_value(Guesses(m, 1, 1), 2, mu) == pytest.approx(exact, rel=1e-6)


def test_without_a_signal_guesses_are_fair_coins() -> None:
    for run in (Guesses(40, 10, 7), Guesses(1000, 320, 320), Guesses(9, 1, 3)):
        number = run.low + run.high
        for correct in (0, number // 2, number * 5 // 8, number):
            exact = float(stats.binom.sf(correct - 1, number, 0.5))
            assert ranked_runs.p_value(run, correct, 0.0) == pytest.approx(exact, rel=1e-6)


def test_separated_scores_err_by_the_coins_alone() -> None:
    """At mu = 12 all of 98 guesses are right if 49 to 51 of 100 coins are 0; a chance is 1 in floating point."""
    exact = float(stats.binom.pmf([49, 50, 51], 100, 0.5).sum())
    assert ranked_runs.p_value(Guesses(100, 49, 49), 98, 12.0) == pytest.approx(exact, rel=0.05)


@pytest.mark.family
@pytest.mark.parametrize(("run", "mu"), [(Guesses(40, 10, 7), 1.2), (Guesses(30, 9, 9), 0.4), (Guesses(12, 3, 3), 2.5)])
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


def least_mu(absent: np.ndarray, present: np.ndarray) -> float:
    """Return the smallest mu for which two discrete distributions are mu-GDP, from the power at each corner."""
    order = np.argsort(present / absent)[::-1]
    fpr, tpr = np.cumsum(absent[order])[:-1], np.cumsum(present[order])[:-1]
    return float(np.max(stats.norm.ppf(tpr) - stats.norm.ppf(fpr)))


@pytest.mark.family
@pytest.mark.parametrize("absent", [[0.7, 0.3], [0.5, 0.35, 0.15]], ids=["response", "three-values"])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (1, 2)])
def test_no_independent_release_beats_the_gaussian_one(absent: list[float], low: int, high: int) -> None:
    """All releases of five runs by brute force: the best guesses from each stay below the theorem's bound."""
    law = np.array([absent, absent[::-1]])
    mu, m = least_mu(*law), 5
    tails = np.zeros(low + high + 1)
    for release in product(range(law.shape[1]), repeat=m):
        both = law[:, list(release)]
        chance = float(np.prod(0.5 * both.sum(axis=0)))
        present = np.sort(both[1] / both.sum(axis=0))
        masses = np.ones(1)
        for right in [*(1.0 - present[:low]), *present[m - high :]]:
            masses = np.convolve(masses, [1.0 - right, right])
        tails += chance * masses[::-1].cumsum()[::-1]
    for correct in range(low + high + 1):
        assert tails[correct] <= ranked_runs.p_value(Guesses(m, low, high), correct, mu * (1 + 1e-9)) + 1e-9


@pytest.mark.ci
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


@pytest.mark.parametrize(("a", "b"), [(2, 3), (2, 50_000), (33, 69), (3201, 6800), (50_000, 2)])
def test_the_ends_of_the_rule_are_quantiles_of_the_beta_law(a: int, b: int) -> None:
    """Compare with :mod:`scipy.stats`, which the module does not import."""
    points, weights = ranked_runs._beta_points(a, b)
    ends = stats.beta.ppf(stats.norm.cdf(-7.5), a, b), stats.beta.isf(stats.norm.cdf(-7.5), a, b)
    assert (points[0], 1.0 - points[-1]) == pytest.approx((ends[0], 1.0 - ends[1]), rel=1e-9, abs=1e-14)
    assert points @ weights == pytest.approx(a / (a + b), rel=1e-6)
