"""Theorem 3.3 on chains whose truth is known, with the two wrong variants that must be caught."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from support.per_instance_brute import Chain, chain_bound, classical, discrete

from dpspec_per_instance.statements import MISPRINT, printed_order
from dpspec_per_instance.theory import entropic_mean, exponent_schedule, exponents, step_divergence

NEAR = 6e-8


def _printed(first, second, order, p):
    """The sum with the orders that the statement prints, and the weights of its proof."""
    n = first.steps
    orders = np.array([printed_order(order, p, n - t) for t in range(1, n + 1)])
    shares = [(p - 1) ** i / p ** (i + 1) / (order - 1) for i in range(n - 1)]
    total = ((p - 1) / p) ** (n - 1) * (orders[0] - 1) / (order - 1) * discrete(orders[0], first.start, second.start)
    for i, share in enumerate(shares):
        row, other, a = first.rows[n - 2 - i], second.rows[n - 2 - i], orders[n - 1 - i]
        powers = p * (a - 1) * discrete(a, row, other)
        total += share * float(logsumexp(powers + np.log(first.before(n - i))))
    return total


def test_two_steps_and_the_wrong_expectation():
    """R13: the expectation over the second argument's training falls below the truth."""
    p_chain = Chain((0.77, 0.23), ((0.47, 0.53), (0.42, 0.58)))
    q_chain = Chain((0.97, 0.03), ((0.52, 0.48), (0.96, 0.04)))
    e = exponents(2, 2, 2.0)
    assert e.orders == pytest.approx([3, 2])
    truth = float(discrete(2, p_chain.paths(), q_chain.paths()))
    assert truth == pytest.approx(2.7581731, rel=NEAR)
    assert chain_bound(p_chain, q_chain, p_chain, e.orders, e.weights) == pytest.approx(2.7584754, rel=NEAR)
    wrong = chain_bound(p_chain, q_chain, q_chain, e.orders, e.weights)
    assert wrong == pytest.approx(1.9020473, rel=NEAR)
    assert wrong < truth
    assert _printed(p_chain, q_chain, 2, 2.0) == pytest.approx(3.2558063, rel=NEAR)
    assert classical(p_chain, q_chain, 2) == pytest.approx(3.0158518, rel=NEAR)
    assert float(discrete(2, q_chain.paths(), p_chain.paths())) == pytest.approx(0.21737399, rel=NEAR)
    assert chain_bound(q_chain, p_chain, q_chain, e.orders, e.weights) == pytest.approx(0.27888391, rel=NEAR)


@pytest.mark.parametrize(
    ("order", "p", "orders", "truth", "bound", "printed", "ordinary", "reverse", "reverse_bound"),
    [
        (2, 2.0, (5, 3, 2), 0.062130383, 0.098243955, 0.11868197, 0.73426982, 0.34581485, 0.52527605),
        (4, 9.0, (4.796875, 4.375, 4), 0.084098895, 0.69439496, 0.69673230, 0.89195384, 1.2521424, 2.1459630),
    ],
)
def test_three_steps(order, p, orders, truth, bound, printed, ordinary, reverse, reverse_bound):
    """R14."""
    first = Chain((0.98, 0.02), ((0.9, 0.1), (0.3, 0.7)), ((0.5, 0.5), (0.05, 0.95)))
    second = Chain((0.97, 0.03), ((0.88, 0.12), (0.6, 0.4)), ((0.48, 0.52), (0.4, 0.6)))
    e = exponents(order, 3, p)
    assert e.orders == pytest.approx(orders, rel=1e-12)
    assert float(discrete(order, first.paths(), second.paths())) == pytest.approx(truth, rel=NEAR)
    assert chain_bound(first, second, first, e.orders, e.weights) == pytest.approx(bound, rel=NEAR)
    assert _printed(first, second, order, p) == pytest.approx(printed, rel=NEAR)
    assert classical(first, second, order) == pytest.approx(ordinary, rel=NEAR)
    assert float(discrete(order, second.paths(), first.paths())) == pytest.approx(reverse, rel=NEAR)
    assert chain_bound(second, first, second, e.orders, e.weights) == pytest.approx(reverse_bound, rel=NEAR)


def _random_chain(rng, steps):
    def law():
        v = rng.uniform(0.02, 0.98)
        return (v, 1 - v)

    return Chain(law(), *[(law(), law()) for _ in range(steps - 1)])


