"""Shuffled batches from below: closed forms, quadrature, executed epochs, and extremes."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from dpspec.accounting import PrivacyLoss, gaussian, largest_sum_pair
from dpspec.sampling.shuffled import Shuffled

PRESENT, ABSENT = "present-first", "absent-first"
SETTINGS = [(1, 1.0), (2, 0.7), (10, 1.5), (100, 0.4), (10_000, 0.5), (50, 4.0)]


def exact_delta(batches: int, sigma: float, means: tuple[float, float], epsilon: float, upper_tail: bool) -> float:
    """Delta of the largest sum of one epoch in 30 digits: the best threshold, by golden sections on a grid's best."""
    grid = np.linspace(-6.0 * sigma, 8.0 * sigma + max(means), 120)
    others = (batches - 1) * stats.norm.logcdf(grid / sigma)
    first, second = (stats.norm.logcdf((grid - mean) / sigma) + others for mean in means)
    chances = [-np.expm1(part) if upper_tail else np.exp(part) for part in (first, second)]
    best = int(np.argmax(chances[0] - math.exp(epsilon) * chances[1]))
    with mpmath.workdps(30):

        def log_cdf(x, mean):
            return mpmath.log(mpmath.ncdf((x - mean) / sigma)) + (batches - 1) * mpmath.log(mpmath.ncdf(x / sigma))

        def gain(x):
            first, second = (
                -mpmath.expm1(log_cdf(x, mean)) if upper_tail else mpmath.exp(log_cdf(x, mean)) for mean in means
            )
            return first - mpmath.exp(epsilon) * second

        low, high = mpmath.mpf(grid[max(best - 1, 0)]), mpmath.mpf(grid[min(best + 1, 119)])
        for _ in range(40):
            third = (high - low) / 3
            low, high = (low + third, high) if gain(low + third) < gain(high - third) else (low, high - third)
        return float(gain((low + high) / 2))


@pytest.mark.family
@pytest.mark.parametrize(("batches", "sigma"), SETTINGS)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_one_epoch_is_just_below_the_best_threshold(batches: int, sigma: float, epsilon: float) -> None:
    for present, absent in ((2.0, 1.0), (0.0, 1.0)):
        pair = largest_sum_pair(batches, sigma, present, absent)
        for direction in (PRESENT, ABSENT):
            first, second = (present, absent) if direction == PRESENT else (absent, present)
            exact = exact_delta(batches, sigma, (first, second), epsilon, first > second)
            found = PrivacyLoss.of(pair, direction).delta(epsilon)
            assert found.lower <= exact * (1.0 + 1e-12) + 1e-13
            assert found.upper >= exact * 0.97 - 1e-13


@pytest.mark.family
@pytest.mark.parametrize(("batches", "sigma", "epsilon"), [(5, 1.0, 1.0), (20, 0.8, 3.0), (3, 2.0, 0.3)])
def test_two_epochs_by_quadrature(batches: int, sigma: float, epsilon: float) -> None:
    norm, x = stats.norm, np.linspace(-4.0, 2.0 + 8.0 * sigma, 2401)

    def density(mean: float) -> np.ndarray:
        z, others = (x - mean) / sigma, norm.cdf(x / sigma)
        moved = norm.pdf(z) * others ** (batches - 1)
        return np.asarray(moved + (batches - 1) * norm.cdf(z) * others ** (batches - 2) * norm.pdf(x / sigma)) / sigma

    first, second = (np.outer(density(mean), density(mean)) for mean in (2.0, 1.0))
    exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * (x[1] - x[0]) ** 2
    found = PrivacyLoss(((largest_sum_pair(batches, sigma, 2.0, 1.0), 2),), PRESENT).delta(epsilon)
    assert exact * 0.995 <= found.upper
    assert found.lower <= exact * (1.0 + 1e-6)


