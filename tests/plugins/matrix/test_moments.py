"""Moments of the likelihood ratio against sums over all sets of drawn steps, and epsilon against sampling."""

import math
from itertools import product

import numpy as np
import pytest
from plugins.matrix import oracles
from plugins.matrix.test_encoders import options
from plugins.matrix.test_theory import schedule

from dpspec_matrix import moments, theory
from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import EncoderOptions

ENCODERS = [
    options("tree"),
    options("buffers", weights=(0.4, 0.1), decays=(0.6, 0.99)),
    options("inverse-square-root", bands=3),
    options("banded", coefficients=(1.0, 0.2, 0.9)),  # not convex
]


def exact_log_moment(matrix: np.ndarray, rate: float, order: int) -> float:
    """ln E[L^order] of equal gradients without the record: a sum over all sets of each replica."""
    sets = np.array(list(product([0.0, 1.0], repeat=matrix.shape[1])))
    weights = np.prod(np.where(sets > 0.0, rate, 1.0 - rate), axis=1)
    pairs = np.exp(sets @ matrix.T @ matrix @ sets.T)
    if order == 2:
        return math.log(weights @ pairs @ weights)
    return math.log(np.einsum("i,j,k,ij,ik,jk", weights, weights, weights, pairs, pairs, pairs, optimize=True))


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("steps", "separation"), [(5, 1), (8, 2), (9, 2)])
@pytest.mark.parametrize(("rate", "noise"), [(0.05, 1.0), (0.6, 2.0), (1e-30, 0.5)])
def test_moments_are_at_least_exact_ones_of_every_slot(
    encoder: EncoderOptions, steps: int, separation: int, rate: float, noise: float
) -> None:
    case = schedule(encoder, steps, noise, scheme="cyclic-poisson", separation=separation, rate=rate)
    overlaps = theory.reduction(case, 1).moments
    assert isinstance(overlaps, moments.Overlaps)
    matrix = encoder_of(encoder, steps).matrix() / noise
    for order in (2, 3):
        bounds = []
        for families in overlaps.slots:
            most = [steps] * len(families[0])
            logs = [moments._log_moment(family, order, rate, most, {}) for family in families]
            bounds.append(float(np.mean(logs)))
        exact = [exact_log_moment(matrix[:, slot::separation], rate, order) for slot in range(separation)]
        assert max(bounds) >= max(exact) - 1e-9
        if encoder.kind == "tree" and order == 2:  # the kernel is exact, and two replicas rarely share a step
            assert max(bounds) <= max(exact) * 1.5 + 1e-9


def test_many_draws_are_omitted_for_less_than_their_share_of_delta() -> None:
    families = moments.toeplitz_families(np.geomspace(1.0, 1e-3, 40))
    most, omitted = moments._most_draws(families, 0.05, 1e-6)
    assert 0.0 < omitted <= 1e-7 * (1.0 + 1e-6)
    random = np.random.default_rng(1)
    draws = random.random((200_000, 40)) < 0.05
    totals = np.cumsum(np.pad(draws, ((0, 0), (1, 0))), axis=1)
    for level, largest in zip(families[0], most, strict=True):
        length = int(np.bincount(level.blocks).max())
        windows = totals[:, length:] - totals[:, :-length]
        assert windows.max() <= largest


@pytest.mark.ci
@pytest.mark.parametrize("encoder", [*ENCODERS, options("buffers", weights=(1.0,), decays=(0.999,))])
@pytest.mark.parametrize(("rate", "noise"), [(0.05, 2.0), (0.5, 5.0)])
def test_epsilon_of_moments_is_at_least_that_of_equal_gradients(
    encoder: EncoderOptions, rate: float, noise: float
) -> None:
    case = schedule(encoder, 7, noise, scheme="cyclic-poisson", separation=1, rate=rate)
    overlaps = theory.reduction(case, 1).moments
    assert isinstance(overlaps, moments.Overlaps)
    steps = np.array(list(product([0.0, 1.0], repeat=7)))
    means, weights = steps @ encoder_of(encoder, 7).matrix().T, np.prod(np.where(steps > 0.0, rate, 1.0 - rate), axis=1)
    for delta in (0.1, 1e-3):
        value, error = oracles.sampled_delta(means, weights, noise, overlaps.epsilon(delta), 9)
        assert value <= delta + 5.0 * error


@pytest.mark.ci
def test_overlapping_drawn_steps_have_smaller_bounds_than_sums_of_rows() -> None:
    """The sums of rows end at 19.0 for the tree, and at 17.1 for buffers."""
    buffers = options("buffers", weights=(0.3, 0.1), decays=(0.9, 0.99))
    for encoder, upper in ((options("tree"), 11.3), (buffers, 11.6)):
        noise = math.sqrt(float(np.square(encoder_of(encoder, 800).matrix()).sum(axis=0).max()))
        case = schedule(encoder, 800, noise, scheme="cyclic-poisson", separation=16, rate=0.05)
        (interval,) = theory.epsilons(case, 1, [1e-5], width=1e-2)
        assert interval.method == "moments of equal gradients"
        assert 5.9 <= interval.lower <= interval.upper <= upper


def test_sums_of_draws_are_at_most_exact_ones() -> None:
    mixture = theory._sum_of_draws([3, 1, 4, 4], 0.3, 2.0)
    exact: dict[int, float] = {}
    for drawn in product([0, 1], repeat=4):
        total = int(np.dot(drawn, [3, 1, 4, 4]))
        exact[total] = exact.get(total, 0.0) + 0.3 ** sum(drawn) * 0.7 ** (4 - sum(drawn))
    tails = [sum(mass for total, mass in exact.items() if total >= least) for least in range(1, 13)]
    bounds = [float(mixture.probabilities[mixture.sensitivities >= least].sum()) for least in range(1, 13)]
    assert np.all(np.array(bounds) <= tails)
    assert np.allclose(bounds, tails, rtol=1e-8)
