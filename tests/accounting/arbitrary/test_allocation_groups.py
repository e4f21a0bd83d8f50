"""Random allocation of groups: against quadrature, enumeration of all assignments, and simulated sums."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from dpspec.accounting import EqualMembers, PrivacyLoss, RandomAllocation
from dpspec.accounting.allocation import _sharings
from dpspec.accounting.numerics import DIRECTIONS, Direction, Floats


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


def two_steps(sigma: float, epsilon: float, direction: Direction, second: float) -> float:
    """delta of two members, of gradients 1 and ``second``, in two steps: the trapezoid rule over both sums."""
    x = np.linspace(-9.0 * sigma - 2.0, 9.0 * sigma + 2.0, 1601)
    grid = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2, 1)
    ratio = ratios(grid, sigma, np.array([[1.0], [second]]))
    density = np.exp(-np.square(grid).sum(axis=(1, 2)) / (2.0 * sigma**2)) / (2.0 * math.pi * sigma**2)
    gain = ratio - math.exp(epsilon) if direction == "present-first" else 1.0 - math.exp(epsilon) * ratio
    return float((np.maximum(gain, 0.0) * density).sum()) * float(x[1] - x[0]) ** 2


@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_members_in_two_steps_against_quadrature(sigma: float, direction: Direction) -> None:
    """Equal members: just below the exact delta. The dominating pair: above it, and above that of opposite members."""
    attained = PrivacyLoss.of(EqualMembers(2, sigma, 2), direction)
    dominating = PrivacyLoss.of(RandomAllocation(2, sigma, 2), direction)
    for epsilon in (0.0, 0.5, 2.0):
        exact = two_steps(sigma, epsilon, direction, 1.0)
        found = attained.delta(epsilon, width=1e-3).lower
        assert 0.995 * exact <= found <= exact * (1.0 + 1e-5)
        most = dominating.delta(epsilon, width=1e-3).upper
        assert exact <= most
        assert two_steps(sigma, epsilon, direction, -1.0) <= most


@pytest.mark.parametrize(("steps", "members", "epochs"), [(4, 3, 2), (6, 2, 1)])
def test_members_of_every_angle_against_simulated_sums(steps: int, members: int, epochs: int) -> None:
    """Sums are drawn as a training does; the ratio is the mean over all assignments. Six standard errors."""
    rng, draws, sigma, epsilon = np.random.default_rng(11), 20000, 1.2, 1.0
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
            above = PrivacyLoss.of(RandomAllocation(steps, sigma, members), direction).compose(epochs)
            assert mean - error <= above.delta(epsilon, width=1e-2).upper
            if spread == 0.0:
                below = PrivacyLoss.of(EqualMembers(steps, sigma, members), direction).compose(epochs)
                found = below.delta(epsilon, width=1e-2).lower
                assert found - error <= mean <= found * 1.02 + error


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
    one, same = (PrivacyLoss.of(pair).epsilon(1e-5) for pair in (RandomAllocation(10, 1.0), EqualMembers(10, 1.0, 1)))
    assert same.lower == pytest.approx(one.lower, rel=2e-3)
    assert same.lower <= one.upper
