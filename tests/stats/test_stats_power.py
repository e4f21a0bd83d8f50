from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.attacks import attack_power, gaussian_fit, guess_counts, many_run, one_run, thresholds


@pytest.mark.parametrize(("guesses", "top"), [(40, 0.5), (40, 0.8), (40, 1.0), (400, 0.5), (2, 0.5)])
@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
def test_accuracy_is_that_of_sorted_scores(guesses: int, top: float, mu: float) -> None:
    # 2000 draws of 400 scores: the mean share within five standard errors, and what order statistics blur.
    m, rng = 400, np.random.default_rng(1)
    coins = rng.integers(0, 2, (2000, m))
    order = np.take_along_axis(coins, np.argsort(rng.standard_normal((2000, m)) + mu * coins, axis=1), axis=1)
    high = round(top * guesses)
    right = order[:, m - high :].sum(axis=1) + (guesses - high) - order[:, : guesses - high].sum(axis=1)
    share = float(right.mean()) / guesses
    assert share == pytest.approx(
        attack_power.gaussian_accuracy(m, guesses, mu, top=top), abs=5 * 0.5 / (2000 * guesses) ** 0.5
    )


def test_accuracy_of_all_guesses_is_known() -> None:
    assert attack_power.gaussian_accuracy(100, 100, 1.0) == pytest.approx(stats.norm.cdf(0.5), rel=1e-12)
    with pytest.raises(ValueError, match="guesses"):
        attack_power.gaussian_accuracy(100, 101, 1.0)


def test_what_is_expected_is_the_median_of_what_is_found() -> None:
    # Seeds 0 to 99: the median of 100 bounds lies within 5% of the one foreseen.
    m, mu, delta = 2000, 1.2, 1e-5
    rungs = guess_counts.design(m, lambda count: attack_power.gaussian_accuracy(m, count, mu), delta, 0.95)
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        coins = rng.integers(0, 2, m)
        order = coins[np.argsort(rng.standard_normal(m) + mu * coins)]
        guesses, correct = guess_counts.counts(["".join(map(str, order))], rungs)
        found.append(guess_counts.epsilon_lower(m, guesses, correct, delta, 0.95))
    foreseen = attack_power.gaussian(m, guesses, mu, delta, 0.95)
    # The best of several counts is a little better than each at its median.
    assert foreseen == pytest.approx(np.median(found), rel=0.12)
    assert foreseen < gaussian_fit.epsilon(mu, delta)
    assert foreseen < guess_counts.largest(m, guesses, delta, 0.95)


def test_one_count_is_the_one_run_bound() -> None:
    right = 100 - int(100 * (1 - attack_power.gaussian_accuracy(1000, 100, 1.0)) + 1 / 3)
    assert attack_power.gaussian(1000, (100,), 1.0, 1e-6, 0.9) == one_run.epsilon_lower(1000, 100, right, 1e-6, 0.9)
    assert attack_power.expected(50, (10, 50), lambda count: 1.0, 0.0, 0.95) == guess_counts.largest(
        50, (10, 50), 0.0, 0.95
    )
    assert attack_power.expected(50, (10, 50), lambda count: 0.1, 0.0, 0.95) == 0.0


def test_many_runs() -> None:
    mu, delta = 2.0, 1e-5
    fixed, chosen = (
        f(500, 500, mu, delta, 0.95) for f in (attack_power.gaussian_many_run, attack_power.gaussian_ranked)
    )
    assert 0.0 < chosen < fixed < gaussian_fit.epsilon(mu, delta)
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scores = np.concatenate((rng.standard_normal(500), mu + rng.standard_normal(500)))
        found.append(thresholds.epsilon_lower(thresholds.outcomes(scores, np.arange(1000) >= 500), delta, 0.95))
    assert chosen == pytest.approx(np.median(found), rel=0.15)
    assert attack_power.gaussian_many_run(500, 500, 40.0, delta, 0.95) == many_run.largest(500, 500, delta, 0.95)
    assert attack_power.gaussian_ranked(0, 500, mu, delta, 0.95) == 0.0