def test_random_chains_are_never_above_the_bound_and_the_wrong_variants_are():
    """800 chains, with one exponent and with a schedule: no violation. The second argument's expectation and orders
    reversed in time both fall below the truth, and the printed recursion never below the repaired one."""
    rng = np.random.default_rng(3)
    below = {"second argument": 0, "reversed": 0}
    for _ in range(800):
        n = int(rng.integers(2, 5))
        first, second = _random_chain(rng, n), _random_chain(rng, n)
        order, p = float(rng.choice([1.5, 2.0, 4.0])), float(rng.choice([1.3, 2.0, 3.0 * n, 50.0]))
        truth = float(discrete(order, first.paths(), second.paths()))
        e = exponents(order, n, p)
        bound = chain_bound(first, second, first, e.orders, e.weights)
        assert truth <= bound * (1 + 1e-10)
        turns = exponent_schedule(order, rng.uniform(1.2, 10.0, n - 1).tolist())
        assert truth <= chain_bound(first, second, first, turns.orders, turns.weights) * (1 + 1e-10)
        assert bound <= _printed(first, second, order, p) * (1 + 1e-10)
        below["second argument"] += chain_bound(first, second, second, e.orders, e.weights) < truth * (1 - 1e-9)
        below["reversed"] += chain_bound(first, second, first, e.orders[::-1], e.weights[::-1]) < truth * (1 - 1e-9)
    assert below["second argument"] >= 5
    assert below["reversed"] >= 3
    assert not MISPRINT.refuted


def test_a_schedule_of_equal_powers_is_the_plain_one():
    e, turns = exponents(3.5, 6, 4.0), exponent_schedule(3.5, [4.0] * 5)
    assert turns.orders == pytest.approx(e.orders, rel=1e-12)
    assert turns.weights[1:] == pytest.approx(e.weights[1:], rel=1e-12)


def test_orders_stay_near_with_the_exponent_of_the_paper():
    """R17 and Fact 3.4, for every number of steps."""
    assert exponents(8, 4687, 14061).orders[0] == pytest.approx(10.768707991, rel=6e-11)
    assert printed_order(8, 14061, 4686) == pytest.approx(10.768736120, rel=6e-11)
    for n in (1, 2, 5, 100, 4687):
        assert exponents(8, n, 3.0 * n).orders[0] < 1 + math.exp(1 / 3) * 7
    for p in (1.0, 0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="exponent p"):
            exponents(2.0, 3, p)
    with pytest.raises(ValueError, match="orders"):
        exponents(1.0, 3, 2.0)


def test_an_entropic_mean_lies_between_the_mean_and_the_largest():
    values = np.random.default_rng(0).uniform(0, 2, (7, 3))
    for weight in (1e-6, 1.0, 50.0):
        found = entropic_mean(values, weight)
        assert np.all(values.mean(0) <= found * (1 + 1e-12))
        assert np.all(found <= values.max(0))
    assert entropic_mean(values, 1e-7) == pytest.approx(values.mean(0), rel=1e-6)
    assert entropic_mean(values, 1e9) == pytest.approx(values.max(0), rel=1e-8)
    assert entropic_mean(values, math.inf) == pytest.approx(values.max(0))
    assert entropic_mean([1.5, 1.5], 1e4) == pytest.approx(1.5)
    assert entropic_mean([0.0, 9.0], 3.0, [0.0, -math.inf]) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="weight"):
        entropic_mean([1.0], 0.0)


class _Descent:
    """R15: theta <- theta - 0.6 (sum of clip(theta - x) over a Poisson batch + N(0, 1)) from theta = 0, densities by
    Gauss-Legendre panels that break where gradients start to be clipped."""

    eta, sigma, q, record = 0.6, 1.0, 0.3, 0.4

    def __init__(self, rows):
        self.rows = rows
        kinks = sorted({x + s for x in (0.5, 0.3, 0.4) for s in (-1.0, 1.0)})
        edges = np.unique(np.concatenate([np.linspace(-7, 7, 57), kinks]))
        nodes, weights = np.polynomial.legendre.leggauss(16)
        half = np.diff(edges) / 2
        self.x = (edges[:-1, None] + half[:, None] * (nodes + 1)).ravel()
        self.w = (half[:, None] * weights).ravel()

    def step(self, theta):
        """The density of the next model at all nodes, from each of ``theta``: (nodes, len(theta))."""
        found = np.zeros((len(self.x), len(theta)))
        for coins in np.ndindex(*[2] * len(self.rows)):
            mass = math.prod(self.q if c else 1 - self.q for c in coins)
            total = sum((c * np.clip(theta - r, -1, 1) for c, r in zip(coins, self.rows, strict=True)), 0.0 * theta)
            z = (self.x[:, None] - (theta - self.eta * total)) / (self.eta * self.sigma)
            found += mass * np.exp(-0.5 * z**2) / (self.eta * self.sigma * math.sqrt(2 * math.pi))
        return found

    def laws(self, steps):
        """The masses at the nodes before steps 2, 3, ..."""
        law = self.step(np.zeros(1))[:, 0] * self.w
        found = [law]
        for _ in range(steps - 2):
            law = (self.step(self.x) @ law) * self.w
            found.append(law)
        return found

    def contributions(self, order, steps, p):
        """Last step's first, by Theorem 3.2 at every model."""
        e, size = exponents(order, steps, p), np.abs(np.clip(self.x - self.record, -1, 1))
        found = [float(step_divergence(e.orders[0], self.q, abs(self.record)))]
        for t, law in enumerate(self.laws(steps), start=2):
            held = law > 1e-30
            d = step_divergence(e.orders[t - 1], self.q, size[held])
            found.append(float(entropic_mean(d, float(e.weights[t - 1]), np.log(law[held]))))
        return found[::-1]


