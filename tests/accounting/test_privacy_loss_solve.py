"""Answers from grids: short periods, coarse grids, one step, the larger direction, and far from the tilt."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import binom

from dpspec.accounting import (
    DIRECTIONS,
    Direction,
    Directions,
    Discrete,
    Floats,
    Laplace,
    Mixture,
    PrivacyLoss,
    RandomAllocation,
    UnevenAllocation,
    approximate_dp,
    gaussian,
    privacy_loss,
    refinement,
)
from dpspec.accounting.grid import Pair
from dpspec.accounting.privacy_loss import solve
from dpspec.accounting.profiles import Question
from dpspec.accounting.single_steps import SingleSteps

# --- Outcomes between the nodes of a finer grid: if they match a coarser grid, its interval is used too.


@pytest.mark.parametrize(
    ("present", "absent", "steps", "epsilon"),
    [([37, 55, 52, 49], [5, 17, 8, 32], 40, 0.2), ([28, 31, 37, 1], [14, 30, 53, 32], 40, 1.0)],
)
def test_few_outcomes_are_known_as_well_as_asked(present, absent, steps, epsilon):
    """Oracle: the sum over all numbers of each outcome. The lower ends were 0.57 and 0.22 of the upper ones too low."""
    first, second = ([one / sum(law) for one in law] for law in (present, absent))
    found = PrivacyLoss.of(Discrete(first, second), "present-first").compose(steps).delta(epsilon, width=1e-2)
    true = math.fsum(
        max(0.0, ways * (_chance(first, counts) - math.exp(epsilon) * _chance(second, counts)))
        for ways, counts in _counts(steps, len(first))
    )
    assert found.lower * (1.0 - 1e-12) <= true <= found.upper * (1.0 + 1e-12)
    assert found.relative_width <= 1e-2


def test_answers_that_share_a_composition_are_each_known_as_well_as_asked() -> None:
    """Oracle: the step's exact profile, to which the other step of rate 1e-40 adds nothing that a width shows."""
    step, deltas = Mixture.poisson(16, 1.28552e-4, 0.81783), [1.2e-26, 4.4e-17, 5.5e-30]
    phases = ((step, 1), (Mixture.poisson(1, 1e-40, 1.0), 1))
    questions = [*(Question("epsilon", math.log(delta)) for delta in deltas), Question("delta", 16.330572194351348)]
    answers = solve(phases, ("present-first",), questions, [1e-2] * len(questions))[: len(deltas)]
    for found, true in zip(answers, PrivacyLoss.of(step, "present-first").epsilons(deltas), strict=True):
        assert found.lower <= true.upper * (1.0 + 1e-9)
        assert true.lower <= found.upper * (1.0 + 1e-9)
        assert found.relative_width <= 1e-2


@pytest.mark.parametrize("noise_multiplier", [1e-2, 20.0, 1e6])
def test_a_delta_that_infinite_losses_reach_alone_has_no_epsilon(noise_multiplier: float) -> None:
    """A guarantee (4.6, 1e-6) and a Gaussian: the latter adds to 1e-6 at every epsilon. The search overflowed."""
    phases = ((Mixture.full(1, noise_multiplier), 2), (approximate_dp(4.6, 1e-6).above(), 1))
    assert PrivacyLoss(phases).epsilon(1e-6).upper == math.inf
    above = PrivacyLoss(phases).epsilon(1.01e-6)
    assert 4.6 * (1.0 - 1e-3) <= above.lower <= above.upper < math.inf
    assert above.relative_width <= 1e-3


def _chance(law: Sequence[float], counts: Sequence[int]) -> float:
    return math.prod(one**count for one, count in zip(law, counts, strict=True))


