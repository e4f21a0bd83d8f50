"""Certified intervals: they contain every independently computed value, and move as they must."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf
from support.rero_values import BY_NAME, CIFAR, FIXED_EPSILON, IMAGENET, IMAGENET_RATE, VALUES, Value

from dpspec.accounting import Interval
from dpspec_rero.options import Steps
from dpspec_rero.theory import Leakage, pure_epsilon


def steps(noise: str, effect: float, rate: float, count: int) -> tuple[Steps, ...]:
    return (Steps(noise=noise, effect=effect, rate=rate, count=count),)  # type: ignore[arg-type]


def contains(interval: Interval, value: float, relative: float = 1e-10) -> bool:
    return interval.lower * (1.0 - relative) <= value <= interval.upper * (1.0 + relative)


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.name)
def test_reference_values(value: Value) -> None:
    (found,) = Leakage(value.phases).gammas([value.kappa])
    assert found.relative_width < 1e-4
    if isinstance(value.gamma, float):
        assert contains(found, value.gamma)
    else:
        assert found.lower <= value.gamma[1]
        assert found.upper >= value.gamma[0]


@pytest.mark.parametrize(
    ("effect", "rate", "count", "values"), [(0.1, 0.08192, 875, CIFAR), (0.4, IMAGENET_RATE, 71589, IMAGENET)]
)
def test_figure_2(effect: float, rate: float, count: int, values: tuple[tuple[float, float], ...]) -> None:
    found = Leakage(steps("gaussian", effect, rate, count)).gammas([kappa for kappa, _ in values])
    for interval, (_, gamma) in zip(found, values, strict=True):
        assert contains(interval, gamma)
        assert interval.relative_width < 1e-4


@pytest.mark.parametrize("case", FIXED_EPSILON, ids=lambda case: f"{case[0]}-{case[1]}")
def test_figures_3_and_4(case: tuple[int, float, float, dict[float, tuple[float, ...]]]) -> None:
    """gamma, and the number that the other direction would give, at the same (4, 1e-5)."""
    count, rate, sigma, values = case
    leak = Leakage(steps("gaussian", 1.0 / sigma, rate, count))
    kappas = sorted(values)
    for kappa, right, wrong in zip(kappas, leak.gammas(kappas), leak.tprs(kappas, "add"), strict=True):
        assert contains(right, values[kappa][0], 2e-7)
        assert contains(wrong, values[kappa][1], 2e-6)
    (epsilon,) = leak.epsilons([1e-5], "both")
    assert contains(epsilon, 4.0, 1e-7)


def test_the_top_atom_decides_small_baselines() -> None:
    """kappa <= (e^-m / 2)^N: gamma = kappa (1 + p (e^m - 1))^N, where a threshold alone promises too little."""
    m, rate, count = 1.0, 0.25, 4
    kappa = 0.5 * (0.5 * math.exp(-m)) ** count
    (found,) = Leakage(steps("laplace", m, rate, count)).gammas([kappa])
    assert contains(found, kappa * (1.0 + rate * math.expm1(m)) ** count)


def test_phases_of_different_noise_compose() -> None:
    """Gaussian and Laplace steps: more than either alone, in either order the same."""
    one, two = steps("gaussian", 1.0, 0.1, 20)[0], steps("laplace", 0.5, 0.2, 10)[0]
    kappas = [1e-4, 0.1]
    both, turned = Leakage((one, two)).gammas(kappas), Leakage((two, one)).gammas(kappas)
    for at, kappa in enumerate(kappas):
        assert both[at].upper == pytest.approx(turned[at].upper, rel=1e-4)
        for alone in (one, two):
            assert Leakage((alone,)).gammas([kappa])[0].upper < both[at].lower


def test_membership_beside_it() -> None:
    leak = Leakage(BY_NAME["S6"].phases)
    advantage = leak.advantage()
    grid = list(np.linspace(0.01, 0.99, 50))
    gaps = [interval.upper - level for level, interval in zip(grid, leak.gammas(grid), strict=True)]
    assert max(gaps) <= advantage.upper + 1e-6
    assert max(gaps) > advantage.lower - 1e-3
    both, remove, add = (leak.tprs([0.01], direction)[0].upper for direction in ("both", "remove", "add"))
    assert both == max(remove, add)


@pytest.mark.parametrize("rate", [1e-6, 0.2, 0.5, 1.0 - 1e-12, 1.0])
@pytest.mark.parametrize("effect", [1e-5, 0.7, 5.0, 60.0])
def test_a_pure_epsilon_of_one_direction_is_the_largest_loss_in_it(rate: float, effect: float) -> None:
    """The densities at 60 digits, over outputs on both sides of, at and between the two centers."""
    q, s = mpf(rate), mpf(effect)
    with mp.workdps(60):
        losses = []
        for output in [-s, mpf(0), *(s * i / 7 for i in range(1, 7)), s, 3 * s]:
            without = mp.exp(-abs(output))
            losses.append(mp.log((1 - q) + q * mp.exp(-abs(output - s)) / without))
        largest = {"remove": max(losses), "add": -min(losses), "both": max(max(losses), -min(losses))}
    for direction, loss in largest.items():
        found = pure_epsilon(steps("laplace", effect, rate, 3), direction)
        assert found == pytest.approx(float(3 * loss), rel=2e-13)
