"""Monte Carlo: the estimate is accurate within reach of the draws, and its interval holds beyond."""

import math

import numpy as np
import pytest
from support.rero_values import BY_NAME

from dpspec_papers.rero_monte_carlo import gammas_monte_carlo, log_ratios
from dpspec_rero.options import Steps


@pytest.mark.family
@pytest.mark.parametrize("name", ["S5", "S6", "S9", "B4", "B5", "L8"])
def test_the_estimate_is_near_and_the_interval_contains_the_truth(name: str) -> None:
    value = BY_NAME[name]
    truth = value.gamma if isinstance(value.gamma, float) else value.gamma[0]
    found = [gammas_monte_carlo([value.kappa], value.phases, 20_000, seed)[0] for seed in range(5)]
    assert all(truth in one.interval for one in found)
    values = [one.value for one in found]
    assert abs(np.mean(values) - truth) < 3.0 * np.std(values)
    assert np.std(values) < 0.25 * truth


def test_heavy_tails_fool_the_estimate_but_not_the_interval() -> None:
    """At effect 5 the sample never meets the ratios that matter: the estimate is less than half of the truth."""
    phases = (Steps(noise="gaussian", effect=5.0, rate=1.0, count=1),)
    truth = 0.9962  # Phi(Phi^-1(0.01) + 5)
    (found,) = gammas_monte_carlo([0.01], phases, 100_000, seed=1)
    assert found.value < 0.6
    assert truth in found.interval
    assert found.interval.width < 0.01


def test_an_estimate_of_a_probability_is_at_most_one() -> None:
    """The sum of 1000 likelihood ratios of this seed is 3.4 times its expectation."""
    phases = (Steps(noise="gaussian", effect=4.0, rate=1.0, count=1),)
    assert np.exp(log_ratios(phases, 1000, 13)).mean() > 3.0
    (found,) = gammas_monte_carlo([1.0], phases, 1000, seed=13)
    assert found.value == 1.0


def test_ratios_average_to_one_under_the_null() -> None:
    """E[r] = 1, within six standard errors."""
    for noise in ("gaussian", "laplace"):
        phases = tuple(Steps(noise=noise, effect=0.5, rate=rate, count=7) for rate in (0.2, 1.0))  # type: ignore[arg-type]
        ratios = np.exp(log_ratios(phases, 50_000, seed=5))
        assert abs(ratios.mean() - 1.0) < 6.0 * ratios.std() / math.sqrt(len(ratios))


def test_huge_ratios_do_not_overflow() -> None:
    phases = (Steps(noise="gaussian", effect=200.0, rate=0.5, count=2),)
    (found,) = gammas_monte_carlo([0.1], phases, 1000, seed=1)
    assert 0.1 <= found.interval.lower <= found.interval.upper <= 1.0
    with pytest.raises(ValueError, match="samples"):
        gammas_monte_carlo([0.1], phases, 10, seed=1)


def test_intervals_miss_no_more_often_than_stated() -> None:
    """100 seeds at confidence 0.8: 36 misses would be four deviations too many. They are far too careful for that."""
    value = BY_NAME["S5"]
    misses = sum(
        value.gamma not in gammas_monte_carlo([value.kappa], value.phases, 1000, seed, 0.8)[0].interval  # type: ignore[operator]
        for seed in range(100)
    )
    assert misses <= 36
