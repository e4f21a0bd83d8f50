"""Random allocation: against quadrature of two steps, a simulation of many, the Gaussian mechanism, and enumeration."""

import functools
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpspec.accounting import EqualMembers, Mixture, PrivacyLoss, RandomAllocation, gaussian
from dpspec.accounting.allocation import Law, _sharings, by_doubling, combine
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


@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_steps_against_quadrature(sigma: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(RandomAllocation(2, sigma), direction)
    for epsilon in (0.0, 0.5, 2.0):
        found, exact = loss.delta(epsilon, width=1e-3), two_steps(sigma, epsilon, direction)
        assert found.lower <= exact * (1.0 + 1e-7)
        assert exact * (1.0 - 1e-7) <= found.upper
        assert found.width <= 0.05 * found.upper


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("steps", "sigma", "delta"), [(2, 0.1, 1e-290), (2, 0.3, 1e-100), (2, 5.0, 1e-300)])
def test_the_least_deltas_and_noise_have_intervals_too(steps, sigma, delta, direction):
    """Numbers beyond float64 used to fail. An adversary who knows which of the two steps has the record is a bound."""
    found = PrivacyLoss.of(RandomAllocation(steps, sigma), direction).epsilon(delta)
    revealed = PrivacyLoss.of(Mixture.full(1, sigma), direction).epsilon(delta)
    assert 0.0 <= found.lower <= revealed.upper
    assert found.lower <= found.upper < math.inf


def test_one_step_is_the_gaussian_mechanism() -> None:
    found = PrivacyLoss.of(RandomAllocation(1, 1.5)).compose(4).epsilon(1e-6)
    assert float(gaussian.epsilon(1e-6, 2.0 / 1.5)) in found


@pytest.mark.parametrize(("steps", "epochs"), [(30, 1), (30, 3)])
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


@settings(max_examples=25, deadline=None)
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
        by_doubling(Law(points, masses, upper), times, lambda one, other, _: combine(one, other, np.add, count, -40.0))
        for upper in (True, False)
    )
    for c in np.quantile(total, [0.0, 0.1, 0.5, 0.9, 1.0]) + 1e-3:
        for sign in (1.0, -1.0):
            exact = float(chance @ np.maximum(sign * (total - c), 0.0))
            most = float(above.masses @ np.maximum(sign * (above.values - c), 0.0)) + (above.lost if sign > 0 else 0.0)
            least = float(below.masses @ np.maximum(sign * (below.values - c), 0.0))
            assert least * (1.0 - 1e-9) - 1e-9 <= exact <= most * (1.0 + 1e-9) + 1e-12


def test_a_thousand_steps_are_known_to_a_thousandth() -> None:
    found = PrivacyLoss.of(RandomAllocation(1000, 0.8)).compose(100).epsilon(1e-10, width=1e-3)
    assert found.relative_width <= 1e-3
    assert found.lower <= 4.0031
    assert found.upper >= 4.0007


def test_what_lies_beyond_the_last_point_is_lost_and_not_forgotten() -> None:
    law = Law(np.array([1.0, 10.0, 1e3]), np.array([0.998999, 1e-3, 1e-6]), True)  # sums of 1001 and more are beyond
    found = combine(law, law, np.add, 50, math.log(1e-2))
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


@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_members_in_two_steps_against_quadrature(sigma: float, direction: Direction) -> None:
    """Equal members: just below the exact delta. The dominating pair: above it, and above that of opposite members."""
    attained = PrivacyLoss.of(EqualMembers(2, sigma, 2), direction)
    dominating = PrivacyLoss.of(RandomAllocation(2, sigma, 2), direction)
    for epsilon in (0.0, 0.5, 2.0):
        exact = two_members(sigma, epsilon, direction, 1.0)
        found = attained.delta(epsilon, width=1e-3).lower
        assert 0.995 * exact <= found <= exact * (1.0 + 1e-5)
        most = dominating.delta(epsilon, width=1e-3).upper
        assert exact <= most
        assert two_members(sigma, epsilon, direction, -1.0) <= most


@pytest.mark.parametrize(("steps", "members", "epochs"), [(4, 3, 2), (6, 2, 1)])
def test_members_of_every_angle_against_simulated_sums(steps: int, members: int, epochs: int) -> None:
    """Sums are drawn as a training does; the ratio is the mean over all assignments. Six standard errors."""
    rng, draws, sigma, epsilon = np.random.default_rng(11), 20000, 1.2, 1.0
    above, below = (
        {
            way: PrivacyLoss.of(pair(steps, sigma, members), way).compose(epochs).delta(epsilon, width=1e-2)
            for way in DIRECTIONS
        }
        for pair in (RandomAllocation, EqualMembers)
    )
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
            assert mean - error <= above[direction].upper
            if spread == 0.0:
                attained = below[direction].lower
                assert attained - error <= mean <= attained * 1.02 + error


@pytest.mark.parametrize(("members", "steps"), [(1, 5), (2, 1), (2, 7), (4, 3), (4, 5)])
def test_the_ways_to_share_steps_are_those_of_all_assignments(members: int, steps: int) -> None:
    counted: Counter[tuple[int, ...]] = Counter()
    for assignment in itertools.product(range(steps), repeat=members):
        counted[tuple(sorted(Counter(assignment).values(), reverse=True))] += 1
    found = {shares: math.exp(log) for log, shares in _sharings(members, steps)}
    assert found == {shares: pytest.approx(count / steps**members) for shares, count in counted.items()}


@pytest.mark.ci
def test_the_ends_are_ordered_and_one_member_is_the_plain_pair() -> None:
    for steps, sigma, members in ((10, 1.0, 2), (20, 1.5, 3)):
        low = PrivacyLoss.of(EqualMembers(steps, sigma, members)).epsilon(1e-5, width=1e-2)
        high = PrivacyLoss.of(RandomAllocation(steps, sigma, members)).epsilon(1e-5, width=1e-2)
        fewer = PrivacyLoss.of(EqualMembers(steps, sigma, members - 1)).epsilon(1e-5, width=1e-2)
        apart = PrivacyLoss.of(RandomAllocation(steps, sigma)).compose(members).epsilon(1e-5, width=1e-2)
        assert fewer.lower <= low.lower <= high.upper
        assert apart.lower <= high.upper
    far = PrivacyLoss.of(EqualMembers(10, 1.0, 2)).compose(10).epsilon(1e-20)  # two stages had contradictory estimates
    assert 32.30 < far.lower <= PrivacyLoss.of(RandomAllocation(10, 1.0, 2)).compose(10).epsilon(1e-20).upper
    one, same = (PrivacyLoss.of(pair).epsilon(1e-5) for pair in (RandomAllocation(10, 1.0), EqualMembers(10, 1.0, 1)))
    assert same.lower == pytest.approx(one.lower, rel=2e-3)
    assert same.lower <= one.upper
