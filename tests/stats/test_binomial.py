from __future__ import annotations

import math

import pytest
from scipy import stats

from dpspec.stats import binomial


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("probability", [0.0, 1e-9, 0.03, 0.5, 0.97, 1.0])
def test_tails_are_sums_of_the_mass_function(trials: int, probability: float) -> None:
    mass = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(trials + 1)]
    for k in range(trials + 1):
        assert binomial.at_least(k, trials, probability) == pytest.approx(math.fsum(mass[k:]), rel=1e-12, abs=1e-300)
        assert binomial.at_most(k, trials, probability) == pytest.approx(
            math.fsum(mass[: k + 1]), rel=1e-12, abs=1e-300
        )


@pytest.mark.parametrize(("trials", "confidence"), [(1, 0.5), (10, 0.95), (25, 0.999), (60, 0.9)])
def test_one_sided_bounds_cover_at_every_probability(trials: int, confidence: float) -> None:
    lows = [binomial.lower(k, trials, confidence) for k in range(trials + 1)]
    highs = [binomial.upper(k, trials, confidence) for k in range(trials + 1)]
    # The worst probabilities are the bounds themselves and their neighbours.
    for p in [0.0, 0.5, 1.0, *lows, *highs, *(x * (1 - 1e-9) for x in lows), *(min(1, x * (1 + 1e-9)) for x in highs)]:
        mass = stats.binom.pmf(range(trials + 1), trials, p)
        assert sum(m for m, low in zip(mass, lows, strict=True) if low > p) <= 1 - confidence + 1e-12
        assert sum(m for m, high in zip(mass, highs, strict=True) if high < p) <= 1 - confidence + 1e-12


def test_two_sided_interval_agrees_with_scipy() -> None:
    for successes in range(13):
        theirs = stats.binomtest(successes, 12).proportion_ci(0.95, method="exact")
        assert binomial.clopper_pearson(successes, 12, 0.95) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(-1, 3, 0.9), (4, 3, 0.9), (1, 3, 1.0), (1, 3, -1.0)])
def test_impossible_arguments_are_refused(successes: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="must lie"):
        binomial.clopper_pearson(successes, trials, confidence)
