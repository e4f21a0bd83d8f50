from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from support.ranked_coins import gaussian

from dpspec.stats.attacks import curve_lines


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("canaries", [100, 250])
def test_the_estimate_is_centered_on_mu(mu: float, canaries: int) -> None:
    found = [curve_lines.estimate_mu([gaussian(mu, canaries, seed)]) for seed in range(400)]
    assert np.median(found) == pytest.approx(mu, abs=0.12)


def test_pairs_are_compared_within_trials() -> None:
    one, other = gaussian(1.0, 200, 0), gaussian(1.0, 200, 1)
    wins = [sum(coins[:i].count("0") for i, coin in enumerate(coins) if coin == "1") for coins in (one, other)]
    pairs = sum(coins.count("0") * coins.count("1") for coins in (one, other))
    assert curve_lines.estimate_mu([one, other]) == pytest.approx(math.sqrt(2) * stats.norm.ppf(sum(wins) / pairs))
    assert curve_lines.estimate_mu([one, one]) == curve_lines.estimate_mu([one])


@pytest.mark.parametrize(("coins", "mu"), [(60 * "1" + 60 * "0", 0.0), (45 * "01" + 55 * "10", 0.0), ("0011", 11.0)])
def test_noise_is_no_evidence_and_perfect_scores_are_finite(coins: str, mu: float) -> None:
    assert curve_lines.estimate_mu([coins]) == mu


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_of_mu(mu: float, delta: float) -> None:
    epsilon = curve_lines.gaussian_epsilon(mu, delta)
    first = stats.norm.cdf(mu / 2 - epsilon / mu)
    assert first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) == pytest.approx(delta, rel=1e-5)


def test_epsilon_at_the_ends() -> None:
    assert curve_lines.gaussian_epsilon(0.0, 1e-5) == 0.0
    assert curve_lines.gaussian_epsilon(0.1, 0.5) == 0.0
    assert curve_lines.gaussian_epsilon(math.inf, 1e-5) == math.inf
    with pytest.raises(ValueError, match="delta"):
        curve_lines.gaussian_epsilon(1.0, 0.0)
