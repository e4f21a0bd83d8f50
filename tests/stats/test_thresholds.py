import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from dpspec.stats import binomial
from dpspec.stats.attacks import curve_lines, thresholds
from dpspec.stats.attacks.thresholds import fixed_curve_p_value, fixed_epsilon_lower, fixed_largest


def ranked(mu: float, present: int, absent: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    scores = np.concatenate((mu + rng.standard_normal(present), rng.standard_normal(absent)))
    return thresholds.outcomes(scores, np.arange(present + absent) < present)


def test_it_is_valid_where_scores_say_nothing():
    # Enumerate all orders of the runs, which are equally likely.
    runs, present = 10, 3
    orders = [
        "".join("1" if i in chosen else "0" for i in range(runs)) for chosen in combinations(range(runs), present)
    ]
    p = np.array([thresholds.p_value(order, ((0.0, 0.0),)) for order in orders])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert np.mean(p <= level) <= level
    assert p.min() < 1.0


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_the_lower_bound_covers_a_gaussian_mechanism(mu):
    # Seeds 0 to 199, 95%: at most the 99.9% quantile of Bin(200, 0.05) above the truth.
    true = curve_lines.gaussian_epsilon(mu, 1e-3)
    found = [thresholds.epsilon_lower(ranked(mu, 150, 150, seed), 1e-3, 0.95) for seed in range(200)]
    assert sum(value > true for value in found) <= stats.binom.ppf(0.999, 200, 0.05)
    assert np.median(found) > 0.1 * true or mu < 1.0


def test_ties_are_ordered_against_the_attack() -> None:
    assert thresholds.outcomes([1.0, 1.0, 0.0, 2.0], [False, True, False, True]) == "0101"
    coarse = [
        thresholds.outcomes(np.floor(2 * np.random.default_rng(s).random(60)), np.arange(60) < 30) for s in range(200)
    ]
    wrong = sum(thresholds.epsilon_lower(order, 0.0, 0.95) > 0.0 for order in coarse)
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_the_best_threshold_is_one_of_those_tried() -> None:
    epsilon = thresholds.epsilon_lower(50 * "0" + "10" + 49 * "1", 1e-5, 0.95)
    tries = 2 * len([0, 1, 2, 4, 8, 16, 32])
    expected = thresholds.fixed_epsilon_lower(50, 51, 49, 0, 1e-5, 1 - 0.05 / tries)
    assert epsilon == pytest.approx(expected, rel=1e-9)
    assert thresholds.p_value(50 * "0" + "10" + 49 * "1", ((epsilon, 1e-5),)) == pytest.approx(0.05, rel=1e-4)


def test_a_whole_curve_is_one_test() -> None:
    order = ranked(2.0, 100, 100, 5)
    points = ((0.2, 0.08), (0.8, 0.02), (1.6, 0.002))
    assert thresholds.p_value(order, points) == min(thresholds.p_value(order, (point,)) for point in points)
    assert thresholds.p_value(order, ()) == 1.0


def test_sides_without_runs_show_nothing() -> None:
    for order in ("", "000", "11"):
        assert thresholds.p_value(order, ((0.0, 0.0),)) == 1.0
        assert thresholds.epsilon_lower(order, 0.0, 0.95) == 0.0
    assert thresholds.epsilon_lower("0101", 0.0, 0.95) == 0.0


def test_power_is_what_perfect_scores_show() -> None:
    each = 1 - 0.05 / 20  # 0, 1, 2, ..., 256 errors of either kind
    assert thresholds.largest(500, 500, 1e-5, 0.95) == thresholds.fixed_largest(500, 500, 1e-5, each)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: thresholds.p_value("012", ((0.0, 0.0),)), "0 and 1"),
        (lambda: thresholds.outcomes([1.0, math.nan], [True, False]), "without NaN"),
        (lambda: thresholds.outcomes([1.0], [True, False]), "equal length"),
    ],
)
def test_what_makes_no_sense_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(("present", "absent"), [(20, 20), (12, 30)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_p_value_is_valid_at_every_pair_of_rates_on_the_edge(present, absent, epsilon, delta):
    p = np.array(
        [
            [fixed_curve_p_value(present, absent, t, f, [(epsilon, delta)]) for f in range(absent + 1)]
            for t in range(present + 1)
        ]
    )
    for fpr in (0.0, 0.01, 0.1, 0.3, 0.6, 0.95):
        tpr = min(1.0, math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - fpr - delta))
        mass = np.outer(
            stats.binom.pmf(range(present + 1), present, tpr), stats.binom.pmf(range(absent + 1), absent, fpr)
        )
        for level in (1e-6, 1e-3, 0.05, 0.2):
            assert mass[p <= level].sum() <= level


@pytest.mark.parametrize("counts", [(50, 50, 45, 3), (100, 80, 100, 0), (30, 30, 12, 0), (200, 200, 199, 150)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
def test_lower_bound_inverts_the_p_value(counts: tuple[int, int, int, int], delta: float) -> None:
    low = fixed_epsilon_lower(*counts, delta, 0.95)
    assert low > 0
    assert fixed_curve_p_value(*counts, [(low, delta)]) == pytest.approx(0.05, rel=1e-6)
    assert (
        fixed_curve_p_value(*counts, [(0.99 * low, delta)]) < 0.05 < fixed_curve_p_value(*counts, [(1.01 * low, delta)])
    )


def test_power_is_what_an_attack_without_errors_shows() -> None:
    tpr, fpr = 0.025 ** (1 / 500), 1 - 0.025 ** (1 / 500)
    assert fixed_largest(500, 500, 1e-5, 0.95) == pytest.approx(math.log((tpr - 1e-5) / fpr), rel=1e-9)


def test_extreme_counts_give_finite_answers() -> None:
    assert fixed_curve_p_value(10, 10, 0, 10, [(1.0, 0.0)]) == 1.0
    assert fixed_curve_p_value(10, 10, 5, 5, [(0.0, 0.0)]) == 1.0
    assert fixed_curve_p_value(0, 0, 0, 0, [(1.0, 0.0)]) == 1.0
    assert fixed_epsilon_lower(0, 0, 0, 0, 0.0, 0.95) == 0.0
    assert fixed_curve_p_value(10, 10, 10, 0, [(1e4, 0.0)]) == 1.0
    assert 0.0 <= fixed_curve_p_value(10**6, 10**6, 10**6, 0, [(1.0, 1e-6)]) < 1e-300


def test_p_value_is_the_smallest_level_whose_bounds_exclude_the_null() -> None:
    counts, epsilon, delta = (60, 60, 50, 4), 1.0, 1e-3

    def excluded(level: float) -> bool:
        tpr = binomial.lower(counts[2], counts[0], 1 - level / 2)
        fpr = binomial.upper(counts[3], counts[1], 1 - level / 2)
        return tpr > math.exp(epsilon) * fpr + delta or 1 - fpr > math.exp(epsilon) * (1 - tpr) + delta

    p = fixed_curve_p_value(*counts, [(epsilon, delta)])
    assert excluded(p * (1 + 1e-6))
    assert not excluded(p * (1 - 1e-6))
