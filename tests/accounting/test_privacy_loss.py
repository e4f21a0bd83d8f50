"""Composed values: references of independent engines, oracles, identities, monotonicity, honesty at the limits."""

import csv
import itertools
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounting_oracle import gaussian_epsilon, two_step_delta

from dpspec.accounting import DIRECTIONS, Direction, Interval, Laplace, Mixture, PrivacyLoss, gaussian, refinement
from dpspec_papers.group_conversions import log_delta

PRESENT, ABSENT = "present-first", "absent-first"


def composed(pair: Mixture, steps: int, direction: str = PRESENT) -> PrivacyLoss:
    return PrivacyLoss.of(pair, direction).compose(steps)


#: pair, steps, delta, epsilon present-first and absent-first by a contour integral, good to the digits shown. The
#: settings of two published figures are in ``ganesh_figures.csv``.
EPSILONS = {
    "C8": (Mixture.poisson(3, 0.05, 1.5), 100, 1e-5, 5.8461747351, 4.0065713307),
    "C9": (Mixture.poisson(2, 0.1, 1.0), 10, 1e-5, 6.1933980080, 1.5290117031),
    "C10": (Mixture.fixed(5, 1000, 100, 3.0), 300, 1e-5, 50.2352511470, 35.3362331124),
    "C11": (Mixture.poisson(4, 1.0, 40.0), 100, 1e-6, 4.88655411746, 4.88655411746),
    "C12": (Mixture.poisson(32, 0.001, 1.0), 5000, 1e-7, 20.607331909, 16.9035552826),
    "C15 1e-12": (Mixture.poisson(1, 0.01, 1.0), 2000, 1e-12, 4.8982216034, 3.5044122904),
    "C15 1e-20": (Mixture.poisson(1, 0.01, 1.0), 2000, 1e-20, 7.4232239888, 4.4911652791),
    "C15 1e-30": (Mixture.poisson(1, 0.01, 1.0), 2000, 1e-30, 10.4986226448, 5.3915921580),
    "C15 k=8 1e-12": (Mixture.poisson(8, 0.01, 1.0), 2000, 1e-12, 49.0574843120, 33.570716725),
    "C15 k=8 1e-20": (Mixture.poisson(8, 0.01, 1.0), 2000, 1e-20, 64.9918515310, 40.612356432),
    "C15 k=8 1e-30": (Mixture.poisson(8, 0.01, 1.0), 2000, 1e-30, 88.5746570214, 47.147363045),
}


def holds(interval: Interval, value: float, digits: float) -> bool:
    return interval.lower - digits <= value <= interval.upper + digits


def meets_the_contour(phases: list[tuple[Mixture, int]], direction: str, delta: float, found: Interval) -> bool:
    """Whether a contour integral converges; then delta at the ends of the interval is on either side of ``delta``."""
    try:
        above, below = (log_delta(phases, direction, epsilon) for epsilon in (found.lower, found.upper))
    except ArithmeticError:
        return False
    assert below - 1e-8 <= math.log(delta) <= above + 1e-8
    return True


@pytest.mark.parametrize(
    ("rate", "steps", "noise"),
    [
        (1e-9, 10**9, 1.0),
        *(pytest.param(*case, marks=pytest.mark.ci) for case in ((1e-8, 10**8, 5.0), (1e-9, 10**9, 5.0))),
    ],
)
def test_a_billion_steps_meet_the_central_limit(rate: float, steps: int, noise: float) -> None:
    """The Wasserstein distance of a sum of n losses to a Gaussian is at most n E|loss - mean|^3 / variance.

    Both profiles are means of functions of the loss with slopes of at most 1 (Goldstein 2010, Theorem 1.1).
    """
    z, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    losses = np.log1p(rate * np.expm1(z / noise - 0.5 / noise**2))
    masses = weights * np.exp(losses)
    masses /= masses.sum()
    centred = losses - masses @ losses
    variance = float(masses @ centred**2)
    distance = float(masses @ np.abs(centred) ** 3) / variance
    mu = math.sqrt(steps * math.log1p(rate**2 * math.expm1(1.0 / noise**2)))
    drift = abs(steps * float(masses @ losses) - 0.5 * mu**2) + abs(math.sqrt(steps * variance) - mu)
    found = composed(Mixture.poisson(1, rate, noise), steps, "both").epsilon(0.05 * mu)
    assert found.lower < found.upper <= 1.02 * found.lower
    above, below = (float(np.exp(gaussian.log_delta(epsilon, mu))) for epsilon in (found.lower, found.upper))
    assert below - distance - drift <= 0.05 * mu <= above + distance + drift


