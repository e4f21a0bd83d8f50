"""Bets on coins: the capital is an e-value at any stopping time."""

import math

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.attacks import curve_lines, sequential

POINTS = [(0.0, 0.0), (0.0, 0.3), (0.7, 0.0), (0.7, 1e-5), (2.0, 0.1), (5.0, 1e-3)]

Runs = tuple[str, list[int]]


def gaussian(mu: float, runs: int, seed: int) -> Runs:
    """Scores of a mechanism that is mu-GDP, in steps of 1/64."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, runs)
    scores = np.floor(64 * (mu * coins + rng.standard_normal(runs))).astype(int)
    return "".join(map(str, coins)), scores.tolist()


def capital(coins: str, scores: list[int], epsilon: float, delta: float) -> list[float]:
    """The same, step by step, as the module's docstring says it."""
    bettors = [
        (side, region, stake, 1.0)
        for side in (1, 0)
        for region in (*(("lose", t) for t in (0.0, 0.001, 0.004, 0.02, 0.1, 0.3)), ("win", 0.1), ("win", 0.5))
        for stake in (0.9, 0.5, 0.2)
    ]
    total = []
    for t, (coin, score) in enumerate(zip(coins, scores, strict=True)):
        after = []
        for side, (by, tail), stake, has in bettors:
            sign = 1 if side else -1
            earlier = [(int(c) == side, sign * s) for c, s in zip(coins[:t], scores[:t], strict=True)]
            losing = sorted((s for wins, s in earlier if not wins), reverse=True)
            winning = sorted(s for wins, s in earlier if wins)
            if by == "lose":
                bets = bool(losing) and sign * score > losing[math.floor(tail * len(losing))]
            else:
                bets = bool(winning) and sign * score >= winning[math.floor(tail * len(winning))]
            if bets:
                won = int(coin) == side
                has *= 1 + stake * (2 - delta) / (2 * math.exp(epsilon) + delta) if won else 1 - stake
            else:
                has *= 1 - stake * delta / (2 + delta)
            after.append((side, (by, tail), stake, has))
        bettors = after
        total.append(sum(has for *_, has in bettors) / len(bettors))
    return total


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
@pytest.mark.parametrize("stake", [0.2, 0.5, 0.9])
def test_no_bet_is_better_than_fair(epsilon: float, delta: float, stake: float) -> None:
    """The mean factor over a fair coin, for all rates that (epsilon, delta)-DP allows, and for smaller epsilon too."""
    rates = np.linspace(0.0, 1.0, 201)
    high, low = (grid.ravel() for grid in np.meshgrid(rates, rates))
    gain = stake * (2 - delta) / (2 * math.exp(epsilon) + delta)
    idle = -stake * delta / (2 + delta)
    for smaller in (0.0, 0.5 * epsilon, epsilon):
        allowed = high <= math.exp(smaller) * low + delta
        mean = 0.5 * (high * gain + (1 - high) * idle) + 0.5 * (-low * stake + (1 - low) * idle)
        assert mean[allowed].max() <= 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
def test_it_is_what_the_bettors_have(epsilon: float, delta: float) -> None:
    for runs in (1, 7, 60):
        coins, scores = gaussian(2.0, runs, 0)
        expected = min(1.0, 1.0 / max(1.0, *capital(coins, scores, epsilon, delta), 1.0))
        assert sequential.p_value(coins, scores, [(epsilon, delta)]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_lower_bound_covers_a_gaussian_mechanism_whenever_one_stops(mu: float) -> None:
    """Seeds 0 to 11, stopped where the bound is largest of three inspections."""
    true = curve_lines.gaussian_epsilon(mu, 1e-3)
    wrong, shown = 0, []
    for seed in range(12):
        coins, scores = gaussian(mu, 240, seed)
        best = max(sequential.epsilon_lower(coins[:n], scores[:n], 1e-3, 0.95) for n in range(80, 241, 80))
        wrong += best > true
        shown.append(best)
    assert wrong <= stats.binom.ppf(0.999, 12, 0.05)
    assert np.median(shown) > 0.15 * true or mu < 1.0


@pytest.mark.parametrize("seed", range(5))
def test_the_lower_bound_is_what_the_test_refutes(seed: int) -> None:
    coins, scores = gaussian(3.0, 200, seed)
    bound = sequential.epsilon_lower(coins, scores, 1e-4, 0.95)
    assert bound > 0.5
    assert sequential.p_value(coins, scores, [(bound, 1e-4)]) <= 0.05
    assert sequential.p_value(coins, scores, [(bound * (1 + 1e-6), 1e-4)]) > 0.05
    # One more run never takes anything back.
    assert sequential.epsilon_lower(coins[:-1], scores[:-1], 1e-4, 0.95) <= bound


def test_perfect_guesses_show_what_the_design_can() -> None:
    """Alternating coins without an error: each bettor on either side wins half of the runs, except the first."""
    assert sequential.largest(1, 0.0, 0.95) == 0.0
    value = sequential.largest(400, 0.0, 0.95)

    def log_capital(epsilon: float) -> float:
        each = [w * math.log1p(c * math.exp(-epsilon)) for c in (0.9, 0.5, 0.2) for w in [199] * 10 + [200] * 6]
        return float(np.logaddexp.reduce(each)) - math.log(48)

    # The bets on "absent" have an earlier present run in each of 200 runs, the others an earlier absent run 199 times;
    # both have an earlier run that wins 199 times.
    assert log_capital(value) == pytest.approx(-math.log(0.05), abs=1e-3)
    assert value > sequential.largest(100, 0.0, 0.95) > sequential.largest(100, 0.0, 0.99) > 0.0


def test_several_points_are_one_test() -> None:
    coins, scores = gaussian(3.0, 100, 1)
    alone = sequential.p_value(coins, scores, [(0.5, 1e-5)])
    several = sequential.p_value(coins, scores, [(0.5, 1e-5), (9.0, 0.5)])
    assert alone < several <= 2.0 * alone
    assert sequential.p_value(coins, scores, []) == 1.0
    assert sequential.p_value("", [], [(0.5, 0.0)]) == 1.0


@pytest.mark.parametrize(
    ("coins", "scores", "point"),
    [("1", [1, 2], (1.0, 0.0)), ("2", [1], (1.0, 0.0)), ("1", [1], (-1.0, 0.0)), ("1", [1], (1.0, 2.0))],
)
def test_what_makes_no_sense_is_refused(coins: str, scores: list[int], point: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"coins must be|need epsilon"):
        sequential.p_value(coins, scores, [point])
