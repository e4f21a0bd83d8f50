from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.attacks import gaussian_fit


def ranked(mu: float, canaries: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, canaries)
    return "".join(map(str, coins[np.argsort(rng.standard_normal(canaries) + mu * coins)]))


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("canaries", [100, 250])
def test_the_interval_covers_mu_if_the_model_holds(mu: float, canaries: int) -> None:
    # Seeds 0 to 399: each side of a 90% interval misses at 5%: at most the 99.9% quantile of Bin(400, 0.05).
    found = [gaussian_fit.estimate([ranked(mu, canaries, seed)], 0.9) for seed in range(400)]
    often = stats.binom.ppf(0.999, 400, 0.05)
    assert sum(e.low > mu for e in found) <= often
    assert sum(e.high < mu for e in found) <= often
    assert all(e.low <= e.mu <= e.high for e in found)
    assert sum(e.low > mu for e in found) + sum(e.high < mu for e in found) >= (5 if mu else 3)
    assert np.median([e.mu for e in found]) == pytest.approx(mu, abs=0.12)


def test_the_spread_of_the_share_of_pairs_is_as_stated() -> None:
    sizes, mu = (12, 20), 1.3
    rng = np.random.default_rng(0)
    present, absent = rng.standard_normal((20_000, 12)) + mu, rng.standard_normal((20_000, 20))
    shares = np.mean(present[:, :, None] > absent[:, None, :], axis=(1, 2))
    assert np.var(shares) == pytest.approx(gaussian_fit._variance(mu, [sizes], 240), rel=0.04)


def test_noise_is_no_evidence() -> None:
    # Below one half the estimate is 0: an absolute value would make as much of it as of a share above.
    wrong = gaussian_fit.estimate([60 * "1" + 60 * "0"], 0.95)
    assert (wrong.mu, wrong.low, wrong.high) == (0.0, 0.0, 0.0)
    slightly = gaussian_fit.estimate([45 * "01" + 55 * "10"], 0.95)
    assert (slightly.mu, slightly.low) == (0.0, 0.0)
    assert slightly.high > 0.0


def test_trials_are_compared_within_themselves() -> None:
    one = ranked(1.0, 200, 0)
    single, double = gaussian_fit.estimate([one], 0.95), gaussian_fit.estimate([one, one], 0.95)
    assert double.mu == single.mu
    assert double.pairs == 2 * single.pairs
    assert single.low < double.low < single.mu < double.high < single.high


def test_perfect_scores_have_no_upper_end() -> None:
    found = gaussian_fit.estimate([50 * "0" + 50 * "1"], 0.95)
    assert found.high == math.inf
    assert 2.0 < found.low < found.mu == 11.0
    assert gaussian_fit.estimate([300 * "0" + 300 * "1"], 0.95).low > found.low


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_of_mu(mu: float, delta: float) -> None:
    epsilon = gaussian_fit.epsilon(mu, delta)
    first = stats.norm.cdf(mu / 2 - epsilon / mu)
    assert first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) == pytest.approx(delta, rel=1e-5)


def test_epsilon_at_the_ends() -> None:
    assert gaussian_fit.epsilon(0.0, 1e-5) == 0.0
    assert gaussian_fit.epsilon(0.1, 0.5) == 0.0
    assert gaussian_fit.epsilon(math.inf, 1e-5) == math.inf
    with pytest.raises(ValueError, match="delta"):
        gaussian_fit.epsilon(1.0, 0.0)


@pytest.mark.parametrize("outcomes", [[], ["000"], ["", "1"]])
def test_coins_without_pairs_are_refused(outcomes: list[str]) -> None:
    with pytest.raises(ValueError, match="both"):
        gaussian_fit.estimate(outcomes, 0.95)
    with pytest.raises(ValueError, match="confidence"):
        gaussian_fit.estimate(["01"], 1.0)
