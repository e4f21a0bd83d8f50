"""Random allocation to several batches an epoch: the bound against all sets of steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from dpspec.accounting import Interval, gaussian
from dpspec.contract import FrozenMap, Phase
from dpspec_group import theory
from dpspec_group.scores import several_log_ratio

Array = np.ndarray[Any, Any]


def phase_of(epoch_steps: int, batches: int, sigma: float, epochs: int = 1) -> Phase:
    sampling = {"scheme": "random-allocation", "epoch_steps": epoch_steps, "batches_per_epoch": batches}
    return Phase(
        {"steps": epoch_steps * epochs, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": FrozenMap(sampling)}
    )


def certified(phase: Phase, size: int, epsilon: float, direction: str) -> Interval:
    """Of delta."""
    (found,) = theory.loss_intervals([phase], size, 100, direction, lambda loss: [loss.delta(epsilon, width=1e-3)])
    return found


def sets(epoch_steps: int, batches: int) -> Array:
    """(sets, steps) all of them, 0 or 1."""
    chosen = list(itertools.combinations(range(epoch_steps), batches))
    found = np.zeros((len(chosen), epoch_steps))
    for row, steps in zip(found, chosen, strict=True):
        row[list(steps)] = 1.0
    return found


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.8, 1.0), (1.5, 0.5), (1.5, 2.0)])
def test_three_steps_by_quadrature(sigma: float, epsilon: float) -> None:
    """Delta of the mixture over all sets of two of three steps, both ways."""
    axis = np.linspace(-6.0 * sigma, 6.0 * sigma + 1.0, 111)
    z = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"))

    def density(mean: Array) -> Array:
        apart = np.square(z - mean[:, None, None, None]).sum(axis=0)
        law: Array = np.exp(-0.5 * apart / sigma**2) / (2.0 * math.pi * sigma**2) ** 1.5
        return law

    present, absent = sum(density(one) for one in sets(3, 2)) / 3.0, density(np.zeros(3))
    cell = (axis[1] - axis[0]) ** 3
    for direction, (p, q) in (("remove", (present, absent)), ("add", (absent, present))):
        delta = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * cell)
        found = certified(phase_of(3, 2, sigma), 1, epsilon, direction)
        assert found.lower - 2e-4 <= delta <= found.upper + 2e-4  # of the grid's cells
        assert delta > 0.6 * found.upper


def simulated(losses: Array, epsilon: float) -> tuple[float, float]:
    """Delta from losses drawn of the first law, and six standard errors."""
    gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
    return float(gains.mean()), 6.0 * float(gains.std()) / len(losses) ** 0.5


@pytest.mark.parametrize(("steps", "batches", "size"), [(4, 2, 1), (4, 3, 1), (5, 2, 1), (4, 2, 2), (3, 2, 3)])
def test_more_steps_and_groups_along_one_direction_against_simulation(steps: int, batches: int, size: int) -> None:
    sigma, epsilon, draws = 1.5 * size, 1.0, 100_000
    rng, every = np.random.default_rng(steps + size), sets(steps, batches)
    counts = np.array([sum(ones) for ones in itertools.product(every, repeat=size)])

    def ratio(z: Array) -> Array:
        logs = (z @ counts.T - 0.5 * np.square(counts).sum(axis=1)) / sigma**2
        return np.asarray(logsumexp(logs, axis=1) - math.log(len(counts)))

    noise = rng.normal(0.0, sigma, (draws, steps))
    losses = {"remove": ratio(noise + counts[rng.integers(len(counts), size=draws)]), "add": -ratio(noise)}
    for direction, loss in losses.items():
        delta, error = simulated(loss, epsilon)
        found = certified(phase_of(steps, batches, sigma), size, epsilon, direction)
        assert found.lower - error <= delta <= found.upper + error


def by_sign(past: list[Array]) -> Array:
    """Longer after a large sum, and turned by its sign."""
    return np.sign(past[-1]) * np.minimum(1.0, np.abs(past[-1])) if past else np.array(1.0)


def once_only(past: list[Array]) -> Array:
    """All, until something was seen."""
    return np.where(sum(past) > 1.0, 0.2, 1.0) if past else np.array(1.0)


@pytest.mark.parametrize("chosen", [by_sign, once_only])
@pytest.mark.parametrize(("steps", "batches"), [(3, 2), (4, 2)])
def test_gradients_that_rest_on_the_past_leak_no_more(
    chosen: Callable[[list[Array]], Array], steps: int, batches: int
) -> None:
    sigma, epsilon, draws = 1.0, 1.0, 100_000
    rng, every = np.random.default_rng(7), sets(steps, batches)
    for direction, is_there in (("remove", 1.0), ("add", 0.0)):
        own = every[rng.integers(len(every), size=draws)] * is_there
        past: list[Array] = []
        logs = np.zeros((draws, len(every)))
        for step in range(steps):
            gradient = np.broadcast_to(chosen(past), draws)
            x = own[:, step] * gradient + rng.normal(0.0, sigma, draws)
            logs += every[:, step] * ((x * gradient - 0.5 * gradient**2) / sigma**2)[:, None]
            past.append(x)
        ratio = logsumexp(logs, axis=1) - math.log(len(every))
        delta, error = simulated(ratio if is_there else -ratio, epsilon)
        assert delta <= certified(phase_of(steps, batches, sigma), 1, epsilon, direction).upper + error


def test_a_step_of_each_block_is_a_set_like_any_other() -> None:
    """All cuts of five steps into blocks of two and three, and all choices of one of each: every pair as often."""
    seen: dict[tuple[int, ...], int] = {}
    for order in itertools.permutations(range(5)):
        for pair in itertools.product(order[:2], order[2:]):
            key = tuple(sorted(pair))
            seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 10
    assert len(set(seen.values())) == 1


def test_blocks_share_all_steps() -> None:
    for steps, batches, blocks in ((10, 3, [(3, 2), (4, 1)]), (10, 5, [(2, 5)]), (10, 6, [(1, 2), (2, 4)])):
        found = theory.composed([phase_of(steps, batches, 2.0, 7)], 2, 100)
        assert [(getattr(pair, "steps", 0), count) for pair, count in found] == [(m, 14 * n) for m, n in blocks]


@pytest.mark.ci
def test_every_batch_is_full_batches_and_one_is_one() -> None:
    for size in (1, 3):
        (found,) = theory.group_epsilons([phase_of(4, 4, 3.0, 2)], size, 100, [1e-6], "remove")
        exact = float(gaussian.epsilon(1e-6, size * math.sqrt(8.0) / 3.0))
        assert found.lower <= exact * (1.0 + 1e-9)
        assert found.upper == pytest.approx(exact, rel=1e-3)
    plain = Phase({**phase_of(4, 1, 3.0), "sampling": FrozenMap({"scheme": "random-allocation", "epoch_steps": 4})})
    for direction in theory.DIRECTIONS:
        one, other = (theory.group_epsilons([p], 2, 100, [1e-6], direction) for p in (plain, phase_of(4, 1, 3.0)))
        assert one == other


def test_more_batches_leak_more_and_no_more_than_told_ones() -> None:
    found = [theory.group_epsilons([phase_of(12, k, 4.0, 5)], 2, 100, [1e-5], "remove")[0] for k in (1, 2, 5, 12)]
    for less, more in itertools.pairwise(found):
        assert less.upper < more.upper
        assert less.lower < more.lower
    for k, interval in zip((1, 2, 5, 12), found, strict=True):
        assert interval.upper <= float(gaussian.epsilon(1e-5, 2.0 * math.sqrt(5.0 * k) / 4.0)) * (1.0 + 1e-3)
        assert theory.mu_of_all_steps([phase_of(12, k, 4.0, 5)], 2, 100) == pytest.approx(math.sqrt(5.0 * k) / 2.0)


def test_noise_that_is_too_small_to_split_is_not_split() -> None:
    (found,) = theory.group_epsilons([phase_of(4, 2, 0.05)], 2, 100, [1e-6], "remove")
    assert 0.0 < found.lower <= found.upper
    assert found.upper == pytest.approx(float(gaussian.epsilon(1e-6, 2.0 * math.sqrt(2.0) / 0.05)), rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from((0.5, 1.0, 3.0)), st.integers(0, 10**6))
def test_the_score_of_an_epoch_is_the_mean_over_all_sets(steps: int, batches: int, sigma: float, seed: int) -> None:
    batches = min(batches, steps)
    z = np.random.default_rng(seed).normal(0.5, 2.0, (steps, 3))
    logs = (sets(steps, batches) @ (z - 0.5)) / sigma**2
    exact = logsumexp(logs, axis=0) - math.log(len(logs))
    assert several_log_ratio(z, batches, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-9)