@pytest.mark.parametrize("name", EPSILONS)
def test_composed_reference_values(name: str) -> None:
    pair, steps, delta, *values = EPSILONS[name]
    for direction, value in zip(DIRECTIONS, values, strict=True):
        interval = composed(pair, steps, direction).epsilon(delta)
        assert holds(interval, value, 1e-9)
        assert interval.relative_width <= 1e-4
        assert interval.upper <= value * (1.0 + 1e-4)


@pytest.mark.family
@pytest.mark.parametrize(
    ("pair", "steps", "epsilon", "present", "absent"),
    [
        (Mixture.poisson(4, 0.01, 2.0), 2000, 1.0, 0.111356092307, 0.107079259770),
        (Mixture.poisson(4, 0.01, 2.0), 2000, 4.0, 2.85252415832e-5, 9.59166719699e-6),
        (Mixture.poisson(4, 0.01, 2.0), 2000, 8.0, 3.40985404648e-15, 1.18726593e-18),
        (Mixture.poisson(3, 0.05, 1.5), 100, 2.0, 0.045672099027, 0.021421697590),
    ],
)
def test_composed_deltas(pair: Mixture, steps: int, epsilon: float, present: float, absent: float) -> None:
    for direction, value in ((PRESENT, present), (ABSENT, absent)):
        interval = composed(pair, steps, direction).delta(epsilon)
        assert holds(interval, value, 1e-9 * value)
        assert interval.relative_width <= 1e-4


pairs = st.builds(
    Mixture.poisson,
    st.sampled_from([1, 1, 2, 5]),
    st.floats(math.log(1e-4), math.log(0.9)).map(math.exp),
    st.floats(math.log(0.3), math.log(8.0)).map(math.exp),
)


@given(pairs, pairs, st.sampled_from(DIRECTIONS), st.floats(-1.0, 6.0), st.sampled_from([1e-2, 1e-4]))
def test_two_steps_against_the_definition(first, second, direction, epsilon, width):
    interval = (PrivacyLoss.of(first, direction) + PrivacyLoss.of(second, direction)).delta(epsilon, width=width)
    truth = two_step_delta(first, second, epsilon, direction)
    assert holds(interval, truth, 1e-10 * truth + 1e-18)


@given(pairs, st.sampled_from(DIRECTIONS), st.floats(-1.0, 6.0))
def test_one_step_against_the_closed_form(pair: Mixture, direction: str, epsilon: float) -> None:
    truth = float(pair.delta(epsilon, direction))
    interval = PrivacyLoss.of(pair, direction).delta(epsilon)
    assert holds(interval, truth, 1e-11 * truth)
    if 1e-12 < truth < 0.9 and epsilon > 0.0:
        back = PrivacyLoss.of(pair, direction).epsilon(truth)
        assert holds(back, epsilon, 1e-9 * epsilon + 1e-12)


@pytest.mark.ci
@given(pairs, st.integers(30, 5000), st.sampled_from(DIRECTIONS), st.floats(-12.0, -1.0).map(lambda x: 10.0**x))
def test_against_the_contour_integral(pair: Mixture, steps: int, direction: str, delta: float) -> None:
    interval = composed(pair, steps, direction).epsilon(delta, width=1e-5)
    if 1e-3 < interval.upper < 500.0:
        meets_the_contour([(pair, steps)], direction, delta, interval)


def test_sampling_everything_has_the_closed_form_even_in_company() -> None:
    steps = [(Mixture.full(2, 20.0), 50), (Mixture.full(1, 5.0), 9)]
    mu = math.sqrt(50 * 0.01 + 9 * 0.04)
    assert float(gaussian.epsilon(1e-7, mu)) in PrivacyLoss(tuple(steps)).epsilon(1e-7, width=1e-9)
    # one phase forces the general engine, with the same result
    nearly = Mixture([0.0, 1.0], [1e-13, 1.0 - 1e-13], 5.0)
    general = PrivacyLoss((steps[0], (nearly, 9)), PRESENT).epsilon(1e-7)
    assert holds(general, float(gaussian.epsilon(1e-7, mu)), 1e-8)
    assert general.relative_width <= 1e-4