def _counts(total: int, kinds: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    if kinds == 1:
        yield 1, (total,)
        return
    for here in range(total + 1):
        for ways, rest in _counts(total - here, kinds - 1):
            yield math.comb(total, here) * ways, (here, *rest)


# --- Outcomes whose losses are closer than any grid's nodes are put between these, and the rest keeps its precision.


DELTA = 1e-6


def test_outcomes_of_one_loss_but_for_rounding_are_like_one_outcome() -> None:
    """Oracle: the same law with the two outcomes' probabilities equal. The interval used to begin at 0."""
    absent = [0.2, 0.2, 0.25, 0.35]
    pairs = ([first, 0.3, 0.25, 0.15] for first in (0.3, 0.1 + 0.2))
    same, nearly = (PrivacyLoss.of(Discrete(pair, absent), "present-first").compose(20) for pair in pairs)
    for width in (1e-2, 1e-3, 1e-4):
        found, exact = nearly.epsilon(DELTA, width=width), same.epsilon(DELTA, width=1e-6)
        assert found.relative_width <= width
        assert found.lower - 1e-12 <= exact.upper
        assert exact.lower - 1e-12 <= found.upper


def test_a_step_that_hardly_leaks_spoils_no_others() -> None:
    """Oracle: the Gaussian steps' closed form, to which the Laplace step adds at most its own epsilon, 1e-8."""
    true = gaussian.epsilon_interval(math.log(DELTA), math.sqrt(10.0))
    loss = PrivacyLoss(((Mixture.full(1, 1.0), 10), (Laplace(1e8), 1)))
    found = loss.epsilon(DELTA, width=1e-3)
    assert found.relative_width <= 1e-3
    assert found.lower <= true.upper + 1e-8
    assert true.lower <= found.upper


# --- One step of a known profile: large groups, against the whole sum over the group's members in the batch.


def largest_delta(members: int, rate: float, sigma: float, epsilon: float, direction: Direction) -> float:
    """delta(epsilon) by scipy's binomial masses with all components, the threshold by a fine search."""
    counts = np.arange(members + 1)
    logs = binom.logpmf(counts, members, rate)

    def excess(x: float) -> float:
        if direction == "present-first":
            with_group = np.exp(np.logaddexp.reduce(logs + log_ndtr((counts - x) / sigma)))
            return float(with_group - math.exp(epsilon + log_ndtr(-x / sigma)))
        with_group = np.logaddexp.reduce(logs + log_ndtr((x - counts) / sigma))
        return float(math.exp(log_ndtr(x / sigma)) - np.exp(epsilon + with_group))

    low, high = -20.0 * sigma, members * rate + 40.0 * sigma + epsilon * sigma
    for _ in range(12):
        points = np.linspace(low, high, 41)
        best = int(np.argmax([excess(float(x)) for x in points]))
        low, high = points[max(best - 1, 0)], points[min(best + 1, 40)]
    return excess(0.5 * (low + high))


@pytest.mark.family
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize(
    ("members", "rate", "sigma", "delta"), [(3000, 0.01, 20.0, 1e-5), (3000, 0.2, 100.0, 1e-3), (2000, 1e-4, 1.0, 1e-6)]
)
def test_epsilon_of_a_large_group_is_where_the_whole_sum_is_delta(members, rate, sigma, delta, direction):
    found = PrivacyLoss.of(Mixture.poisson(members, rate, sigma), direction).epsilon(delta)
    assert found.relative_width <= 1e-8
    at_lower, at_upper = (largest_delta(members, rate, sigma, end, direction) for end in (found.lower, found.upper))
    assert at_upper == pytest.approx(delta, rel=1e-6)
    assert at_lower == pytest.approx(delta, rel=1e-6)


# --- Only the larger of two directions is narrowed to the required width.


@pytest.mark.family
@pytest.mark.parametrize("question", ["epsilon", "delta"])
@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(
    "pair",
    [
        Mixture.poisson(1, 0.02, 0.9),
        Mixture.poisson(4, 0.02, 1.5),
        Laplace(2.0, 1.0, 0.3),
        Discrete([0.05, 0.9, 0.05], [0.1, 0.85, 0.05]),
        Discrete([0.1, 0.85, 0.05], [0.05, 0.9, 0.05]),
    ],
    ids=["record", "group", "laplace", "absent-first is worse", "present-first is worse"],
)
def test_of_both_directions_the_worse_counts(pair: Pair, width: float, question: str) -> None:
    """The smaller one is not narrowed to the end: that moves neither end of the larger one beyond its width."""
    both = PrivacyLoss.of(pair).compose(50)
    sides = [dataclasses.replace(both, direction=side) for side in DIRECTIONS]
    found, first, second = (
        one.epsilon(1e-5, width=width) if question == "epsilon" else one.delta(0.5, width=width)
        for one in (both, *sides)
    )
    worse = first.worse(second)
    assert found.relative_width <= width
    assert found.lower <= worse.upper
    assert worse.lower <= found.upper


_SIDES: tuple[Directions, ...] = ("present-first", "absent-first", "both")

# --- Of a Gaussian mixture against its noise, present-first is the worse direction (Theorem 62 of proofs/grids.md).


def _log_ratio_of_mixture(means: Floats, weights: Floats, outputs: Floats) -> Floats:
    """ln of the density of the mixture of N(mean, I) over N(0, I): ``means`` (m, d), ``outputs`` (n, d)."""
    exponents = outputs @ means.T - 0.5 * np.square(means).sum(axis=1) + np.log(weights)
    return np.asarray(np.logaddexp.reduce(exponents, axis=1))


@pytest.mark.parametrize("seed", range(40))
def test_a_mixture_is_never_harder_to_tell_from_noise_than_noise_from_it(seed: int) -> None:
    """Oracle: both deltas of random mixtures in the plane, of any means, by sums over a grid of outputs."""
    rng = np.random.default_rng(seed)
    count, reach = int(rng.integers(1, 5)), rng.choice([0.3, 1.0, 2.0])
    means = rng.normal(size=(count, 2)) * reach
    means *= np.minimum(1.0, 4.0 / np.linalg.norm(means, axis=1))[:, None]
    weights = rng.dirichlet(np.full(count, rng.choice([0.05, 0.5, 2.0]))) + 1e-9
    axis = np.linspace(-11.0, 11.0, 441)
    outputs = np.stack([part.ravel() for part in np.meshgrid(axis, axis)], axis=1)
    log_ratios = _log_ratio_of_mixture(means, weights / weights.sum(), outputs)
    masses = np.exp(-0.5 * np.square(outputs).sum(axis=1)) * (axis[1] - axis[0]) ** 2 / (2.0 * math.pi)
    ratios = np.exp(log_ratios)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 3.0, 8.0):
        present = float(masses @ np.maximum(ratios - math.exp(epsilon), 0.0))
        absent = float(masses @ np.maximum(1.0 - math.exp(epsilon) * ratios, 0.0))
        assert present >= absent - 5e-5  # the error of the grid at the kinks


