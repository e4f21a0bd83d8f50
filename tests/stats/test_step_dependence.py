"""What steps show of shared luck: the law where there is none, what each kind of it does, and bounds that allow it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpspec.accounting import PrivacyLoss
from dpspec.stats.attacks import gaussian_fit
from dpspec.stats.conformance.canary_contributions import StepDependence
from dpspec.stats.independence import assumption_tests, independent_bounds, order_statistics

Array = np.ndarray
STEPS, CANARIES = 30, 300


def noise(source: np.random.Generator) -> Array:
    return source.standard_normal((STEPS, CANARIES))


def in_all_directions(source: np.random.Generator) -> Array:
    """A thirtieth of each step's variance is one number for all."""
    return noise(source) + math.sqrt(1 / 29) * source.standard_normal((STEPS, 1))


def louder_steps(source: np.random.Generator) -> Array:
    """Noise that is a quarter larger in half of the steps."""
    return noise(source) * (1.0 + 0.25 * source.integers(0, 2, (STEPS, 1)))


def drawn_alone(source: np.random.Generator) -> Array:
    return noise(source) + 1.5 * (source.random((STEPS, CANARIES)) < 0.4)


def drawn_together(source: np.random.Generator) -> Array:
    """Canaries that are all in a batch or none."""
    return noise(source) + 0.5 * (source.random((STEPS, 1)) < 0.4)


def lucky_run(source: np.random.Generator) -> Array:
    return noise(source) * (1.0 + source.integers(0, 2)) + source.standard_normal()


def p_value(values: Array, sampled: float = 0.0, phases: Array | None = None) -> float | None:
    number = np.zeros(len(values), dtype=int) if phases is None else phases
    steps = [assumption_tests.moments(row) for row in values]
    found = assumption_tests.dependence_of_steps(values.shape[1], steps, np.full(len(values), sampled), number)
    classes = [] if found is None else [StepDependence(1, 0, values.shape[1], *found)]
    return assumption_tests.steps_p_value(classes)


def rejected(draw: Callable[[np.random.Generator], Array], seeds: int) -> int:
    return sum((p_value(draw(np.random.default_rng(seed))) or 0.0) <= 0.05 for seed in range(seeds))


@pytest.mark.parametrize("draw", [noise, drawn_alone])
def test_canaries_of_their_own_are_rejected_as_often_as_stated(draw: Callable[[np.random.Generator], Array]) -> None:
    """Seeds 0 to 199: at most the 99.9% quantile of Bin(200, 0.05), and not never."""
    assert 1 <= rejected(draw, 200) <= stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize("draw", [in_all_directions, louder_steps, drawn_together])
def test_luck_of_a_step_is_seen(draw: Callable[[np.random.Generator], Array]) -> None:
    assert rejected(draw, 20) == 20


def test_luck_of_the_run_is_not_seen() -> None:
    """Seeds 0 to 99: as often as without it."""
    assert rejected(lucky_run, 100) <= stats.binom.ppf(0.999, 100, 0.05)


def test_both_statistics_are_sums_over_the_steps() -> None:
    """Of one phase they are those of textbooks: analysis of variance by scipy, and the sample variance's law."""
    values = drawn_alone(np.random.default_rng(3))
    rows = [assumption_tests.moments(row) for row in values]
    degrees, means, spreads = assumption_tests.dependence_of_steps(CANARIES, rows, np.zeros(STEPS), np.zeros(STEPS))
    assert degrees == STEPS - 1
    assert means / degrees == pytest.approx(stats.f_oneway(*values).statistic, rel=1e-12)
    variances = values.var(axis=1, ddof=1)
    fourth, own = stats.moment(values, 4, axis=1).mean(), variances.mean()
    exact = (fourth - own**2 * (CANARIES - 3) / (CANARIES - 1)) / CANARIES
    assert spreads == pytest.approx(((variances - own) ** 2).sum() / exact, rel=1e-9)


