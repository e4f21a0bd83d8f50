"""Random allocation: bounds of groups against explicit neighbors, simulated sums, sets of steps and closed forms."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm
from support import scope_oracle as oracle

from dpspec.accounting import Interval, PrivacyLoss, RandomAllocation, gaussian
from dpspec.contract import FrozenMap, Phase
from dpspec.sampling import sampler_of
from dpspec.training.loop.native import parts_of
from dpspec_group import theory
from dpspec_group.scores import allocated_log_ratio, several_log_ratio

Array = np.ndarray[Any, Any]


def phase_of(epoch_steps: int, batches: int, sigma: float, epochs: int = 1) -> Phase:
    sampling = {"scheme": "random-allocation", "epoch_steps": epoch_steps, "batches_per_epoch": batches}
    return Phase(
        {"steps": epoch_steps * epochs, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": FrozenMap(sampling)}
    )


def epoch_laws(phase: Phase, x: Sequence[float], y: Sequence[int], given: Sequence[float], grid: Array) -> Array:
    """The density of two steps' noisy sums, (points, points), over all allocations; step two starts after step one.

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
FEW = {"suppress_health_check": list(HealthCheck)}
GRADIENTS = (0.0, 0.4, -0.7, 1.0, -1.0, 3.0, -1e30, float("nan"))


@functools.lru_cache(maxsize=256)
def certified(phase: Phase, size: int, epsilon: float, direction: str) -> Interval:
    """Of delta."""
    (found,) = theory.loss_intervals([phase], size, 100, direction, lambda loss, *_: [loss.delta(epsilon, width=1e-3)])
    return found


@pytest.mark.ci
@settings(**FEW)
@given(st.lists(st.sampled_from(GRADIENTS), max_size=2), st.lists(st.sampled_from(GRADIENTS), min_size=1, max_size=3))
def test_no_given_gradients_leak_more(others: list[float], group: list[float]) -> None:
    phase, epsilon = phase_of(2, 1, 1.5), 1.0
    absent, present = (epoch_laws(phase, [], [], rows, GRID) for rows in (others, others + group))
    for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
        assert found <= certified(phase, len(group), epsilon, direction).upper + 1e-4


@pytest.mark.family
@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_one_record_attains_it_and_groups_lie_between_the_ends(sigma: float) -> None:
    phase, epsilon = phase_of(2, 1, sigma), 1.0
    for size in (1, 2, 3):
        absent, present = (epoch_laws(phase, [], [], [2.0] * count, GRID) for count in (0, size))
        for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
            interval = certified(phase, size, epsilon, direction)
            assert interval.lower - 1e-4 <= found <= interval.upper + 1e-4  # of the plane's cells
            if size == 1:
                assert interval.width <= 1e-2 * found + 1e-9


@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from((0.5, 1.0, 3.0)), st.integers(0, 10**6))
def test_the_score_of_an_epoch_is_the_mean_over_all_allocations(steps: int, size: int, sigma: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(0.5, 2.0, (steps, 3))
    terms = []
    for where in itertools.product(range(steps), repeat=size):
        counts = np.bincount(where, minlength=steps)[:, None]
        terms.append(((counts * z - 0.5 * counts**2) / sigma**2).sum(axis=0))
    exact = logsumexp(np.array(terms), axis=0) - size * math.log(steps)
    assert allocated_log_ratio(z, size, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-9)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("steps", "sigma", "epochs", "low", "high"),
    [pytest.param(10, 1.0, 10, 13.81, 16.26, marks=pytest.mark.ci), (4, 0.5, 1, 20.3, 21.62)],
    ids=["ten-epochs", "one-epoch"],
)
def test_pairs_have_the_better_of_two_bounds(steps: int, sigma: float, epochs: int, low: float, high: float) -> None:
    """With the noise split alone [10.0, 18.07] and [12.7, 21.62]; with shared steps revealed alone 16.26 and 21.71."""
    (found,) = theory.group_epsilons([phase_of(steps, 1, sigma, epochs)], 2, 100, [1e-5], "remove")
    pairs = (RandomAllocation(steps, sigma / math.sqrt(2.0)), 2), (RandomAllocation(steps, sigma, 2), 1)
    alone = [PrivacyLoss(((pair, times * epochs),), "present-first").epsilon(1e-5).upper for pair, times in pairs]
    assert found.upper == pytest.approx(min(alone), rel=1e-6)
    assert low <= found.lower <= found.upper <= high


