"""Certified intervals: they contain every independently computed value, and move as they must."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from support.rero_values import BY_NAME, CIFAR, FIXED_EPSILON, IMAGENET, IMAGENET_RATE, VALUES, Value

from dpspec.accounting import Interval
from dpspec_rero.options import Steps
from dpspec_rero.theory import Leakage, pure_epsilon

_DIGITS = 60


def laplace_gamma(kappa: str, effect: str, steps: int) -> Any:
    """The power at level ``kappa`` of the best test of N composed Laplace steps as a finite sum, at 60 digits.

    The arguments are strings, so that they are exact. The loss of a step has atoms at -m and m and a density between
    them. Of N steps, i have the loss -m, j have m and k = N - i - j lie between; the sum of the k losses has a density
    that is an exponential times a spline:

        P_null[S > c] = sum of N! / (i! j! k!) 2^-(i + j) e^(-m j) A_k^-(c - (j - i) m)

    and under the alternative e^(-m i) and A_k^+, with A_0(y) = 1 for y < 0 and else 0, and otherwise

        A_k^+-(y) = (e^(-m/2) / 4)^k * integral from max(y, -k m) to k m of e^(+-t/2) V_k(t) dt,
        V_k(t) = 1 / (k - 1)! * sum over r of (-1)^r C(k, r) (t + k m - 2 m r)_+^(k - 1).
    """
    with mp.workdps(_DIGITS):
        level, m = mpf(kappa), mpf(effect)
        for l in range(steps, -steps - 1, -1):  # noqa: E741 - atoms at l m, from the top
            c = l * m
            above, at_least = _tail(c, m, steps, 0), _tail(c - mpf(10) ** -50, m, steps, 0)
            if above <= level <= at_least:
                return _tail(c, m, steps, 1) + (level - above) * mp.exp(c)
            if above > level:
                low, high = c, c + m
                for _ in range(60):  # the tangent below leaves the square of what is left
                    middle = (low + high) / 2
                    low, high = (middle, high) if _tail(middle, m, steps, 0) > level else (low, middle)
                return _tail(low, m, steps, 1) + (level - _tail(low, m, steps, 0)) * mp.exp(low)
        raise AssertionError("a level of at most one is reached")


def _tail(c: Any, m: Any, steps: int, alternative: int) -> Any:
    total = mpf(0)
    for i in range(steps + 1):
        for j in range(steps + 1 - i):
            k = steps - i - j
            ways = mp.factorial(steps) / (mp.factorial(i) * mp.factorial(j) * mp.factorial(k))
            rare = i if alternative else j
            total += ways * mpf(2) ** -(i + j) * mp.exp(-m * rare) * _inside(k, c - (j - i) * m, m, alternative)
    return total


def _inside(k: int, y: Any, m: Any, alternative: int) -> Any:
    if k == 0:
        return mpf(1) if y < 0 else mpf(0)
    low, high = max(y, -k * m), k * m
    if low >= high:
        return mpf(0)
    return _inside_from(k, low, m, alternative)


@lru_cache(maxsize=200_000)
def _inside_from(k: int, low: Any, m: Any, alternative: int) -> Any:
    high, rate, total = k * m, mpf(1 if alternative else -1) / 2, mpf(0)
    for r in range(k + 1):
        shift = k * m - 2 * m * r  # the term begins at t = -shift
        start = max(low, -shift)
        if start < high:
            part = _antiderivative(k - 1, high + shift, rate) - _antiderivative(k - 1, start + shift, rate)
            total += (-1) ** r * mp.binomial(k, r) * mp.exp(-rate * shift) * part
    return (mp.exp(-m / 2) / 4) ** k * total / mp.factorial(k - 1)


def _antiderivative(n: int, u: Any, rate: Any) -> Any:
    """Of e^(rate u) u^n."""
    terms = ((-1) ** (n - q) * mp.factorial(n) / mp.factorial(q) * u**q / rate ** (n - q + 1) for q in range(n + 1))
    return mp.exp(rate * u) * mp.fsum(terms)


def steps(noise: str, effect: float, rate: float, count: int) -> tuple[Steps, ...]:
    return (Steps(noise=noise, effect=effect, rate=rate, count=count),)  # type: ignore[arg-type]


def contains(interval: Interval, value: float, relative: float = 1e-10) -> bool:
    return interval.lower * (1.0 - relative) <= value <= interval.upper * (1.0 + relative)


@pytest.mark.family
@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.name)
def test_reference_values(value: Value) -> None:
    (found,) = Leakage(value.phases).gammas([value.kappa])
    assert found.relative_width < 1e-4
    if isinstance(value.gamma, float):
        assert contains(found, value.gamma)
    else:
        assert found.lower <= value.gamma[1]
        assert found.upper >= value.gamma[0]


@pytest.mark.family
@pytest.mark.parametrize(
    ("effect", "rate", "count", "values"), [(0.1, 0.08192, 875, CIFAR), (0.4, IMAGENET_RATE, 71589, IMAGENET)]
)
def test_figure_2(effect: float, rate: float, count: int, values: tuple[tuple[float, float], ...]) -> None:
    found = Leakage(steps("gaussian", effect, rate, count)).gammas([kappa for kappa, _ in values])
    for interval, (_, gamma) in zip(found, values, strict=True):
        assert contains(interval, gamma)
        assert interval.relative_width < 1e-4


@pytest.mark.family
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


@pytest.mark.family
@pytest.mark.parametrize(("kappa", "effect", "count"), [("0.1", "0.5", 2), ("0.01", "1", 3), ("0.9", "0.7", 2)])
def test_composed_laplace_against_the_finite_sum(kappa: str, effect: str, count: int) -> None:
    exact = float(laplace_gamma(kappa, effect, count))
    (found,) = Leakage(steps("laplace", float(effect), 1.0, count)).gammas([float(kappa)])
    assert contains(found, exact)


def test_the_top_atom_decides_small_baselines() -> None:
    """kappa <= (e^-m / 2)^N: gamma = kappa (1 + p (e^m - 1))^N, where a threshold alone promises too little."""
    m, rate, count = 1.0, 0.25, 4
    kappa = 0.5 * (0.5 * math.exp(-m)) ** count
    (found,) = Leakage(steps("laplace", m, rate, count)).gammas([kappa])
    assert contains(found, kappa * (1.0 + rate * math.expm1(m)) ** count)


@pytest.mark.ci
def test_laplace_noise_in_one_coordinate_is_the_worst() -> None:
    """A sensitivity of 1 spread over two coordinates, or three: less power at every level than in one."""
    powers = {1e-6: math.e * 1e-6, 0.05: math.e * 0.05, 0.5: 1.0 - 0.5 / math.e, 0.99: 1.0 - 0.01 / math.e}
    levels = list(powers)
    for parts in ((0.8, 0.2), (0.25, 0.25, 0.25, 0.25)):
        spread = tuple(Steps(noise="laplace", effect=part, rate=1.0, count=1) for part in parts)
        for level, found in zip(levels, Leakage(spread).gammas(levels), strict=True):
            assert found.upper <= powers[level] * (1.0 + 2e-5)


def test_phases_of_different_noise_compose() -> None:
    """Gaussian and Laplace steps: more than either alone, in either order the same."""
    one, two = steps("gaussian", 1.0, 0.1, 20)[0], steps("laplace", 0.5, 0.2, 10)[0]
    kappas = [1e-4, 0.1]
    both, turned = Leakage((one, two)).gammas(kappas), Leakage((two, one)).gammas(kappas)
    for at, kappa in enumerate(kappas):
        assert both[at].upper == pytest.approx(turned[at].upper, rel=1e-4)
        for alone in (one, two):
            assert Leakage((alone,)).gammas([kappa])[0].upper < both[at].lower


@pytest.mark.ci
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
