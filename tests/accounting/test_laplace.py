"""Laplace noise far below and far above the sensitivity, and what catches a formula that loses mass."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from support.accounting_oracle import two_laplace_steps
from support.extreme_pairs import exact_delta

from dpspec.accounting import DIRECTIONS, Bins, Direction, Interval, Laplace, PrivacyLoss
from dpspec.accounting.grid import Atoms
from dpspec.accounting.laplace import EPS
from dpspec.accounting.numerics import ContradictionError, Directions, Floats
from dpspec.accounting.profiles import Question
from dpspec.accounting.refinement import GridRefinement
from dpspec.accounting.single_steps import SingleSteps


@pytest.mark.family
@pytest.mark.parametrize(
    ("edge", "rate"), [(0.5, 1.0), (20.0, 0.01), (333.0, 0.01), (709.0, 1.0), (725.0, 1.0), (1e3, 1.0), (1e4, 0.1)]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_steps_contain_the_exact_value(edge: float, rate: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(Laplace(1.0 / edge, 1.0, rate), direction).compose(2)
    pair, _ = loss.phases[0]
    assert isinstance(pair, Laplace)
    for share in (0.0, 0.3, 0.9):
        epsilon = share * pair.largest_loss(direction)
        exact = two_laplace_steps(pair.edge, pair.rate, epsilon, direction)
        found = loss.delta(epsilon)
        assert found.lower * (1.0 - 1e-9) <= exact <= found.upper * (1.0 + 1e-9) + 1e-300
        assert found.relative_width < 2e-2 or exact < 1e-12


@pytest.mark.family
@pytest.mark.parametrize(("edge", "rate"), [(699.3, 0.1), (25.0, 0.1), (60.0, 0.5)])
def test_omitted_small_losses_keep_the_curve_between_its_bounds(edge: float, rate: float) -> None:
    """The grid of a step was as long as all losses, of which all but the largest have almost no mass."""
    pair = Laplace(1.0 / edge, 1.0, rate)
    omitted = 1e-6
    above, below = pair.truncate("absent-first", -50.0, math.log(omitted)).atoms(1e-4, [1.0], 3.0, 1 << 19)
    assert len(above.index) < 2000
    for epsilon in (-40.0, -3.0, -0.5, 0.0, 0.05, 0.1):
        low, high = map(math.exp, pair.log_delta_bounds(epsilon, "absent-first"))
        assert below.delta(epsilon + below.shift) <= high * (1.0 + 1e-12)
        assert low * (1.0 - 1e-12) <= above.delta(epsilon - above.shift)
        assert above.delta(epsilon) - below.delta(epsilon) < 2.0 * omitted + 1e-5
    exact = two_laplace_steps(pair.edge, pair.rate, -5.0, "absent-first")
    found = PrivacyLoss.of(pair, "absent-first").compose(2).delta(-5.0)
    assert found.lower * (1.0 - 1e-12) <= exact <= found.upper * (1.0 + 1e-12)


def test_the_power_of_many_sampled_steps_with_little_noise() -> None:
    """A run without the record has almost surely the loss -ln(1 - q) in each step, so a test gains a constant factor.

    With the record all outputs are like that with probability (1 - q)^T. Each power took 4 to 20 CPU seconds.
    """
    loss = PrivacyLoss.of(Laplace(0.00143, rate=0.1), "absent-first").compose(40)
    factor = 0.9**-40
    for kappa in (1e-6, 1e-3, 0.01):
        power = loss.rero(kappa, direction="absent-first", width=1e-5)
        assert power.lower <= kappa * factor <= power.upper
        assert power.relative_width < 1e-8
    assert loss.rero(0.1, direction="absent-first", width=1e-5).lower > 1.0 - 1e-9
    advantage = loss.advantage(width=1e-5)
    assert advantage.lower <= 1.0 - 1.0 / factor <= advantage.upper
    assert advantage.relative_width < 1e-9


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The widths of the stages of grids."""
    widths: list[float] = []
    stage = GridRefinement._stage

    def counted(self: GridRefinement, width: float, *merged: Any) -> bool:
        widths.append(width)
        return stage(self, width, *merged)

    monkeypatch.setattr(GridRefinement, "_stage", counted)
    return widths


@pytest.mark.family
@pytest.mark.parametrize(
    ("scale", "rate", "steps", "direction", "alpha", "most"),
    [
        (0.0377, 0.5, 100, "both", 0.1, 0),
        (0.0399, 0.9, 40, "both", 0.5, 0),
        (0.0272, 0.05, 100, "absent-first", 0.01, 3),
        (0.00143, 0.1, 40, "absent-first", 0.1, 5),
        (0.0264, 0.5, 1000, "absent-first", 0.01, 1),
    ],
)
def test_an_error_that_a_power_hardly_shows_is_not_refined(
    scale: float, rate: float, steps: int, direction: Directions, alpha: float, most: int, stages: list[float]
) -> None:
    """Each step reveals almost everything. An error below 1e-13 took 5 to 17 CPU seconds."""
    error = PrivacyLoss.of(Laplace(scale, rate=rate), direction).compose(steps).tradeoff(alpha)
    assert 0.0 <= error.lower <= error.upper < 3e-14
    assert len(stages) <= most