@pytest.mark.parametrize(
    ("direction", "n", "p", "truth", "bound", "parts"),
    [
        ("add", 2, 2.0, 0.043615337, 0.069698732, (0.045576314, 0.024122419)),
        ("remove", 2, 2.0, 0.036410315, 0.071296835, (0.047174416, 0.024122419)),
        ("add", 3, 2.0, 0.076055671, 0.20491361, (0.052562097, 0.10878612, 0.043565398)),
        ("remove", 3, 2.0, 0.063736008, 0.21260549, (0.056299951, 0.11274014, 0.043565398)),
        ("add", 3, 9.0, 0.076055671, 0.14676794, (0.063981494, 0.065062303, 0.017724138)),
        ("remove", 3, 9.0, 0.063736008, 0.15299214, (0.068113873, 0.067154128, 0.017724138)),
    ],
)
def test_dp_sgd_in_one_dimension(direction, n, p, truth, bound, parts):
    """R15: expectations over training on the first argument's data; the paper's add has the record in it."""
    chain = _Descent((0.5, 0.3, 0.4) if direction == "add" else (0.5, 0.3))
    found = chain.contributions(2, n, p)
    assert found == pytest.approx(parts, rel=NEAR)
    assert sum(found) == pytest.approx(bound, rel=NEAR)
    assert truth <= sum(found)
    assert n * float(step_divergence(2, 0.3, 1.0)) == pytest.approx({2: 0.28758651, 3: 0.43137976}[n], rel=NEAR)


@pytest.mark.parametrize(
    ("direction", "truths", "bounds"),
    [
        ("add", (0.043615337, 0.076055671), {(2, 2.0): 0.052367097, (3, 2.0): 0.13142425, (3, 9.0): 0.091059173}),
        ("remove", (0.036410315, 0.063736008), {(2, 2.0): 0.041770474, (3, 2.0): 0.088450820, (3, 9.0): 0.067728403}),
    ],
)
def test_the_truth_of_steps_of_descent(direction, truths, bounds):
    """R15: D_2 of the joint laws of two and of three steps, integrated; and Theorem 3.3 with the exact divergence of
    every step at every model, which is above the truth and below the sum with Theorem 3.2."""
    first, second = _Descent((0.5, 0.3, 0.4)), _Descent((0.5, 0.3))
    if direction == "remove":
        first, second = second, first
    x, w = first.x, first.w
    start = [chain.step(np.zeros(1))[:, 0] for chain in (first, second)]
    later = [chain.step(x) for chain in (first, second)]

    def power(order, laws):
        return np.exp(order * np.log(np.maximum(laws[0], 1e-300)) + (1 - order) * np.log(np.maximum(laws[1], 1e-300)))

    rest = np.ones_like(x)  # E over later steps of (first / second)^2, from each model
    for truth in truths:
        rest = (w * rest) @ power(2.0, later)
        assert math.log(float((w * rest) @ power(2.0, start))) == pytest.approx(truth, rel=NEAR)
    for (n, p), bound in bounds.items():
        e = exponents(2, n, p)
        total = math.log(float(w @ power(float(e.orders[0]), start))) / (e.orders[0] - 1)
        for t, law in enumerate(first.laws(n), start=2):
            held = law > 1e-30
            d = np.log(w @ power(float(e.orders[t - 1]), [kernel[:, held] for kernel in later]))
            total += float(entropic_mean(d / (e.orders[t - 1] - 1), float(e.weights[t - 1]), np.log(law[held])))
        assert total == pytest.approx(bound, rel=NEAR)
        assert truths[n - 2] <= total
