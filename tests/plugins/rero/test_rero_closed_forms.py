"""Closed forms against independently computed values, and what must hold of any gamma."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from support.rero_closed_forms import closed_form
from support.rero_values import BY_NAME, VALUES, Value

from dpspec.accounting import GaussianTradeOff, LaplaceTradeOff
from dpspec_rero.approximations import gamma_from_epsilon_delta, printed_pure_epsilon
from dpspec_rero.options import Steps, revealed_probability
from dpspec_rero.theory import Leakage, pure_epsilon

CLOSED = [value for value in VALUES if value.name[0] in "GL" or value.name in ("S1", "S2", "S3", "B1")]


def steps_of(value: Value) -> tuple[Steps, ...]:
    return (Steps(noise=value.noise, effect=value.effect, rate=value.rate, count=value.steps),)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [v for v in CLOSED if v.steps == 1 or v.name == "G3"], ids=lambda v: v.name)
def test_reference_values(value: Value) -> None:
    form = closed_form(steps_of(value))
    assert form is not None
    assert form(value.kappa) == pytest.approx(value.gamma, rel=1e-12)


def test_heterogeneous_gaussian_steps_add_in_squares() -> None:
    phases = tuple(Steps(noise="gaussian", effect=effect, rate=1.0, count=1) for effect in (0.5, 1.0, 0.25))
    form = closed_form(phases)
    assert form is not None
    assert form(0.001) == pytest.approx(0.025912269330270, rel=1e-12)


@pytest.mark.parametrize("name", ["S1", "S2", "S3", "B1"])
def test_one_sampled_step_is_a_mixture_of_power(name: str) -> None:
    """Against the most powerful test itself: the likelihood ratio rises with the output, so it is a threshold."""
    value = BY_NAME[name]
    levels = np.array([1e-6, 1e-3, value.kappa, 0.5, 0.9])
    form = closed_form(steps_of(value))
    assert form is not None
    if value.noise == "gaussian":
        cut = norm.isf(levels)
        power = (1.0 - value.rate) * levels + value.rate * norm.sf(cut - value.effect)
        assert [form(level) for level in levels] == pytest.approx(power, rel=1e-10)
    assert form(value.kappa) == pytest.approx(value.gamma, rel=1e-12)


@pytest.mark.parametrize("name", ["G1", "G3", "L1", "L3", "S1", "S3", "B1"])
def test_certified_intervals_contain_the_closed_form(name: str) -> None:
    phases = steps_of(BY_NAME[name])
    form = closed_form(phases)
    assert form is not None
    kappas = [1e-6, 1e-3, 0.2, 0.5, 0.9]
    for kappa, interval in zip(kappas, Leakage(phases).gammas(kappas), strict=True):
        assert interval.lower * (1.0 - 1e-10) <= form(kappa) <= interval.upper * (1.0 + 1e-10)


def test_the_other_direction_is_another_number() -> None:
    """The trap: absent-first of one step at rate 0.1 promises less than what an attack reaches."""
    leak = Leakage(steps_of(BY_NAME["S1"]))
    (wrong,) = leak.tprs([0.1], "add")
    (right,) = leak.tprs([0.1], "remove")
    assert wrong.upper < 0.98 * right.lower


@pytest.mark.parametrize(
    ("kappa", "epsilon", "delta", "literal", "sharper"),
    [
        (0.1, 4.78435, 1e-3, 1.0, 0.9925),
        (0.1, 7.046603, 1e-5, 1.0, 0.9992),
        (1e-4, 4.78435, 1e-3, 0.01296, 0.01296),
        (1e-4, 8.058608, 1e-6, 0.3161, 0.3161),
    ],
)
def test_from_one_epsilon_and_delta(kappa: float, epsilon: float, delta: float, literal: float, sharper: float) -> None:
    assert gamma_from_epsilon_delta(kappa, epsilon, delta, both=False) == pytest.approx(literal, rel=2e-3)
    assert gamma_from_epsilon_delta(kappa, epsilon, delta, both=True) == pytest.approx(sharper, rel=2e-3)


def test_epsilon_and_delta_that_make_no_sense_are_refused() -> None:
    wrong = ((0.0, 1.0, 0.1), (1.1, 1.0, 0.1), (0.5, -1.0, 0.1), (0.5, 1.0, 1.0), (0.5, 1.0, -0.1))
    for kappa, epsilon, delta in wrong:
        with pytest.raises(ValueError, match=r"kappa|epsilon|delta"):
            gamma_from_epsilon_delta(kappa, epsilon, delta, both=True)


def test_the_whole_profile_gives_the_curve_back() -> None:
    """gamma = min over epsilon of delta(epsilon) + e^epsilon kappa, over epsilons of either sign."""
    epsilons = np.append(np.linspace(-6.0, 12.0, 40_001), (-0.7, 0.7))  # the corners of the Laplace profile
    for curve in (GaussianTradeOff(1.3), LaplaceTradeOff(0.7)):
        for kappa in (1e-4, 0.1, 0.9):
            dual = float(np.min(curve.delta(epsilons) + np.exp(epsilons) * kappa))
            assert curve.rero(kappa) == pytest.approx(dual, rel=1e-7)


def test_a_pure_epsilon_bounds_gamma_and_is_the_sum_over_steps() -> None:
    phases = (Steps(noise="laplace", effect=0.5, rate=0.1, count=10),)
    assert pure_epsilon(phases) == pytest.approx(0.629, abs=5e-4)
    assert printed_pure_epsilon(phases) == pytest.approx(2.756, abs=5e-4)
    small = (Steps(noise="laplace", effect=0.1, rate=0.01, count=100),)
    assert pure_epsilon(small) == pytest.approx(0.105, abs=5e-4)
    assert printed_pure_epsilon(small) == pytest.approx(5.399, abs=5e-4)
    assert pure_epsilon((Steps(noise="gaussian", effect=1.0, rate=1.0, count=1),)) == math.inf


def test_steps_without_noise_show_the_record_whenever_it_is_drawn() -> None:
    """Large effects tend to the value without noise: 1 - (1 - p)^N (1 - kappa)."""
    bare = Steps(noise="gaussian", effect=math.inf, rate=0.1, count=10)
    assert revealed_probability((bare,)) == pytest.approx(1.0 - 0.9**10)
    leak = Leakage((bare,))
    assert leak.gammas([0.1])[0].upper == pytest.approx(0.68618940391, rel=1e-10)
    assert leak.advantage().upper == pytest.approx(1.0 - 0.9**10)
    assert leak.epsilons([1e-5], "both")[0].lower == math.inf
    assert leak.tprs([0.1], "add")[0].upper == pytest.approx(0.1 / 0.9**10)
    mixed = Leakage((bare, Steps(noise="gaussian", effect=1.0, rate=1.0, count=1)))
    hidden = 0.38914369164536
    assert mixed.gammas([0.1])[0].upper == pytest.approx(1.0 - 0.9**10 * (1.0 - hidden), rel=1e-10)
    assert mixed.gammas([0.1])[0].upper > leak.gammas([0.1])[0].upper


def test_no_effect_leaves_guessing() -> None:
    leak = Leakage((Steps(noise="gaussian", effect=0.0, rate=0.5, count=100),))
    assert [interval.upper for interval in leak.gammas([1e-7, 0.1, 1.0])] == pytest.approx([1e-7, 0.1, 1.0], rel=1e-12)


def test_the_prior_at_which_gamma_reaches_a_value_is_its_inverse() -> None:
    for phases in (steps_of(BY_NAME["G1"]), steps_of(BY_NAME["L3"])):
        leak = Leakage(phases)
        prior = leak.prior(0.5)
        assert leak.gammas([prior.lower])[0].upper == pytest.approx(0.5, rel=1e-9)
    shown = Leakage((Steps(noise="gaussian", effect=math.inf, rate=0.1, count=10),))
    assert shown.prior(0.5).upper == 0.0
    assert shown.gammas([shown.prior(0.9).lower])[0].upper == pytest.approx(0.9)