def test_below_an_epsilon_of_zero_the_other_direction_is_worse() -> None:
    loss = PrivacyLoss.of(Mixture.poisson(1, 0.1, 1.0))
    present, absent, both = (dataclasses.replace(loss, direction=side).delta(-0.05) for side in _SIDES)
    assert present.upper < absent.lower
    assert (both.lower, both.upper) == (absent.lower, absent.upper)


@pytest.mark.parametrize(
    "phases",
    [
        ((Mixture.poisson(1, 0.02, 0.9), 300),),
        ((Mixture.poisson(5, 0.3, 2.0), 7), (Mixture.fixed(2, 40, 5, 3.0), 20)),
        ((RandomAllocation(20, 0.8), 3), (Mixture.full(1, 4.0), 1)),
        ((UnevenAllocation([(3, 0.7), (8, 2.0)]), 2), (Mixture.poisson(1, 0.5, 1.5), 2)),
    ],
    ids=["poisson", "groups", "allocation", "uneven allocation"],
)
def test_both_directions_of_gaussian_mixtures_are_the_first(phases: tuple[tuple[Pair, int], ...]) -> None:
    for delta in (1e-9, 1e-4, 0.03):
        present, absent, both = (PrivacyLoss(phases, side).epsilon(delta, width=1e-3) for side in _SIDES)
        assert absent.lower <= present.upper
        assert (both.lower, both.upper) == (present.lower, present.upper)


