"""Random allocation: bounds of groups against explicit neighbors, simulated sums, sets of steps and closed forms."""

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from dpspec.accounting import Interval, PrivacyLoss, RandomAllocation, gaussian
from dpspec.contract import FrozenMap, Phase
from dpspec.sampling import sampler_of
from dpspec_group import theory
from dpspec_group.scores import allocated_log_ratio, several_log_ratio

Array = np.ndarray[Any, Any]


def phase_of(epoch_steps: int, batches: int, sigma: float, epochs: int = 1) -> Phase:
    sampling = {"scheme": "random-allocation", "epoch_steps": epoch_steps, "batches_per_epoch": batches}
    return Phase(
        {"steps": epoch_steps * epochs, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": FrozenMap(sampling)}
    )


@functools.lru_cache(maxsize=256)
def certified(phase: Phase, size: int, epsilon: float, direction: str) -> Interval:
    """Of delta."""
    (found,) = theory.loss_intervals([phase], size, 100, direction, lambda loss, *_: [loss.delta(epsilon, width=1e-3)])
    return found


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


def test_pairs_have_the_better_of_two_bounds() -> None:
    """With the noise split alone [12.7, 21.62]; with shared steps revealed alone 21.71."""
    (found,) = theory.group_epsilons([phase_of(4, 1, 0.5)], 2, 100, [1e-5], "remove")
    pairs = (RandomAllocation(4, 0.5 / math.sqrt(2.0)), 2), (RandomAllocation(4, 0.5, 2), 1)
    alone = [PrivacyLoss(((pair, times),), "present-first").epsilon(1e-5).upper for pair, times in pairs]
    assert found.upper == pytest.approx(min(alone), rel=1e-6)
    assert 20.3 <= found.lower <= found.upper <= 21.62


@pytest.mark.parametrize(("steps", "batches", "sigma", "epochs"), [(1, 1, 2.0, 4), (2, 2, 3.0, 2)])
def test_all_records_in_all_steps_are_full_batches(steps: int, batches: int, sigma: float, epochs: int) -> None:
    for size in (1, 3):
        phases, mu = [phase_of(steps, batches, sigma, epochs)], size * math.sqrt(epochs * batches) / sigma
        assert theory.mu_of_all_steps(phases, size, 100) == pytest.approx(mu)
        (found,) = theory.group_epsilons(phases, size, 100, [1e-6], "remove")
        exact = float(gaussian.epsilon(1e-6, mu))
        assert found.lower <= exact * (1.0 + 1e-9)
        assert found.upper == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("steps", "batches", "size", "sigma"), [(3, 1, 1, 0.1), (3, 1, 1, 0.05), (3, 1, 4, 0.15), (4, 2, 2, 0.05)]
)
def test_noise_that_is_too_small_to_split_is_not_split(steps: int, batches: int, size: int, sigma: float) -> None:
    """Noise of at least a tenth of a clip norm uses a member's pair; below, the bound reveals all members' steps."""
    (found,) = theory.group_epsilons([phase_of(steps, batches, sigma)], size, 100, [1e-6], "remove")
    most = float(gaussian.epsilon(1e-6, size * math.sqrt(batches) / sigma))
    assert 0.0 < found.lower <= found.upper <= most * (1.0 + 1e-3)
    if sigma == 0.1:
        assert found.width <= 1e-2 * (1.0 + found.upper)


# --- several batches an epoch, against all sets of steps


def sets(epoch_steps: int, batches: int) -> Array:
    chosen = list(itertools.combinations(range(epoch_steps), batches))
    found = np.zeros((len(chosen), epoch_steps))
    for row, steps in zip(found, chosen, strict=True):
        row[list(steps)] = 1.0
    return found


def simulated(losses: Array, epsilon: float) -> tuple[float, float]:
    gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
    return float(gains.mean()), 6.0 * float(gains.std()) / len(losses) ** 0.5


@pytest.mark.parametrize(("steps", "batches", "size"), [(4, 3, 1), (5, 2, 1), (3, 1, 2), (4, 2, 2), (3, 2, 3)])
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


def test_blocks_share_all_steps() -> None:
    for steps, batches, blocks in ((10, 3, [(3, 2), (4, 1)]), (10, 5, [(2, 5)]), (10, 6, [(1, 2), (2, 4)])):
        found = theory.composed([phase_of(steps, batches, 2.0, 7)], 2, 100)
        assert [(getattr(pair, "steps", 0), count) for pair, count in found] == [(m, 14 * n) for m, n in blocks]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from((0.5, 1.0, 3.0)), st.integers(0, 10**6))
