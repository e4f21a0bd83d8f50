"""Corollary 3.1 for one step: against exact hockey sticks, and over batch sizes with noise on the mean."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom
from support import per_instance_brute as brute
from support.per_instance_brute import amplified_stick

from dpspec.accounting import gaussian
from dpspec_per_instance import mean_rule
from dpspec_per_instance import one_step as cor
from dpspec_per_instance.bounds import entropic_mean
from dpspec_per_instance.one_step import one_step


@pytest.mark.family
@pytest.mark.parametrize(("q", "sigma"), [(0.05, 0.8665), (0.5, 2.0), (1.0, 3.0), (0.002, 0.6)])
def test_one_step_is_never_below_the_exact_hockey_stick(q: float, sigma: float) -> None:
    for norm in (0.1, 0.5, 1.0):
        for delta in (1e-3, 1e-6):
            found = one_step(q, sigma, norm, delta)
            assert amplified_stick(norm / sigma, q)(found.amplified) <= delta * (1 + 1e-9)
            assert amplified_stick(norm / sigma, q)(found.corollary) <= delta * (1 + 1e-9)
            assert found.amplified <= found.corollary * (1 + 1e-12)


@pytest.mark.family
@pytest.mark.parametrize("inside", [True, False])
def test_changes_of_means_are_those_of_random_batches(inside: bool) -> None:
    """Each value belongs to some batch of the other records, and the mean over draws is that over all batches."""
    rng = np.random.default_rng(2)
    gradients = rng.normal(size=(7, 3)).astype(np.float32)
    where = np.array([1, 6]) if inside else None
    points = gradients[where] if where is not None else rng.normal(size=(2, 3)).astype(np.float32)
    sizes = range(1, 7 if inside else 8)
    found = mean_rule.mean_changes(rng, gradients, points, where, sizes, 3000)
    for m, point in enumerate(points):
        others = np.delete(gradients, where[m], axis=0) if where is not None else gradients
        for k, size in enumerate(sizes):
            exact = [
                float(np.linalg.norm(point - np.mean(batch, axis=0)) / (size + 1))
                for batch in itertools.combinations(others.astype(float), size)
            ]
            gap = np.abs(found[k, :, m][:, None] - np.array(exact)[None, :]).min(axis=1)
            assert gap.max() < 1e-6
            assert found[k, :, m].mean() == pytest.approx(np.mean(exact), rel=0.03)


Q, SIGMA, DELTA_PRIME = 128 / 60000, 0.469, 0.5e-5
DELTA = 0.5e-5 / Q


def test_the_constants_of_the_paper_and_where_they_fail():
    """R11: the textbook's epsilon is not enough at the paper's own setting."""
    c = cor.classical_constant(DELTA, SIGMA)
    assert c == pytest.approx(7.5560090105, rel=1e-11)
    assert float(gaussian.delta(c, 1 / SIGMA)) == pytest.approx(2.7597750028e-3, rel=6e-11)
    assert float(cor.epsilons(1.0, DELTA, SIGMA)) == pytest.approx(7.6721185808, rel=6e-11)
    assert [cor.one_step(Q, SIGMA, norm, 1e-5).holds for norm in (0.0, 0.1, 1.0)] == [True, True, False]
    assert cor.one_step(Q, SIGMA, 1.0, 5e-324).corollary == math.inf
    assert cor.amplified(Q, c) == pytest.approx(1.6247646, rel=6e-8)


@pytest.mark.parametrize(("slack", "claimed", "true"), [(0.0, 5e-6, 5.887520e-6), (1e-7, 5.1e-6, 5.873132e-6)])
def test_the_violations_of_the_classical_constant_are_seen(slack, claimed, true):
    """R11: the claims of the paper's baseline and corollary at batch size 128 are false."""
    c = cor.classical_constant(DELTA, SIGMA)
    found = cor.amplified(Q, c) if slack == 0.0 else cor.corollary(Q, c, slack, 1e4)
    assert Q * DELTA + slack == pytest.approx(claimed, rel=1e-9)
    delta = brute.amplified_stick(1 / SIGMA, Q)(found)
    assert delta == pytest.approx(true, rel=1e-6)
    assert delta > claimed