def test_an_epsilon_at_the_probability_of_infinite_losses_needs_no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grid decides whether it is finite. Each such epsilon of a ledger took 3 s."""

    def refuse(*_: object) -> None:
        raise AssertionError("a grid")

    monkeypatch.setattr(privacy_loss, "GridRefinement", refuse)
    phases = ((approximate_dp(0.9, 1e-6).above(), 1), (Mixture.fixed(1, 950, 50, 3.0), 20))
    assert PrivacyLoss(phases).epsilon(1e-6).upper == math.inf


# --- Far below the place for which a composition is tilted nothing is said that its error does not allow.


@pytest.fixture
def short_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "NODES", 1 << 18)
    monkeypatch.setattr(refinement, "CELLS", 1 << 15)


@pytest.mark.usefixtures("short_grids")
def test_an_enormous_epsilon_is_never_taken_for_zero() -> None:
    """Losses end at about 2e9, so near which epsilon lies; at 0 the error that was charged used to be cut at e^500."""
    loss = PrivacyLoss.of(Mixture.poisson(10**4, 1.0 - 1e-9, 0.3), "absent-first").compose(10**4)
    found = loss.epsilon(1e-12, width=1e-2)
    assert found.upper > 1e9
    assert loss.delta(found.upper, width=1e-2).lower <= 1e-12


@pytest.mark.ci
@pytest.mark.usefixtures("short_grids")
def test_a_direction_beyond_grids_is_bounded_by_its_single_steps() -> None:
    phases = ((Mixture.poisson(1000, 0.5, 0.1), 1000),)
    one, other, both = (PrivacyLoss(phases, side).epsilon(1e-12, width=1e-2) for side in _SIDES)
    assert other.upper < one.lower < one.upper
    assert (both.lower, both.upper) == (one.lower, one.upper)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_test_of_the_sum_is_a_lower_bound(direction: Direction) -> None:
    """Oracle: the best threshold for the sum of the outputs, over all numbers of draws."""
    rate, sigma, steps, epsilon = 0.3, 20.0, 4000, 0.3
    draws = np.arange(steps + 1)
    chances, shifts = binom.pmf(draws, steps, rate), draws / (sigma * math.sqrt(steps))
    best = -1.0
    for threshold in np.linspace(-4.0, 8.0, 241):
        with_group, without = (chances @ np.exp(log_ndtr(shifts - threshold)), math.exp(log_ndtr(-threshold)))
        if direction == "absent-first":
            with_group, without = 1.0 - without, 1.0 - with_group
        best = max(best, with_group - math.exp(epsilon) * without)
    step = Mixture.poisson(1, rate, sigma)
    low = math.exp(SingleSteps([(step, steps)], [direction]).log_lower(epsilon))
    assert 0.5 * best < low <= best * (1.0 + 1e-3)
    assert low <= PrivacyLoss.of(step, direction).compose(steps).delta(epsilon).upper


def test_an_absent_group_with_a_largest_loss_far_below_epsilon_has_no_delta() -> None:
    """Oracle: no loss absent-first exceeds -ln (1 - rate) per step; present-first, a draw is visible."""
    step, steps, rate = Mixture.poisson(1, 1e-3, 0.05), 50, 1e-3
    present, absent = (math.exp(SingleSteps([(step, steps)], [side]).log_upper(1000.0)) for side in DIRECTIONS)
    both = SingleSteps([(step, steps)], DIRECTIONS)
    assert absent == 0.0
    assert math.exp(both.log_upper(1000.0)) == present <= -math.expm1(steps * math.log1p(-rate)) * (1.0 + 1e-9)


def test_weak_steps_by_the_billion_are_known_to_three_percent() -> None:
    epsilon = PrivacyLoss.gaussian(1e4, rate=1e-3).compose(10**9).epsilon(1e-6)
    assert 0.00959 <= epsilon.lower <= 0.00968 <= epsilon.upper <= 0.0098
