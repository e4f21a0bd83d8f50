"""Theorem 4c against its formula by quadrature, gradients in two dimensions, and Theorem 4a.

``test_truncated_poisson.py`` compares it with all gradients in -1, 0, 1.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from dpspec.accounting import Discrete, PrivacyLoss, TruncatedPoisson, displacement_pair
from dpspec.accounting.numerics import DIRECTIONS


def pair_of(step: TruncatedPoisson) -> Discrete:
    pair = displacement_pair(step)
    assert pair is not None
    return pair


def batches(records: int, rate: float, cap: int) -> dict[tuple[int, ...], float]:
    """Probabilities of the batches of numbered records, by enumeration."""
    probabilities: dict[tuple[int, ...], float] = {}
    for size in range(records + 1):
        for drawn in itertools.combinations(range(records), size):
            kept = list(itertools.combinations(drawn, min(size, cap)))
            for batch in kept:
                probability = rate**size * (1.0 - rate) ** (records - size) / len(kept)
                probabilities[batch] = probabilities.get(batch, 0.0) + probability
    return probabilities


def theorem_4c(n: int, k: int, rate: float, cap: int, sigma: float, epsilon: float) -> float:
    """The smallest value of Theorem 4c over shares of the full batches, by sums over a grid of z."""
    with_group, without = np.zeros((cap + 1, k + 1)), np.zeros(cap + 1)
    for batch, probability in batches(n + k, rate, cap).items():
        members = sum(record < k for record in batch)
        with_group[len(batch) - members, members] += probability
    for batch, probability in batches(n, rate, cap).items():
        without[len(batch)] += probability
    z = np.linspace(-12.0, 12.0 + k / sigma, 4001)
    weights, factor = norm.pdf(z) * (z[1] - z[0]), math.exp(epsilon)

    def power(distance: float) -> np.ndarray:
        return np.exp(distance * z / sigma - 0.5 * (distance / sigma) ** 2)

    def total(shares: np.ndarray) -> float:
        shares = np.append(shares, 1.0 - shares.sum())  # of the comparisons cap - 1, ..., cap - k, cap
        compared = 0.0
        for a in range(cap + 1):
            excess = sum(with_group[a, i] * power(i) for i in range(k + 1))
            gap = cap - a
            own = shares[-1] if gap == 0 else 1.0
            excess = excess - factor * own * without[a]
            if 1 <= gap <= k:
                excess = excess - factor * shares[gap - 1] * without[cap] * power(-gap)
            compared += float(weights @ np.maximum(excess, 0.0))
        return compared

    def objective(logits: np.ndarray) -> float:
        exponentials = np.exp(np.append(logits, 0.0))
        return total(exponentials[:-1] / exponentials.sum())

    starts = (np.full(k, -1.0), np.array([2.0, *[-3.0] * (k - 1)]))
    return min(float(minimize(objective, start, method="Nelder-Mead").fun) for start in starts)


@pytest.mark.family
@pytest.mark.parametrize("epsilon", [0.7, 0.05, 2.5])
def test_the_profile_is_little_above_theorem_4c(epsilon: float) -> None:
    """Nodes of shares and of losses cost up to 3 %."""
    step = TruncatedPoisson(2, 0.5, 3, 5, 1.0)
    delta = math.exp(pair_of(step).log_delta_bounds(epsilon, "present-first")[1])
    assert 0.999 <= delta / theorem_4c(5, 2, 0.5, 3, 1.0, epsilon) <= 1.03


@pytest.mark.family
@pytest.mark.parametrize("kind", ["random", "bent", "short"])
def test_no_gradients_leak_more_in_two_dimensions(kind: str) -> None:
    """Others and members at many angles. Bent: some others along the members, the remaining ones opposed."""
    n, k, cap, rate, sigma = 4, 2, 2, 0.6, 1.0
    rng = np.random.default_rng(7)
    pair = pair_of(TruncatedPoisson(k, rate, cap, n, sigma))
    x = np.linspace(-cap - 6.0, cap + 6.0, 121)
    epsilons = (-0.3, 0.0, 0.4, 1.5, 4.0)
    upper = {(side, e): math.exp(pair.log_delta_bounds(e, side)[1]) for side in DIRECTIONS for e in epsilons}
    drawn = (
        batches(n + k, rate, cap),
        {tuple(record + k for record in batch): probability for batch, probability in batches(n, rate, cap).items()},
    )
    for trial in range(8):
        angles = rng.uniform(0.0, 2.0 * math.pi, n + k)
        if kind == "bent":
            angles = np.array([0.0] * k + [0.0] * (trial % n) + [math.pi] * (n - trial % n)) + rng.normal(
                0.0, 0.2, n + k
            )
        gradients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        if kind == "short":
            gradients *= rng.uniform(0.0, 1.0, (n + k, 1))
        present, absent = (
            sum(
                probability * np.outer(*(norm.pdf(x, mean, sigma) for mean in gradients[[*batch]].sum(axis=0)))
                for batch, probability in probabilities.items()
            )
            for probabilities in drawn
        )
        for (side, epsilon), bound in upper.items():
            first, second = (present, absent) if side == "present-first" else (absent, present)
            delta = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * (x[1] - x[0]) ** 2
            assert delta <= bound * 1.005 + 1e-6, (kind, side, epsilon)


@pytest.mark.ci
def test_groups_cost_less_than_by_theorem_4a() -> None:
    """38.2 by Theorem 4a; some data have 17.2."""
    step = TruncatedPoisson(5, 0.01818, 15, 929, 1.187)
    found = PrivacyLoss.of(pair_of(step)).compose(778).epsilon(6.135e-6, width=1e-2)
    assert 17.2 < found.upper < 30.9


@pytest.mark.parametrize(
    "step",
    [
        TruncatedPoisson(2, 1.0, 5, 20, 1.0),
        TruncatedPoisson(2, 0.5, 10, 5, 1.0),
        TruncatedPoisson(5, 0.5, 8, 20, 0.3),
        TruncatedPoisson(3, 0.5, 2, 20, 1.0),
    ],
)
def test_steps_out_of_range_have_no_pair(step: TruncatedPoisson) -> None:
    assert displacement_pair(step) is None
