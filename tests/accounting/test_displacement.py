"""Theorem 4b against exact profiles of small datasets by mpmath, quadrature in two dimensions, and Theorem 4a."""

import itertools
import math
import warnings

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, hypergeom, norm

from dpspec.accounting import Discrete, Mixture, PrivacyLoss, TruncatedPoisson, displacement_pair
from dpspec.accounting.numerics import DIRECTIONS

EPSILONS = (-1.0, -0.05, 0.0, 0.4, 1.5, 4.0)


def sums(gradients: np.ndarray, rate: float, cap: int) -> dict[tuple[float, ...], float]:
    """Probabilities of the sums of a batch, by enumeration of the drawn records and of the kept ones."""
    weights: dict[tuple[float, ...], float] = {}
    for size in range(len(gradients) + 1):
        for drawn in itertools.combinations(range(len(gradients)), size):
            kept = list(itertools.combinations(drawn, min(size, cap)))
            for batch in kept:
                mean = tuple(np.round(gradients[list(batch)].sum(axis=0), 12).tolist())
                probability = rate**size * (1.0 - rate) ** (len(gradients) - size) / len(kept)
                weights[mean] = weights.get(mean, 0.0) + probability
    return weights


def pair_of(step: TruncatedPoisson) -> Discrete:
    pair = displacement_pair(step)
    assert pair is not None
    return pair


@pytest.mark.family
@pytest.mark.parametrize(
    ("n", "cap", "rate", "sigma", "seed"),
    [(4, 1, 0.38, 0.5, 1), (3, 2, 0.7, 1.0, 2), (5, 3, 0.5, 0.8, 3), (5, 4, 0.9, 2.0, 4), (2, 1, 0.06, 0.3, 5)],
)
def test_no_gradients_leak_more(n: int, cap: int, rate: float, sigma: float, seed: int) -> None:
    """Gradients of all others in -1, 0, 1 or random, in one dimension, on a grid with an error below 0.2 %."""
    rng = np.random.default_rng(seed)
    pair = pair_of(TruncatedPoisson(1, rate, cap, n, sigma))
    x = np.linspace(-cap - 8.0 * sigma, cap + 8.0 * sigma, 3001)
    chosen = [*itertools.combinations_with_replacement((-1.0, 0.0, 1.0), n), *rng.uniform(-1.0, 1.0, (20, n)).tolist()]
    upper = {(side, e): pair.log_delta_bounds(e, side)[1] for side in DIRECTIONS for e in EPSILONS}
    for others in chosen:
        gradients = np.array([1.0, *others])[:, None]
        present, absent = (
            sum(p * norm.pdf(x, mean[0], sigma) for mean, p in sums(values, rate, cap).items())
            for values in (gradients, gradients[1:])
        )
        for (side, epsilon), log_delta in upper.items():
            first, second = (present, absent) if side == "present-first" else (absent, present)
            delta = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * (x[1] - x[0])
            assert delta <= math.exp(log_delta) * 1.002 + 1e-6, (others, side, epsilon)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["random", "short", "one", "two", "mirrored"])
def test_no_gradients_leak_more_in_two_dimensions(kind: str) -> None:
    """Others on or in the circle, at many angles: random, all the same, some opposite, or mirror images."""
    n, cap, rate, sigma = 5, 3, 0.6, 1.0
    rng = np.random.default_rng(6)
    pair = pair_of(TruncatedPoisson(1, rate, cap, n, sigma))
    x = np.linspace(-cap - 6.0, cap + 6.0, 161)
    for trial in range(6):
        angles = rng.uniform(0.0, 2.0 * math.pi, n) if kind == "random" else np.full(n, 0.5 + 0.5 * trial)
        if kind == "two":
            angles[: trial % n] = math.pi
        if kind == "mirrored":  # batches with one record more and with one less have means on one side
            angles = math.radians(95.0 + 12.0 * trial) * np.where(np.arange(n) < 3, 1.0, -1.0)
        others = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        if kind == "short":
            others *= rng.uniform(0.0, 1.0, (n, 1))
        present, absent = (
            sum(p * np.outer(norm.pdf(x, *a), norm.pdf(x, *b)) for a, b, p in means)
            for means in (
                [((m[0], sigma), (m[1], sigma), p) for m, p in sums(values, rate, cap).items()]
                for values in (np.vstack([[1.0, 0.0], others]), others)
            )
        )
        for epsilon in EPSILONS[1:5]:
            delta = float(np.maximum(present - math.exp(epsilon) * absent, 0.0).sum()) * (x[1] - x[0]) ** 2
            assert delta <= math.exp(pair.log_delta_bounds(epsilon, "present-first")[1]) * 1.005 + 1e-6


