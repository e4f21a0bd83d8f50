"""The tests of the assumptions of independent canaries: their level, and what they reject."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from support.ranked_coins import gaussian, ranked

from dpspec.stats.attacks import independence
from dpspec.stats.conformance.canary_contributions import StepDependence

Array, Source = np.ndarray, np.random.Generator
STEPS, CANARIES = 30, 300


def noise(source: Source) -> Array:
    return source.standard_normal((STEPS, CANARIES))


def in_all_directions(source: Source) -> Array:
    """A thirtieth of each step's variance is one number for all."""
    return noise(source) + math.sqrt(1 / 29) * source.standard_normal((STEPS, 1))


def louder_steps(source: Source) -> Array:
    """Noise that is a quarter larger in half of the steps."""
    return noise(source) * (1.0 + 0.25 * source.integers(0, 2, (STEPS, 1)))


def drawn_alone(source: Source) -> Array:
    return noise(source) + 1.5 * (source.random((STEPS, CANARIES)) < 0.4)


def drawn_together(source: Source) -> Array:
    """Canaries that are all in a batch or none."""
    return noise(source) + 0.5 * (source.random((STEPS, 1)) < 0.4)


def lucky_run(source: Source) -> Array:
    return noise(source) * (1.0 + source.integers(0, 2)) + source.standard_normal()


def p_value(values: Array, sampled: float = 0.0, phases: Array | None = None) -> float | None:
    number = np.zeros(len(values), dtype=int) if phases is None else phases
    steps = [independence.moments(row) for row in values]
    found = independence.dependence_of_steps(values.shape[1], steps, np.full(len(values), sampled), number)
    classes = [] if found is None else [StepDependence(1, 0, values.shape[1], *found)]
    return independence.steps_p_value(classes)


def rejected(draw: Callable[[Source], Array], seeds: int) -> int:
    return sum((p_value(draw(np.random.default_rng(seed))) or 0.0) <= 0.05 for seed in range(seeds))


@pytest.mark.parametrize("draw", [noise, drawn_alone])
def test_canaries_of_their_own_are_rejected_as_often_as_stated(draw: Callable[[Source], Array]) -> None:
    """Seeds 0 to 199: at most the 99.9% quantile of Bin(200, 0.05), and not never."""
    assert 1 <= rejected(draw, 200) <= stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize("draw", [in_all_directions, louder_steps, drawn_together])
def test_luck_of_a_step_is_seen(draw: Callable[[Source], Array]) -> None:
    assert rejected(draw, 20) == 20


def test_luck_of_the_run_is_not_seen() -> None:
    """Seeds 0 to 99: as often as without it."""
    assert rejected(lucky_run, 100) <= stats.binom.ppf(0.999, 100, 0.05)


def test_both_statistics_are_sums_over_the_steps() -> None:
    """Of one phase they are those of textbooks: analysis of variance by scipy, and the sample variance's law."""
    values = drawn_alone(np.random.default_rng(3))
    rows = [independence.moments(row) for row in values]
    degrees, means, spreads = independence.dependence_of_steps(CANARIES, rows, np.zeros(STEPS), np.zeros(STEPS))
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
    assert independence.least_seen([], 0.05) == math.inf


def test_the_least_that_is_seen_is_seen() -> None:
    """Correlation r, seeds 0 to 199: rejected by the means alone in 95%, within five standard deviations."""
    told = [StepDependence(1, 0, CANARIES, STEPS - 1, 1.0, 1.0)]
    least, seen = independence.least_seen(told, 0.05), 0
    for seed in range(200):
        source = np.random.default_rng(seed)
        shared = source.standard_normal((STEPS, 1))
        values = math.sqrt(1 - least) * noise(source) + math.sqrt(least) * shared
        seen += (p_value(values) or 0.0) <= 0.05
    assert abs(seen / 200 - 0.95) <= 5 * math.sqrt(0.95 * 0.05 / 200)


# --- a bound whatever the luck --------------------------------------------------


def randomised_response(epsilon: float, canaries: int, source: Source) -> str:
    coins = source.integers(0, 2, canaries)
    kept = source.random(canaries) < 1.0 / (1.0 + math.exp(-epsilon))
    return ranked(np.where(kept, coins, 1 - coins) + 1e-9 * source.random(canaries), coins)


def laplace(epsilon: float, canaries: int, source: Source) -> str:
    coins = source.integers(0, 2, canaries)
    seen = source.laplace(0.0, 1.0 / epsilon, canaries) + coins
    return ranked(np.abs(seen) - np.abs(seen - 1.0) + 1e-9 * source.random(canaries), coins)


def rejected_share(draw: Callable[[Source], str], seeds: int) -> float:
    found = [independence.gaussian_shape([draw(np.random.default_rng(seed))]) for seed in range(seeds)]
    return sum(one is not None and one.p_value <= 0.05 for one in found) / seeds


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.7])
def test_gaussian_curves_are_rejected_as_often_as_stated(mu: float) -> None:
    """Seeds 0 to 59: at most the 99.9% quantile of Bin(60, 0.05)."""
    share = rejected_share(lambda source: gaussian(mu, 600, source), 60)
    assert 60 * share <= stats.binom.ppf(0.999, 60, 0.05)


def unequal(spread: float, canaries: int, source: Source) -> str:
    coins = source.integers(0, 2, canaries)
    return ranked((1.0 + 0.5 * spread * coins) * source.standard_normal(canaries) + coins, coins)


@pytest.mark.parametrize("draw", [randomised_response, laplace, unequal])
def test_curves_that_are_not_gaussian_are_seen(draw: Callable[[float, int, Source], str]) -> None:
    assert rejected_share(lambda source: draw(1.0, 1000, source), 40) >= 0.95


def test_the_fitted_mu_is_the_true_one_and_any_rising_function_of_scores_will_do() -> None:
    source = np.random.default_rng(5)
    coins = source.integers(0, 2, 4000)
    scores = source.standard_normal(4000) + 1.1 * coins
    found = independence.gaussian_shape([ranked(scores, coins)])
    assert found is not None
    assert found.mu == pytest.approx(1.1, abs=0.12)
    assert independence.gaussian_shape([ranked(np.exp(scores), coins)]) == found
    assert independence.gaussian_shape(["01" * 200]) is None


def test_runs_that_share_luck_do_not_agree() -> None:
    """Four runs of 1000; the luck of mu = 1 comes with chance one half: all alike in 1 of 8."""
    run, seen, quiet = independence.design(1000), 0, 0
    for seed in range(8):
        source = np.random.default_rng(seed)
        lucky = source.integers(0, 2, 4)
        correct = [independence.right(gaussian(float(luck), 1000, source), run) for luck in lucky]
        p = independence.runs_agree([run] * 4, correct)
        assert p is not None
        if 0 < lucky.sum() < 4:
            assert p < 1e-6
            seen += 1
        else:
            quiet += p > 0.05
    assert seen >= 4
    assert quiet >= 8 - seen - 1


def test_one_run_shows_no_luck_and_equal_runs_agree() -> None:
    run = independence.design(2000)
    assert independence.runs_agree([run], [700]) is None
    assert independence.runs_agree([run] * 3, [700, 700, 700]) == pytest.approx(1.0)
