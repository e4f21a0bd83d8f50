from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import optimize, special, stats

from dpspec.stats import onerun


def slow_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The formula term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    mass = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    beta = math.fsum(mass[correct:])
    alpha = max((math.fsum(mass[correct - i : correct]) / i for i in range(1, correct + 1)), default=0.0)
    return min(1.0, beta + 2 * canaries * delta * alpha)


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (7, 5), (60, 60), (200, 90)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_equals_the_formula_summed_term_by_term(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    for correct in range(guesses + 1):
        expected = slow_p_value(canaries, guesses, correct, epsilon, delta)
        assert onerun.p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_long_sums_are_cut_only_where_nothing_is_lost() -> None:
    for guesses, correct, epsilon in [(9000, 8950, 2.0), (9000, 5200, 0.1), (5000, 5000, 30.0), (9000, 9000, 1.0)]:
        log_mass = stats.binom.logpmf(np.arange(correct - 1, -1, -1), guesses, special.expit(epsilon))
        alpha = np.max(np.cumsum(np.exp(log_mass)) / np.arange(1, correct + 1))
        beta = stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
        expected = min(1.0, float(beta + 2 * 10_000 * 1e-7 * alpha))
        assert onerun.p_value(10_000, guesses, correct, epsilon, 1e-7) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 40.0])
def test_randomised_response_has_exactly_this_p_value(epsilon: float) -> None:
    # Every coin is answered truthfully with probability q, independently: as revealing as epsilon-DP can be.
    q = special.expit(epsilon)
    for correct in range(13):
        exact = math.fsum(stats.binom.pmf(k, 12, q) for k in range(correct, 13))
        assert onerun.p_value(12, 12, correct, epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.05])
def test_mechanisms_that_sometimes_reveal_coins_stay_below(epsilon: float, delta: float) -> None:
    # With probability m delta / i, i random coins are told as they are, the others by randomised response: each coin
    # is told with probability delta, so that the mechanism is (epsilon, delta)-DP.
    m, q = 10, special.expit(epsilon)
    for i in range(1, m + 1):
        told = min(1.0, m * delta / i)
        for correct in range(m + 1):
            tail = (1 - told) * stats.binom.sf(correct - 1, m, q) + told * stats.binom.sf(correct - 1 - i, m - i, q)
            assert tail <= onerun.p_value(m, m, correct, epsilon, delta) + 1e-12


