"""Epsilon of a schedule against closed forms, Monte Carlo-free integrals and another accountant."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.stats import norm

import dpspec
from dpspec.accounting import gaussian
from dpspec.engine.schedule_privacy import GroupPrivacy, Schedule, group_privacy, make_schedule, noise_for
from dpspec.errors import UsageError


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("group_size", "noise", "steps"), [(1, 40.0, 100), (8, 40.0, 100), (1, 1e5, 10**9)])
def test_full_batches_have_the_closed_form(group_size: int, noise: float, steps: int) -> None:
    group = group_privacy(make_schedule(noise_multiplier=noise, rate=1.0, steps=steps), group_size, 1e-5)
    mu = group_size * math.sqrt(steps) / noise
    assert gaussian_delta(group.epsilon.lower, mu) >= 1e-5 * (1 - 1e-9)
    assert gaussian_delta(group.epsilon.upper, mu) <= 1e-5 * (1 + 1e-9)
    assert group.mu.lower <= mu <= group.mu.upper <= mu * (1 + 1e-5)
    assert group.advantage.lower - 1e-12 <= 2 * norm.cdf(mu / 2) - 1 <= group.advantage.upper + 1e-12
    assert group.identified.lower - 1e-9 <= norm.cdf(norm.ppf(0.01) + mu) <= group.identified.upper + 1e-9
    assert group.direction == "both"


@pytest.mark.family
@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.01, 1000)])
def test_another_accountant_is_no_lower(noise: float, rate: float, steps: int) -> None:
    """dp_accounting's PLD is an upper bound for both directions, loose by its grid."""
    dp_event = pytest.importorskip("dp_accounting").dp_event
    pld = pytest.importorskip("dp_accounting.pld")
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    theirs = pld.PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-5)
    ours = dpspec.epsilon(noise_multiplier=noise, rate=rate, steps=steps)
    assert ours.lower <= theirs <= ours.upper * 1.01


def test_one_step_of_fixed_batches_is_the_mixture_of_displaced_records() -> None:
    """One record of 100 in a batch of 10: with probability 0.1 the sum moves by two clip norms (Ganesh 2024)."""
    group = group_privacy(
        make_schedule(noise_multiplier=1.0, sampling="fixed", batch_size=10, records=101, steps=1), 1, 1e-3
    )
    q, shift = 10 / 101, 2.0

    def delta(epsilon: float) -> float:
        z = shift / 2 + math.log((math.exp(epsilon) - 1 + q) / q) / shift  # present-first: the loss exceeds epsilon
        return float((1 - q - math.exp(epsilon)) * norm.sf(z) + q * norm.sf(z - shift))

    assert delta(group.remove.lower) >= 1e-3 * (1 - 1e-6)
    assert delta(group.remove.upper) <= 1e-3 * (1 + 1e-6)
    assert group.direction == "remove"


def test_laplace_noise_on_all_records_is_pure_at_its_edge() -> None:
    """One step of Lap(b): delta(epsilon) = 1 - e^((epsilon - 1 / b) / 2), and advantage 1 - e^(-1 / (2 b))."""
    group = group_privacy(make_schedule(laplace=2.0, rate=1.0, steps=1), 3, 0.01)
    edge = 1.5
    assert group.epsilon.lower <= edge + 2 * math.log1p(-0.01) <= group.epsilon.upper
    assert group.advantage.lower <= 1 - math.exp(-edge / 2) <= group.advantage.upper
    assert group.mu.lower <= 2 * norm.ppf(1 - math.exp(-edge / 2) / 2) <= group.mu.upper


def test_mu_covers_every_tail_of_sampled_steps() -> None:
    """With many digits: one step at rate q has delta(epsilon) above G_mu's far out, for each mu below 1 / noise."""
    group = group_privacy(make_schedule(noise_multiplier=1.0, rate=0.1, steps=1), 1, 1e-5)
    with mp.workdps(60):
        q, epsilon, mu = mpf("0.1"), mpf(200), mpf(group.mu.upper) * mpf("0.9")
        z = mpf("0.5") + mp.log((mp.exp(epsilon) - 1 + q) / q)
        mine = q * mp.ncdf(1 - z) - (mp.exp(epsilon) - 1 + q) * mp.ncdf(-z)
        other = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
        assert mine > other
    assert group.mu.lower < 1.0 <= group.mu.upper