def test_steps_of_a_history_are_poisson_samples_of_groups() -> None:
    history = [(1.0, 0.1, 3), (2.0, 1.0, 2), (1.0, 0.1, 1)]
    loss = PrivacyLoss.of_steps(history, group_size=2, direction="remove")
    phases = [(Mixture.poisson(2, 0.1, 1.0).key, 4), (Mixture.poisson(2, 1.0, 2.0).key, 2)]
    assert [(pair.key, steps) for pair, steps in loss.phases] == phases
    assert loss.direction == "present-first"
    # Two members in all of four batches, noise 2: mu = 2 sqrt(4) / 2.
    full = PrivacyLoss.of_steps([(2.0, 1.0, 4)], group_size=2).epsilon(1e-5)
    assert full.lower <= gaussian_epsilon(2.0, 1e-5, full.upper) <= full.upper


def test_a_large_delta_needs_no_epsilon() -> None:
    loss = composed(Mixture.poisson(1, 0.01, 1.0), 2000)
    variation = loss.delta(0.0)
    assert 0.2 < variation.lower < variation.upper < 0.3
    assert loss.epsilon(0.3) == Interval(0.0, 0.0)
    near = loss.epsilon(variation.lower * 0.999)
    assert 0.0 < near.lower <= near.upper < 0.01


def test_losses_absent_first_are_bounded() -> None:
    loss = composed(Mixture.poisson(3, 0.05, 0.5), 4, ABSENT)
    largest = -12 * math.log(0.95)
    assert loss.delta(largest * 1.0001) == Interval(0.0, 0.0)
    assert loss.delta(0.9 * largest).upper > 0.0
    assert loss.epsilon(1e-300, width=1e-2).upper <= largest * (1.0 + 1e-9)


def test_where_the_grid_is_limited_the_interval_is_wider_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "NODES", 2000)
    monkeypatch.setattr(refinement, "CELLS", 200)
    for direction, value in ((PRESENT, 2.9552459109), (ABSENT, 2.3961206512)):
        interval = composed(Mixture.poisson(1, 0.01, 1.0), 2000, direction).epsilon(1e-6)
        assert interval.relative_width > 1e-4
        assert holds(interval, value, 1e-9)
        assert interval.upper < 2.0 * value


@pytest.mark.parametrize(
    ("pair", "steps", "delta", "width"),
    [
        pytest.param(Mixture.poisson(1, 1e-4, 1.0), 10**7, 1e-6, 2e-4, marks=pytest.mark.ci),
        (Mixture.poisson(1024, 0.01, 1.0), 2000, 1e-6, 1e-4),
        (Mixture.poisson(10_000, 0.01, 200.0), 2000, 1e-6, 1e-4),
        pytest.param(Mixture.poisson(1, 1e-8, 1.0), 1000, 1e-9, 2e-3, marks=pytest.mark.slow),
        (Mixture.poisson(1, 0.01, 1.0), 2000, 1e-300, 1e-4),
        (Mixture.poisson(2, 0.001, 0.2), 1, 1e-4, 1e-4),
    ],
)
def test_the_range_of_settings(pair: Mixture, steps: int, delta: float, width: float) -> None:
    for direction in DIRECTIONS:
        interval = composed(pair, steps, direction).epsilon(delta, width=width)
        assert math.isfinite(interval.upper)
        assert interval.relative_width <= width


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_hardly_any_noise(sigma):
    # members are detected once drawn: delta is the probability of a draw over all steps, up to rounding
    pair = Mixture.poisson(1, 1e-4, sigma)
    for direction in DIRECTIONS:
        interval = composed(pair, 100, direction).delta(0.9 if direction == PRESENT else 0.005)
        truth = 1.0 - (1.0 - 1e-4) ** 100 if direction == PRESENT else 1.0 - math.exp(0.005) * (1.0 - 1e-4) ** 100
        assert holds(interval, truth, 1e-3 * truth)
        assert interval.relative_width < 1e-3
        assert math.isfinite(composed(pair, 100, direction).epsilon(1e-3).upper)


@pytest.mark.ci
def test_twenty_noise_scales() -> None:
    phases = [(Mixture.poisson(1, 0.01, 0.7 + 0.05 * i), 100) for i in range(20)]
    interval = PrivacyLoss(tuple(phases), PRESENT).epsilon(1e-6)
    assert interval.relative_width <= 1e-4
    assert meets_the_contour(phases, PRESENT, 1e-6, interval)


@pytest.mark.parametrize("delta", [1e-20, 1e-30])
def test_the_gaussian_a_thousand_times_through_the_grid(delta: float) -> None:
    effect = 1.0 / 32.0
    pair = Mixture([0.0, effect], [1e-18, 1.0], 1.0)
    for direction in DIRECTIONS:
        interval = PrivacyLoss.of(pair, direction).compose(1000).epsilon(delta)
        with mpmath.workdps(50):
            truth = gaussian_epsilon(effect * math.sqrt(1000.0), delta, float(interval.upper))
            assert interval.lower <= truth * (1 + mpmath.mpf(1e-12))
            assert truth * (1 - mpmath.mpf(1e-12)) <= interval.upper
        assert interval.relative_width < 1e-4