@pytest.mark.parametrize(
    ("steps", "batches", "sigma", "epochs"), [(1, 1, 2.0, 4), pytest.param(4, 4, 3.0, 2, marks=pytest.mark.ci)]
)
def test_all_records_in_all_steps_are_full_batches(steps: int, batches: int, sigma: float, epochs: int) -> None:
    for size in (1, 3):
        phases, mu = [phase_of(steps, batches, sigma, epochs)], size * math.sqrt(epochs * batches) / sigma
        assert theory.mu_of_all_steps(phases, size, 100) == pytest.approx(mu)
        (found,) = theory.group_epsilons(phases, size, 100, [1e-6], "remove")
        exact = float(gaussian.epsilon(1e-6, mu))
        assert found.lower <= exact * (1.0 + 1e-9)
        assert found.upper == pytest.approx(exact, rel=1e-3)


@pytest.mark.family
@pytest.mark.parametrize(
    ("steps", "batches", "size", "sigma"), [(4, 2, 2, 0.05), (3, 1, 1, 0.1), (3, 1, 1, 0.05), (3, 1, 4, 0.15)]
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


@pytest.mark.family
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
    return np.sign(past[-1]) * np.minimum(1.0, np.abs(past[-1])) if past else np.array(1.0)


def once_only(past: list[Array]) -> Array:
    """All, until something was seen."""
    return np.where(sum(past) > 1.0, 0.2, 1.0) if past else np.array(1.0)


@pytest.mark.family
@pytest.mark.parametrize("chosen", [by_sign, once_only])
@pytest.mark.parametrize(("steps", "batches"), [(3, 2), (4, 2)])
def test_adaptive_gradients_leak_no_more(chosen: Callable[[list[Array]], Array], steps: int, batches: int) -> None:
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


def test_blocks_share_all_steps() -> None:
    for steps, batches, blocks in ((10, 3, [(3, 2), (4, 1)]), (10, 5, [(2, 5)]), (10, 6, [(1, 2), (2, 4)])):
        found = theory.composed([phase_of(steps, batches, 2.0, 7)], 2, 100)
        assert [(getattr(pair, "steps", 0), count) for pair, count in found] == [(m, 14 * n) for m, n in blocks]


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


@pytest.mark.family
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


@pytest.mark.ci
def test_the_interval_of_truncated_batches_is_above_poisson_sampling_and_below_replacement() -> None:
    capped = phase({"scheme": "truncated-poisson", "rate": 0.1, "max_batch": 35}, 1.0, 50)
    plain = phase({"scheme": "poisson", "rate": 0.1}, 1.0, 50)
    for direction in theory.DIRECTIONS:
        (found,) = theory.group_epsilons([capped], 2, 200, [1e-5], direction)
        (poisson,) = theory.group_epsilons([plain], 2, 200, [1e-5], direction)
        (replaced,) = theory.group_epsilons([plain.replace(noise_multiplier=0.5)], 2, 200, [1e-5], direction)
        assert found.lower <= poisson.upper <= found.upper * (1 + 1e-3)
        assert found.upper <= replaced.upper


@pytest.mark.family
@pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.7)])
def test_no_order_of_a_shuffled_epoch_leaks_more(epsilon: float, sigma: float) -> None:
    """Two batches of two of four records, every order: delta by summing over the plane, for any other records."""
    x = np.linspace(-9.0, 9.0, 361)
    cell = (x[1] - x[0]) ** 2

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for order in itertools.permutations(range(4)):
            sums = [sum(values[i] for i in order[:2]), sum(values[i] for i in order[2:])]
            total += np.outer(norm.pdf(x, sums[0], sigma), norm.pdf(x, sums[1], sigma)) / 24.0
        return total

    for k, others in ((1, (0.0, 0.0, 0.0)), (1, (-1.0, 1.0, 0.3)), (2, (0.0, 0.0)), (2, (1.0, -0.5))):
        ((pair, count),) = theory.composed([phase({"scheme": "shuffled", "batch_size": 2}, sigma, 2)], k, 4)
        assert count == 1
        most = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])  # type: ignore[index]
        present, absent = density((*[1.0] * k, *others)), density((*[0.0] * k, *others))
        for one, other in ((present, absent), (absent, present)):
            assert float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * cell) <= most + 1e-6