@pytest.mark.family
@pytest.mark.parametrize("noise", [1e-6, 1e-4, 5e-3])
def test_hardly_any_noise_has_the_epsilon_of_one_gaussian(noise: float) -> None:
    group = group_privacy(make_schedule(noise_multiplier=noise, rate=1, steps=1), 1, 1e-5)
    exact = float(gaussian.epsilon(1e-5, 1.0 / noise))
    assert group.epsilon.lower <= exact * (1.0 + 1e-12)
    assert exact * (1.0 - 1e-12) <= group.epsilon.upper < exact * 1.001


def test_an_epsilon_of_zero_excludes_no_mu() -> None:
    """delta(0) is the advantage, 1e-296 here, and not the delta of the question."""
    group = group_privacy(make_schedule(noise_multiplier=0.01, rate=1e-300, steps=1), 1, 0.9)
    assert group.epsilon.upper == 0.0
    assert group.mu.lower < 1e-9


@pytest.mark.family
@pytest.mark.parametrize(("target", "group_size"), [(8.0, 8), (0.1, 1)])
def test_the_noise_for_a_target_is_the_safe_end(target: float, group_size: int) -> None:
    def schedule(noise: float) -> Schedule:
        return make_schedule(noise_multiplier=noise, rate=0.01, steps=1000)

    def at(noise: float) -> GroupPrivacy:
        return group_privacy(schedule(noise), group_size, 1e-5)

    noise = noise_for(target, schedule, group_size, 1e-5)
    assert at(noise).epsilon.upper <= target < at(noise * (1 - 2e-3)).epsilon.lower


def test_arguments_broadcast_and_convert() -> None:
    noises, deltas = np.array([0.8, 1.1, 2.0]), np.array([[1e-5], [1e-8]])
    bounds = dpspec.epsilon(noise_multiplier=noises, rate=0.01, steps=1e3, delta=deltas)
    assert bounds.shape == (2, 3)
    assert np.asarray(bounds).shape == (2, 3, 2)
    assert (bounds.lower <= bounds.upper).all()
    for i, j in np.ndindex(2, 3):
        alone = dpspec.epsilon(noise_multiplier=noises[j], rate=0.01, steps=1000, delta=deltas[i, 0], width=1e-5)
        assert bounds.lower[i, j] <= alone.upper
        assert alone.lower <= bounds.upper[i, j]
        assert bounds.upper[i, j] - bounds.lower[i, j] <= 1e-3 * bounds.upper[i, j]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number above 0"),
        ({"noise_multiplier": None}, "noise_multiplier or laplace must be set"),
        ({"rate": None}, "rate is required"),
        ({"steps": 10.5}, "steps must be an integer"),
        ({"delta": 0.0}, "delta must be above 0 and below 1"),
        ({"noise_multiplier": [1.0, 2.0], "delta": [1e-5] * 3}, "arguments must broadcast"),
        ({"batch_size": 3}, "rate must be removed: batch_size define the batches"),
        ({"sampling": "shuffled"}, "sampling must be poisson or fixed"),
        ({"sampling": "fixed", "rate": None, "batch_size": 9, "records": 9}, "at most records - group_size = 8"),
        ({"noise_multiplier": None, "laplace": 1.0, "group_size": 2}, "group_size must be 1 for sampled Laplace noise"),
        (
            {"noise_multiplier": None, "laplace": 0.02, "group_size": 50, "rate": 1},
            "laplace must be at least group_size / 100",
        ),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        dpspec.epsilon(**({"noise_multiplier": 1.0, "rate": 0.01, "steps": 10} | arguments))  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
