import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse, special, stats

from dpspec.stats.attacks import curve_lines, guess_counts, one_run


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


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (60, 60), (200, 90)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-2), (0.3, 0.0), (2.0, 1e-6), (6.0, 1e-6)])
def test_equals_the_bound_written_out(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    for correct in range(1, guesses + 1):
        expected = slow_p_value(canaries, guesses, correct, epsilon, delta)
        assert one_run.p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("canaries", "guesses"), [(5, 5), (40, 25)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-3), (1.0, 1e-4), (3.0, 1e-2)])
def test_is_exactly_the_best_that_a_mechanism_can_do(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    q = special.expit(epsilon)
    for correct in {1, guesses // 2, round(q * guesses), round((0.7 * q + 0.3) * guesses), guesses}:
        bound = one_run.p_value(canaries, guesses, correct, epsilon, delta)
        best = best_law(canaries, guesses, correct, ((epsilon, delta),))
        assert best == pytest.approx(bound, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta"), [(100, 100, 75, 0.0), (1000, 200, 190, 1e-6)])
def test_lower_bound_is_the_rejected_end_of_its_bracket(canaries, guesses, correct, delta):
    low = one_run.epsilon_lower(canaries, guesses, correct, delta, 0.95)
    assert one_run.p_value(canaries, guesses, correct, low, delta) <= 1 - 0.95
    assert one_run.p_value(canaries, guesses, correct, low + 1e-8, delta) > 0.05


def test_huge_epsilon_keeps_its_digits():
    # q rounds to 1 here: what counts is 1 - q = e^-50.
    assert 1 - one_run.p_value(10, 10, 10, 40.0, 0.0) == pytest.approx(10 * math.exp(-40), rel=0.1)
    assert one_run.p_value(10**6, 10**6, 9 * 10**5, 1.0, 0.0) == 0.0


@pytest.mark.parametrize("bad", [(5, 6, 1, 1.0, 0.0), (5, 4, 5, 1.0, 0.0), (5, 4, 1, -1.0, 0.0), (5, 4, 1, 1.0, 2.0)])
def test_impossible_counts_are_refused(bad: tuple[int, int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="need"):
        one_run.p_value(*bad)


def test_the_older_correction_is_exceeded_by_a_mechanism():
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


Points = tuple[tuple[float, float], ...]

CURVE: Points = ((0.2, 0.08), (0.8, 0.02), (1.6, 0.002))


def gaussian(mu: float, *epsilons: float) -> Points:
    cdf = stats.norm.cdf
    return tuple((e, float(cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu))) for e in epsilons)


def best_law(canaries: int, guesses: int, correct: int, points: Points) -> float:
    """Return the largest probability of ``correct`` or more right guesses, by linear programming."""
    r, n = guesses, guesses + 1
    rows, limits = [], []
    for i, (epsilon, delta) in enumerate(points):
        total = np.zeros(n + len(points) * r)
        for k in range(1, r + 1):
            row = np.zeros_like(total)
            row[k], row[k - 1] = k * math.exp(-epsilon), -(r - k + 1)
            row[n + i * r + k - 1] = -1.0
            total[n + i * r + k - 1] = 1.0
            rows.append(row)
            limits.append(0.0)
        rows.append(total)
        limits.append(canaries * delta * math.exp(-epsilon))
    gain, whole = np.zeros(n + len(points) * r), np.zeros((1, n + len(points) * r))
    gain[correct:n] = -1.0
    whole[0, :n] = 1.0
    found = optimize.linprog(gain, A_ub=sparse.csr_array(np.array(rows)), b_ub=limits, A_eq=whole, b_eq=[1.0])
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(("canaries", "guesses"), [(60, 24), (40, 40)])
@pytest.mark.parametrize(
    "points",
    [CURVE, gaussian(1.2, 0.2, 0.9, 1.8, 3.0)],
    ids=["three", "mu=1.2"],
)
def test_it_is_close_to_the_best_that_any_law_can_do(canaries: int, guesses: int, points: Points) -> None:
    seen = 0
    for correct in range(guesses // 2, guesses + 1, 2):
        bound, best = one_run.curve_p_value(canaries, guesses, correct, points), 0.0
        if bound < 0.25:
            best = best_law(canaries, guesses, correct, points)
            assert best <= bound * (1 + 1e-7)
            assert bound <= 1.6 * best
            seen += 1
        assert bound <= min(one_run.p_value(canaries, guesses, correct, *point) for point in points)
    assert seen > 0


def test_one_line_is_the_test_of_that_line() -> None:
    for correct in (20, 40, 49):
        single = one_run.p_value(60, 50, correct, 1.0, 1e-3)
        assert one_run.curve_p_value(60, 50, correct, ((1.0, 1e-3),)) == single
        dominated = ((1.0, 1e-3), (1.2, 1e-3), (900.0, 0.0))
        assert one_run.curve_p_value(60, 50, correct, dominated) == single
    assert one_run.curve_p_value(60, 50, 50, ()) == 1.0


@pytest.mark.parametrize("counts", [(400, 80, 78), (2000, 200, 177), (50, 50, 50)])
def test_lower_bound_on_mu_inverts_the_p_value(counts: tuple[int, int, int]) -> None:
    low = one_run.mu_lower(*counts, 0.95)
    assert low > 0
    assert one_run.curve_p_value(*counts, curve_lines.gaussian(low)) <= 0.05
    assert one_run.curve_p_value(*counts, curve_lines.gaussian(1.02 * low)) > 0.05


@pytest.mark.parametrize("canaries", [1, 7, 32, 249, 250, 100_000])
def test_the_guesses_of_a_curve_are_a_part_of_the_canaries(canaries: int) -> None:
    rungs = guess_counts.of_curve(canaries)
    guesses, largest = [sum(rung) for rung, _ in rungs], [mu for _, mu in rungs]
    assert guesses == sorted(set(guesses))
    assert 0 < guesses[0] <= guesses[-1] <= canaries
    assert largest == sorted(set(largest))
    assert largest[0] > 0.0
    assert largest[-1] == math.inf
    if canaries > 7:
        assert guesses[0] >= canaries / 20
        assert guesses[0] >= min(100, 0.4 * canaries)
        assert guesses[-1] >= canaries / 2


def normal_quantiles(canaries: int, shift: float) -> str:
    """Coins by ascending score for the quantiles of N(0, 1) and N(shift, 1)."""
    quantiles = special.ndtri((np.arange(canaries // 2) + 0.5) / (canaries // 2))
    coins = np.repeat([0, 1], canaries // 2)
    return "".join(map(str, coins[np.argsort(np.concatenate([quantiles, quantiles + shift]), kind="stable")]))


@pytest.mark.parametrize(("shift", "epsilon"), [(2.0, 7.91)])
def test_shown_epsilon_of_gaussian_quantiles_if_the_curve_is_gaussian(shift, epsilon):
    # 20,000 canaries; always 1,000 guesses showed 3.47, 7.92 and 9.15.
    mu, _ = guess_counts.mu_lower([normal_quantiles(20_000, shift)], 0.95)
    assert epsilon < curve_lines.gaussian_epsilon(mu, 1e-6) < epsilon + 0.1


def test_every_mu_below_the_bound_is_rejected_with_its_own_count_and_none_just_above() -> None:
    outcomes = normal_quantiles(1000, 3.0)
    low, guesses = guess_counts.mu_lower([outcomes], 0.95)

    def p_value(mu: float) -> float:
        rung = next(rung for rung, largest in guess_counts.of_curve(1000) if mu <= largest)
        (count,), (correct,) = guess_counts.counts([outcomes], [rung])
        return one_run.curve_p_value(1000, count, correct, curve_lines.gaussian(mu))

    assert guesses == 500
    assert max(p_value(mu) for mu in np.linspace(0.0, low, 12)) <= 0.05
    assert p_value(1.001 * low) > 0.05


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(0, 300)),
    st.lists(st.tuples(st.floats(0.0, 800.0), st.floats(0.0, 1.0)), max_size=8),
)
def test_any_points_and_counts_have_a_p_value(counts: tuple[int, int, int], points: list[tuple[float, float]]) -> None:
    correct, guesses, canaries = sorted(counts)
    p = one_run.curve_p_value(canaries, guesses, correct, tuple(points))
    assert 0.0 <= p <= 1.0
    single = min((one_run.p_value(canaries, guesses, correct, *point) for point in points), default=1.0)
    assert p <= single * (1 + 1e-9)
    again = one_run.curve_p_value(canaries, guesses, correct, one_run.support(points))
    assert p == pytest.approx(again, rel=1e-9)
