import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
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


@pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (7, 5), (60, 60), (200, 90)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_equals_the_bound_written_out(canaries: int, guesses: int, epsilon: float, delta: float) -> None:
    for correct in range(1, guesses + 1):
        expected = slow_p_value(canaries, guesses, correct, epsilon, delta)
        assert one_run.p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.family
@pytest.mark.parametrize(("canaries", "guesses"), [(5, 5), (40, 25), (80, 80)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-3, 1e-2])
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


def test_nothing_is_shown_by_guessing_or_by_too_large_a_delta() -> None:
    assert one_run.epsilon_lower(100, 100, 50, 0.0, 0.95) == 0.0
    assert one_run.epsilon_lower(100, 0, 0, 0.0, 0.95) == 0.0
    assert one_run.epsilon_lower(100, 100, 100, 0.5, 0.95) == 0.0


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


@pytest.mark.parametrize(("canaries", "guesses"), [(60, 24), (40, 40), (200, 60)])
@pytest.mark.parametrize(
    "points",
    [CURVE, gaussian(0.6, 0.0, 0.3, 0.7, 1.2, 2.0), gaussian(1.2, 0.2, 0.9, 1.8, 3.0)],
    ids=["three", "mu=0.6", "mu=1.2"],
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


@pytest.mark.family
@pytest.mark.parametrize(("canaries", "guesses"), [(400, 60), (20_000, 300), (300, 300)])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_without_an_error_it_is_what_a_recursion_gives(canaries, guesses, mu):
    # P[V = r] = beta takes the least mass below it: with tails G_k and A_k = E[V; V >= k], each k needs G_(k-1) such
    # that A_k <= m F(((r - k + 1) G_(k-1) + (k - 1) G_k - A_k) / m); beta is the largest for which G_0 <= 1.
    points = curve_lines.gaussian(mu)
    slopes = np.exp([e for e, _ in points])
    offsets = canaries * np.array([d for _, d in points])

    def mass(beta: float) -> float:
        tail, inside = beta, guesses * beta
        for k in range(guesses, 0, -1):
            needed = max(0.0, float(np.max((inside - offsets) / slopes)))
            before = max(tail, (needed + inside - (k - 1) * tail) / (guesses - k + 1))
            inside += (k - 1) * (before - tail)
            tail = before
        return tail

    low, high = 1e-40, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mass(middle) <= 1.0 else (low, middle)
    bound = one_run.curve_p_value(canaries, guesses, guesses, points)
    assert low * (1 - 1e-6) <= bound
    assert bound <= (1.5 if low > 1e-6 else 10.0) * low or bound > 0.25


@pytest.mark.family
@pytest.mark.parametrize(("canaries", "guesses"), [(2, 2), (3, 3), (3, 2)])
@pytest.mark.parametrize(
    "points",
    [
        ((0.5, 0.02), (1.5, 0.004)),
        ((0.0, 0.15), (0.6, 0.05), (2.0, 0.001)),
        *(((e, d),) for e, d in [(0.5, 0.0), (0.5, 0.02), (1.5, 0.05)]),
    ],
)
def test_no_mechanism_beats_it(canaries: int, guesses: int, points: Points) -> None:
    coins = list(product((-1, 1), repeat=canaries))
    answers = [t for t in product((-1, 0, 1), repeat=canaries) if sum(map(abs, t)) == guesses]
    pairs = [(s, u) for s in coins for u in coins if sum(a != b for a, b in zip(s, u, strict=True)) == 1]
    n, k = len(coins), len(answers)
    variables = n * k + len(points) * len(pairs) * k
    rows, limits = [], []
    for i, (epsilon, delta) in enumerate(points):
        for j, (s, u) in enumerate(pairs):
            total = np.zeros(variables)
            for t in range(k):
                slack = n * k + (i * len(pairs) + j) * k + t
                row = np.zeros(variables)
                row[coins.index(s) * k + t], row[coins.index(u) * k + t], row[slack] = 1.0, -math.exp(epsilon), -1.0
                total[slack] = 1.0
                rows.append(row)
                limits.append(0.0)
            rows.append(total)
            limits.append(delta)
    sums = np.zeros((n, variables))
    for s in range(n):
        sums[s, s * k : (s + 1) * k] = 1.0
    for correct in range(1, guesses + 1):
        gain = np.zeros(variables)
        for (i, c), (t, answer) in product(enumerate(coins), enumerate(answers)):
            if sum(a == b for a, b in zip(c, answer, strict=True)) >= correct:
                gain[i * k + t] = 1.0 / n
        found = optimize.linprog(-gain, A_ub=sparse.csr_array(np.array(rows)), b_ub=limits, A_eq=sums, b_eq=np.ones(n))
        assert found.success
        bound = one_run.curve_p_value(canaries, guesses, correct, tuple(points))
        assert -found.fun <= bound + 1e-9
        if len(points) == 1:
            assert -found.fun == pytest.approx(bound, rel=1e-6)
        # Right guesses alone decide: the law of their number reaches as much as any mechanism.
        assert -found.fun == pytest.approx(best_law(canaries, guesses, correct, points), rel=1e-6)


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


@pytest.mark.parametrize("canaries", [1, 2, 7, 32, 100, 249, 250, 2000, 2001, 100_000])
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


@pytest.mark.parametrize(("shift", "epsilon"), [(2.0, 7.91), pytest.param(4.0, 15.8, marks=pytest.mark.ci)])
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


def test_a_larger_claim_has_no_much_smaller_p_value() -> None:
    """The search starts in one of several ranges of equal bounds, and finds its way out on any processor."""
    claimed = np.array([0.9, 0.94, 0.95, 0.96, 1.0, 1.05]) * 2.03125
    p_values = [one_run.curve_p_value(1000, 1000, 1000, curve_lines.concentrated(rho)) for rho in claimed]
    assert all(after > 0.9 * before for before, after in pairwise(p_values))
    assert 0.02 < p_values[0] < 0.03 < 0.06 < p_values[-1] < 0.07


def test_lower_bound_on_mu_without_evidence_is_nothing() -> None:
    assert one_run.mu_lower(100, 100, 50, 0.95) == 0.0
    with pytest.raises(ValueError, match="need"):
        one_run.curve_p_value(5, 6, 1, CURVE)


@pytest.mark.parametrize(("guesses", "correct"), [(30, 30), (60, 50), (4000, 3000), (20_000, 13_000)])
@pytest.mark.parametrize("steep", [0.2, 1.5])
def test_what_is_found_meets_the_inequalities_that_the_proof_needs(guesses: int, correct: int, steep: float) -> None:
    slopes = np.exp(0.3 + steep * (np.arange(1, correct + 1) / correct) ** 8)
    found = one_run._meet(guesses, correct, slopes.tolist(), 10.0)
    assert found is not None
    z, weights = found
    a = np.array([0.0, *weights])
    steps = np.diff(a[: correct + 1])
    assert len(a) == guesses + 1
    assert np.all(steps >= 0.0)
    assert np.all(a <= a[correct] * (1 + 1e-9))
    b = np.interp(a, a[: correct + 1], np.concatenate(([0.0], np.cumsum(slopes * steps))))
    d = np.arange(guesses + 1)
    right = 1.0 + d * a - (guesses - d) * np.append(b[1:], 0.0)  # of (2), in units of z
    left = np.where(d >= correct, 1.0 / z, 0.0)
    assert np.all(left <= right + 1e-7 * np.maximum(left, d * a))


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


def test_many_guesses_take_no_time_and_huge_epsilons_no_digits() -> None:
    assert one_run.curve_p_value(20_000, 20_000, 19_990, curve_lines.gaussian(1.0)) < 1e-8
    assert 0.0 < one_run.curve_p_value(20_000, 300, 300, curve_lines.gaussian(0.7)) < 1e-5
    curve = one_run.curve_p_value(1000, 1000, 1000, ((0.5, 1e-2), (750.0, 0.0)))
    assert curve == one_run.p_value(1000, 1000, 1000, 0.5, 1e-2)