@pytest.mark.ci
@settings(**FEW)
@given(st.lists(st.sampled_from((0.5, -1.0, 4.0, 40.0)), min_size=2, max_size=3), st.integers(1, 2), st.data())
def test_no_records_leak_more(x: list[float], size: int, data: st.DataObject) -> None:
    size, phase, epsilon = min(size, len(x) - 1), phase_of(2, 1, 1.5), 1.0
    y = data.draw(st.lists(st.integers(0, 1), min_size=len(x), max_size=len(x)))
    grid = GRID[::6]
    absent, present = (epoch_laws(phase, x[:n], y[:n], [], grid) for n in (len(x) - size, len(x)))
    for direction, found in zip(("remove", "add"), divergences(present, absent, grid, epsilon), strict=True):
        assert found <= certified(phase, size, epsilon, direction).upper + 1e-3


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


@pytest.mark.family
@pytest.mark.parametrize(("sigma", "epsilon"), [(0.8, 1.0), (1.5, 0.5), (1.5, 2.0)])
def test_three_steps_by_quadrature(sigma: float, epsilon: float) -> None:
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


@pytest.mark.ci
@pytest.mark.parametrize(("members", "direction"), [(2, "remove"), (1, "add")])
def test_answers_that_may_be_wide_change_no_end(members: int, direction: str) -> None:
    """Of batches with a cap many pairs are compared; only the worst one, and the best attained one, must be narrow.

    Grids differ, so that ends agree up to the requested width.
    """
    sampling = {"scheme": "truncated-poisson", "rate": 0.1, "max_batch": 14}
    phase = Phase({"steps": 20, "clip_norm": 1.0, "noise_multiplier": 1.0, "sampling": FrozenMap(sampling)})
    deltas = [1e-5, 0.9]
    intervals = theory.group_epsilons([phase], members, 100, deltas, direction, width=1e-3)

    def narrow(loss: PrivacyLoss, indices: Sequence[int] | None, width: float, _: object) -> list[Interval]:
        chosen = range(len(deltas)) if indices is None else indices
        return loss.epsilons([deltas[i] for i in chosen], width=max(1e-3, width), least=theory.CURVE_LEAST)

    expected = theory.loss_intervals(
        [phase], members, 100, direction, narrow, range(len(deltas)), [theory.CURVE_LEAST] * len(deltas)
    )
    for interval, exact in zip(intervals, expected, strict=True):
        assert interval.lower == pytest.approx(exact.lower, rel=1e-3)
        assert interval.upper == pytest.approx(exact.upper, rel=1e-3)


def test_an_epsilon_of_zero_of_one_loss_proves_none_of_another() -> None:
    loss = PrivacyLoss.gaussian(1.0, rate=0.5, direction="remove").compose(2)
    (epsilon,) = loss.epsilons([0.1])
    assert loss.epsilons([0.1], other_direction=theory.rivals([0.0])) == [epsilon]
    assert epsilon.lower > 0.0
    assert theory.rivals([math.inf, 2.0]) == [None, Interval(2.0, 2.0)]