@pytest.mark.parametrize(("canaries", "guesses"), [(2, 2), (3, 3), (3, 2)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.5, 0.02), (1.5, 0.05)])
def test_no_mechanism_beats_it(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    """The most that any (epsilon, delta)-DP mechanism achieves, by linear programming over all of them."""
    coins = list(product((-1, 1), repeat=canaries))
    answers = [t for t in product((-1, 0, 1), repeat=canaries) if sum(map(abs, t)) == guesses]
    pairs = [(s, u) for s in coins for u in coins if sum(a != b for a, b in zip(s, u, strict=True)) == 1]
    n, k = len(coins), len(answers)
    variables = n * k + len(pairs) * k  # P[t | s], then the slack max(0, P[t | s] - e^eps P[t | u]) per pair and t
    rows, limits = [], []
    for j, (s, u) in enumerate(pairs):
        total = np.zeros(variables)
        for t in range(k):
            row = np.zeros(variables)
            row[coins.index(s) * k + t] = 1.0
            row[coins.index(u) * k + t] = -math.exp(epsilon)
            row[n * k + j * k + t] = -1.0
            total[n * k + j * k + t] = 1.0
            rows.append(row)
            limits.append(0.0)
        rows.append(total)
        limits.append(delta)
    sums = np.zeros((n, variables))
    for s in range(n):
        sums[s, s * k : (s + 1) * k] = 1.0
    for correct in range(1, guesses + 1):
        gain = np.zeros(variables)
        for (i, s), (t, answer) in product(enumerate(coins), enumerate(answers)):
            if sum(a == b for a, b in zip(s, answer, strict=True)) >= correct:
                gain[i * k + t] = 1.0 / n
        found = optimize.linprog(-gain, A_ub=np.array(rows), b_ub=limits, A_eq=sums, b_eq=np.ones(n))
        assert found.success
        bound = onerun.p_value(canaries, guesses, correct, epsilon, delta)
        assert -found.fun <= bound + 1e-9
        if delta == 0.0:
            assert -found.fun == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_lower_bound_covers_randomised_response(epsilon: float, confidence: float) -> None:
    guesses, q = 80, special.expit(epsilon)
    misses = math.fsum(
        stats.binom.pmf(v, guesses, q)
        for v in range(guesses + 1)
        if onerun.epsilon_lower(guesses, guesses, v, 0.0, confidence) > epsilon
    )
    assert misses <= 1 - confidence
    assert misses > 0  # it is not vacuous either


def test_lower_bound_covers_a_gaussian_mechanism() -> None:
    # Canary scores N(0, 1) and N(mu, 1); the extreme half of the guesses on either side. Seeds 0 to 199.
    mu, delta, m, r = 2.0, 1e-3, 400, 100
    true = optimize.brentq(
        lambda e: stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta, 0, 50
    )
    exceeded, found = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        coins = rng.integers(0, 2, m)
        order = np.argsort(rng.standard_normal(m) + mu * coins)
        correct = int((coins[order[-r // 2 :]] == 1).sum() + (coins[order[: r // 2]] == 0).sum())
        found.append(onerun.epsilon_lower(m, r, correct, delta, 0.95))
        exceeded += found[-1] > true
    assert exceeded <= stats.binom.ppf(0.999, 200, 0.05)
    assert np.median(found) > 0.25 * true


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta"), [(100, 100, 75, 0.0), (1000, 200, 190, 1e-6)])
def test_lower_bound_is_the_rejected_end_of_its_bracket(
    canaries: int, guesses: int, correct: int, delta: float
) -> None:
    low = onerun.epsilon_lower(canaries, guesses, correct, delta, 0.95)
    assert onerun.p_value(canaries, guesses, correct, low, delta) <= 1 - 0.95
    assert onerun.p_value(canaries, guesses, correct, low + 1e-8, delta) > 0.05


def test_p_value_never_falls_with_epsilon_below_one_half() -> None:
    # What makes bisection right: everything below a rejected epsilon is rejected too.
    grid = np.linspace(0.0, 12.0, 100)
    for canaries, share, hit, delta in product((5, 100, 2000), (0.25, 1.0), (0.55, 0.8, 1.0), (1e-8, 1e-4, 1e-2)):
        guesses = max(1, round(share * canaries))
        p = np.array([onerun.p_value(canaries, guesses, round(hit * guesses), e, delta) for e in grid])
        falling = np.diff(p) < -1e-12
        assert not np.any(falling & (p[1:] < 0.5))


def test_nothing_is_shown_by_guessing_or_by_too_large_a_delta() -> None:
    assert onerun.epsilon_lower(100, 100, 50, 0.0, 0.95) == 0.0
    assert onerun.epsilon_lower(100, 0, 0, 0.0, 0.95) == 0.0
    assert onerun.epsilon_lower(100, 100, 100, 0.5, 0.95) == 0.0


def test_power_is_what_perfect_guesses_show() -> None:
    assert onerun.largest(1000, 1000, 0.0, 0.95) == pytest.approx(
        -math.log(0.05 ** (-1 / 1000) - 1), rel=1e-8
    )  # q^r = 0.05
    powers = [onerun.largest(m, m, 1e-6, 0.95) for m in (10, 100, 1000, 10_000)]
    assert powers == sorted(powers)


def test_huge_epsilon_keeps_its_digits() -> None:
    # q rounds to 1 here: what counts is 1 - q = e^-50.
    assert 1 - onerun.p_value(10, 10, 10, 40.0, 0.0) == pytest.approx(10 * math.exp(-40), rel=0.1)
    assert onerun.p_value(10**6, 10**6, 9 * 10**5, 1.0, 0.0) == 0.0


@pytest.mark.parametrize("bad", [(5, 6, 1, 1.0, 0.0), (5, 4, 5, 1.0, 0.0), (5, 4, 1, -1.0, 0.0), (5, 4, 1, 1.0, 2.0)])
def test_impossible_counts_are_refused(bad: tuple[int, int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="need"):
        onerun.p_value(*bad)