@pytest.mark.family
@pytest.mark.parametrize("alpha", [1e-3, 0.01])
def test_the_worse_of_two_directions_at_their_crossing(alpha: float, stages: list[float]) -> None:
    """Without noise, a run with the record is like one without it with probability s, and otherwise surely different.

    The errors are s (1 - a) and 1 - a / s, whose lower convex hull is s - a. The line of epsilon 0 decides it, where
    the two profiles cross. The interval was 0.01 wide after 17 CPU seconds, and noise adds less than 1e-150.
    """
    error = PrivacyLoss.of(Laplace(0.00143, rate=0.1), "both").compose(40).tradeoff(alpha)
    assert error.lower <= 0.9**40 - alpha <= error.upper
    assert error.relative_width < 1e-4
    assert len(stages) <= 3


@pytest.mark.ci
@pytest.mark.parametrize(("edge", "rate", "alpha"), [(25.0, 0.1, 0.5), (3.0, 0.3, 0.02)])
def test_the_worse_of_two_directions_of_two_steps(edge: float, rate: float, alpha: float) -> None:
    """Against the definition with mpmath: the minimum of the larger profile, plus alpha e^epsilon, over epsilon."""

    def line(epsilon: float) -> float:
        profiles = [two_laplace_steps(edge, rate, epsilon, direction, digits=16) for direction in DIRECTIONS]
        return float(max(profiles)) + alpha * math.exp(epsilon)

    error = PrivacyLoss.of(Laplace(1.0 / edge, rate=rate)).compose(2).tradeoff(alpha)
    found = minimize_scalar(line, bounds=(-3.0, -math.log(alpha)), method="bounded", options={"xatol": 1e-3})
    power = min(float(found.fun), line(0.0))
    assert 1.0 - error.upper <= power * (1.0 + 1e-9)
    assert power <= 1.0 - error.lower + 1e-6  # of the search


def test_a_level_of_steps_that_reveal_almost_everything() -> None:
    """Half of 1,000 steps draw the record. Without it, 400 outputs beyond s / 2 are of probability below e^-6800."""
    level = PrivacyLoss.of(Laplace(0.0264, rate=0.5)).compose(1000).level(0.9)
    assert level.upper < 1e-300


@pytest.mark.ci
def test_a_tiny_error_is_refined_if_a_grid_bounds_it() -> None:
    error = PrivacyLoss.of(Laplace(0.047, rate=0.3), "present-first").compose(100).tradeoff(1e-6)
    assert 4e-16 < error.lower <= error.upper < 7e-16


@pytest.mark.parametrize("scale", [1.3e11, 1e12])
def test_losses_near_the_rounding_of_their_probabilities(scale: float) -> None:
    """A test whether all losses exceed a share of the largest one: its power hardly exceeds its level."""
    for steps in (1, 2):  # of losses m and -m, their sum is positive by m on average in both cases
        advantage = PrivacyLoss.of(Laplace(scale), "present-first").compose(steps).advantage(width=1e-5)
        exact = -math.expm1(-0.5 / scale)
        assert advantage.lower * (1.0 - 1e-11) <= exact <= advantage.upper * (1.0 + 1e-11)


def test_the_example_of_a_false_proof() -> None:
    """Two steps of sensitivity / scale 1,000 used to have the epsilon [0, 0] and the advantage 1.5e-222."""
    loss = PrivacyLoss.of(Laplace(1e-3)).compose(2)
    assert 1999.9 < loss.epsilon(1e-6).lower <= loss.epsilon(1e-6).upper <= 2000.0 * (1.0 + 1e-12)
    assert loss.advantage().lower > 1.0 - 1e-9
    assert loss.rero(0.01).lower > 1.0 - 1e-9
    beside = (PrivacyLoss.of(Laplace(1.0 / 800.0)) + PrivacyLoss.gaussian(1.0)).epsilon(1e-6)
    assert 800.0 < beside.lower <= beside.upper < 806.0


def _lossy_bins(self: Laplace, l: Floats, direction: Direction) -> Bins:  # noqa: E741
    """The old formula, e^-m times e^loss: the first underflows and the second overflows."""
    m = self.edge
    low, high = l[:-1], l[1:]
    with np.errstate(all="ignore"):
        inner = -0.5 * np.exp(-0.5 * (low + m)) * np.expm1(-0.5 * (high - low))
        without = np.concatenate((inner, 0.5 * np.exp([0.0, -m])))
        loss = self.losses(np.concatenate((0.5 * (low + high), [-m, m])))
        x, ends = self.losses(l), self.losses(np.array([-m, m]))
        low, high = np.concatenate((x[:-1], ends)), np.concatenate((x[1:], ends))
        error = np.full(len(loss), EPS * (64.0 + 64.0 * m))
        if direction == "present-first":
            return Bins(without * np.exp(loss), loss, low, high, error, error)
        return Bins(without, -loss, -high, -low, error, error)


