import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse, special, stats

from dpspec.stats.attacks import curve_lines, guess_counts, one_run


def laws(guesses: tuple[int, ...], q: float) -> list[tuple[float, tuple[int, ...]]]:
    """Return the probability and the counts of every outcome of independent guesses at nested counts."""
    parts = [b - a for a, b in zip((0, *guesses), guesses, strict=False)]
    outcomes = []
    for right in product(*(range(n + 1) for n in parts)):
        chance = math.prod(float(stats.binom.pmf(k, n, q)) for k, n in zip(right, parts, strict=True))
        outcomes.append((chance, tuple(int(v) for v in np.cumsum(right))))
    return outcomes


@pytest.mark.family
@pytest.mark.parametrize("guesses", [(4, 9), (3, 5, 7)])
@pytest.mark.parametrize("epsilon", [0.0, 1.4])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_it_is_valid_for_randomised_response(guesses: tuple[int, ...], epsilon: float, delta: float) -> None:
    q = float(special.expit(epsilon))
    outcomes = laws(guesses, q)
    p = [guess_counts.p_value(guesses[-1], guesses, right, ((epsilon, delta),)) for _, right in outcomes]
    for level in (1e-4, 0.01, 0.05, 0.2, 0.5):
        rejected = math.fsum(chance for (chance, _), value in zip(outcomes, p, strict=True) if value <= level)
        assert rejected <= level * (1 + 1e-9)
    if delta == 0.0:  # without a correction the test is exact: it reaches its level at its values
        p = [guess_counts._joint(guesses[-1], guesses, right, epsilon, delta) for _, right in outcomes]
        for value in {v for v in p if v < 1.0}:
            level = math.fsum(c for (c, _), v in zip(outcomes, p, strict=True) if v <= value * (1 + 1e-9))
            assert level == pytest.approx(value, rel=1e-6)


@pytest.mark.family
@pytest.mark.parametrize("guesses", [(2, 4), (1, 3, 6), (3, 5)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.7, 0.0), (0.7, 0.004), (1.8, 0.02)])
def test_no_law_of_right_guesses_beats_it(guesses: tuple[int, ...], epsilon: float, delta: float) -> None:
    """Return the largest probability of each rejection region under DP averaged over coins, by linear programming."""
    r = guesses[-1]
    laws_ = list(product((0, 1), repeat=r))
    place = {x: i for i, x in enumerate(laws_)}
    edges = [(x, i) for x in laws_ for i in range(r) if x[i] == 1]
    variables = len(laws_) + len(edges)
    rows = sparse.lil_array((len(edges) + 1, variables))
    for j, (x, i) in enumerate(edges):
        rows[j, place[x]] = 1.0
        rows[j, place[(*x[:i], 0, *x[i + 1 :])]] = -math.exp(epsilon)
        rows[j, len(laws_) + j] = -1.0
        rows[len(edges), len(laws_) + j] = 1.0
    limits = [0.0] * len(edges) + [r * delta]
    whole = np.zeros((1, variables))
    whole[0, : len(laws_)] = 1.0
    counted = {x: tuple(sum(x[:n]) for n in guesses) for x in laws_}
    p = {v: guess_counts.p_value(r, guesses, v, ((epsilon, delta),)) for v in set(counted.values())}
    for level in sorted({value for value in p.values() if value < 1.0}):
        gain = np.zeros(variables)
        gain[[place[x] for x, v in counted.items() if p[v] <= level]] = -1.0
        found = optimize.linprog(gain, A_ub=rows.tocsr(), b_ub=limits, A_eq=whole, b_eq=[1.0])
        assert found.success
        assert -found.fun <= level * (1 + 1e-7)


def attack(mu: float, m: int, rungs: tuple[guess_counts.Rung, ...], seed: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, m)
    order = coins[np.argsort(rng.standard_normal(m) + mu * coins)]
    return guess_counts.counts(["".join(map(str, order))], rungs)


@pytest.mark.parametrize(
    ("m", "mu", "seeds", "half"),
    [
        (2000, 1.0, 60, 32),
        *(
            pytest.param(20_000, mu, 200, half, marks=pytest.mark.slow)
            for mu, half in ((0.502, 144), (0.9254, 144), (1.666, 384))
        ),
    ],
)
def test_the_lower_bound_covers_a_gaussian_mechanism_and_is_worth_having(m, mu, seeds, half):
    """``half`` of the guesses on either side have the largest expected lower bound."""
    # Seeds 0, 1, ..., 95%: at most the 99.9% quantile of the binomial above the truth: 21 of 200.
    delta = 1e-5
    true = curve_lines.gaussian_epsilon(mu, delta)  # 4.38; slow: 2, 4 and 8
    rungs = guess_counts.around(half, half, m)
    found = [guess_counts.epsilon_lower(m, *attack(mu, m, rungs, seed), delta, 0.95) for seed in range(seeds)]
    assert sum(value > true for value in found) <= stats.binom.ppf(0.999, seeds, 0.05)
    counted = [attack(mu, m, (rungs[1],), seed) for seed in range(40)]
    single = [one_run.epsilon_lower(m, g[0], v[0], delta, 0.95) for g, v in counted]
    assert np.mean(found[:40]) > 0.94 * np.mean(single)
    assert np.median(found) > (0.5 if m > 2000 else 0.33) * true


