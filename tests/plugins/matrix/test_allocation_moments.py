"""A common release and moments of allocations against sums over all places, and epsilon against sampling."""

import math
from itertools import product

import numpy as np
import pytest
from plugins.matrix import oracles
from plugins.matrix.test_encoders import options
from plugins.matrix.test_theory import schedule

from dpspec_matrix import allocation_moments, theory
from dpspec_matrix.allocation_moments import AllocationMoments
from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import EncoderOptions


def random_columns(seed: int, steps: int) -> np.ndarray:
    """A lower triangular matrix of entries >= 0 with a positive diagonal."""
    random = np.random.default_rng(seed)
    matrix = np.tril(random.exponential(random.choice([0.1, 0.5]), size=(steps, steps)) * (random.random() < 0.8))
    return matrix + np.diag(random.uniform(0.2, 1.5, size=steps))


def allocations(epochs: int, places: int) -> np.ndarray:
    """Indicators of the steps of every possible allocation, (places ** epochs, epochs * places)."""
    chosen = np.array(list(product(range(places), repeat=epochs))) + places * np.arange(epochs)
    return np.eye(epochs * places)[chosen].sum(axis=1)


def exact_log_moment(matrix: np.ndarray, epochs: int, order: int) -> float:
    """ln E[L^order] of equal gradients without the record, of order 2 to 4: a sum over all places of each replica."""
    sets = allocations(epochs, matrix.shape[1] // epochs)
    pairs = np.exp(sets @ matrix.T @ matrix @ sets.T)
    sums = {2: "ab->", 3: "ab,ac,bc->", 4: "ab,ac,ad,bc,bd,cd->"}
    total = np.einsum(sums[order], *[pairs] * (order * (order - 1) // 2), optimize=True)
    return math.log(total) - order * math.log(len(sets))


CASES = [(2, 2), (2, 4), (3, 3), (4, 2), (1, 5), (5, 1)]


@pytest.mark.parametrize(("epochs", "places"), CASES)
@pytest.mark.parametrize("seed", range(4))
def test_moments_are_at_least_exact_ones(epochs: int, places: int, seed: int) -> None:
    matrix = random_columns(seed, epochs * places)
    found = AllocationMoments(matrix.T @ matrix, epochs)
    assert set(found._rest) >= {2, 3, 4, 6, 8, 96}
    for order in (2, 3, 4):
        bound = order * (order - 1) / 2.0 * found._common + found._rest[order]
        exact = exact_log_moment(matrix, epochs, order)
        assert bound >= exact - 1e-9
        if epochs == 1 or places == 1:  # nothing is separated
            assert bound == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("epochs", "places"), CASES)
def test_the_separated_kernel_dominates(epochs: int, places: int) -> None:
    """Oracle: eigenvalues over all allocations of the new exponents' covariances, and of what was added to the old."""
    matrix = random_columns(7, epochs * places)
    kernel, sets = matrix.T @ matrix, allocations(epochs, places)
    common = allocation_moments._common_release(kernel, epochs)
    rest = kernel - np.kron(common, np.ones((places, places)))
    constant, linear, squares = allocation_moments._separated(rest, epochs)
    diagonal = np.zeros((epochs, places, epochs, places))
    diagonal[np.arange(epochs), :, np.arange(epochs)] = squares
    lines = sets @ linear.ravel()
    new = float(common.sum()) + constant + lines[:, None] + lines + sets @ diagonal.reshape(kernel.shape) @ sets.T
    assert np.linalg.eigvalsh(new).min() >= -1e-9 * len(sets)
    assert np.linalg.eigvalsh(new - sets @ kernel @ sets.T).min() >= -1e-9 * len(sets)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_sums_over_places_are_those_over_all_of_them(order: int) -> None:
    random = np.random.default_rng(order)
    square, linear = random.normal(size=(4, 4)), random.normal(size=4)
    square = square @ square.T
    logs = [
        (order - 1) * sum(linear[list(places)])
        + sum(square[places[i], places[j]] for i in range(order) for j in range(i))
        for places in product(range(4), repeat=order)
    ]
    exact = float(np.logaddexp.reduce(logs)) - order * math.log(4)
    assert allocation_moments._log_moment(square, linear, order, order) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("order", "group"), [(4, 2), (6, 3), (6, 2), (8, 4)])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_moments_by_groups_of_copies_are_at_least_exact_ones(order: int, group: int, scale: float) -> None:
    """Oracle: the sum over all multisets of places."""
    random = np.random.default_rng(order + group)
    square, linear = scale * random.normal(size=(3, 3)), scale * random.normal(size=3)
    square = square @ square.T
    logs = []
    for counts in product(range(order + 1), repeat=3):
        if sum(counts) == order:
            drawn = np.array(counts, dtype=float)
            pairs = 0.5 * (drawn @ square @ drawn - drawn @ np.diag(square))
            weight = math.lgamma(order + 1) - sum(map(math.lgamma, drawn + 1)) - order * math.log(3)
            logs.append(weight + (order - 1) * float(linear @ drawn) + float(pairs))
    exact = float(np.logaddexp.reduce(logs))
    assert allocation_moments._log_moment(square, linear, order, order) == pytest.approx(exact, rel=1e-12)
    assert exact <= allocation_moments._log_moment(square, linear, order, group) <= 4.0 * abs(exact)


@pytest.mark.parametrize("seed", range(20))
def test_the_excess_is_above_that_of_ratios_with_these_moments(seed: int) -> None:
    """Oracle: random ratios of few values and mean 1."""
    random = np.random.default_rng(seed)
    values, weights = np.exp(random.normal(size=6) * random.choice([0.1, 1.0, 4.0])), random.dirichlet(np.full(6, 0.3))
    values /= float(values @ weights)
    found = AllocationMoments(np.eye(2), 1)
    found.__dict__["_parts"] = (0.0, {order: math.log(float(weights @ values**order)) for order in (2, 3, 4)})
    thresholds = np.concatenate([[1e-30], np.geomspace(1e-3, 1e4, 60), [1.0, 1.0 + 1e-9]])
    exact = np.maximum(values - thresholds[:, None], 0.0) @ weights
    bound = found._excess(np.log(thresholds))
    assert np.all(bound >= exact * (1.0 - 1e-12))
    assert np.all(bound <= 1.0 + 1e-6)


ENCODERS = [
    options("tree"),
    options("buffers", weights=(0.4, 0.1), decays=(0.6, 0.99)),
    options("inverse-square-root", bands=3),
    options("square-root", bands=2),
]


@pytest.mark.ci
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("scheme", ["random-allocation", "balls-in-bins"])
@pytest.mark.parametrize("noise", [0.7, 2.0, 6.0])
def test_epsilon_of_moments_is_at_least_that_of_equal_gradients(
    encoder: EncoderOptions, scheme: str, noise: float
) -> None:
    """Oracle: 400,000 sampled losses of the pair of Theorem M6; 5 standard errors."""
    case = schedule(encoder, 8, noise, scheme=scheme, separation=4)
    found = theory.reduction(case, 1).moments
    assert isinstance(found, AllocationMoments)
    columns = encoder_of(encoder, 8).matrix()
    sets = allocations(2, 4) if scheme == "random-allocation" else np.tile(np.eye(4), 2)
    weights = np.full(len(sets), 1.0 / len(sets))
    for delta in (0.1, 1e-3):
        value, error = oracles.sampled_delta(sets @ columns.T, weights, noise, found.epsilon(delta), 3)
        assert value <= delta + 5.0 * error


def test_a_plain_gaussian_release_is_one() -> None:
    """One place per epoch: nothing is random."""
    matrix = random_columns(3, 6)
    mu = math.sqrt(float((matrix.T @ matrix).sum()))
    epsilon = AllocationMoments(matrix.T @ matrix, 6).epsilon(1e-5)
    assert oracles.gaussian_delta(mu, epsilon) <= 1e-5 <= oracles.gaussian_delta(mu, epsilon * (1.0 - 1e-3))


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e4, 1e12])
def test_extreme_noise_has_a_finite_or_an_infinite_epsilon_but_no_error(scale: float) -> None:
    columns = np.tril(np.ones((8, 8))) * scale
    epsilon = AllocationMoments(columns.T @ columns, 2).epsilon(1e-6)
    assert epsilon >= 0.0
    if scale < 1.0:
        assert epsilon <= 600.0 * scale + 1e-3
    assert AllocationMoments(columns.T @ columns, 2).epsilon(1e-300) == math.inf


def test_little_change_at_a_large_delta_costs_nothing() -> None:
    assert AllocationMoments(1e-10 * np.eye(4), 2).epsilon(1e-3) == 0.0


def test_a_kernel_that_is_not_positive_has_no_bound() -> None:
    assert AllocationMoments(np.array([[0.0, 1.0], [1.0, 0.0]]), 2).epsilon(1e-3) == math.inf


@pytest.mark.ci
def test_overlapping_places_have_smaller_bounds_than_one_of_few() -> None:
    """Theorem M4 has 9.2, 17.9 and 19.0."""
    buffers = options("buffers", weights=(0.3, 0.1), decays=(0.9, 0.99))
    for encoder, upper in ((options("inverse-square-root", bands=8), 5.45), (buffers, 12.71), (options("tree"), 12.1)):
        noise = math.sqrt(float(np.square(encoder_of(encoder, 800).matrix()).sum(axis=0).max()))
        case = schedule(encoder, 800, noise, scheme="random-allocation", separation=100)
        (interval,) = theory.epsilons(case, 1, [1e-5], width=1e-2)
        assert interval.method == "moments of equal gradients"
        assert interval.lower <= interval.upper <= upper
        assert interval.relative_width <= 0.25