def test_two_batches_enumerated_are_the_pair_that_the_largest_sum_reads():
    # four records in two batches: all orders of the loader
    sums = {}
    for value in (1.0, 0.0):
        vectors = np.array([-1.0, -1.0, -1.0, value])
        orders = [vectors[list(order)].reshape(2, 2).sum(axis=1) + 2.0 for order in itertools.permutations(range(4))]
        sums[value] = [tuple(row) for row in orders]
    assert sorted(set(sums[1.0])) == [(0.0, 2.0), (2.0, 0.0)]
    assert sorted(set(sums[0.0])) == [(0.0, 1.0), (1.0, 0.0)]
    assert sums[1.0].count((0.0, 2.0)) == sums[0.0].count((1.0, 0.0)) == 12
    # delta of both noisy sums by quadrature is not below delta of their largest
    sigma, epsilon = 0.9, 1.2
    axis = np.linspace(-6.0, 8.0, 1401)
    one, two, none = (stats.norm.pdf(axis, mean, sigma) for mean in (1.0, 2.0, 0.0))
    first = 0.5 * (np.outer(two, none) + np.outer(none, two))
    second = 0.5 * (np.outer(one, none) + np.outer(none, one))
    exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * (axis[1] - axis[0]) ** 2
    found = PrivacyLoss.of(largest_sum_pair(2, sigma, 2.0, 1.0), PRESENT).delta(epsilon)
    assert 0.8 * exact < found.lower < exact


@pytest.mark.family
@pytest.mark.parametrize(("records", "size", "steps"), [(7, 3, 3), (8, 2, 3), (9, 4, 2)])
def test_executed_epochs_have_the_tails(records: int, size: int, steps: int) -> None:
    runs, sigma = 4000, 0.6
    generator, noise = torch.Generator().manual_seed(5), np.random.default_rng(5)
    vectors = np.full(records, -1.0)
    vectors[-1] = 1.0
    largest = np.full(runs, -np.inf)
    for run in range(runs):
        sampler = Shuffled(records, size)
        batches = [sampler.draw(generator).numpy() for _ in range(steps)]
        sums = [vectors[batch].sum() + len(batch) + sigma * noise.standard_normal() for batch in batches]
        largest[run] = max(sums)
    share = min(1.0, steps * size / records)
    norm = stats.norm
    for x in (0.5, 1.0, 1.8, 2.5):
        cdf = norm.cdf(x / sigma)
        exact = 1.0 - (1.0 - share) * cdf**steps - share * norm.cdf((x - 2.0) / sigma) * cdf ** (steps - 1)
        assert abs((largest > x).mean() - exact) < 4.5 * math.sqrt(exact * (1.0 - exact) / runs)
    pair = largest_sum_pair(steps, sigma, 2.0, 1.0, share)
    assert pair.present.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.family
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("batches", "sigma", "share", "epochs", "delta"),
    [
        (1, 1e-6, 1.0, 10**4, 1e-300),
        (10**6, 1e6, 0.5, 10**4, 1e-9),
        (10**6, 0.3, 1.0 - 1e-9, 3, 0.9),
        (1, 2.68814134784922e-06, 0.5, 605, math.exp(-13.0)),
        (37, 5.0, 1e-6, 1, 1e-20),
    ],
)
def test_extremes_stay_below_the_bound_without_amplification(batches, sigma, share, epochs, delta):
    for present, absent in ((2.0, 1.0), (0.0, 1.0), (2.0, 0.0)):
        pair = largest_sum_pair(batches, sigma, present, absent, share)
        side = PRESENT if present > absent else ABSENT
        found = PrivacyLoss(((pair, epochs),), side).epsilon(delta, width=1e-2)
        moved = abs(present - absent) * math.sqrt(epochs) / sigma
        assert 0.0 <= found.lower <= gaussian.epsilon(delta, moved) * (1.0 + 1e-6)


def test_published_lower_bound():
    # Chua et al. 2024: 10,000 batches, sigma 0.5, delta 1e-6
    loss = PrivacyLoss.of(largest_sum_pair(10_000, 0.5, 2.0, 1.0))
    assert 10.994 < loss.epsilon(1e-6).lower < gaussian.epsilon(1e-6, 2.0) < 10.998


def test_less_noise_bounds_as_much() -> None:
    least = PrivacyLoss.of(largest_sum_pair(3, 1e-200, 2.0, 1.0)).epsilon(1e-5).lower
    assert 280.0 < least < gaussian.epsilon(1e-5, 20.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 2.0, 1.0), "batches must be at least 1"),
        ((2, 0.0, 2.0, 1.0), "noise_multiplier must be a finite number above 0"),
        ((2, 1.0, 1.0, 1.0), "present and absent must be different"),
        ((2, 1.0, -1.0, 1.0), "present and absent must be different"),
        ((2, 1.0, 2.0, 1.0, 0.0), "share must be above 0"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        largest_sum_pair(*arguments)