#: rate, steps, group, sigma, delta.
Setting = tuple[float, int, int, float, float]

#: Extremes of each.
SAMPLE: list[Setting] = [
    (1e-8, 100, 1, 0.3, 1e-20),
    (1e-8, 10**4, 30, 1.0, 1e-5),
    (1e-8, 10**4, 10**4, 20.0, 1e-30),
    (1e-6, 1, 30, 1.0, 1e-12),
    (1e-6, 10**4, 1, 20.0, 1e-30),
    (1e-4, 10**4, 1, 1.0, 1e-20),
    (1e-4, 100, 10**4, 20.0, 1e-12),
    (0.01, 100, 30, 1.0, 1e-12),
    (0.01, 10**4, 1, 20.0, 1e-5),
    (0.3, 10**4, 1, 0.3, 1e-30),
    (0.3, 100, 10**4, 1.0, 1e-5),
    (1.0 - 1e-9, 10**4, 1, 20.0, 1e-20),
    (1.0 - 1e-9, 10**4, 10**4, 0.3, 1e-12),
]


@pytest.mark.family
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("setting", SAMPLE, ids=str)
def test_some_extremes(setting: Setting, direction: Direction) -> None:
    rate, steps, group, sigma, delta = setting
    pair = Mixture.poisson(group, rate, sigma)
    loss = PrivacyLoss.of(pair, direction).compose(steps)
    interval = loss.epsilon(delta, width=1e-3)
    assert 0.0 <= interval.lower <= interval.upper
    if not interval.upper < 1e4:
        return
    # never above the cost without sampling, and equal to an independent value if known
    mu = math.sqrt(steps) * group / sigma
    assert interval.lower <= PrivacyLoss.gaussian(1.0 / mu).epsilon(delta).upper
    back = loss.delta(interval.upper, width=1e-2)
    assert back.lower <= delta * (1.0 + 1e-9)
    if interval.lower > 0.0 and group == 1:
        try:
            found = log_delta(loss.phases, direction, interval.upper)
            below = log_delta(loss.phases, direction, interval.lower)
        except ArithmeticError:
            return
        assert found <= math.log(delta) + 1e-8 * abs(math.log(delta))
        assert below >= math.log(delta) - 1e-8 * abs(math.log(delta))


with (Path(__file__).parent / "ganesh_figures.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


@pytest.mark.family
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['scheme']}-{row['sigma']}-{row['k']}")
def test_the_interval_holds_the_value(row: dict[str, str]) -> None:
    k, sigma = int(row["k"]), float(row["sigma"])
    pair = Mixture.poisson(k, 0.01, sigma) if row["scheme"] == "poisson" else Mixture.fixed(k, 50_000, 500, sigma)
    for direction, column in (("present-first", "remove"), ("absent-first", "add")):
        exact = float(row[column])
        interval = PrivacyLoss(((pair, 2000),), direction).epsilon(1e-6)
        assert interval.lower - 5.1e-9 <= exact <= interval.upper + 5.1e-9
        assert interval.upper - interval.lower <= 1e-4 * exact


# dp-accounting: its upper estimate is in our interval, widened by its discretization error


#: Its name for a direction and ours.
SIDES = {"present-first": "_pmf_remove", "absent-first": "_pmf_add"}


def agree(pair: Mixture, steps: int, delta: float, spacing: float) -> None:
    privacy_loss_distribution = pytest.importorskip("dp_accounting.pld").privacy_loss_distribution

    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        pair.noise_multiplier,
        pair.sensitivities,
        pair.probabilities,
        pessimistic_estimate=True,
        value_discretization_interval=spacing,
        use_connect_dots=True,
    ).self_compose(steps)
    for direction, attribute in SIDES.items():
        value = float(getattr(theirs, attribute).get_epsilon_for_delta(delta))
        loss = PrivacyLoss.of(pair, direction).compose(steps)
        ours = loss.epsilon(delta)
        if ours.upper < 1e-3:
            assert value < 0.05
            continue
        # its bias by the error law T d^2 (1 + s) / 12, with the slope s taken from our own profile
        high, low = loss.epsilons([delta, 2.0 * delta], width=1e-3)
        slope = 0.7 / max(high.lower - low.upper, 1e-9)
        bias = 1.5 * steps * spacing**2 * (1.0 + slope) / 12.0 if steps > 1 else spacing  # or one cell of its grid
        assert ours.lower - 1e-6 <= value <= ours.upper + bias + 1e-5


