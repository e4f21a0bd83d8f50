"""Every public question about a privacy loss over the whole admitted range: an answer in time, sane, and true.

``CAMPAIGN=n`` in the environment runs n examples of each (``tests/conftest.py``).
"""

import math
import time

import mpmath
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.accounting_oracle import gaussian_delta, two_laplace_steps, two_step_delta
from support.extreme_pairs import (
    Question,
    deltas,
    directions,
    discrete,
    epsilons,
    exact_delta,
    integers,
    laplace,
    large_groups,
    log_uniform,
    losses,
    noises,
    poisson,
    questions,
)

from dpspec.accounting import (
    DIRECTIONS,
    Direction,
    Discrete,
    Interval,
    Laplace,
    Mixture,
    Pair,
    PrivacyLoss,
    RandomAllocation,
    TruncatedPoisson,
    tradeoff_bounds,
)
from dpspec.accounting.profiles import bound_power

#: CPU seconds of one answer; most take a few milliseconds.
_LONGEST = 60.0


#: Losses of some examples take seconds, and most are drawn from the ends of their ranges.
extremes = settings(suppress_health_check=list(HealthCheck))


def require_sane(answer: Interval, low: float, high: float) -> None:
    """Fails unless ``answer`` is within [low, high], up to rounding."""
    assert not math.isnan(answer.lower)
    assert low * (1.0 - 1e-9) - 1e-300 <= answer.lower <= answer.upper <= high * (1.0 + 1e-9)
    assert math.copysign(1.0, answer.lower) > 0.0


@pytest.mark.ci
@extremes
@given(losses(), questions())
def test_any_question_about_any_composition(loss: PrivacyLoss, question: Question) -> None:
    _, ask, low, high = question
    start = time.process_time()
    require_sane(ask(loss), low, high)
    assert time.process_time() - start < _LONGEST


@extremes
@given(st.one_of(poisson, laplace, discrete), epsilons, st.sampled_from(DIRECTIONS))
def test_one_step_contains_the_exact_delta(pair: Pair, epsilon: float, direction: Direction) -> None:
    found = PrivacyLoss.of(pair, direction).delta(epsilon)
    require_sane(found, 0.0, 1.0)
    with mpmath.workdps(400):
        exact = exact_delta(pair, epsilon, direction)
    if exact is not None:
        assert found.lower <= exact * (1 + mpmath.mpf(1e-9)) + mpmath.mpf(1e-300)
        assert found.upper >= exact * (1 - mpmath.mpf(1e-9)) - mpmath.mpf(1e-300)


@extremes
@given(noises, integers(1e9), epsilons)
def test_any_number_of_gaussian_steps_contains_the_exact_delta(sigma: float, count: int, epsilon: float) -> None:
    mu = math.sqrt(count) / sigma
    found = PrivacyLoss.gaussian(sigma).compose(count).delta(epsilon)
    with mpmath.workdps(60):
        exact = gaussian_delta(epsilon, mpmath.sqrt(count) / mpmath.mpf(sigma)) if mu < 1e3 else None
    require_sane(found, 0.0, 1.0)
    if exact is not None:
        assert found.lower * (1.0 - 1e-6) <= exact + mpmath.mpf(1e-50)
        assert found.upper * (1.0 + 1e-6) + 1e-50 >= exact


@pytest.mark.ci
@extremes
@example(0.0820849986238988, 0.1353352832366127, 0.0, "absent-first")  # the other step has a kink near the middle
@given(log_uniform(1e-4, 30.0), log_uniform(1e-6, 1.0), st.floats(0.0, 0.95), st.sampled_from(DIRECTIONS))
def test_two_laplace_steps_contain_the_exact_delta(scale, rate, share, direction):
    pair = Laplace(scale, 1.0, rate)
    epsilon = share * pair.largest_loss(direction)
    found = PrivacyLoss.of(pair, direction).compose(2).delta(epsilon)
    exact = two_laplace_steps(pair.edge, pair.rate, epsilon, direction)
    assert found.lower * (1.0 - 1e-8) - 1e-15 <= exact <= found.upper * (1.0 + 1e-8) + 1e-15


@extremes
@given(log_uniform(0.2, 1e3), log_uniform(1e-6, 1.0), log_uniform(1e-3, 3.0), st.sampled_from(DIRECTIONS))
def test_two_gaussian_steps_contain_the_exact_delta(sigma, rate, epsilon, direction):
    pair = Mixture.poisson(1, rate, sigma)
    found = PrivacyLoss.of(pair, direction).compose(2).delta(epsilon)
    exact = two_step_delta(pair, pair, epsilon, direction)
    assert found.lower * (1.0 - 1e-6) - 1e-12 <= exact <= found.upper * (1.0 + 1e-6) + 1e-12


