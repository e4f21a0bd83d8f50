"""Bounds for groups that are too large for grids: against closed forms, smaller grids and sampled losses."""

import math

import numpy as np
import pytest

from dpspec.accounting import Floats, Mixture, PrivacyLoss, gaussian
from dpspec.accounting.large_groups import LargeDraws

Phases = list[tuple[Mixture, int]]


def large(phases: Phases) -> LargeDraws:
    draws = LargeDraws.of(phases)
    assert draws is not None
    return draws


@pytest.mark.parametrize(
    ("group_size", "rate", "noise"),
    [(40_000, 0.5, 5.0), (8, 0.75, 1e-4), (3, 0.9, 5e-4), (2_000, 0.999, 0.01), (300, 0.6, 1e-7)],
)
def test_contains_the_closed_form_of_one_step(group_size: int, rate: float, noise: float) -> None:
    step = Mixture.poisson(group_size, rate, noise)
    draws = large([(step, 1)])
    squares = np.square(np.quantile(step.ratio.shifts, [0.3, 0.6, 0.9])) / 2.0
    mean = float(step.probabilities @ np.square(step.ratio.shifts)) / 2.0
    for epsilon in [0.0, 1.0, *squares.tolist(), *(mean * np.linspace(0.9, 1.1, 9)).tolist()]:
        low, high = step.log_delta_bounds(epsilon, "present-first")
        assert draws.log_lower(epsilon) <= high + 1e-9, epsilon
        assert draws.log_upper(epsilon) >= low - 1e-9, epsilon


@pytest.mark.parametrize(
    "phases",
    [
        [(Mixture.poisson(20_000, 0.9, 16.0), 3)],
        [(Mixture.poisson(12_000, 0.9, 9.0), 2), (Mixture.full(500, 0.9), 2)],
        [(Mixture.fixed(8_000, 20_000, 6_000, 3.0), 2)],
    ],
    ids=["one phase", "two phases", "fixed size"],
)
def test_agrees_with_a_grid_where_one_works(phases: Phases) -> None:
    draws = large(phases)
    assert not draws.is_beyond_grids
    answer = PrivacyLoss(tuple(phases), "present-first").epsilon(1e-8, width=1e-3)
    assert answer.lower > 0.0
    assert answer.relative_width <= 1e-3
    assert draws.log_lower(answer.upper) <= math.log(1e-8) <= draws.log_upper(answer.lower)
    assert draws.log_lower(0.93 * answer.lower) >= math.log(1e-8) >= draws.log_upper(1.07 * answer.upper)


def test_contains_sampled_deltas() -> None:
    phases: Phases = [(Mixture.poisson(40, 0.4, 0.002), 5), (Mixture.poisson(400, 0.3, 0.05), 7)]
    draws, random, count = large(phases), np.random.default_rng(8), 40_000
    losses: Floats = np.zeros(count)
    for step, steps in phases:
        for _ in range(steps):
            effects = random.choice(step.ratio.shifts, size=count, p=step.probabilities)
            losses += step.ratio(effects + random.standard_normal(count))
    for epsilon in np.quantile(losses, [0.05, 0.3, 0.7, 0.95]).tolist():
        excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
        error = 5.0 * float(excess.std()) / math.sqrt(count)
        assert draws.log_lower(epsilon) <= math.log(excess.mean() + error)
        assert draws.log_upper(epsilon) >= math.log(excess.mean() - error)


def test_is_above_the_mean_over_all_draws_of_two_steps() -> None:
    step = Mixture.poisson(1_500, 0.5, 0.3)
    draws = large([(step, 2)])
    usual = step.probabilities > 1e-12
    effects, weights = step.ratio.shifts[usual], step.probabilities[usual]
    roots = np.sqrt(np.add.outer(np.square(effects), np.square(effects))).ravel()
    for epsilon in (5.5e6, 6.25e6, 6.6e6, 6.9e6):
        mean = float(np.multiply.outer(weights, weights).ravel() @ np.exp(gaussian.log_delta(epsilon, roots)))
        assert draws.log_lower(epsilon) <= math.log(mean)
        assert draws.log_upper(epsilon) >= math.log(mean) - 1e-9


@pytest.mark.parametrize(
    ("group_size", "noise", "steps", "width"), [(1_000_000, 20.0, 3, 0.003), (1_000_000, 1e-3, 1000, 0.003)]
)
def test_narrows_answers_that_no_grid_narrows(group_size: int, noise: float, steps: int, width: float) -> None:
    loss = PrivacyLoss.of(Mixture.poisson(group_size, 0.5, noise)).compose(steps)
    answer = loss.epsilon(1e-6)
    assert answer.lower > 0.0
    assert answer.relative_width <= width
    assert loss.advantage().lower > 0.999999


def test_is_left_out_where_grids_narrow_all_answers() -> None:
    assert LargeDraws.of([(Mixture.poisson(1000, 0.5, 1.0), 10)]) is None  # half of the draws are below 500
    assert LargeDraws.of([(Mixture.poisson(8, 0.01, 1e-5), 10)]) is None  # most steps draw nothing