def test_phases_are_compared_within_themselves() -> None:
    source = np.random.default_rng(1)
    values, phases = noise(source), np.repeat([0, 1], STEPS // 2)
    values[phases == 1] = 3.0 * values[phases == 1] + 2.0
    assert (p_value(values) or 0.0) < 1e-12
    assert (p_value(values, phases=phases) or 0.0) > 0.05


def test_what_real_records_share_is_allowed_for() -> None:
    """One direction for all real records: their sum adds to each canary +-1 times a normal number of the step."""
    added, wrong = 0.2, 0
    for seed in range(100):
        source = np.random.default_rng(seed)
        signs = source.choice([-1.0, 1.0], CANARIES)
        values = noise(source) + math.sqrt(added) * source.standard_normal((STEPS, 1)) * signs
        wrong += (p_value(values, added) or 0.0) <= 0.05
    assert wrong <= stats.binom.ppf(0.999, 100, 0.05)


def test_where_nothing_repeats_nothing_is_said() -> None:
    source = np.random.default_rng(0)
    assert p_value(source.standard_normal((STEPS, 99))) is None
    assert p_value(source.standard_normal((1, 300))) is None
    assert p_value(np.zeros((STEPS, 300))) is None
    assert assumption_tests.least_seen([], 0.05) == math.inf


def test_the_least_that_is_seen_is_seen() -> None:
    """Correlation r, seeds 0 to 199: rejected by the means alone in 95%, within five standard deviations."""
    told = [StepDependence(1, 0, CANARIES, STEPS - 1, 1.0, 1.0)]
    least, seen = assumption_tests.least_seen(told, 0.05), 0
    for seed in range(200):
        source = np.random.default_rng(seed)
        shared = source.standard_normal((STEPS, 1))
        values = math.sqrt(1 - least) * noise(source) + math.sqrt(least) * shared
        seen += (p_value(values) or 0.0) <= 0.05
    assert abs(seen / 200 - 0.95) <= 5 * math.sqrt(0.95 * 0.05 / 200)


# --- a bound whatever the luck --------------------------------------------------


def right_of(mu: float, canaries: int, source: np.random.Generator) -> int:
    coins = source.integers(0, 2, canaries)
    ordered = "".join(map(str, coins[np.argsort(source.standard_normal(canaries) + mu * coins)]))
    return order_statistics.right(ordered, order_statistics.design(canaries))


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(("chance", "lucky", "quiet"), [(0.5, 1.0, 0.0), (0.04, 1.5, 0.5), (0.25, 1.0, 0.0)])
def test_it_holds_under_luck_of_any_kind(runs: int, chance: float, lucky: float, quiet: float) -> None:
    """Seeds 0 to 199: at most the 99.9% quantile of Bin(200, 0.05) above the truth, from the mixture of two curves."""
    delta, low, high = 1e-5, 0.0, 20.0
    curves = [PrivacyLoss.gaussian(1.0 / mu) if mu else None for mu in (lucky, quiet)]
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        told = [0.0 if curve is None else curve.delta(middle).upper for curve in curves]
        low, high = (middle, high) if chance * told[0] + (1.0 - chance) * told[1] > delta else (low, middle)
    design, above = order_statistics.design(1000), 0
    first, last = 0, design.low + design.high  # how many right guesses in each run are needed to be above
    while last - first > 1:
        count = (first + last) // 2
        shown = independent_bounds.epsilon_lower([design] * runs, [count] * runs, delta, 0.95)
        first, last = (first, count) if shown > high else (count, last)
    for seed in range(200):
        source = np.random.default_rng(seed)
        luck = source.random(runs) < chance
        above += min(right_of(lucky if one else quiet, 1000, source) for one in luck) >= last
    assert above <= stats.binom.ppf(0.999, 200, 0.05)


def test_it_shows_most_of_what_independence_alone_would() -> None:
    for canaries, share in ((1000, 0.6), (10_000, 0.74)):
        run = order_statistics.design(canaries)
        right = round(order_statistics.moments(run, 0.925)[0])
        true = gaussian_fit.epsilon(0.925, 1e-5)
        one = independent_bounds.epsilon_lower([run], [right], 1e-5, 0.95)
        five = independent_bounds.epsilon_lower([run] * 5, [right] * 5, 1e-5, 0.95)
        assert share * true < one < five < true
        mu = order_statistics.mu_lower([run], right, 1.0 - 0.0125)
        assert one == pytest.approx(gaussian_fit.epsilon(mu, 1e-5 / 0.0375), rel=1e-9)


@settings(max_examples=5, deadline=None)
@given(right=st.integers(100, 190), more=st.integers(0, 10), delta=st.floats(1e-8, 1e-3))
def test_more_right_guesses_show_more_and_larger_deltas_less(right: int, more: int, delta: float) -> None:
    run = order_statistics.design(300)
    one = independent_bounds.epsilon_lower([run], [right], delta, 0.95)
    assert 0.0 <= one <= independent_bounds.epsilon_lower([run], [right + more], delta, 0.95)
    assert independent_bounds.epsilon_lower([run], [right], 2.0 * delta, 0.95) <= one
    assert one <= gaussian_fit.epsilon(order_statistics.mu_lower([run], right, 0.95), delta)


def test_what_no_luck_can_be_told_of() -> None:
    run = order_statistics.design(300)
    assert independent_bounds.epsilon_lower([], [], 1e-5, 0.95) == 0.0
    assert independent_bounds.epsilon_lower([run], [190], 0.04, 0.95) == 0.0  # more than is left to luck
    with pytest.raises(ValueError, match="delta"):
        independent_bounds.epsilon_lower([run], [150], 0.0, 0.95)
    with pytest.raises(ValueError, match="confidence"):
        independent_bounds.epsilon_lower([run], [150], 1e-5, 1.0)
    with pytest.raises(ValueError, match="of 1 runs"):
        independent_bounds.epsilon_lower([run], [150, 150], 1e-5, 0.95)
