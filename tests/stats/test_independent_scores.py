"""The bound of several runs whose canaries score independently: its formula, its test and what refuses it."""

import math

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.attacks import curve_lines, independent_scores
from dpspec.stats.attacks.independent_scores import Design, NoBoundError

RUNS, CANARIES = 20, 500


def outcomes_with(right: list[int], guesses: int) -> list[str]:
    """Runs of ``CANARIES`` with these numbers of right guesses, of which half are on each side."""
    side, runs = guesses // 2, []
    for number in right:
        low = number // 2
        middle = (CANARIES - guesses) // 2
        low_bits = "0" * low + "1" * (side - low)
        high_bits = "1" * (number - low) + "0" * (side - number + low)
        runs.append(low_bits + "0" * middle + "1" * (CANARIES - guesses - middle) + high_bits)
    return runs


def gaussian_runs(mu: float, runs: int, canaries: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (runs, canaries))
    order = np.argsort(mu * coins + rng.standard_normal((runs, canaries)), axis=1)
    return ["".join(map(str, row)) for row in np.take_along_axis(coins, order, axis=1)]


def test_it_is_the_inverse_of_the_largest_mean_at_the_end_of_the_interval() -> None:
    rng = np.random.default_rng(1)
    right = rng.binomial(100, 0.8, RUNS).tolist()
    found = independent_scores.epsilon_lower(outcomes_with(right, 100), Design(0.1, 0.02), 0.95)
    shares = np.array(right) / 100
    error = max(shares.std(ddof=1) / math.sqrt(RUNS), math.sqrt(shares.mean() * (1 - shares.mean()) / 2000))
    low = shares.mean() - stats.t.ppf(0.95, RUNS - 1) * error
    # e^epsilon (1 - p) + delta / (2 q) = p
    assert math.exp(found.epsilon) * (1 - low) + 0.1 == pytest.approx(low, rel=1e-9)
    spread = stats.chi2.sf(
        ((shares - shares.mean()) ** 2).sum() / (shares.mean() * (1 - shares.mean()) / 100), RUNS - 1
    )
    assert found.p_value == pytest.approx(spread, rel=1e-9)
    assert found.guesses == 2000


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 0.05)])
def test_no_mechanism_has_a_larger_mean(epsilon: float, delta: float) -> None:
    """Brute force: all rates of one canary in the guessed scores that (epsilon, delta)-DP allows, in both tails."""
    rates = np.linspace(0.0, 1.0, 201)
    present, absent = (grid.ravel() for grid in np.meshgrid(rates, rates))
    allowed = (present <= math.exp(epsilon) * absent + delta) & (present + absent > 0.0)
    share = 0.5 * (present + absent)[allowed]
    mean = 0.5 * present[allowed] / share
    bound = (math.exp(epsilon) + delta / (2.0 * share)) / (1.0 + math.exp(epsilon))
    assert (mean <= bound + 1e-12).all()
    assert (mean > bound - 1e-3).any()


def test_scarce_luck_is_charged_when_runs_are_few_for_their_guesses() -> None:
    """With millions of guesses the interval is narrow, so that the charge for shared luck decides."""
    chosen = Design(0.1, 0.05)
    equal = RUNS * ["0" * 1600 + "1" * 400 + "01" * 8000 + "0" * 400 + "1" * 1600]
    found = independent_scores.epsilon_lower(equal, chosen, 0.95)
    assert found.guesses == 80_000
    point = math.log((0.8 - 0.25) / 0.2)
    hazard = stats.norm.pdf(stats.norm.ppf(0.95)) / 0.05
    charged = stats.t.ppf(0.95, RUNS - 1) * hazard * 0.25 / 0.55 / RUNS
    assert found.epsilon == pytest.approx(point - charged, abs=0.01)


@pytest.mark.family
@pytest.mark.parametrize(("mu", "least"), [(0.502, 0.75), (0.925, 0.85), (1.666, 0.87)])
def test_ten_thousand_gaussian_canaries_show_most_of_the_truth(mu: float, least: float) -> None:
    chosen = independent_scores.design(mu, RUNS, CANARIES, 1e-5, 0.95)
    truth = curve_lines.gaussian_epsilon(mu, chosen.delta)
    shown = []
    for seed in range(15):
        try:
            runs = gaussian_runs(mu, RUNS, CANARIES, seed)
            shown.append(independent_scores.epsilon_lower(runs, chosen, 0.95).epsilon)
        except NoBoundError:
            continue
    assert len(shown) >= 12
    assert np.median(shown) > least * truth
    assert sum(bound > truth for bound in shown) <= 4


def test_the_detectable_correlation_is_detected_with_its_power() -> None:
    """Planted dependence: the share of right guesses of a run is a beta variable with this correlation."""
    rng = np.random.default_rng(7)
    honest = outcomes_with(rng.binomial(100, 0.8, RUNS).tolist(), 100)
    correlation = independent_scores.epsilon_lower(honest, Design(0.1, 0.0), 0.95).detectable
    assert 0.005 < correlation < 0.05
    total, refused = 1.0 / correlation - 1.0, 0
    for _ in range(300):
        right = rng.binomial(100, rng.beta(0.8 * total, 0.2 * total, RUNS)).tolist()
        try:
            independent_scores.epsilon_lower(outcomes_with(right, 100), Design(0.1, 0.0), 0.95)
        except NoBoundError as error:
            refused += "differ more" in str(error)
    assert 0.8 <= refused / 300 <= 0.97


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([80] * (RUNS - 1), "20 runs with 20 canaries each"),
        ([100] * RUNS, "guesses are wrong"),
        ([60, 100] * (RUNS // 2), "differ more than with independent scores"),
    ],
)
def test_what_gives_no_bound_says_why(runs: list[int], text: str) -> None:
    with pytest.raises(NoBoundError, match=text):
        independent_scores.epsilon_lower(outcomes_with(runs, 100), Design(0.1, 0.0), 0.95)


def test_chance_shows_nothing() -> None:
    assert independent_scores.epsilon_lower(outcomes_with([50] * RUNS, 100), Design(0.1, 0.2), 0.95).epsilon == 0.0
    assert independent_scores.design(0.0, RUNS, CANARIES, 1e-5, 0.95).delta == 1e-5
