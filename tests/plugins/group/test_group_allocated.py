"""Random allocation: bounds of groups against explicit neighbors, simulated sums and closed forms."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from support import scope_oracle as oracle

from dpspec.accounting import Interval, PrivacyLoss, RandomAllocation, gaussian
from dpspec.contract import FrozenMap, Phase
from dpspec.training.loop.native import parts_of
from dpspec_group import theory
from dpspec_group.scores import allocated_log_ratio

Array = np.ndarray[Any, Any]


def phase_of(epoch_steps: int, sigma: float, epochs: int = 1) -> Phase:
    sampling = {"scheme": "random-allocation", "epoch_steps": epoch_steps}
    return Phase(
        {"steps": epoch_steps * epochs, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": FrozenMap(sampling)}
    )


def epoch_laws(phase: Phase, x: Sequence[float], y: Sequence[int], given: Sequence[float], grid: Array) -> Array:
    """(points, points) the density of two steps' noisy sums, over all allocations; step two begins where one led.

    Contributions and updates are those of the native loop; the sum over allocations is exact.
    """
    job = oracle.run_of([phase], x, y, given)
    parts = parts_of(job)
    records, sigma = len(x) + len(given), phase.noise_multiplier * phase.clip_norm
    schedule = list(parts.schedule)
    density = np.zeros((len(grid), len(grid)))
    after = [parts.update(parts.initial, torch.tensor([float(s)])) for s in grid]
    states = after if x else [parts.initial]  # given gradients are the same at any model

    def added(state: torch.Tensor, batch: Sequence[int]) -> float:
        return float(parts.contributions(state, torch.tensor(batch, dtype=torch.int64), schedule[0].clip).sum)

    for first in itertools.product((True, False), repeat=records):
        one = [i for i in range(records) if first[i]]
        two = [i for i in range(records) if not first[i]]
        means = np.array([added(state, two) for state in states])
        early = np.exp(-0.5 * ((grid - added(parts.initial, one)) / sigma) ** 2)
        late = np.exp(-0.5 * ((grid[None, :] - means[:, None]) / sigma) ** 2)
        density += early[:, None] * late / 2.0**records
    return density / (2.0 * math.pi * sigma**2)


def divergences(first: Array, second: Array, grid: Array, epsilon: float) -> Iterator[float]:
    cell = (grid[1] - grid[0]) ** 2
    for p, q in ((first, second), (second, first)):
        yield float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * cell)


GRID = np.linspace(-11.0, 11.0, 353)
FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
GRADIENTS = (0.0, 0.4, -0.7, 1.0, -1.0, 3.0, -1e30, float("nan"))


@functools.lru_cache(maxsize=256)
def certified(phase: Phase, size: int, epsilon: float, direction: str) -> Interval:
    """Of delta."""
    (found,) = theory.loss_intervals([phase], size, 4, direction, lambda loss: [loss.delta(epsilon, width=1e-3)])
    return found


@settings(max_examples=25, **FEW)
@given(
    st.just(1.5),
    st.just(1.0),
    st.lists(st.sampled_from(GRADIENTS), max_size=2),
    st.lists(st.sampled_from(GRADIENTS), min_size=1, max_size=3),
)
def test_no_given_gradients_leak_more(sigma: float, epsilon: float, others: list[float], group: list[float]) -> None:
    phase = phase_of(2, sigma)
    absent, present = (epoch_laws(phase, [], [], rows, GRID) for rows in (others, others + group))
    for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
        assert found <= certified(phase, len(group), epsilon, direction).upper + 1e-4


@settings(max_examples=4, **FEW)
@given(
    st.just(1.5),
    st.just(1.0),
    st.lists(st.sampled_from((0.5, -1.0, 4.0, 40.0)), min_size=2, max_size=3),
    st.integers(1, 2),
    st.data(),
)
def test_no_real_records_leak_more(
    sigma: float, epsilon: float, x: list[float], size: int, data: st.DataObject
) -> None:
    """What the second step adds rests on what the first one released."""
    size, phase = min(size, len(x) - 1), phase_of(2, sigma)
    y = data.draw(st.lists(st.integers(0, 1), min_size=len(x), max_size=len(x)))
    grid = GRID[::6]
    absent, present = (epoch_laws(phase, x[:n], y[:n], [], grid) for n in (len(x) - size, len(x)))
    for direction, found in zip(("remove", "add"), divergences(present, absent, grid, epsilon), strict=True):
        assert found <= certified(phase, size, epsilon, direction).upper + 1e-3


@pytest.mark.parametrize("sigma", [0.7, 1.5])
@pytest.mark.parametrize("epsilon", [1.0])
def test_one_record_attains_it_and_groups_lie_between_the_ends(sigma: float, epsilon: float) -> None:
    phase = phase_of(2, sigma)
    for size in (1, 2, 3):
        absent, present = (epoch_laws(phase, [], [], [2.0] * count, GRID) for count in (0, size))
        for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
            interval = certified(phase, size, epsilon, direction)
            assert interval.lower - 1e-4 <= found <= interval.upper + 1e-4  # of the plane's cells
            if size == 1:
                assert interval.width <= 1e-2 * found + 1e-9


def test_groups_of_many_steps_against_simulation() -> None:
    """The pair of a group along one direction, drawn: within the interval, up to six standard errors."""
    sigma, steps, size, epochs, draws, epsilon = 2.0, 12, 3, 2, 100_000, 1.0
    rng = np.random.default_rng(3)
    totals = {"remove": np.zeros(draws), "add": np.zeros(draws)}
    for _ in range(epochs):
        z = rng.normal(0.0, sigma, (steps, draws))
        totals["add"] -= allocated_log_ratio(z, size, sigma)
        for _ in range(size):
            z[rng.integers(steps, size=draws), np.arange(draws)] += 1.0
        totals["remove"] += allocated_log_ratio(z, size, sigma)
    for direction, losses in totals.items():
        gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
        error = 6.0 * float(gains.std()) / draws**0.5
        found = certified(phase_of(steps, sigma, epochs), size, epsilon, direction)
        assert found.lower - error <= float(gains.mean()) <= found.upper + error
        assert found.lower > 0.2 * found.upper


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from((0.5, 1.0, 3.0)), st.integers(0, 10**6))
def test_the_score_of_an_epoch_is_the_mean_over_all_allocations(steps: int, size: int, sigma: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(0.5, 2.0, (steps, 3))
    terms = []
    for where in itertools.product(range(steps), repeat=size):
        counts = np.bincount(where, minlength=steps)[:, None]
        terms.append(((counts * z - 0.5 * counts**2) / sigma**2).sum(axis=0))
    exact = logsumexp(np.array(terms), axis=0) - size * math.log(steps)
    assert allocated_log_ratio(z, size, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_one_step_epochs_are_full_batches() -> None:
    for size in (1, 3):
        (found,) = theory.group_epsilons([phase_of(1, 2.0, 4)], size, 100, [1e-6], "remove")
        assert float(gaussian.epsilon(1e-6, 2.0 * size / 2.0)) in found


def test_noise_that_is_too_small_to_split_is_not_split() -> None:
    """Down to a tenth of a clip norm a member's pair is computed; below, all members are told of their steps."""
    for size, sigma in ((1, 0.1), (1, 0.05), (4, 0.15)):
        phase = phase_of(3, sigma)
        (found,) = theory.group_epsilons([phase], size, 100, [1e-6], "remove")
        most = float(gaussian.epsilon(1e-6, size / sigma))
        assert 0.0 < found.lower <= found.upper <= most * (1.0 + 1e-3)
    (tight,) = theory.group_epsilons([phase_of(3, 0.1)], 1, 100, [1e-6], "remove")
    assert tight.width <= 1e-2 * (1.0 + tight.upper)