def theorem_4b(n: int, cap: int, rate: float, sigma: float, epsilon: float) -> float:
    """The divergence of Theorem 4b, in its notation, by sums over a grid of the two coordinates."""
    e, z = math.exp(epsilon), np.linspace(-9.0, 10.0, 96)
    weights = np.outer(norm.pdf(z), norm.pdf(z)) * (z[1] - z[0]) ** 2

    def power(first: float, second: float) -> np.ndarray:
        exponent = first * z[:, None] / sigma + second * z[None, :] / sigma
        return np.exp(exponent - (first**2 + second**2) / (2.0 * sigma**2))

    drawn = binom(n, rate).pmf(np.arange(n + 1))
    v = [*drawn[:cap], drawn[cap:].sum()]
    r = rate * sum(drawn[m] * cap / (m + 1) for m in range(cap, n + 1))
    g, in_s = power(1.0, 0.0), (n + 1) // 2
    rest = n - in_s

    def positive(*terms: np.ndarray | float) -> float:
        return float((weights * np.maximum(sum(terms), 0.0)).sum())

    def alone(share: float) -> float:
        return positive(share * (1.0 - rate - e), rate * g)

    def triple(rho: float, of_two_before: float, x: np.ndarray, y: np.ndarray | float) -> float:
        gain = (rate * v[cap - 1] + r) * g
        loss = v[cap - 1] * (1.0 - rate - e)
        return positive(
            loss, rho * (v[cap] - r - e * v[cap]) * x, of_two_before * v[cap - 2] * (1.0 - rate - e) * y, gain
        )

    def at_angles(favorable: float, unfavorable: float, theta: float) -> float:
        x, y = (power(math.cos(angle), math.sin(angle)) for angle in (favorable, unfavorable))
        total = 0.0
        for t in range(max(0, cap - 1 - rest), min(in_s, cap - 1) + 1):
            mass = hypergeom(n, in_s, cap - 1).pmf(t)
            rho = (in_s - t) * cap / ((t + 1) * (n - cap + 1))
            two_before = (cap - 1 - t) * (n - cap + 2) / ((rest - cap + 2 + t) * (cap - 1))
            total += mass * triple(rho, theta * two_before, x, y)
        return v[cap - 2] * alone(1.0 - theta) + total

    right, by_angles = 0.5 * math.pi, [at_angles(0.5 * math.pi, 0.0, 0.0)]
    for beyond in np.radians(np.arange(0.0, 91.0, 15.0)):
        for before in np.radians(np.arange(0.0, 1.0 + 2.0 * math.degrees(beyond), 30.0)):
            angles = right + beyond - before, right - beyond
            by_angles.append(min(at_angles(*angles, theta) for theta in (0.0, 0.3, 0.5, 0.75)))
    opposed = v[cap - 2] * alone(1.0) + triple(1.0, 0.0, power(-1.0, 0.0), 0.0)
    return sum(v[: cap - 2]) * alone(1.0) + min(opposed, max(by_angles))


@pytest.mark.parametrize("epsilon", [1.5, pytest.param(4.0, marks=pytest.mark.ci)])
def test_the_profile_is_little_above_theorem_4b(epsilon: float) -> None:
    """Intervals of the angles cost up to 15 %."""
    log_delta = pair_of(TruncatedPoisson(1, 0.6, 3, 5, 1.0)).log_delta_bounds(epsilon, "present-first")[1]
    assert 0.0 <= math.exp(log_delta) / theorem_4b(5, 3, 0.6, 1.0, epsilon) - 1.0 <= 0.15


