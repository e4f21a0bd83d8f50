"""Many deltas of one loss share compositions: each answer is correct and has the required width, as it has alone."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.accounting import DIRECTIONS, Discrete, Interval, Laplace, Mixture, PrivacyLoss, TruncatedPoisson
from dpspec.accounting.grid import Pair
from dpspec.accounting.numerics import Direction

DELTAS = [0.3, 0.03, 1e-3, 1e-5, 1e-8, 1e-12]

steps_of = st.builds(
    Mixture.poisson,
    st.sampled_from([1, 2, 5]),
    st.floats(math.log(1e-3), math.log(0.5)).map(math.exp),
    st.floats(math.log(0.6), math.log(8.0)).map(math.exp),
) | st.builds(Laplace, st.floats(0.5, 8.0), st.just(1.0), st.floats(0.01, 1.0))


def lies_in(inner: Interval, outer: Interval) -> bool:
    return outer.lower <= inner.lower and inner.upper <= outer.upper


def is_within(found: Interval, width: float) -> bool:
    """Whether it is as narrow as asked; below 1e-7 an epsilon is as good as 0."""
    return found.width <= width * max(found.upper, 1e-7)


@pytest.mark.family
@pytest.mark.parametrize(
    ("step", "steps", "direction"),
    [
        (Mixture.poisson(1, 0.01, 1.2), 2000, "present-first"),
        (Mixture.poisson(2, 0.01, 1.2), 2000, "absent-first"),
        (Mixture.poisson(3, 0.1, 2.0), 30, "present-first"),
        (Mixture.poisson(8, 0.118, 4.19), 1258, "absent-first"),
        (Mixture.poisson(2, 0.1323, 0.9046), 145, "present-first"),
    ],
)
def test_a_curve_holds_what_is_known_of_each_delta_alone(step: Mixture, steps: int, direction: Direction) -> None:
    """Oracle: each delta asked alone, from other grids and other tilts."""
    loss = PrivacyLoss.of(step, direction).compose(steps)
    for delta, found in zip(DELTAS, loss.epsilons(DELTAS), strict=True):
        alone = loss.epsilon(delta)
        assert found.lower <= alone.upper
        assert alone.lower <= found.upper
        assert found.relative_width <= 1e-4


@pytest.mark.ci
@given(steps_of, st.sampled_from([1, 30, 1000]), st.sampled_from(DIRECTIONS), st.integers(0, len(DELTAS) - 1))
def test_a_finer_width_lies_inside(step: Pair, steps: int, direction: Direction, fine: int) -> None:
    loss = PrivacyLoss.of(step, direction).compose(steps)
    coarse, finer = loss.epsilons(DELTAS, width=1e-2), loss.epsilons(DELTAS, width=1e-3)
    widths = [1e-4 if i == fine else 1e-3 for i in range(len(DELTAS))]
    mixed, finest = loss.epsilons(DELTAS, width=widths), loss.epsilons(DELTAS, width=1e-4)
    for i, outer in enumerate(coarse):
        assert lies_in(finer[i], outer)
        assert lies_in(mixed[i], finer[i])
        assert lies_in(finest[i], finer[i])
        assert is_within(mixed[i], widths[i])
        assert mixed[i].upper >= finest[i].lower
        assert finest[i].upper >= mixed[i].lower


@pytest.mark.ci
@given(steps_of, st.sampled_from([30, 1000]), st.sampled_from(DIRECTIONS), st.sampled_from([1e-3, 1e-4]))
def test_beside_the_other_direction_the_worse_is_as_narrow(step, steps, direction, width):
    loss = PrivacyLoss.of(step, direction).compose(steps)
    first = loss.epsilons(DELTAS, width=width)
    other = dataclasses.replace(loss, direction=DIRECTIONS[1 - DIRECTIONS.index(direction)])
    plain = other.epsilons(DELTAS, width=width)
    known_first = [None if i == 3 else known for i, known in enumerate(first)]
    spared = other.epsilons(DELTAS, width=width, other_direction=known_first)
    assert is_within(spared[3], width)
    for known, one, less in zip(first, plain, spared, strict=True):
        assert less.lower <= one.upper
        assert one.lower <= less.upper
        both, truth = known.worse(less), known.worse(one)
        assert both.lower <= truth.upper
        assert truth.lower <= both.upper
        assert is_within(both, width)


def test_where_one_direction_is_zero_the_other_is() -> None:
    """Oracle: delta at 0 in the other direction is below the delta asked for."""
    loss = PrivacyLoss.of(Mixture.poisson(2, 0.01, 2.0), "present-first").compose(100)
    other = dataclasses.replace(loss, direction="absent-first")
    (zero,) = loss.epsilons([0.3])
    assert zero == Interval(0.0, 0.0)
    assert other.delta(0.0).upper < 0.3
    assert other.epsilons([0.3], other_direction=[zero]) == [zero]


def test_an_epsilon_below_the_least_is_as_precise_as_that() -> None:
    loss = PrivacyLoss.of(TruncatedPoisson(1, 0.1, 1, 999, 1.0, 999).above(), "present-first").compose(100)
    (coarse,), (fine,) = loss.epsilons([1e-3], width=1e-3, least=1.0), loss.epsilons([1e-3], width=1e-3)
    assert coarse.width <= 1e-3
    assert fine.relative_width <= 1e-3 < coarse.relative_width
    assert coarse.lower <= fine.lower <= fine.upper <= coarse.upper


def test_there_is_one_width_for_all_or_one_for_each_and_the_same_beside() -> None:
    loss = PrivacyLoss.gaussian(1.2, rate=0.01).compose(10)
    one_way = PrivacyLoss(loss.phases, "present-first")
    with pytest.raises(ValueError, match="width must be one number, or one for each of 1 deltas, got 2"):
        loss.epsilons([1e-5], width=[1e-3, 1e-4])
    with pytest.raises(ValueError, match="least must be one number, or one for each of 1 deltas, got 2"):
        loss.epsilons([1e-5], least=[1.0, 1.0])
    with pytest.raises(ValueError, match="width must be above 0"):
        loss.epsilons([1e-5, 1e-6], width=[1e-3, 0.0])
    known = Interval(1.0, 1.0)
    with pytest.raises(ValueError, match="other_direction must hold one interval"):
        loss.epsilons([1e-5], other_direction=[known])
    with pytest.raises(ValueError, match="other_direction must hold one interval"):
        one_way.epsilons([1e-5], other_direction=[known, known])


def test_steps_of_tiny_losses_cost_the_lower_end_no_spacing() -> None:
    """A lattice of losses on the nodes, beside losses of 1e-9 that no node meets: they add 2e-9 to epsilon at most."""
    places = np.arange(-144, 145)
    weights = np.exp(-(places**2) / 288.0)  # discrete Gaussian noise of deviation 12
    lattice = Discrete(np.append(weights, 0.0) / weights.sum(), np.append(0.0, weights) / weights.sum())
    alone, both = PrivacyLoss.of(lattice).compose(2), PrivacyLoss(((lattice, 2), (Laplace(1e9), 2)))
    delta = alone.delta(1e-4).lower
    found = both.epsilon(delta)
    assert alone.epsilon(delta).lower <= found.upper
    assert found.lower <= alone.epsilon(delta).upper + 2e-9
    assert found.relative_width <= 1e-4  # 3e-3 by the longest grid, if it held all losses
