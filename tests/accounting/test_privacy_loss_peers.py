"""Agreement with dp-accounting: its upper estimate lies in our interval widened by its own discretisation error."""

from __future__ import annotations

import itertools

import pytest

from dpspec.accounting import Laplace, Mixture, PrivacyLoss

#: Its name for a direction and ours.
SIDES = {"present-first": "_pmf_remove", "absent-first": "_pmf_add"}


def agree(pair: Mixture, steps: int, delta: float, spacing: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        pair.sigma,
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


#: At most 100 steps: 42 settings, of which the regular ones are for --run-slow but for every sixth.
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


def pair_of(scheme: str, k: int, rate: float, sigma: float) -> Mixture:
    return Mixture.poisson(k, rate, sigma) if scheme == "poisson" else Mixture.fixed(k, 1000, int(rate * 1000), sigma)


@pytest.mark.parametrize(("scheme", "k", "rate", "sigma", "steps"), SETTINGS)
def test_few_steps(scheme: str, k: int, rate: float, sigma: float, steps: int) -> None:
    agree(pair_of(scheme, k, rate, sigma), steps, 1e-5, 1e-2)


@pytest.mark.parametrize(
    ("scale", "rate", "steps"), [(1.0, 1.0, 5), (2.0, 1.0, 50), (1.0, 0.1, 100), (0.5, 0.02, 40), (4.0, 0.5, 1)]
)
def test_the_laplace_mechanism(scale: float, rate: float, steps: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution

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
    """10,000 Gaussian steps that are one of mu = 1 together: round-off of its transform is charged to nobody."""
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(100.0, value_discretization_interval=1e-4)
    value = float(theirs.self_compose(10_000).get_epsilon_for_delta(1e-12))
    ours = PrivacyLoss.of(Mixture.full(1, 100.0)).compose(10_000).epsilon(1e-12)
    assert ours.lower == pytest.approx(7.23849, abs=1e-5)
    assert value < 7.238 < ours.lower  # by how much depends on the machine
