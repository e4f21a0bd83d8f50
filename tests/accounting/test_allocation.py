"""Random allocation: against quadrature of two steps, a simulation of many, the Gaussian mechanism, and enumeration."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpspec.accounting import Mixture, PrivacyLoss, RandomAllocation, UnevenAllocation, gaussian
from dpspec.accounting.convex_laws import CellTable, Law, by_doubling, combine
from dpspec.accounting.group_allocation import Coefficients, _merged, _spread, group_laws
from dpspec.accounting.numerics import DIRECTIONS, Direction, Floats


def two_steps(sigma: float, epsilon: float, direction: Direction) -> float:
    """delta of one of two steps: over the second record's number in closed form, over the first's by the trapezoid."""
    a, c = 1.0 / sigma, math.exp(epsilon)
    x = np.linspace(-12.0, 12.0 + a, 100001)
    w = np.exp(a * x - 0.5 * a * a)
    present = direction == "present-first"
    strike = 2.0 * c - w if present else 2.0 / c - w
    z = np.where(strike > 0.0, (np.log(np.maximum(strike, 1e-300)) + 0.5 * a * a) / a, -np.inf)
    if present:
        inner = np.where(strike > 0.0, norm.sf(z - a) - strike * norm.sf(z), 1.0 - strike) / 2.0
    else:
        inner = np.where(strike > 0.0, strike * norm.cdf(z) - norm.cdf(z - a), 0.0) * c / 2.0
    return float(np.trapezoid(inner * norm.pdf(x), x))


@pytest.mark.family
@pytest.mark.parametrize("spread", [1e-6, 0.1, 600.0])
def test_cells_of_numbers_against_a_binary_search(spread: float) -> None:
    """At edges, next to them, between them, at 0 and beyond both ends."""
    rng = np.random.default_rng(5)
    edges = np.unique(np.exp(rng.uniform(-0.5 * spread, 0.5 * spread, 300)))
    near = [np.nextafter(edges, 0.0), np.nextafter(edges, np.inf), np.exp(rng.uniform(-spread, spread, 2000))]
    numbers = np.concatenate(([0.0, 5e-324, 1.7e308], edges, *near))
    expected = np.searchsorted(edges, numbers, side="right")
    np.testing.assert_array_equal(CellTable(edges).cells(numbers), expected)


@pytest.mark.family
@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_steps_against_quadrature(sigma: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(RandomAllocation(2, sigma), direction)
    for epsilon in (0.0, 0.5, 2.0):
        found, exact = loss.delta(epsilon, width=1e-3), two_steps(sigma, epsilon, direction)
        assert found.lower <= exact * (1.0 + 1e-7)
        assert exact * (1.0 - 1e-7) <= found.upper
        assert found.width <= 0.05 * found.upper


@pytest.mark.family
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("steps", "sigma", "delta"), [(2, 0.1, 1e-290), (2, 0.3, 1e-100), (2, 5.0, 1e-300)])
def test_the_least_deltas_and_noise_have_intervals_too(steps, sigma, delta, direction):
    """Numbers beyond float64 used to fail. An adversary who knows which of the two steps has the record is a bound."""
    found = PrivacyLoss.of(RandomAllocation(steps, sigma), direction).epsilon(delta)
    revealed = PrivacyLoss.of(Mixture.full(1, sigma), direction).epsilon(delta)
    assert 0.0 <= found.lower <= revealed.upper
    assert found.lower <= found.upper < math.inf


@pytest.mark.family
@pytest.mark.parametrize("members", range(1, 9))
def test_the_least_noise_may_be_rounded(members: int) -> None:
    """0.3 is less than 0.1 times 3 in float64."""
    pair = RandomAllocation(2, members / 10, members)
    epsilon, one_release = PrivacyLoss.of(pair).epsilon(1e-6), gaussian.epsilon(1e-6, 10.0)
    assert 0.0 < epsilon.lower <= epsilon.upper <= float(one_release) * (1.0 + 1e-9)
    with pytest.raises(ValueError, match="noise_multiplier must be at least"):
        RandomAllocation(2, 0.0999 * members, members)


def test_one_step_is_the_gaussian_mechanism() -> None:
    found = PrivacyLoss.of(RandomAllocation(1, 1.5)).compose(4).epsilon(1e-6)
    assert float(gaussian.epsilon(1e-6, 2.0 / 1.5)) in found


@pytest.mark.ci
@pytest.mark.parametrize(("steps", "epochs"), [(30, 3), (30, 1)])
def test_many_steps_against_simulation(steps: int, epochs: int) -> None:
    """delta is a mean over losses drawn under P, and under Q; intervals are within six standard errors of it."""
    rng, draws, sigma, epsilon = np.random.default_rng(5), 60000, 0.8, 0.6
    totals = {direction: np.zeros(draws) for direction in DIRECTIONS}
    for _ in range(epochs):
        x = rng.normal(0.0, sigma, (draws, steps))
        without = np.log(np.exp((2.0 * x - 1.0) / (2.0 * sigma**2)).mean(axis=1))
        x[:, 0] += 1.0
        totals["present-first"] += np.log(np.exp((2.0 * x - 1.0) / (2.0 * sigma**2)).mean(axis=1))
        totals["absent-first"] -= without
    for direction, losses in totals.items():
        gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
        error = 6.0 * float(gains.std()) / draws**0.5
        found = PrivacyLoss.of(RandomAllocation(steps, sigma), direction).compose(epochs).delta(epsilon, width=1e-3)
        assert found.lower - error <= float(gains.mean()) <= found.upper + error
        assert found.width <= 0.02 * found.upper


def exact_sum(values: Floats, masses: Floats, times: int) -> tuple[Floats, Floats]:
    total, chance = values, masses
    for _ in range(times - 1):
        total, chance = np.add.outer(total, values).ravel(), np.multiply.outer(chance, masses).ravel()
    return total, chance


@given(
    values=st.lists(st.floats(0.01, 50.0), min_size=2, max_size=6, unique=True),
    times=st.integers(2, 4),
    count=st.integers(20, 60),
)
def test_sums_are_ordered_as_the_convex_order_says(values: list[float], times: int, count: int) -> None:
    """The mean of max(sum - c, 0) and of max(c - sum, 0), for all c: below, exact, above; coarse points on purpose."""
    points = np.sort(np.array(values))
    masses = np.full(len(points), 1.0 / len(points))
    total, chance = exact_sum(points, masses, times)
    above, below = (
        by_doubling(Law(points, masses, upper), times, lambda one, other, _: combine(one, other, count, -40.0))
        for upper in (True, False)
    )
    for c in np.quantile(total, [0.0, 0.1, 0.5, 0.9, 1.0]) + 1e-3:
        for sign in (1.0, -1.0):
            exact = float(chance @ np.maximum(sign * (total - c), 0.0))
            most = float(above.masses @ np.maximum(sign * (above.values - c), 0.0)) + (above.lost if sign > 0 else 0.0)
            least = float(below.masses @ np.maximum(sign * (below.values - c), 0.0))
            assert least * (1.0 - 1e-9) - 1e-9 <= exact <= most * (1.0 + 1e-9) + 1e-12


@pytest.mark.ci
def test_a_thousand_steps_are_known_to_a_thousandth() -> None:
    found = PrivacyLoss.of(RandomAllocation(1000, 0.8)).compose(100).epsilon(1e-10, width=1e-3)
    assert found.relative_width <= 1e-3
    assert found.lower <= 4.0031
    assert found.upper >= 4.0007


def test_what_lies_beyond_the_last_point_is_lost_and_not_forgotten() -> None:
    law = Law(np.array([1.0, 10.0, 1e3]), np.array([0.998999, 1e-3, 1e-6]), True)  # sums of 1001 and more are beyond
    found = combine(law, law, 50, math.log(1e-2))
    mean = 2.0 * float(law.masses @ law.values)
    assert float(found.masses @ found.values) + found.lost >= mean
    assert found.values[-1] < 100.0
    assert float(found.masses.sum()) >= 1.0


def ratios(sums: Floats, sigma: float, vectors: Floats) -> Floats:
    """dP/dQ at ``sums`` (n, steps, dimensions): the mean over all assignments of members with ``vectors`` (k, dim)."""
    _, steps, _ = sums.shape
    total = np.zeros(len(sums))
    for assignment in itertools.product(range(steps), repeat=len(vectors)):
        means = np.zeros(sums.shape[1:])
        for step, vector in zip(assignment, vectors, strict=True):
            means[step] += vector
        total += np.exp((2.0 * (sums * means).sum(axis=(1, 2)) - np.square(means).sum()) / (2.0 * sigma**2))
    return total / steps ** len(vectors)


@functools.cache
def two_members_in_two_steps(sigma: float, second: float) -> tuple[Floats, Floats]:
    """Masses of both sums without members on a grid, and dP/dQ there, for members of gradients 1 and ``second``."""
    x = np.linspace(-9.0 * sigma - 2.0, 9.0 * sigma + 2.0, 601)
    grid = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2, 1)
    density = np.exp(-np.square(grid).sum(axis=(1, 2)) / (2.0 * sigma**2)) / (2.0 * math.pi * sigma**2)
    return density * (x[1] - x[0]) ** 2, ratios(grid, sigma, np.array([[1.0], [second]]))


def two_members(sigma: float, epsilon: float, direction: Direction, second: float) -> float:
    """delta of two members, of gradients 1 and ``second``, in two steps: the trapezoid rule over both sums."""
    masses, ratio = two_members_in_two_steps(sigma, second)
    gain = ratio - math.exp(epsilon) if direction == "present-first" else 1.0 - math.exp(epsilon) * ratio
    return float(np.maximum(gain, 0.0) @ masses)


@pytest.mark.family
@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_members_in_two_steps_against_quadrature(sigma: float, direction: Direction) -> None:
    """The interval contains the exact delta of equal members, and is above that of opposite ones."""
    loss = PrivacyLoss.of(RandomAllocation(2, sigma, 2), direction)
    for epsilon in (0.0, 0.5, 2.0):
        exact = two_members(sigma, epsilon, direction, 1.0)
        found = loss.delta(epsilon, width=1e-3)
        assert 0.995 * exact <= found.lower <= exact * (1.0 + 1e-5)
        assert exact * (1.0 - 1e-5) <= found.upper <= 1.01 * exact
        assert two_members(sigma, epsilon, direction, -1.0) <= found.upper


def adaptive_members(sigma: float, epsilon: float, direction: Direction, angles: Floats) -> float:
    """delta of two members in two steps whose vectors at the second step depend on the first sum, by quadrature.

    angles: (3, 2) of each member's vector to the first axis: at the first step, and at the second one after a first sum
    whose first coordinate is negative, or is not.
    """
    x = np.linspace(-6.5 * sigma - 1.0, 6.5 * sigma + 1.0, 33)
    grid = np.stack(np.meshgrid(x, x, x, x), axis=-1).reshape(-1, 2, 2)
    density = np.exp(-np.square(grid).sum(axis=(1, 2)) / (2.0 * sigma**2)) / (2.0 * math.pi * sigma**2) ** 2
    later = np.where((grid[:, 0, 0] < 0.0)[:, None], angles[1], angles[2])
    vectors = np.stack((np.broadcast_to(angles[0], later.shape), later), axis=1)  # (n, step, member)
    directions = np.stack((np.cos(vectors), np.sin(vectors)), axis=-1)
    ratio = np.zeros(len(grid))
    for assignment in itertools.product(range(2), repeat=2):
        means = np.zeros_like(grid)
        for member, step in enumerate(assignment):
            means[:, step] += directions[:, step, member]
        ratio += np.exp((2.0 * grid * means - np.square(means)).sum(axis=(1, 2)) / (2.0 * sigma**2)) / 4.0
    gain = ratio - math.exp(epsilon) if direction == "present-first" else 1.0 - math.exp(epsilon) * ratio
    return float(np.maximum(gain, 0.0) @ density) * float(x[1] - x[0]) ** 4


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_vectors_that_depend_on_the_first_sum_leak_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sigma, epsilon = float(rng.uniform(0.8, 2.0)), float(rng.uniform(0.0, 1.5))
    angles = rng.choice([math.pi / 3.0, math.pi]) * rng.uniform(-1.0, 1.0, (3, 2))
    for direction in DIRECTIONS:
        most = PrivacyLoss.of(RandomAllocation(2, sigma, 2), direction).delta(epsilon, width=1e-2).upper
        assert adaptive_members(sigma, epsilon, direction, angles) <= most * 1.01  # the grid's error


@pytest.mark.ci
@pytest.mark.parametrize(("steps", "sigma", "members"), [(3, 1.0, 2), (3, 1.3, 3), (5, 0.8, 4), (12, 1.5, 5)])
def test_the_laws_have_the_moments_of_all_assignments(steps: int, sigma: float, members: int) -> None:
    """The mean is 1, and the second moment, by counting pairs of assignments, is between those of the two laws."""
    above, below = group_laws(steps, sigma, 60.0, members, exact=True)
    counts = np.arange(members + 1.0)
    factorials = np.array([math.factorial(c) for c in range(members + 1)], dtype=np.float64)
    step = np.exp(np.multiply.outer(counts, counts) / sigma**2) / np.multiply.outer(factorials, factorials)
    total = np.zeros_like(step)
    total[0, 0] = 1.0
    for _ in range(steps):
        product = np.zeros_like(step)
        for i, j in itertools.product(range(members + 1), repeat=2):
            product[i:, j:] += step[i, j] * total[: members + 1 - i, : members + 1 - j]
        total = product
    second = total[members, members] * (factorials[-1] / float(steps) ** members) ** 2
    for law in (above, below):
        assert float(law.masses @ law.values) == pytest.approx(1.0, abs=1e-5)
    low, high = (float(law.masses @ (law.values - 1.0) ** 2) for law in (below, above))
    assert low <= (second - 1.0) * (1.0 + 1e-6)
    assert (second - 1.0) * (1.0 - 1e-6) <= high <= 1.2 * (second - 1.0)


@pytest.mark.ci
@pytest.mark.parametrize(("steps", "members", "epochs"), [(4, 3, 2), (6, 2, 1)])
def test_members_of_every_angle_against_simulated_sums(steps: int, members: int, epochs: int) -> None:
    """Sums are drawn as a training does; the ratio is the mean over all assignments. Six standard errors."""
    rng, draws, sigma, epsilon = np.random.default_rng(11), 20000, 1.2, 1.0
    intervals = {
        way: PrivacyLoss.of(RandomAllocation(steps, sigma, members), way).compose(epochs).delta(epsilon, width=1e-2)
        for way in DIRECTIONS
    }
    for spread in (0.0, 1.0, math.pi / 2.0, math.pi):
        angles = np.linspace(0.0, spread, members)
        vectors = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        losses: dict[Direction, Floats] = {"present-first": np.zeros(draws), "absent-first": np.zeros(draws)}
        for _ in range(epochs):
            sums = rng.normal(0.0, sigma, (draws, steps, 2))
            losses["absent-first"] -= np.log(ratios(sums, sigma, vectors))
            for vector in vectors:
                sums[np.arange(draws), rng.integers(0, steps, draws)] += vector
            losses["present-first"] += np.log(ratios(sums, sigma, vectors))
        for direction, loss in losses.items():
            gains = np.maximum(-np.expm1(epsilon - loss), 0.0)
            mean, error = float(gains.mean()), 6.0 * float(gains.std()) / draws**0.5
            assert mean - error <= intervals[direction].upper
            if spread == 0.0:
                attained = intervals[direction].lower
                assert attained - error <= mean <= attained * 1.02 + error


@pytest.mark.ci
def test_groups_of_four_are_known_to_a_hundredth() -> None:
    found = PrivacyLoss.of(RandomAllocation(632, 1.282, 4)).compose(20).epsilon(6.479e-11, width=1e-2)
    assert 4.160 <= found.lower <= found.upper <= 4.210


@pytest.mark.ci
def test_larger_groups_lose_more_and_less_than_with_split_noise() -> None:
    group = PrivacyLoss.of(RandomAllocation(10, 1.0, 2)).epsilon(1e-5, width=1e-2)
    fewer = PrivacyLoss.of(RandomAllocation(10, 1.0, 1)).epsilon(1e-5, width=1e-2)
    split = PrivacyLoss.of(RandomAllocation(10, math.sqrt(0.5))).compose(2)
    assert fewer.lower <= group.upper
    assert group.lower <= split.epsilon(1e-5, width=1e-2).upper
    many = PrivacyLoss.of(RandomAllocation(10, 2.0, 12)).epsilon(1e-5, width=1e-2)  # an estimate from above
    assert 0.0 < many.lower <= many.upper
    far = PrivacyLoss.of(RandomAllocation(10, 1.0, 2)).compose(10).epsilon(1e-20)
    assert 32.30 < far.lower <= far.upper < 33.5


@pytest.mark.parametrize("last", [False, True])
def test_products_of_polynomials_are_bounded_in_convex_order(*, last: bool) -> None:
    """All outcomes of the product by enumeration, with numbers of zero, of 1e-280 and close to each other."""
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.normal(0.0, 3.0, (3, 40)))
    sizes[:, :4] = [[0.0], [0.0], [0.0]]
    sizes[:, 4:20] = 1.0 + 1e-9 * rng.uniform(size=(3, 16))
    sizes[:, 20] = 1e-280
    left = Coefficients(rng.dirichlet(np.ones(40)), np.sort(sizes, axis=1), 0.0)
    right = Coefficients(rng.dirichlet(np.ones(25)), np.sort(np.exp(rng.normal(0.0, 3.0, (3, 25))), axis=1), 0.0)
    for first, second in ((left, right), (left, left)):
        pairs = [
            (m * n, [a[0] + b[0], a[1] + b[1] + a[0] * b[0], a[2] + b[2] + a[0] * b[1] + a[1] * b[0]])
            for m, a in zip(first.masses, first.values.T, strict=True)
            for n, b in zip(second.masses, second.values.T, strict=True)
        ]
        masses, values = np.array([m for m, _ in pairs]), np.array([row for _, row in pairs]).T
        above, below = _spread(first, second, 30, last=last), _merged(first, second, last=last)
        for weights in np.exp(rng.normal(0.0, 2.0, (40, 3))):
            weights[:2] *= not last
            sums = weights @ values
            for threshold in np.quantile(sums, [0.02, 0.2, 0.5, 0.9]):
                exact, high, low = (
                    float(mass @ np.maximum(weights[-len(rows) :] @ rows - threshold, 0.0))
                    for mass, rows in ((masses, values), (above.masses, above.values), (below.masses, below.values))
                )
                assert low <= exact * (1.0 + 1e-9)
                assert exact * (1.0 - 1e-9) <= high
                assert low >= 0.99 * exact


def test_uneven_steps_against_a_grid() -> None:
    """Two steps of different noise, by sums over a grid of both outputs."""
    noises = (0.8, 1.6)
    pair = PrivacyLoss.of(UnevenAllocation([(1, noise) for noise in noises]))
    x = np.linspace(-9.0, 10.0, 1201)
    ratio = np.add.outer(*(np.exp((x - 0.5 / noise) / noise) for noise in noises)) / 2.0
    weights = np.outer(np.exp(-0.5 * x * x), np.exp(-0.5 * x * x)) / (2.0 * math.pi) * (x[1] - x[0]) ** 2
    for epsilon in (0.0, 0.7, 2.0):
        delta = float((weights * np.maximum(ratio - math.exp(epsilon), 0.0)).sum())
        interval = pair.delta(epsilon, width=1e-3)
        assert interval.lower * (1.0 - 1e-4) <= delta <= interval.upper * (1.0 + 1e-4)
        assert interval.relative_width <= 2e-3


def test_even_steps_are_random_allocation() -> None:
    uneven = PrivacyLoss.of(UnevenAllocation([(2, 1.3), (3, 1.3)])).compose(3).epsilon(1e-4, width=1e-3)
    even = PrivacyLoss.of(RandomAllocation(5, 1.3)).compose(3).epsilon(1e-4, width=1e-3)
    assert uneven.lower <= even.upper
    assert even.lower <= uneven.upper


@pytest.mark.parametrize(
    ("noise_steps", "message"),
    [([], "steps"), ([(1, 0.05)], "noise"), ([(1, 1e14)], "noise"), ([(0, 1.0)], "steps"), ([(10**8, 1.0)], "steps")],
)
def test_uneven_steps_out_of_range_are_named(noise_steps: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnevenAllocation(noise_steps)