@pytest.mark.family
@pytest.mark.parametrize(("n", "rate", "sigma"), [(4, 0.38, 0.5), (1, 0.36, 0.5), (2, 0.33, 1.0)])
def test_batches_of_one_record_attain_the_profile(n: int, rate: float, sigma: float) -> None:
    """All others opposed to the record, by mpmath: never above the bound, and at most 1 % below."""
    pair = pair_of(TruncatedPoisson(1, rate, 1, n, sigma))
    gradients = np.array([1.0] + [-1.0] * n)[:, None]
    with_record, without = (sums(values, rate, 1) for values in (gradients, gradients[1:]))
    for epsilon in (0.05, 0.4, 1.0):

        def loss(x: mpmath.mpf, epsilon: float = epsilon) -> mpmath.mpf:
            first, second = (sum(p * mpmath.npdf(x, m[0], sigma) for m, p in w.items()) for w in (with_record, without))
            return mpmath.log(first / second) - epsilon

        root = mpmath.findroot(loss, (-2.0, 12.0), solver="anderson")  # the loss increases with x
        tails = [sum(p * mpmath.ncdf((m[0] - root) / sigma) for m, p in w.items()) for w in (with_record, without)]
        exact = float(tails[0] - mpmath.exp(epsilon) * tails[1])
        upper = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])
        assert exact <= upper <= 1.01 * exact


@pytest.mark.ci
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("n", "cap", "rate", "sigma"), [(40, 9, 0.2, 1.0), (7, 3, 0.5, 0.6), (300, 90, 0.25, 3.0), (50, 20, 0.9, 20.0)]
)
def test_the_profile_is_between_the_attained_one_and_theorem_4a(n, cap, rate, sigma, direction):
    step = TruncatedPoisson(1, rate, cap, n, sigma)
    pair, attained, revealing = pair_of(step), step.attained(), step.revealing(0.3)
    routed = [step.routed(share) for share in (0.1, 0.5, 0.9)]
    for epsilon in EPSILONS[1:]:
        log_delta = pair.log_delta_bounds(epsilon, direction)[1]
        for below in (attained, revealing):
            assert below is not None
            assert below.log_delta_bounds(epsilon, direction)[0] <= log_delta + 1e-9
        delta = math.exp(log_delta)
        for above in routed:
            assert above is not None
            assert delta <= math.exp(above.log_delta_bounds(epsilon, direction)[1]) + 2e-3 * delta + 1e-4


@pytest.mark.ci
def test_a_cap_far_above_the_mean_leaves_poisson_batches() -> None:
    step = TruncatedPoisson(1, 0.1, 40, 150, 1.0)
    found = PrivacyLoss.of(pair_of(step)).compose(10).epsilon(1e-5, width=1e-3)
    poisson = PrivacyLoss.of(Mixture.poisson(1, 0.1, 1.0)).compose(10).epsilon(1e-5, width=1e-3)
    assert poisson.lower <= found.upper <= 1.005 * poisson.upper


@pytest.mark.ci
def test_a_cap_that_binds_in_half_of_the_steps_costs_less_than_by_theorem_4a() -> None:
    """38.9 by Theorem 4a; some data have 21.5."""
    found = PrivacyLoss.of(pair_of(TruncatedPoisson(1, 0.25, 50, 200, 1.0))).compose(100).epsilon(1e-5, width=1e-3)
    assert 21.5 < found.upper < 29.5


@pytest.mark.parametrize(
    "step",
    [
        TruncatedPoisson(1, 1.0, 5, 20, 1.0),
        TruncatedPoisson(1, 0.5, 10, 5, 1.0),
        TruncatedPoisson(1, 0.5, 5, 20, 0.1),
        TruncatedPoisson(1, 0.9, 10, 30_000, 1.0),
    ],
)
def test_steps_out_of_range_have_no_pair(step: TruncatedPoisson) -> None:
    assert displacement_pair(step) is None


def test_large_gains_underflow_silently() -> None:
    """The smallest double divided by more than 2 is 0, whose logarithm was a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert displacement_pair(TruncatedPoisson(1, 0.9, 8, 10, 2.4509915242033093, 10)) is not None
