from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import optimize, special, stats

from dpspec.stats.attacks import one_run


def slow_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The bound with the maximum over d taken, every sum written out."""
    q = 1 / (1 + math.exp(-epsilon))
    wrong = [math.comb(guesses, d) * (1 - q) ** d * q ** (guesses - d) for d in range(guesses + 1)]
    most = guesses - correct
    beta = math.fsum(wrong[: most + 1])
    gains = [0.0]
    for d in range(guesses):
        if d <= most:
            gains.append(math.fsum(wrong[most + 1 :]) * math.fsum(wrong[: d + 1]) / ((guesses - d) * wrong[d]))
        else:
            gains.append(beta * math.fsum(wrong[d + 1 :]) / ((guesses - d) * wrong[d]))
    return min(1.0, beta + canaries * delta * max(gains))


def most_correct(guesses: int, correct: int, epsilon: float, budget: float) -> float:
    """The largest P[V >= correct] over all mechanisms, by a linear program in the chances of d wrong guesses.

    By symmetry a mechanism may be averaged over permutations and flips of coins; what is left are those chances, with
    one inequality for flipping a right guess and one for flipping a wrong one; ``budget`` is canaries times delta.
    """
    e, n = math.exp(epsilon), guesses
    variables = n + 1 + 2 * n
    rows = []
    for d in range(n):
        right, wrong = np.zeros(variables), np.zeros(variables)
        right[d], right[d + 1], right[n + 1 + d] = n - d, -e * (d + 1), -1
        wrong[d], wrong[d + 1], wrong[2 * n + 1 + d] = -e * (n - d), d + 1, -1
        rows += [right, wrong]
    total, mass, gain = np.zeros(variables), np.zeros((1, variables)), np.zeros(variables)
    total[n + 1 :], mass[0, : n + 1], gain[: n - correct + 1] = 1, 1, 1
    limits = [0.0] * (2 * n) + [budget]
    found = optimize.linprog(-gain, A_ub=np.array([*rows, total]), b_ub=limits, A_eq=mass, b_eq=[1.0])
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (7, 5), (60, 60), (200, 90)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_equals_the_bound_written_out(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    for correct in range(1, guesses + 1):
        expected = slow_p_value(canaries, guesses, correct, epsilon, delta)
        assert one_run.p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("canaries", "guesses"), [(5, 5), (40, 25), (80, 80)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-3, 1e-2])
def test_is_exactly_the_best_that_a_mechanism_can_do(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    q = special.expit(epsilon)
    for correct in {1, guesses // 2, round(q * guesses), round((0.7 * q + 0.3) * guesses), guesses}:
        bound = one_run.p_value(canaries, guesses, correct, epsilon, delta)
        assert most_correct(guesses, correct, epsilon, canaries * delta) == pytest.approx(bound, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_lower_bound_covers_randomised_response(epsilon: float, confidence: float) -> None:
    guesses, q = 80, special.expit(epsilon)
    misses = math.fsum(
        stats.binom.pmf(v, guesses, q)
        for v in range(guesses + 1)
        if one_run.epsilon_lower(guesses, guesses, v, 0.0, confidence) > epsilon
    )
    assert misses <= 1 - confidence
    if confidence <= 0.95:
        assert misses > 0.2 * (1 - confidence)  # it is not vacuous either


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta"), [(100, 100, 75, 0.0), (1000, 200, 190, 1e-6)])
def test_lower_bound_is_the_rejected_end_of_its_bracket(
    canaries: int, guesses: int, correct: int, delta: float
) -> None:
    low = one_run.epsilon_lower(canaries, guesses, correct, delta, 0.95)
    assert one_run.p_value(canaries, guesses, correct, low, delta) <= 1 - 0.95
    assert one_run.p_value(canaries, guesses, correct, low + 1e-8, delta) > 0.05


def test_nothing_is_shown_by_guessing_or_by_too_large_a_delta() -> None:
    assert one_run.epsilon_lower(100, 100, 50, 0.0, 0.95) == 0.0
    assert one_run.epsilon_lower(100, 0, 0, 0.0, 0.95) == 0.0
    assert one_run.epsilon_lower(100, 100, 100, 0.5, 0.95) == 0.0


def test_huge_epsilon_keeps_its_digits() -> None:
    # q rounds to 1 here: what counts is 1 - q = e^-50.
    assert 1 - one_run.p_value(10, 10, 10, 40.0, 0.0) == pytest.approx(10 * math.exp(-40), rel=0.1)
    assert one_run.p_value(10**6, 10**6, 9 * 10**5, 1.0, 0.0) == 0.0


@pytest.mark.parametrize("bad", [(5, 6, 1, 1.0, 0.0), (5, 4, 5, 1.0, 0.0), (5, 4, 1, -1.0, 0.0), (5, 4, 1, 1.0, 2.0)])
def test_impossible_counts_are_refused(bad: tuple[int, int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="need"):
        one_run.p_value(*bad)


def test_the_older_correction_is_exceeded_by_a_mechanism() -> None:
    # Two coins; answers with f, a, b the chance of both, one given, no wrong guess. All slack goes to one wrong guess.
    epsilon, delta = 1.5, 0.05
    e = math.exp(epsilon)
    f = (1 - (2 + e) * delta) / (1 + e) ** 2
    a = e * f + delta
    chances = {0: e * a, 1: a, 2: f}
    coins = list(product((0, 1), repeat=2))
    table = {(s, t): chances[sum(x != y for x, y in zip(s, t, strict=True))] for s in coins for t in coins}
    assert all(sum(table[s, t] for t in coins) == pytest.approx(1) for s in coins)
    for s, u in product(coins, coins):
        if sum(x != y for x, y in zip(s, u, strict=True)) == 1:
            assert sum(max(0.0, table[s, t] - e * table[u, t]) for t in coins) <= delta + 1e-12
    q = special.expit(epsilon)
    older = 1 - (1 - q) ** 2 + 2 * 2 * delta * (1 - q) ** 2
    assert 1 - f > older + 1e-3
    assert 1 - f == pytest.approx(one_run.p_value(2, 2, 1, epsilon, delta))
