"""The best of a random number of tries: compare with the output distribution, summed over numbers of tries."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.accounting import best_epsilon, gaussian_rdp
from dpspec.accounting.rdp import SELECTION_ORDERS, Tries, drawn_cell_rdp, selection_rdp

#: Omitted tail of the sum over numbers of tries.
TAIL = 1e-13


def chances(tries: Tries) -> Iterator[float]:
    """P[K = 0], P[K = 1], ..., by their recursions and gamma alone, until next to nothing is left."""
    if tries.law == "poisson":
        chance = math.exp(-tries.mean)
        yield chance
    else:
        gamma, eta = math.exp(-tries.log_inverse_gamma), float(tries.shape or 0.0)
        yield 0.0
        constant = 1.0 / -math.log(gamma) if eta == 0.0 else eta / math.expm1(-eta * math.log(gamma))
        chance = constant * (1.0 - gamma)
        yield chance
    mass, k = 0.0, 1
    while mass < 1.0 - TAIL and k < 3000:
        if tries.law == "poisson":
            chance *= tries.mean / k
        else:
            chance *= (1.0 - gamma) * (k + eta) / (k + 1)
        mass, k = mass + chance, k + 1
        yield chance


def published(law: np.ndarray, tries: Tries) -> np.ndarray:
    """The law of the best of the tries; outcomes from worst to best, and before them that nothing was tried."""
    below = np.concatenate(([0.0], np.cumsum(law)))
    each = np.array(list(chances(tries)))
    powers = below[:, None] ** np.arange(len(each))  # 0^0 is 1: of no tries, none is better than nothing
    return np.diff(powers @ each, prepend=0.0)


def divergence(order: float, first: np.ndarray, second: np.ndarray) -> float:
    there = first > 0.0
    logs = order * np.log(first[there]) + (1.0 - order) * np.log(second[there])
    return float(np.logaddexp.reduce(logs)) / (order - 1.0)


def both_ways(order: float, first: np.ndarray, second: np.ndarray) -> float:
    return max(divergence(order, first, second), divergence(order, second, first), 0.0)


def profile(epsilon: float, first: np.ndarray, second: np.ndarray) -> float:
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


LAWS = st.one_of(
    st.builds(Tries, st.sampled_from(["geometric", "logarithmic"]), st.floats(1.01, 8.0)),
    st.builds(
        Tries,
        st.just("truncated-negative-binomial"),
        st.floats(1.01, 8.0),
        st.floats(-0.5, 3.0).filter(lambda eta: abs(eta) > 1e-3),
    ),
    st.builds(Tries, st.just("poisson"), st.floats(0.1, 8.0)),
)
OUTCOMES = st.integers(2, 5).flatmap(
    lambda n: st.tuples(*(st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n) for _ in range(2)))
)


@given(OUTCOMES, LAWS, st.sampled_from([1.2, 2.0, 5.0, 20.0]))
def test_what_is_published_diverges_no_more_than_the_bound(weights, tries, order):
    first, second = (np.array(w) / sum(w) for w in weights)
    orders = np.array([order, *SELECTION_ORDERS[::8]])
    one = np.array([both_ways(a, first, second) for a in orders])
    bound = float(selection_rdp(orders, one, tries)[0])
    truth = both_ways(order, published(first, tries), published(second, tries))
    assert truth <= bound * (1.0 + 1e-9) + 1e-9


@pytest.mark.parametrize(
    "tries",
    [
        Tries("geometric", 5.0),
        Tries("logarithmic", 5.0),
        Tries("truncated-negative-binomial", 5.0, -0.5),
        Tries("poisson", 5.0),
    ],
    ids=lambda tries: tries.law,
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_randomised_response_with_a_score(tries: Tries, epsilon: float) -> None:
    """One bit kept with chance e^eps / (1 + e^eps), the better answer 1: choosing costs, and no more than is said."""
    kept = 1.0 / (1.0 + math.exp(-epsilon))
    first, second = np.array([kept, 1.0 - kept]), np.array([1.0 - kept, kept])
    orders = np.array(SELECTION_ORDERS)
    one = np.array([both_ways(a, first, second) for a in orders])
    rdp = selection_rdp(orders, one, tries)
    left, right = published(first, tries), published(second, tries)
    for delta in (1e-1, 1e-3, 1e-6):
        bound = best_epsilon(orders, rdp, delta).epsilon
        assert max(profile(bound, left, right), profile(bound, right, left)) <= delta
    assert max(profile(epsilon, left, right), profile(epsilon, right, left)) > 1e-3  # one try is epsilon-DP


@pytest.mark.parametrize(("law", "eta"), [("geometric", 1.0), ("logarithmic", 0.0)])
def test_of_pure_privacy_it_costs_the_factor_of_the_corollary(law: str, eta: float) -> None:
    """Papernot and Steinke 2022, Corollary 3: eps-DP tries give (2 + eta) eps-DP; large orders come near it."""
    orders = np.array([*SELECTION_ORDERS, 1e6, 1e9])
    rdp = selection_rdp(orders, np.full(orders.shape, 0.5), Tries(law, 4.0))  # type: ignore[arg-type]
    assert rdp[-1] <= (2.0 + eta) * 0.5 * (1.0 + 1e-6)
    assert rdp[-1] >= 0.5


@pytest.mark.parametrize("mean", [1.0 + 1e-9, 1.5, 10.0, 1e4])
@pytest.mark.parametrize("eta", [-0.5, 0.0, 1e-12, 0.5, 1.0, 7.0])
def test_gamma_belongs_to_the_mean(mean: float, eta: float) -> None:
    """Against the closed form of the mean in 60 digits; ln(1 / gamma) is never below the true one."""
    import mpmath

    t = Tries("truncated-negative-binomial", mean, eta).log_inverse_gamma
    with mpmath.workdps(60):
        gamma = mpmath.e ** -mpmath.mpf(t)
        exact = (1 - gamma) / gamma / (-mpmath.log(gamma) if eta == 0 else (1 - gamma ** mpmath.mpf(eta)) / eta)
        assert mean <= exact <= mean * (1 + 1e-8)


def test_one_try_for_certain_costs_nothing() -> None:
    orders = np.array(SELECTION_ORDERS)
    rdp = gaussian_rdp(orders, 0.7)
    assert selection_rdp(orders, rdp, Tries("geometric", 1.0)) == pytest.approx(rdp, rel=1e-12)


def test_a_poisson_number_of_tries_never_has_a_negative_divergence() -> None:
    """Without the chance of no try it would be ln(mean) / (order - 1) where tries reveal nothing."""
    orders = np.array(SELECTION_ORDERS)
    assert np.all(selection_rdp(orders, np.zeros(orders.shape), Tries("poisson", 0.25)) >= 0.0)


@given(st.lists(st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6), min_size=2, max_size=4))
def test_a_drawn_cell_that_is_shown_diverges_by_exactly_this(weights: list[list[float]]) -> None:
    cells = [(np.array(w[:3]) / sum(w[:3]), np.array(w[3:]) / sum(w[3:])) for w in weights]
    orders = np.array([1.5, 3.0, 10.0])
    table = np.array([[divergence(a, *cell) for a in orders] for cell in cells])
    shown = [np.concatenate([cell[side] for cell in cells]) / len(cells) for side in (0, 1)]
    truth = [divergence(a, shown[0], shown[1]) for a in orders]
    found = drawn_cell_rdp(orders, np.maximum(table, 0.0))
    assert found == pytest.approx(truth, rel=1e-9, abs=1e-9)
    hidden = [sum(cell[side] for cell in cells) / len(cells) for side in (0, 1)]
    assert np.all(found >= [divergence(a, hidden[0], hidden[1]) - 1e-9 for a in orders])