@pytest.mark.parametrize(
    ("steps", "sigma", "epochs", "low", "high"), [(10, 1.0, 10, 13.81, 16.26), (4, 0.5, 1, 20.3, 21.62)]
)
def test_pairs_have_the_smaller_upper_end_and_what_equal_records_attain(
    steps: int, sigma: float, epochs: int, low: float, high: float
) -> None:
    """With the noise split alone [10.0, 18.07] and [12.7, 21.62]; with shared steps revealed alone 16.26 and 21.71."""
    (found,) = theory.group_epsilons([phase_of(steps, sigma, epochs)], 2, 100, [1e-5], "remove")
    split, shared = (
        PrivacyLoss(((pair, times * epochs),), "present-first").epsilon(1e-5).upper
        for pair, times in (
            (RandomAllocation(steps, sigma / math.sqrt(2.0)), 2),
            (RandomAllocation(steps, sigma, 2), 1),
        )
    )
    assert found.upper == pytest.approx(min(split, shared), rel=1e-6)
    assert low <= found.lower <= found.upper <= high


def test_without_noise_every_epoch_shows_who_is_there() -> None:
    for direction in theory.DIRECTIONS:
        (found,) = theory.group_epsilons([phase_of(3, 0.0)], 1, 100, [0.5], direction)
        assert found.lower == math.inf


def test_groups_lose_no_less_than_records_and_no_more_than_without_amplification() -> None:
    phase = phase_of(10, 3.0, 5)
    for direction in theory.DIRECTIONS:
        found = [theory.group_epsilons([phase], size, 100, [1e-5], direction)[0] for size in (1, 2, 4)]
        assert found[0].upper < found[1].upper < found[2].upper
        assert found[0].lower <= found[1].lower <= found[2].lower
        for size, interval in zip((1, 2, 4), found, strict=True):
            assert interval.upper <= float(gaussian.epsilon(1e-5, size * math.sqrt(5.0) / 3.0)) * (1.0 + 1e-3)
    assert theory.mu_of_all_steps([phase], 2, 100) == pytest.approx(2.0 * math.sqrt(5.0) / 3.0)


def test_phases_of_several_schemes_compose() -> None:
    poisson = phase_of(10, 3.0, 5).replace(sampling=FrozenMap({"scheme": "poisson", "rate": 0.1}))
    alone, both = (
        theory.group_epsilons(phases, 2, 100, [1e-5], "remove")[0]
        for phases in ([phase_of(10, 3.0, 5)], [phase_of(10, 3.0, 5), poisson])
    )
    assert alone.lower < both.lower <= both.upper
    assert alone.upper < both.upper