@pytest.mark.ci
@extremes
@given(losses(), st.tuples(deltas, deltas).map(sorted))
def test_epsilon_falls_with_delta(loss: PrivacyLoss, pair: list[float]) -> None:
    small, large = loss.epsilons(pair, width=1e-2)
    assert large.lower <= small.upper * (1.0 + 1e-9)


@pytest.mark.ci
@extremes
@given(poisson, integers(1e4), integers(100), deltas, directions)
def test_epsilon_grows_with_steps(pair: Pair, count: int, factor: int, delta: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(pair, direction).compose(count)
    few, many = loss.epsilon(delta, width=1e-2), loss.compose(factor).epsilon(delta, width=1e-2)
    assert few.lower <= many.upper * (1.0 + 1e-9)


@pytest.mark.ci
@extremes
@given(large_groups, st.sampled_from((1, 100)), deltas)
def test_groups_of_up_to_a_million(pair: Mixture, count: int, delta: float) -> None:
    start = time.process_time()
    require_sane(PrivacyLoss.of(pair).compose(count).epsilon(delta, width=1e-2), 0.0, math.inf)
    assert time.process_time() - start < _LONGEST


@pytest.mark.ci
@extremes
@given(st.one_of(poisson, laplace), integers(1e4))
def test_whole_curves(pair: Pair, count: int) -> None:
    bounds = tradeoff_bounds(PrivacyLoss.of(pair).compose(count), nodes=32)
    for level in (1e-6, 0.1, 0.5):
        require_sane(bounds(level), 0.0, 1.0 - level)
    require_sane(bounds.advantage(), 0.0, 1.0)


def test_advantages_below_delta_prove_an_epsilon_of_zero() -> None:
    """Rate times steps, 2e-9, is below delta; the epsilon used to be at most 1e10."""
    assert PrivacyLoss.gaussian(1e-5, rate=1e-9).compose(2).epsilon(1e-6) == Interval(0.0, 0.0)


@pytest.mark.family
@pytest.mark.parametrize(("steps", "low", "high"), [(1, 4.9e23, 5.1e23), (2, 9.9e23, 1.01e24)])
def test_almost_no_noise(steps: int, low: float, high: float) -> None:
    """A draw shows the record: 1 - 0.99^T, and an epsilon of about T / (2 sigma^2) while all draws exceed delta."""
    loss = PrivacyLoss.gaussian(1e-12, rate=0.01).compose(steps)
    assert low < loss.epsilon(1e-6).lower <= loss.epsilon(1e-6).upper < high
    revealed = 1.0 - 0.99**steps
    assert loss.advantage().lower * (1.0 - 1e-9) <= revealed <= loss.advantage().upper * (1.0 + 1e-9)
    assert loss.advantage().relative_width < 1e-6
    gamma = revealed + 0.01 * (1.0 - revealed)
    assert loss.rero(0.01).lower * (1.0 - 1e-9) <= gamma <= loss.rero(0.01).upper * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "epsilon"), [(1.0, 1e-300, 10, 0.5), (1e3, 0.5, 5, 2.0), (1.0, 0.01, 1000, 200.0)]
)
def test_a_delta_below_the_smallest_number_is_not_zero(sigma: float, rate: float, steps: int, epsilon: float) -> None:
    """Some outputs have a larger loss, so the exact delta is positive."""
    answer = PrivacyLoss.gaussian(sigma, rate=rate).compose(steps).delta(epsilon)
    assert (answer.lower, answer.upper) == (0.0, math.ulp(0.0))


def test_a_delta_beyond_the_largest_loss_is_zero() -> None:
    assert PrivacyLoss.of(Laplace(1.0)).compose(2).delta(2.5).upper == 0.0


def test_a_level_below_the_smallest_number_is_not_zero() -> None:
    loss = PrivacyLoss.gaussian(0.01)
    assert loss.level(0.5).upper == math.ulp(0.0)
    assert 0.0 < loss.tradeoff(0.5).upper < 1e-15


@pytest.mark.ci
def test_a_rare_case_whose_losses_do_not_differ_needs_no_long_quadrature() -> None:
    """All outputs of one sigma 1e8 are in one cell; its quadrature used to ask for 1e12 points."""
    pair = TruncatedPoisson(1, 1e-3, 1, 1, 1e8).above()
    answer = PrivacyLoss.of(pair).compose(2).advantage(width=1e-2)
    exact = (
        math.sqrt(2.0) * (0.999 * 1e-3 + 0.001 * 2e-3) * 1e-8 / math.sqrt(2.0 * math.pi)
    )  # of almost Gaussian losses
    assert answer.lower <= exact * (1.0 + 1e-3)
    assert answer.upper >= exact * (1.0 - 1e-3)