def test_the_corollary_holds_for_random_small_batches():
    """20 configurations: it is never below the exact hockey stick."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        others, record = rng.uniform(-0.5, 0.5, int(rng.integers(0, 3))), float(rng.uniform(-1, 1))
        q, sigma, rule = float(rng.choice([0.1, 0.5])), float(rng.uniform(0.7, 2)), str(rng.choice(["sum", "mean"]))
        delta, slack, p = float(rng.choice([0.02, 0.1])), 0.01, float(rng.choice([1.5, 4.0, 20.0]))
        distances, logs = [], []
        for coins in brute.itertools.product((0, 1), repeat=len(others)):
            total, size = float(np.dot(coins, others)), sum(coins)
            before, after = total, total + record
            if rule == "mean":
                before, after = total / max(1, size), (total + record) / (size + 1)
            distances.append(abs(after - before))
            logs.append(sum(math.log(q if c else 1 - q) for c in coins))
        log_norm = entropic_mean(cor.epsilons(distances, delta, sigma), p, logs)
        present, absent = brute.pair(others, record, q, rule)
        found = cor.corollary(q, log_norm, slack, p)
        assert _hockey_stick(present, absent, sigma)(found) <= q * delta + slack + 1e-7


def test_strata_keep_rare_small_batches():
    """R12: a hundred sampled batches see none of the small ones that decide large p."""
    c = cor.classical_constant(DELTA, SIGMA)
    sizes = np.arange(60001)
    logs = binom.logpmf(sizes, 60000, Q)
    for norm, far, expected in (
        (1.0, 1.2, {10: 2.3883029e-3, 20: 7.6734354e-3, 1e4: 1.6155725}),
        (0.2, 0.3, {10: 2.1286462e-3, 20: 8.5575254e-4, 1e4: 7.3920308e-3}),
    ):
        distances = np.where(sizes == 0, norm, far / (sizes + 1))
        for p, value in expected.items():
            log_norm = entropic_mean(c * distances, p, logs)
            assert cor.corollary(Q, log_norm, DELTA_PRIME, p) == pytest.approx(value, rel=6e-8)
    typical = {size: far / (size + 1) for size in range(90, 171)}
    held, masses = cor.stratified_distances(60000, Q, norm, typical)
    epsilon = c * held
    assert np.exp(masses).sum() == pytest.approx(1.0, rel=1e-9)
    best = cor.best_corollary(Q, epsilon, masses, DELTA_PRIME)
    truth = cor.best_corollary(Q, c * distances, logs, DELTA_PRIME)
    assert truth <= best <= cor.amplified(Q, c)


def _hockey_stick(present, absent, sigma):
    x = np.arange(-12.0, 12.0, 1e-3).reshape(-1, 1) * max(1.0, sigma)
    first, second = (np.exp(brute.log_density(law, x, sigma)) for law in (present, absent))
    step = float(x[1, 0] - x[0, 0])
    return lambda epsilon: float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * step)


def _epsilon(stick, delta):
    low, high = 0.0, 50.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if stick(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("rule", "classical", "analytic", "true"),
    [("mean", 0.86499934, 0.48714409, 0.055940734), ("sum", 0.98421814, 0.58261992, 0.15660712)],
)
def test_small_laws_against_exact_hockey_sticks(rule, classical, analytic, true):
    """R12."""
    others, record, q, delta, slack, p = (0.1, -0.1), 0.3, 0.5, 0.01, 0.01, 10.0
    distances, logs = [], []
    for coins in brute.itertools.product((0, 1), repeat=2):
        total, size = float(np.dot(coins, others)), sum(coins)
        before = total / max(1, size) if rule == "mean" else total
        after = (total + record) / (size + 1) if rule == "mean" else total + record
        distances.append(abs(after - before))
        logs.append(2 * math.log(0.5))
    c = cor.classical_constant(delta, 1.0)
    assert c * max(distances) == pytest.approx(0.932253, rel=1e-6)
    found = cor.corollary(q, entropic_mean(c * np.array(distances), p, logs), slack, p)
    assert found == pytest.approx(classical, rel=6e-8)
    exact = entropic_mean(cor.epsilons(distances, delta, 1.0), p, logs)
    assert cor.corollary(q, exact, slack, p) == pytest.approx(analytic, rel=6e-8)
    present, absent = brute.pair(others, record, q, rule)
    stick = _hockey_stick(present, absent, 1.0)
    assert _epsilon(stick, 0.015) == pytest.approx(true, rel=1e-6)
    assert stick(analytic) <= 0.015
