"""Many deltas of one loss share compositions: each answer is true, and as narrow as asked, as it is alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.accounting.composition.composition import _exponentials
from dpspec.accounting.numerics.floats import EPS, Direction
from dpspec.accounting.solver.refinement import GridRefinement

DELTAS = [0.3, 0.03, 1e-3, 1e-5, 1e-8, 1e-12]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """The width that every stage asked for, and of how many answers, as they come."""
    made: list[tuple[float, int]] = []
    stage = GridRefinement._stage

    def counted(self: GridRefinement, width: float) -> bool:
        made.append((width, len(self._items)))
        return stage(self, width)

    monkeypatch.setattr(GridRefinement, "_stage", counted)
    return made


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


def test_deltas_that_are_near_share_two_grids(stages: list[tuple[float, int]]) -> None:
    PrivacyLoss.of(Mixture.poisson(1, 0.01, 1.2), "present-first").compose(2000).epsilons(DELTAS[1:])
    assert [count for _, count in stages] == [5, 5]


def test_epsilons_far_apart_share_none(stages: list[tuple[float, int]]) -> None:
    """Read e^25 away from the place of the tilt, no finer grid makes an epsilon narrow: it took seven, to 8e-9."""
    PrivacyLoss.of(Mixture.poisson(8, 0.118, 4.19), "absent-first").compose(1258).epsilons(DELTAS, width=1e-3)
    assert all(count < len(DELTAS) for _, count in stages)
    assert min(width for width, _ in stages) > 1e-5


def test_a_delta_at_an_epsilon_takes_one_grid_where_the_first_is_narrow_enough(
    stages: list[tuple[float, int]],
) -> None:
    found = PrivacyLoss.gaussian(1.2, rate=0.01, direction="present-first").compose(2000).advantage(width=1e-3)
    assert found.relative_width <= 1e-3
    assert len(stages) == 1


def test_what_is_enough_is_not_narrowed_and_the_rest_is() -> None:
    """Oracle: the same without it, in either direction."""
    step = Mixture.poisson(2, 0.01, 1.2)
    first = PrivacyLoss.of(step, "present-first").compose(2000).epsilons(DELTAS)
    loss = PrivacyLoss.of(step, "absent-first").compose(2000)
    enough = [found.upper for found in first]
    enough[3] = -math.inf
    plain, spared = loss.epsilons(DELTAS), loss.epsilons(DELTAS, enough=enough)
    for known, one, other, most in zip(first, plain, spared, enough, strict=True):
        assert other.lower <= one.upper
        assert one.lower <= other.upper
        assert other.upper <= most or other.relative_width <= 1e-4
        assert known.worse(other).upper == known.worse(one).upper
    assert spared[3].relative_width <= 1e-4


def test_enough_is_one_value_for_each_delta_of_one_direction() -> None:
    loss = PrivacyLoss.gaussian(1.2, rate=0.01).compose(10)
    with pytest.raises(ValueError, match="enough"):
        loss.epsilons([1e-5], enough=[1.0])
    with pytest.raises(ValueError, match="enough"):
        PrivacyLoss(loss.phases, "present-first").epsilons([1e-5], enough=[1.0, 2.0])


@pytest.mark.parametrize("count", [0, 1, 1024, 5000])
def test_exponentials_are_those_of_the_sum(count: int) -> None:
    exponents = 300.0 - 0.11 * np.arange(float(count))
    found = _exponentials(exponents[::1024], -0.11, count)
    assert found.shape == (count,)
    np.testing.assert_allclose(found, np.exp(exponents), rtol=EPS * (16.0 + 2.0 * 600.0))