@pytest.mark.parametrize(
    ("others", "level"),
    [
        # a period of 1e-164, which no grid of a loss of 1 can have
        ((Discrete([0.5, 0.3, 0.2], [0.25, 0.5, 0.25]), Laplace(1.0 / 2.8e-8, rate=4e-156)), 1.0 - 1.8e-9),
        ((Mixture.poisson(1, 1.6e-75, 1.5e-6), Laplace(1.0 / 1.9e-7, rate=2.3e-285)), 0.5),
    ],
)
def test_a_grid_is_no_finer_than_its_losses(others: tuple[Pair, Pair], level: float) -> None:
    """Three phases of extreme noise used to end with a floating-point error."""
    phases = ((others[0], 1), (others[1], 2), (Mixture.poisson(1, 0.01, 1.2), 1))
    require_sane(PrivacyLoss(phases, "absent-first").tradeoff(level, width=1e-2), 0.0, 1.0 - level)


@pytest.mark.ci
@pytest.mark.parametrize("level", [1e-100, 1e-300])
@pytest.mark.parametrize("effect", [1e-6, 1e-4])
def test_powers_at_tiny_levels_of_almost_no_effect(effect: float, level: float) -> None:
    """The upper end was below the power of 20 steps, which at such an effect is that of one Gaussian step."""
    loss = PrivacyLoss(((Mixture([0.0, effect], [0.9, 0.1], 1.0), 20),), "present-first")
    with mpmath.workdps(40):
        threshold = mpmath.findroot(lambda z: mpmath.log(mpmath.ncdf(-z) / level), mpmath.sqrt(-2 * mpmath.log(level)))
        gain = mpmath.ncdf(0.1 * effect * mpmath.sqrt(20) - threshold) / mpmath.mpf(level) - 1
    answer = loss.rero(level, width=1e-5)
    assert (answer.lower / level - 1.0) * 0.999 <= gain <= (answer.upper / level - 1.0) * 1.001


def test_an_error_is_at_most_one() -> None:
    """The power at a level of 1e-313 is rounded down, and 1 - power was one unit above 1."""
    loss = PrivacyLoss.gaussian(1e4)
    assert loss.tradeoff(1e-313).upper <= 1.0
    assert Interval(0.0, 1e-313).mirrored() == Interval(math.nextafter(1.0, 0.0), 1.0)


def test_a_rate_below_the_admitted_ones_is_refused() -> None:
    """q (e^700 - 1) would be below 1: the largest loss would be wrong."""
    assert Laplace(1e-4, rate=1e-300).largest_loss("present-first") == pytest.approx(1e4 - 300.0 * math.log(10.0))
    with pytest.raises(ValueError, match="rate must be at least 1e-300, got 1e-305"):
        Laplace(1e-4, rate=1e-305)


def test_a_line_that_rises_too_far_away_bounds_nothing() -> None:
    """Beyond the largest loss delta is the infinite mass, and the line of a level e^-5000 is flat: it overflowed."""

    def high(epsilon: float) -> float:
        return -0.1 if epsilon < 50.0 else -0.5

    answer, _ = bound_power(-5000.0, lambda epsilon: high(epsilon) - 1e-12, high, 100.0, 1e3)
    require_sane(answer, 0.0, 1.0)
    assert answer.upper >= math.exp(-0.5) > 0.99 * answer.upper


def test_the_weight_of_rare_shifts_is_not_lost() -> None:
    """One minus 1e-197 is 1 in float64: no output had a loss, and two bounds excluded each other."""
    pair = Mixture([0.0, 0.5], [1.0, 2e-197], 1e-30)
    answer = PrivacyLoss.of(pair).advantage()
    assert answer.lower * (1.0 - 1e-9) <= 2e-197 <= answer.upper * (1.0 + 1e-9)


@pytest.mark.parametrize("pair", [Mixture.poisson(1, 1e-10, 1.5), Laplace(100.0, rate=1e-9), RandomAllocation(9, 1e12)])
def test_any_number_of_steps_has_an_answer(pair: Pair) -> None:
    require_sane(PrivacyLoss.of(pair, "present-first").compose(10**18).delta(0.1, width=1e-2), 0.0, 1.0)