def test_the_score_of_an_epoch_is_the_mean_over_all_sets(steps: int, batches: int, sigma: float, seed: int) -> None:
    batches = min(batches, steps)
    z = np.random.default_rng(seed).normal(0.5, 2.0, (steps, 3))
    logs = (sets(steps, batches) @ (z - 0.5)) / sigma**2
    exact = logsumexp(logs, axis=0) - math.log(len(logs))
    assert several_log_ratio(z, batches, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def phase(sampling: dict[str, object], sigma: float, steps: int) -> Phase:
    return Phase({"sampling": sampling, "noise_multiplier": sigma, "clip_norm": 1.0, "steps": steps})


POISSON = {"scheme": "poisson", "rate": 0.01}


def test_renyi_divergences_of_groups_are_those_of_a_plain_grid() -> None:
    """And without amplification the one of rho: 100 steps of a group of three have 100 * 9 / (2 * 1.3^2)."""
    phases = [phase({"scheme": "poisson", "rate": 0.1}, 1.3, 100)]
    for direction, exact in (("remove", 12.924453390), ("add", 5.615321588)):
        found = theory.rdp_interval(phases, 3, 1000, 2.5, direction)
        assert found.lower * (1.0 - 1e-7) <= exact <= found.upper * (1.0 + 1e-7)
        assert found.relative_width < 1e-8
    rho = theory.rho_interval(phases, 3, 1000, "both")
    assert rho.lower <= 900.0 / (2.0 * 1.3**2) <= rho.upper
    far = theory.rdp_interval(phases, 3, 1000, 1e9, "both")
    assert rho.upper * 1e9 * (1.0 - 1e-6) <= far.lower <= far.upper
    assert far.upper >= rho.lower * 1e9
    assert theory.rho_interval(phases, 1, 1000, "add").lower == 0.0
    shuffled = phase({"scheme": "shuffled", "batch_size": 10}, 1.3, 100)
    assert theory.rdp_interval([shuffled], 1, 1000, 2.0, "both").lower == 0.0
    allocated = phase({"scheme": "random-allocation", "epoch_steps": 10}, 1.3, 100)
    assert theory.rdp_interval([allocated], 1, 1000, 2.0, "both").upper == math.inf


def test_fixed_size_batches_count_the_records_that_are_left_without_the_group() -> None:
    fixed = phase({"scheme": "fixed", "batch_size": 500}, 2.0, 2000)
    (epsilon,) = theory.group_epsilons([fixed], 8, 50_008, [1e-6], "remove")
    assert epsilon.upper == pytest.approx(34.8769954796, rel=1e-4)
    (full,) = theory.group_epsilons([fixed], 8, 50_000, [1e-6], "remove")
    assert full.upper == pytest.approx(34.8842759, rel=1e-4)
    assert full.upper > epsilon.upper


def test_phases_compose() -> None:
    both = [phase(POISSON, 1.0, 1000), phase(POISSON, 2.0, 1000)]
    (remove,) = theory.group_epsilons(both, 3, 50_000, [1e-6], "remove")
    (add,) = theory.group_epsilons(both, 3, 50_000, [1e-6], "add")
    assert remove.upper == pytest.approx(7.6726601398, rel=1e-4)
    assert add.upper == pytest.approx(5.9190418734, rel=1e-4)


@pytest.mark.parametrize("sampling", [POISSON, {"scheme": "full"}, {"scheme": "fixed", "batch_size": 100}])
def test_every_delta_of_a_curve_is_what_it_is_alone(sampling: dict[str, object]) -> None:
    """All but the first delta of full batches once got the bound 0."""
    phases, deltas = [phase(sampling, 2.0, 10), phase(sampling, 4.0, 10)], [1e-12, 1e-8, 1e-4]
    curve = theory.group_epsilons(phases, 2, 1000, deltas, "remove")
    for delta, epsilon in zip(deltas, curve, strict=True):
        (alone,) = theory.group_epsilons(phases, 2, 1000, [delta], "remove")
        assert epsilon.upper == pytest.approx(alone.upper, rel=1e-4)
    assert curve[0].upper > curve[1].upper > curve[2].upper > 0.0


@pytest.mark.parametrize(
    ("sampling", "direction", "delta", "lower"),
    [
        (POISSON, "remove", 0.0956, math.inf),  # a record is drawn in 1 - 0.99^10 = 0.09562 of all runs
        (POISSON, "remove", 0.0957, 0.0),
        (POISSON, "add", 1e-6, 0.0),  # -10 ln 0.99 at most: a run without the record may be one that never drew it
        ({"scheme": "fixed", "batch_size": 50}, "remove", 0.99, math.inf),
        ({"scheme": "full"}, "add", 0.9, math.inf),
        ({"scheme": "random-allocation", "epoch_steps": 2}, "remove", 0.5, math.inf),
        ({"scheme": "random-allocation", "epoch_steps": 2}, "add", 0.5, math.inf),
    ],
)
def test_infinite_epsilon_without_noise(sampling, direction, delta, lower):
    for sigma in (0.0, 1e-320):
        (epsilon,) = theory.group_epsilons([phase(sampling, sigma, 10)], 1, 100, [delta], direction)
        assert (epsilon.lower, epsilon.upper) == (lower, math.inf)


@pytest.mark.parametrize("steps", [1, 9, 40])
@pytest.mark.parametrize(("records", "size", "group"), [(100, 30, 1), (90, 30, 1), (90, 30, 4), (61, 60, 2), (7, 7, 1)])
def test_last_batches_are_the_difference_of_executed_epochs(records: int, size: int, group: int, steps: int) -> None:
    """All records contribute one vector, so that only the sizes of the executed batches differ."""
    sampling = {"scheme": "shuffled", "batch_size": size}
    phase = Phase({"noise_multiplier": 2.0, "steps": steps, "sampling": sampling})
    mu, smaller = theory.last_batches([phase], group, records)
    sizes = []
    for count in (smaller, smaller + group):
        sampler, generator = sampler_of(sampling, count), torch.Generator().manual_seed(1)
        sizes.append([len(sampler.draw(generator)) for _ in range(steps)])
    exact = math.sqrt(sum((b - a) ** 2 for a, b in zip(*sizes, strict=True))) / 2.0
    assert mu <= exact
    assert mu >= exact * (1.0 - 1e-8) or group > 1 or mu == 0.0