@pytest.mark.parametrize(
    ("guesses", "correct"), [((20, 60, 200), (20, 55, 140)), ((50, 400), (50, 330)), ((10, 20, 30), (10, 20, 30))]
)
def test_the_lower_bound_lies_between_bonferroni_and_the_best_single_count(guesses, correct):
    low = guess_counts.epsilon_lower(500, guesses, correct, 1e-5, 0.95)
    pairs = list(zip(guesses, correct, strict=True))
    least = max(one_run.epsilon_lower(500, r, v, 1e-5, 1 - 0.05 / len(guesses)) for r, v in pairs)
    assert least - 0.01 <= low <= max(one_run.epsilon_lower(500, r, v, 1e-5, 0.95) for r, v in pairs)
    assert guess_counts.p_value(500, guesses, correct, ((low, 1e-5),)) <= 0.05
    assert guess_counts.p_value(500, guesses, correct, ((1.02 * low + 0.01, 1e-5),)) > 0.05


def test_a_whole_curve_costs_nothing_and_one_count_is_one_test() -> None:
    points = curve_lines.gaussian(1.0)
    several = guess_counts.p_value(400, (80, 400), (79, 330), points)
    assert several == 2 * min(one_run.curve_p_value(400, *pair, points) for pair in ((80, 79), (400, 330)))
    assert guess_counts.p_value(400, (80,), (79,), points) == one_run.curve_p_value(400, 80, 79, points)
    assert guess_counts.p_value(400, (80, 400), (79, 330), ()) == 1.0
    assert guess_counts.p_value(400, (80, 400), (0, 0), points) == 1.0


def test_nothing_is_shown_by_guessing() -> None:
    assert guess_counts.epsilon_lower(100, (10, 100), (5, 50), 0.0, 0.95) == 0.0
    assert guess_counts.epsilon_lower(100, (10, 100), (5, 50), 0.5, 0.95) == 0.0
    weak = guess_counts.epsilon_lower(100, (10, 100), (6, 62), 0.0, 0.95)
    assert 0.0 < weak < one_run.epsilon_lower(100, 100, 62, 0.0, 0.95) + 0.01
    assert 8.0 < guess_counts.largest(20_000, (100, 20_000), 1e-6, 0.95) < 8.81


def test_counts_share_out_guesses_among_trials() -> None:
    assert guess_counts.counts(["000111"], ((1, 1), (3, 3))) == ([2, 6], [2, 6])
    assert guess_counts.counts(["000111", "010101"], ((2, 2), (6, 6))) == ([4, 12], [4, 10])
    assert guess_counts.counts(["0011", ""], ((1, 2), (2, 2), (90, 90))) == ([3, 4], [3, 4])
    assert guess_counts.counts(["10110"], ((0, 2), (3, 3))) == ([2, 5], [1, 2])


@given(st.lists(st.text("01", min_size=1, max_size=40), min_size=1, max_size=4), st.integers(1, 60), st.integers(1, 60))
def test_counts_are_nested(outcomes: list[str], low: int, high: int) -> None:
    total = sum(map(len, outcomes))
    guesses, correct = guess_counts.counts(outcomes, ((low, high), (2 * low, 2 * high), (total, total)))
    assert guesses[-1] == total
    assert 0.0 < guess_counts.p_value(total, guesses, correct, ((0.5, 0.01),)) <= 1.0


def test_expected_counts_fit_however_they_were_rounded():
    # On some processors 7 of 7 rounds to slightly below 7, and 14 of 14 does not.
    assert guess_counts.fitting([7, 14, 20], [7.0 - 1e-12, 14.0, 19.3]) == [6, 13, 19]
    assert guess_counts.fitting([5, 10], [4.2, 3.9]) == [4, 4]


def test_rungs_go_around_a_count_and_end_with_all() -> None:
    assert guess_counts.around(10, 20, 2000) == ((5, 10), (10, 20), (20, 40), (40, 80), (1000, 1000))
    assert guess_counts.around(10, 10, 21) == ((5, 5), (10, 10), (11, 10))


@pytest.mark.parametrize(
    ("guesses", "correct", "message"),
    [
        ((), (), "rise strictly"),
        ((10, 10), (5, 5), "rise strictly"),
        ((10, 200), (5, 5), "up to 100"),
        ((10, 20), (5,), "for each count"),
        ((10, 20), (5, 16), "do not fit"),
        ((10, 20), (11, 12), "do not fit"),
    ],
)
def test_counts_that_make_no_sense_are_refused(guesses, correct, message):
    with pytest.raises(ValueError, match=message):
        guess_counts.p_value(100, guesses, correct, ((1.0, 0.0),))


@given(
    guesses=st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True).map(sorted),
    shares=st.lists(st.floats(0.5, 1.0), min_size=4, max_size=4),
    epsilon=st.floats(0.0, 5.0),
    delta=st.sampled_from([0.0, 1e-5, 1e-3]),
    level=st.floats(1e-8, 0.5),
)
def test_a_rejection_is_that_of_the_whole_p_value(guesses, shares, epsilon, delta, level):
    canaries = guesses[-1] + 5
    correct = guess_counts.fitting(guesses, [share * count for share, count in zip(shares, guesses, strict=False)])
    for points in ([(epsilon, delta)], [(epsilon, delta + 1e-4), (epsilon + 1.0, delta)]):
        p_value = guess_counts.p_value(canaries, guesses, correct, points)
        assert (guess_counts.p_value(canaries, guesses, correct, points, level) <= level) == (p_value <= level)
        if 0.0 < p_value < 1.0:
            assert guess_counts.p_value(canaries, guesses, correct, points, p_value) <= p_value