#: At most 100 steps: 42 settings, of which every sixth regular one runs without --run-slow.
REGULAR = [
    *itertools.product(("poisson",), (1, 3), (0.01, 0.3), (1.0, 4.0), (100,)),
    *itertools.product(("poisson",), (1, 2, 3), (0.02, 0.2), (0.9, 2.0), (1, 30)),
    *itertools.product(("fixed",), (1, 4), (0.05,), (1.5, 4.0), (10,)),
]
SETTINGS = [
    *(pytest.param(*one, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, one in enumerate(REGULAR)),
    ("fixed", 2, 0.1, 2.0, 50),
    ("fixed", 6, 0.02, 1.5, 100),
    ("poisson", 8, 0.05, 2.0, 20),
    ("poisson", 2, 0.1, 0.7, 10),
    ("poisson", 1, 1.0, 30.0, 100),
    ("poisson", 16, 0.01, 3.0, 60),
]


@pytest.mark.family
@pytest.mark.parametrize(("scheme", "k", "rate", "sigma", "steps"), SETTINGS)
def test_few_steps(scheme: str, k: int, rate: float, sigma: float, steps: int) -> None:
    poisson, fixed = Mixture.poisson(k, rate, sigma), Mixture.fixed(k, 1000, int(rate * 1000), sigma)
    agree(poisson if scheme == "poisson" else fixed, steps, 1e-5, 1e-2)


@pytest.mark.parametrize(
    ("scale", "rate", "steps"), [(1.0, 1.0, 5), (2.0, 1.0, 50), (1.0, 0.1, 100), (0.5, 0.02, 40), (4.0, 0.5, 1)]
)
def test_the_laplace_mechanism(scale: float, rate: float, steps: int) -> None:
    privacy_loss_distribution = pytest.importorskip("dp_accounting.pld").privacy_loss_distribution

    theirs = privacy_loss_distribution.from_laplace_mechanism(
        scale, sampling_prob=rate, value_discretization_interval=1e-3
    ).self_compose(steps)
    for direction, attribute in SIDES.items():
        ours = PrivacyLoss.of(Laplace(scale, rate=rate), direction).compose(steps).epsilon(1e-5)
        value = float(getattr(theirs, attribute).get_epsilon_for_delta(1e-5))
        assert ours.lower - 1e-6 <= value <= ours.upper + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "sigma", "steps", "present", "absent"),
    [
        (8, 0.5, 2000, 208.326294904, 75.622387581),
        (64, 1.0, 2000, 801.680000005, 407.712987823),
        (8, 1.0, 20000, 177.352636065, 146.454626755),
        (16, 1.0, 2000, 90.901207932, 62.399090983),
    ],
)
def test_its_published_upper_values(k: int, sigma: float, steps: int, present: float, absent: float) -> None:
    for direction, value in (("present-first", present), ("absent-first", absent)):
        loss = PrivacyLoss.of(Mixture.poisson(k, 0.01, sigma), direction).compose(steps)
        interval = loss.epsilon(1e-6, width=1e-6)
        assert interval.lower <= value
        assert interval.upper == pytest.approx(value, rel=2e-3)


def test_its_composition_falls_below_the_truth_at_small_delta() -> None:
    """10,000 Gaussian steps that are one of mu = 1 together: round-off of the transform is not charged."""
    privacy_loss_distribution = pytest.importorskip("dp_accounting.pld").privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(100.0, value_discretization_interval=1e-4)
    value = float(theirs.self_compose(10_000).get_epsilon_for_delta(1e-12))
    ours = PrivacyLoss.of(Mixture.full(1, 100.0)).compose(10_000).epsilon(1e-12)
    assert ours.lower == pytest.approx(7.23849, abs=1e-5)
    assert value < 7.238 < ours.lower  # by an amount that depends on the machine


def test_epsilon_takes_several_deltas() -> None:
    loss = PrivacyLoss(((Mixture.full(1, 2.0), 3),))
    deltas = [1e-3, 1e-6]
    assert loss.epsilon(deltas) == loss.epsilon(np.array(deltas)) == loss.epsilons(deltas)
    assert loss.epsilon(deltas) == [loss.epsilon(delta) for delta in deltas]
    assert loss.epsilon([]) == []
    for wrong in ("0.1", [0.1, 2.0], [[0.1]]):
        with pytest.raises(ValueError, match="delta"):
            loss.epsilon(wrong)  # type: ignore[call-overload]
