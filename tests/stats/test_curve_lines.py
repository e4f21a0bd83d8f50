import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dpspec.stats.attacks import curve_lines


def ranked_coins(mu: float, canaries: int, seed: int) -> str:
    """Inclusion bits by ascending score: N(0, 1) of absent and N(mu, 1) of inserted canaries."""
    source = np.random.default_rng(seed)
    coins = source.integers(0, 2, canaries)
    scores = source.standard_normal(canaries) + mu * coins
    return "".join(map(str, coins[np.argsort(scores, kind="stable")]))


@pytest.mark.family
@pytest.mark.parametrize("mu", [1e-3, 1.0, 20.0])
def test_gaussian_points_lie_on_the_curve(mu: float) -> None:
    for epsilon, delta in curve_lines.gaussian(mu):
        start = epsilon / mu + mu / 2  # where the densities' ratio is e^epsilon

        def excess(x: float, epsilon: float = epsilon) -> float:
            return float(stats.norm.pdf(x - mu)) * -math.expm1(epsilon - mu * x + mu * mu / 2)

        area, _ = integrate.quad(excess, start, max(start, mu) + 12, epsabs=0)
        assert delta == pytest.approx(area, rel=1e-6)
        assert delta >= area * (1 - 1e-8)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 8.0, 64.0])
def test_renyi_points_are_above_a_mechanism_with_that_divergence(mu: float, alpha: float) -> None:
    for epsilon, delta in curve_lines.renyi(alpha, alpha * mu * mu / 2):
        true = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert true <= delta


def delta_at(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def most_power(p: np.ndarray, q: np.ndarray, fpr: float) -> float:
    """The Neyman-Pearson power at a false-positive rate, randomised tests included."""
    power, left = 0.0, fpr
    for i in sorted(range(len(p)), key=lambda k: -p[k] / q[k]):
        share = min(1.0, left / q[i])
        power, left = power + share * p[i], left - share * q[i]
    return power


weights = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@given(weights, st.data())
def test_tradeoff_pairs_are_implied_by_the_points(raw: list[float], data: st.DataObject) -> None:
    p = np.array(raw) / sum(raw)
    other = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(raw), max_size=len(raw)))
    q = np.array(other) / sum(other)
    rates = data.draw(st.lists(st.floats(1e-3, 0.9), min_size=1, max_size=4))
    slack = data.draw(st.floats(0.0, 0.2))
    points = [(f, max(most_power(p, q, f), most_power(q, p, f)) + slack) for f in rates]
    for epsilon, delta in curve_lines.tradeoff(points):
        if (epsilon, delta) == (0.0, 0.0):  # a point on or below the diagonal
            assert any(t <= f for f, t in points) or np.allclose(p, q)
            continue
        assert delta_at(p, q, epsilon) <= delta + 1e-9
        assert delta_at(q, p, epsilon) <= delta + 1e-9


def test_tradeoff_of_one_point_is_the_line_to_where_power_may_be_one():
    # R(f) <= 0.01 up to f = 0.001, so R(f) <= 10 f beyond: the hull runs from (0, 0.01) to (0.1, 1).
    ((epsilon, delta),) = curve_lines.tradeoff([(1e-3, 1e-2)])
    assert (math.exp(epsilon), delta) == pytest.approx((9.9, 0.01))


@pytest.mark.parametrize(
    "points",
    [
        [(0.00012471787657238515, 0.842782778880009), (5.5168848492728434e-05, 0.7937442873701265)],
        [(1e-6, 0.3), (1e-4, 1.0 - 2.0**-52)],
        [(0.2, 0.9), (0.7, 1.0 - 2.0**-53)],
    ],
)
def test_rounding_never_makes_a_line_say_more_than_the_points(points: list[tuple[float, float]]) -> None:
    """No line is below the curve that the points imply, in exact arithmetic except e^epsilon."""
    exact = [(Fraction(f), Fraction(t)) for f, t in points]
    kinks = [f for f, _ in exact] + [
        min(Fraction(1), f * u / t) for f, t in exact for _, u in [*exact, (0, Fraction(1))]
    ]
    rates = [Fraction(0), *kinks, Fraction(1)]
    bounds = [min([Fraction(1), *(t * max(Fraction(1), rate / f) for f, t in exact)]) for rate in rates]
    for epsilon, delta in curve_lines.tradeoff(points):
        rising = [Fraction(delta) + Fraction(math.exp(epsilon)) * rate for rate in rates]
        falling = [1 - (1 - rate - Fraction(delta)) / Fraction(math.exp(epsilon)) for rate in rates]
        assert any(all(map(operator.ge, line, bounds)) for line in (rising, falling)), (epsilon, delta)


def test_ends_of_the_curves() -> None:
    assert curve_lines.gaussian(0.0) == ((0.0, 0.0),)
    assert curve_lines.gaussian(1e-300) == curve_lines.gaussian(1e-100)
    assert curve_lines.gaussian(1e300) == ((0.0, 1.0),)
    with pytest.raises(ValueError, match="alpha"):
        curve_lines.renyi(1.0, 0.5)
    assert curve_lines.tradeoff([(0.0, 0.5), (0.3, 1.0)]) == ()
    assert curve_lines.tradeoff([(0.2, 0.1)]) == ((0.0, 0.0),)


@given(st.lists(st.tuples(st.floats(1e-3, 0.9), st.floats(0.0, 1.0)), min_size=1, max_size=5))
def test_tradeoff_lines_lie_above_the_bound_that_the_points_give(raw: list[tuple[float, float]]) -> None:
    points = [(f, f + (1 - f) * share) for f, share in raw]
    pairs = curve_lines.tradeoff(points)
    if (0.0, 0.0) in pairs or not pairs:
        return
    for rate in np.linspace(0, 1, 101):
        bound = min([1.0, *(t * max(1.0, rate / f) for f, t in points)])
        for epsilon, delta in pairs:
            rising, flat = delta + math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - rate - delta)
            assert max(rising, flat) >= bound - 1e-9


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.5])
def test_the_estimate_is_centered_on_mu(mu: float) -> None:
    found = [curve_lines.estimate_mu([ranked_coins(mu, 250, seed)]) for seed in range(400)]
    assert np.median(found) == pytest.approx(mu, abs=0.12)


def test_pairs_are_compared_within_trials() -> None:
    one, other = ranked_coins(1.0, 200, 0), ranked_coins(1.0, 200, 1)
    wins = [sum(coins[:i].count("0") for i, coin in enumerate(coins) if coin == "1") for coins in (one, other)]
    pairs = sum(coins.count("0") * coins.count("1") for coins in (one, other))
    assert curve_lines.estimate_mu([one, other]) == pytest.approx(math.sqrt(2) * stats.norm.ppf(sum(wins) / pairs))
    assert curve_lines.estimate_mu([one, one]) == curve_lines.estimate_mu([one])


@pytest.mark.parametrize(("coins", "mu"), [(60 * "1" + 60 * "0", 0.0), (45 * "01" + 55 * "10", 0.0), ("0011", 11.0)])
def test_noise_is_no_evidence_and_perfect_scores_are_finite(coins: str, mu: float) -> None:
    assert curve_lines.estimate_mu([coins]) == mu


def test_epsilon_at_the_ends() -> None:
    assert curve_lines.gaussian_epsilon(0.0, 1e-5) == 0.0
    assert curve_lines.gaussian_epsilon(0.1, 0.5) == 0.0
    assert curve_lines.gaussian_epsilon(math.inf, 1e-5) == math.inf
    with pytest.raises(ValueError, match="delta"):
        curve_lines.gaussian_epsilon(1.0, 0.0)
