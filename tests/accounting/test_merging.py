"""Compare merged phases with the phases that they bound."""

import math

import pytest

from dpspec.accounting import DIRECTIONS, Laplace, Mixture, PrivacyLoss
from dpspec.accounting.grid import Pair
from dpspec.accounting.merging import MergedPhases


def schedule(count: int, members: int = 1) -> tuple[tuple[Pair, int], ...]:
    """Noise from 0.9 to 1.8 and rates from 0.01 to 0.02."""
    shares = [i / count for i in range(count)]
    return tuple(
        (Mixture.poisson(members, 0.01 * (1.0 + t * t), 0.9 * (1.0 + t)), 1 + i % 3) for i, t in enumerate(shares)
    )


@pytest.mark.family
@pytest.mark.parametrize("members", [1, 3])
def test_merged_phases_enclose_the_profile_of_each_phase(members: int) -> None:
    phases = schedule(300, members)
    merged = MergedPhases.of(phases)
    assert merged is not None
    assert len(merged.above) == len(merged.below) == len(merged.similar) <= 75
    steps = sum(count for _, count in phases)
    for part in (merged.above, merged.below, merged.similar):
        assert sum(count for _, count in part) == steps
    for direction in DIRECTIONS:
        for epsilon in (-0.3, 0.0, 0.4, 3.0):
            totals = [
                math.fsum(count * math.exp(pair.log_delta_bounds(epsilon, direction)[0]) for pair, count in part)
                for part in (merged.below, phases, merged.above)
            ]
            assert totals == sorted(totals)
            assert totals[2] <= 2.0 * totals[0]


@pytest.mark.ci
def test_an_epsilon_of_many_phases_is_the_one_of_few_equal_ones() -> None:
    phases = schedule(12)
    expected = PrivacyLoss(phases).compose(6).epsilon(1e-6)
    # the same mixtures six times, apart by a rounding that makes their keys differ
    many = tuple(
        (Mixture.poisson(1, float(pair.probabilities[1]) * (1.0 + k * 1e-13), pair.noise_multiplier), count)
        for k in range(6)
        for pair, count in phases
    )
    interval = PrivacyLoss(many).epsilon(1e-6)
    assert len(many) > 64
    assert interval.relative_width <= 1e-4
    assert interval.lower <= expected.upper
    assert expected.lower <= interval.upper


def test_few_and_different_phases_are_not_merged() -> None:
    assert MergedPhases.of(schedule(63)) is None
    assert MergedPhases.of([(Laplace(2.0 + 0.1 * i), 1) for i in range(100)]) is None
