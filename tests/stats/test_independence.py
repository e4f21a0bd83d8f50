"""The tests of the assumptions of independent canaries: their level, and what they reject."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.ranked_coins import gaussian, ranked

from dpspec.stats.attacks import independence
from dpspec.stats.attacks.independence import Guesses
from dpspec.stats.conformance.canary_contributions import StepDependence

Array, Source = np.ndarray, np.random.Generator
STEPS, CANARIES = 30, 300


def noise(source: Source) -> Array:
    return source.standard_normal((STEPS, CANARIES))


def in_all_directions(source: Source) -> Array:
    return noise(source) + math.sqrt(1 / 29) * source.standard_normal((STEPS, 1))


def louder_steps(source: Source) -> Array:
    return noise(source) * (1.0 + 0.25 * source.integers(0, 2, (STEPS, 1)))


def drawn_alone(source: Source) -> Array:
    return noise(source) + 1.5 * (source.random((STEPS, CANARIES)) < 0.4)


def drawn_together(source: Source) -> Array:
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


@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
def test_the_law_of_one_guess_on_either_side_is_an_integral(mu: float) -> None:
    """Of m canaries the least is out, and the largest in: both are right with a chance from their joint density."""
    m, x = 5, np.linspace(-8.0, 8.0 + mu, 2001)
    step = x[1] - x[0]
    out, into = 0.5 * stats.norm.pdf(x), 0.5 * stats.norm.pdf(x - mu)
    law = 0.5 * (stats.norm.cdf(x) + stats.norm.cdf(x - mu))
    between = np.clip(law[None, :] - law[:, None], 0.0, None)  # of the least in rows, the largest in columns
    exact = float(m * (m - 1) * (out @ between ** (m - 2) @ into)) * step**2
    assert independence.p_value([Guesses(m, 1, 1)], 2, mu) == pytest.approx(exact, rel=1e-6)


def test_without_a_signal_guesses_are_fair_coins() -> None:
    for run in (Guesses(40, 10, 7), Guesses(1000, 320, 320), Guesses(9, 1, 3)):
        number = run.low + run.high
        for correct in (0, number // 2, number * 5 // 8, number):
            exact = float(stats.binom.sf(correct - 1, number, 0.5))
            assert independence.p_value([run], correct, 0.0) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("run", "mu"), [(Guesses(40, 10, 7), 1.2), (Guesses(30, 9, 9), 0.4), (Guesses(12, 3, 3), 2.5)])
def test_the_law_is_what_simulation_shows(run: Guesses, mu: float) -> None:
    """40,000 runs, seed 0: each share within five standard deviations."""
    runs, source = 40_000, np.random.default_rng(0)
    coins = source.integers(0, 2, (runs, run.canaries), dtype=np.int8)
    order = (source.standard_normal((runs, run.canaries)) + mu * coins).argsort(axis=1)
    sorted_coins = np.take_along_axis(coins, order, axis=1)
    found = (1 - sorted_coins[:, : run.low]).sum(axis=1) + sorted_coins[:, run.canaries - run.high :].sum(axis=1)
    for correct in range(run.low + run.high + 1):
        share, exact = float((found >= correct).mean()), independence.p_value([run], correct, mu)
        assert abs(share - exact) <= 5.0 * math.sqrt(exact * (1.0 - exact) / runs) + 1e-5
    mean, variance = independence.guess_moments(run, mu)
    assert found.mean() == pytest.approx(mean, abs=5.0 * math.sqrt(variance / runs))
    assert found.var() == pytest.approx(variance, rel=0.05)


def test_runs_add_up() -> None:
    one, two = Guesses(10, 2, 2), Guesses(14, 3, 4)
    alone = [independence.p_value([one], v, 1.0) for v in range(6)]
    masses = [a - b for a, b in pairwise(alone)]
    for correct in range(12):
        joint = sum(p * independence.p_value([two], correct - v, 1.0) for v, p in enumerate(masses))
        assert independence.p_value([one, two], correct, 1.0) == pytest.approx(joint, rel=1e-7)


def least_mu(absent: np.ndarray, present: np.ndarray) -> float:
    """The least mu for which a part with these laws, of few values, is mu-GDP: its power at each corner says."""
    order = np.argsort(present / absent)[::-1]
    fpr, tpr = np.cumsum(absent[order])[:-1], np.cumsum(present[order])[:-1]
    return float(np.max(stats.norm.ppf(tpr) - stats.norm.ppf(fpr)))


@pytest.mark.parametrize("absent", [[0.7, 0.3], [0.5, 0.35, 0.15]], ids=["response", "three-values"])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (1, 2)])
def test_no_independent_release_beats_the_gaussian_one(absent: list[float], low: int, high: int) -> None:
    """All releases of five canaries, by brute force: whatever is guessed best from each stays below the theorem."""
    law = np.array([absent, absent[::-1]])
    mu, m = least_mu(*law), 5
    tails = np.zeros(low + high + 1)
    for release in product(range(law.shape[1]), repeat=m):
        both = law[:, list(release)]
        chance = float(np.prod(0.5 * both.sum(axis=0)))
        present = np.sort(both[1] / both.sum(axis=0))
        masses = np.ones(1)
        for right in [*(1.0 - present[:low]), *present[m - high :]]:
            masses = np.convolve(masses, [1.0 - right, right])
        tails += chance * masses[::-1].cumsum()[::-1]
    for correct in range(low + high + 1):
        assert tails[correct] <= independence.p_value([Guesses(m, low, high)], correct, mu * (1 + 1e-9)) + 1e-9


@pytest.mark.ci
@settings(max_examples=5, deadline=None)
@given(
    canaries=st.integers(4, 60),
    share=st.floats(0.5, 1.0),
    mu=st.floats(0.0, 3.0),
    more=st.floats(1e-3, 1.0),
)
def test_p_values_rise_with_mu_and_fall_with_right_guesses(canaries: int, share: float, mu: float, more: float) -> None:
    run = independence.design(canaries)
    correct = math.ceil(share * (run.low + run.high))
    p = independence.p_value([run], correct, mu)
    assert 0.0 <= p <= 1.0
    assert independence.p_value([run], correct, mu + more) >= p * (1.0 - 1e-6) - 1e-13
    assert independence.p_value([run], correct + 1, mu) <= p
    low = independence.mu_lower([run], correct, 0.95)
    assert low == 0.0 or independence.p_value([run], correct, low) <= 0.05
    assert independence.p_value([run], correct, 1.001 * low + 1e-3) > 0.05


@pytest.mark.parametrize(("a", "b"), [(2, 3), (2, 50_000), (33, 69), (3201, 6800), (50_000, 2)])
def test_the_ends_of_the_rule_are_quantiles_of_the_beta_law(a: int, b: int) -> None:
    """What :mod:`scipy.stats` says of them, which the module itself does not import."""
    points, weights = independence._beta_points(a, b)
    ends = stats.beta.ppf(stats.norm.cdf(-7.5), a, b), stats.beta.isf(stats.norm.cdf(-7.5), a, b)
    assert (points[0], 1.0 - points[-1]) == pytest.approx((ends[0], 1.0 - ends[1]), rel=1e-9, abs=1e-14)
    assert points @ weights == pytest.approx(a / (a + b), rel=1e-6)


def test_ranks_are_judged_without_scipy_stats() -> None:
    code = "import sys, dpspec.stats.attacks.independence as o; o.mu_lower([o.design(9)], 4, .5)"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'scipy.stats' not in sys.modules"], check=True)
