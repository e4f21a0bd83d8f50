"""Compositions taken apart into no rare step and one: against exact sums, and where one tilt cannot do."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpspec.accounting import Direction, Mixture, PrivacyLoss
from dpspec.accounting.composition import UNSURE, ComposedProfile, compose, split_rare_steps
from dpspec.accounting.grid import Atoms
from dpspec_group.black_box import log_delta

PRESENT = "present-first"

#: A bulk around 0 and a loss of 40 that is met once in 10^15 steps.
BULK = np.array([0.3, 0.4, 0.3])
RARE = 1e-15


def step(infinity: float = 0.0) -> Atoms:
    masses = np.append(BULK * (1.0 - RARE), RARE)
    return Atoms(-0.5, 0.5, np.array([0, 1, 2, 81]), masses, infinity, 0.0)


def exact_log_delta(steps: int, epsilon: float) -> float:
    """All ways to have 0, 1 or 2 rare steps, in fractions."""
    atoms = step()
    bulk = [Fraction(1)]
    powers = [bulk]
    for _ in range(steps):
        longer = [Fraction(0)] * (len(bulk) + 2)
        for i, mass in enumerate(bulk):
            for j in range(3):
                longer[i + j] += mass * Fraction(float(atoms.masses[j]))
        bulk = longer
        powers.append(bulk)
    total = mpmath.mpf(0)
    for rare in range(3):
        ways = math.comb(steps, rare) * Fraction(float(atoms.masses[3])) ** rare
        for i, mass in enumerate(powers[steps - rare]):
            loss = -0.5 * steps + 0.5 * i + 40.5 * rare
            weight = ways * mass
            if loss > epsilon:
                gain = 1 - mpmath.exp(mpmath.mpf(epsilon) - loss)
                total += mpmath.mpf(weight.numerator) / mpmath.mpf(weight.denominator) * gain
    return float(mpmath.log(total))


@pytest.mark.parametrize("epsilon", [20.3, 30.3, 38.3])
def test_one_rare_step_decides(epsilon: float) -> None:
    with mpmath.workdps(50):
        truth = exact_log_delta(30, epsilon)
    whole = compose([(step(), 30)], 3.0, epsilon, epsilon - 15.0, 1 << 14)
    value, error = whole.sum_at(epsilon)
    assert error > UNSURE * value
    split = split_rare_steps(whole, [(step(), 30)], epsilon - 15.0, 1 << 14, truth)
    found = ComposedProfile((split,))
    assert found.bound("log_lower", epsilon) <= truth <= found.bound("log_upper", epsilon)
    assert whole.log_lower(epsilon) <= truth <= whole.log_upper(epsilon)
    assert found.bound("log_upper", epsilon) - found.bound("log_lower", epsilon) < 1e-6
    assert len(split[0]) == 2


def test_infinite_losses_are_counted_once() -> None:
    phases = [(step(infinity=1e-12), 30)]
    whole = compose(phases, 3.0, 30.3, 20.0, 1 << 14)
    found = ComposedProfile((split_rare_steps(whole, phases, 20.0, 1 << 14, math.log(3e-11)),))
    assert math.exp(found.bound("log_upper", 30.3)) == pytest.approx(3e-11, rel=1e-3)
    assert math.exp(found.bound("log_finite", 30.3)) < 1e-12


def test_what_a_tilt_resolves_is_left_whole() -> None:
    value, error = compose([(step(), 30)], 0.2, 2.0, -5.0, 1 << 14).sum_at(2.0)
    assert error <= UNSURE * value
    plain = [(Atoms(-0.5, 0.5, np.array([0, 1, 2]), BULK, 0.0, 0.0), 30)]
    whole = compose(plain, 30.0, 5.0, 0.0, 1 << 14)
    assert split_rare_steps(whole, plain, 0.0, 1 << 14, -9.0) == (((whole, 0.0),), -math.inf)


def test_the_worse_of_two_is_the_larger() -> None:
    one = compose([(step(), 30)], 1.0, 3.0, -5.0, 1 << 14)
    two = compose([(step(), 20)], 1.0, 3.0, -5.0, 1 << 14)
    both = ComposedProfile(tuple((((each, 0.0),), -math.inf) for each in (one, two)))
    assert both.bound("log_upper", 3.0) == max(one.log_upper(3.0), two.log_upper(3.0))
    assert both.bound("log_lower", 3.0) == max(one.log_lower(3.0), two.log_lower(3.0))


@pytest.mark.parametrize(
    ("pair", "steps", "delta"),
    [
        (Mixture.poisson(30, 1e-6, 1.0), 1000, 1e-30),
        pytest.param(Mixture.poisson(30, 1e-6, 1.0), 10_000, 1e-30, marks=pytest.mark.slow),
        (Mixture.poisson(1, 1e-6, 1.0), 100, 1e-20),
        (Mixture.poisson(10_000, 1e-8, 1.0), 100, 1e-20),
        (Mixture.poisson(1, 1e-8, 0.5), 1000, 1e-30),
    ],
)
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
def test_tiny_rates_and_deltas(pair: Mixture, steps: int, delta: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(pair, direction).compose(steps)
    interval = loss.epsilon(delta)
    assert interval.relative_width < 1e-3
    # the profile through another question, and through an integral where that converges
    assert loss.delta(interval.upper, width=1e-3).lower <= delta
    assert loss.delta(interval.lower, width=1e-3).upper >= delta
    if len(pair.sensitivities) > 2:  # where it takes long
        return
    try:
        below = log_delta(loss.phases, direction, interval.upper)
    except ArithmeticError:
        return
    assert below <= math.log(delta) * (1.0 - 1e-9)