@pytest.mark.parametrize(("edge", "rate"), [(710.0, 1.0), (725.0, 1.0), (800.0, 1.0), (1e3, 1.0), (1e4, 0.1)])
def test_a_formula_that_loses_mass_gives_an_error_and_no_number(edge, rate, monkeypatch):
    monkeypatch.setattr(Laplace, "bins", _lossy_bins)
    with pytest.raises((ContradictionError, FloatingPointError)):
        PrivacyLoss.of(Laplace(1.0 / edge, 1.0, rate), "present-first").compose(2).epsilon(1e-6)


@pytest.mark.parametrize(("edge", "rate"), [(800.0, 1.0), (1e3, 1.0), (1e4, 0.1)])
def test_single_steps_contradict_a_measure_that_lost_mass(edge, rate, monkeypatch):
    """Without the invariant of the total mass, the second opinion still excludes the false answer."""
    monkeypatch.setattr(Laplace, "bins", _lossy_bins)
    monkeypatch.setattr(Atoms, "closed", lambda self, rounding: self)
    with pytest.raises(ContradictionError, match=r"contradict|exclude"):
        PrivacyLoss.of(Laplace(1.0 / edge, 1.0, rate), "present-first").compose(2).epsilon(1e-6)


def test_a_wrong_answer_contradicts_single_steps() -> None:
    single = SingleSteps([(Laplace(1e-3), 2)], ("present-first",))
    epsilon, advantage, power, level = (
        Question(kind, value)
        for kind, value in (("epsilon", math.log(1e-6)), ("delta", 0.0), ("power", math.log(0.01)), ("level", -0.7))
    )
    for question, answer in (
        (epsilon, Interval(0.0, 0.0)),
        (advantage, Interval(0.0, 1e-222)),
        (power, Interval(0.01, 0.02)),
        (level, Interval(0.4, 0.5)),
    ):
        with pytest.raises(ContradictionError):
            single.require_agreements([question], [answer])
    single.require_agreements([epsilon], [Interval(1999.0, 2000.0)])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("scale", "rate"), [(1.0, 0.01), (0.01, 0.1), (5.0, 1.0), (1e-3, 0.5)])
def test_several_epsilons_at_once_contain_their_exact_values(scale: float, rate: float, direction: Direction) -> None:
    pair, epsilons = Laplace(scale, 1.0, rate), [-0.3, -1e-3, 0.0, 0.01, 0.3, 2.0]
    for epsilon, (low, high) in zip(epsilons, pair.all_log_delta_bounds(epsilons, direction), strict=True):
        with mpmath.workdps(60):
            exact = exact_delta(pair, epsilon, direction)
            assert exact is not None
            assert mpmath.exp(mpmath.mpf(low)) <= exact <= mpmath.exp(mpmath.mpf(high))


@pytest.mark.family
@pytest.mark.parametrize(
    ("edge", "rate", "tilt", "slack"),
    [(1.0, 0.01, 10.0, 1e-8), (5.0, 0.01, 100.0, 1e-6), (30.0, 0.1, 10.0, 1e-9), (2.0, 1e-9, 100.0, 1e-12)],
    ids=["usual", "steep", "wide", "rare"],
)
def test_moments_are_bounds_by_quadrature(edge: float, rate: float, tilt: float, slack: float) -> None:
    bounds = Laplace(1.0 / edge, 1.0, rate).log_moments(np.array([tilt]), "absent-first")
    assert bounds is not None
    with mpmath.workdps(30):
        m, q = 1 / mpmath.mpf(1.0 / edge), mpmath.mpf(rate)

        def power(ratio: mpmath.mpf) -> mpmath.mpf:
            return (1 + q * mpmath.expm1(ratio)) ** -mpmath.mpf(tilt)

        inner = mpmath.quad(lambda x: mpmath.exp(-(x + m) / 2) / 4 * power(x), mpmath.linspace(-m, m, 9))
        exact = mpmath.log(power(-m) / 2 + mpmath.exp(-m) / 2 * power(m) + inner)
    assert 0.0 <= float(bounds[0] - exact) <= slack


def test_a_moment_decides_the_smaller_direction() -> None:
    step = PrivacyLoss.of(Laplace(1.0, rate=0.1), "present-first").compose(100)
    absent = PrivacyLoss(step.phases, "absent-first")
    (larger,) = step.epsilons([1e-6], width=1e-3)
    (smaller,) = absent.epsilons([1e-6], width=1e-3, other_direction=[larger])
    assert smaller.method == "moment of the likelihood ratio"
    assert absent.epsilon(1e-6).upper <= smaller.upper == larger.upper


def test_few_outcomes_begin_at_a_fine_grid(stages: list[float]) -> None:
    epsilon = PrivacyLoss.of(Laplace(1.0, rate=0.01), "present-first").compose(2000).epsilon(1e-6, width=1e-2)
    assert epsilon.relative_width < 2e-5
    assert len(stages) == 1
