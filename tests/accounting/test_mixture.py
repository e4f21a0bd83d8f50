"""The one-step pair: reference values, identities, oracles, and refusals."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounting_oracle import one_step_delta

from dpspec.accounting import Mixture, PrivacyLoss, TooLongError, densities, gaussian
from dpspec.accounting.densities import normal_mass

PRESENT, ABSENT = "present-first", "absent-first"

#: One step, 40-digit quadrature: id, pair, epsilon, delta present-first, delta absent-first.
REFERENCE = [
    ("A1", Mixture.poisson(1, 0.01, 1.0), 1.0, 2.7320092615461e-9, 0.0),
    ("A2", Mixture.poisson(1, 1.0, 1.0), 1.0, 0.12693673750664, 0.12693673750664),
    ("A3", Mixture.poisson(4, 0.01, 1.0), 1.0, 1.2322701168336e-5, 0.0),
    ("A4", Mixture.poisson(8, 0.01, 1.0), 2.0, 1.6279932918712e-5, 0.0),
    ("A5", Mixture.poisson(16, 0.01, 2.0), 0.5, 9.8972830446623e-5, 0.0),
    ("A6", Mixture.poisson(3, 0.5, 1.5), 1.0, 0.15363808171557, 0.049834177573948),
    ("A7", Mixture.poisson(10, 1.0, 10.0), 1.0, 0.12693673750664, 0.12693673750664),
    ("A8", Mixture.poisson(32, 0.05, 0.7), 5.0, 0.22419201427026, 0.0),
    ("A9", Mixture.poisson(2, 0.1, 1.0), 0.0, 0.075209941431744, 0.075209941431744),
    ("A10", Mixture.poisson(2, 0.1, 1.0), -0.1, 0.11425661507266, 0.14188453122502),
    ("A11", Mixture.poisson(2, 0.1, 1.0), -0.3, 0.25918177931828, 0.27877473338043),
    ("A12", Mixture.fixed(1, 50000, 500, 2.0), 1.0, 2.7316826106509e-9, 0.0),
    ("A13", Mixture.fixed(8, 50000, 500, 2.0), 1.0, 2.4050925961399e-4, 0.0),
    ("A14", Mixture.fixed(5, 100, 20, 4.0), 0.5, 0.064528101813857, 0.015894672170624),
    ("A15", Mixture.fixed(6, 10, 4, 3.0), 0.25, 0.29672283600871, 0.26707183392782),
    ("A16", Mixture([0.3, 1.7], [0.6, 0.4], 1.0), 0.75, 0.15931746716171, 0.034290110139207),
]

mixtures = st.builds(
    Mixture.poisson, st.integers(1, 12), st.floats(1e-4, 0.99), st.floats(math.log(0.3), math.log(20.0)).map(math.exp)
)


@pytest.mark.parametrize(("name", "pair", "epsilon", "present", "absent"), REFERENCE, ids=[r[0] for r in REFERENCE])
def test_one_step_reference_values(name: str, pair: Mixture, epsilon: float, present: float, absent: float) -> None:
    assert float(pair.delta(epsilon, PRESENT)) == pytest.approx(present, rel=1e-12)
    assert float(pair.delta(epsilon, ABSENT)) == pytest.approx(absent, rel=1e-12)


@given(mixtures)
def test_the_inverse_undoes_the_log_ratio(pair: Mixture) -> None:
    x = np.linspace(-8.0 * pair.noise_multiplier, float(pair.sensitivities[-1]) + 10.0 * pair.noise_multiplier, 3000)
    loss = pair.log_ratio(x)
    assert np.all(np.diff(loss) >= 0.0)
    above = loss > pair.log_probabilities[0] + 1e-6
    again = pair.ratio(pair.ratio.inverse(loss[above]))
    np.testing.assert_allclose(again, loss[above], rtol=1e-12, atol=1e-12)


def test_inverse_below_the_least_loss_is_minus_infinity() -> None:
    pair = Mixture.poisson(3, 0.2, 1.0)
    least = float(pair.log_probabilities[0])
    np.testing.assert_array_equal(pair.ratio.inverse(np.array([least, least - 1.0])), [-np.inf, -np.inf])


def test_log_ratio_of_very_large_groups_uses_only_what_matters() -> None:
    pair = Mixture.poisson(10_000, 0.01, 3.0)
    x = np.linspace(60.0, 140.0, 7)
    terms = pair.log_probabilities + (np.outer(x, pair.sensitivities) - 0.5 * pair.sensitivities**2) / 9.0
    np.testing.assert_allclose(pair.log_ratio(x), np.logaddexp.reduce(terms, axis=1), rtol=1e-12)
    shuffled = np.array([100.0, 60.0, 140.0])
    np.testing.assert_array_equal(pair.log_ratio(shuffled)[[1, 0, 2]], pair.log_ratio(np.sort(shuffled)))


def test_binomial_weights_to_rounding() -> None:
    with mpmath.workdps(40):
        for k, q in ((1, 0.3), (50, 0.004), (700, 0.3), (3000, 1e-5)):
            rate = mpmath.mpf(q)
            logs = densities.log_binomial(k, q)
            assert len(logs) == k + 1
            for j in {0, 1, k // 100, int(k * q), min(k, int(k * q) + 30), k}:
                exact = mpmath.log(mpmath.binomial(k, j) * rate**j * (1 - rate) ** (k - j))
                assert float(abs(logs[j] - exact)) < 1e-14 * max(1.0, float(abs(exact)))


def test_hypergeometric_weights_to_rounding() -> None:
    with mpmath.workdps(40):
        for k, n, size in ((8, 50_000, 500), (6, 10, 4), (5, 12, 12), (300, 1000, 400)):
            logs = densities.log_hypergeometric(k, n, size)
            assert len(logs) == min(k, size) + 1
            for j in {0, 1, min(k, size) // 2, min(k, size)}:
                exact = mpmath.log(mpmath.binomial(k, j) * mpmath.binomial(n, size - j) / mpmath.binomial(n + k, size))
                assert float(abs(logs[j] - exact)) < 1e-14 * max(1.0, float(abs(exact)))


def test_sampling_everything_is_the_gaussian_mechanism() -> None:
    pair = Mixture.poisson(7, 1.0, 2.0)
    assert pair.effect == 3.5
    assert pair.key == Mixture.full(7, 2.0).key
    for direction in (PRESENT, ABSENT):
        assert float(pair.delta(2.0, direction)) == pytest.approx(float(gaussian.delta(2.0, 3.5)), rel=1e-12)


def test_equal_sensitivities_are_merged_and_empty_ones_dropped() -> None:
    pair = Mixture([1.0, 0.0, 1.0, 5.0], [0.25, 0.5, 0.25, 0.0], 1.0)
    np.testing.assert_allclose(pair.sensitivities, [0.0, 1.0])
    np.testing.assert_allclose(pair.probabilities, [0.5, 0.5])


@pytest.mark.parametrize(("rate", "k"), [(0.1, 7), (0.1, 30), (0.37, 1), (0.001, 7), (0.9, 1), (0.9, 30)])
def test_the_upper_end_is_not_below_the_largest_loss_by_rounding(rate, k):
    # With so little noise epsilon at 1e-300 is -ln P[no member] less about 1e-80 of it. mpmath knows it to 80 digits.
    epsilon = PrivacyLoss.of(Mixture.poisson(k, rate, 0.1), "absent-first").epsilon(1e-300)
    with mpmath.workdps(80):
        largest = -k * mpmath.log(1 - mpmath.mpf(rate))
        assert epsilon.lower <= largest <= epsilon.upper <= largest * (1 + mpmath.mpf(10) ** -11)


DIRECTIONS = ("present-first", "absent-first")


def log_ratio(pair: Mixture, z: mpmath.mpf) -> mpmath.mpf:
    shifts = [mpmath.mpf(float(a)) for a in pair.ratio.shifts]
    logs = [mpmath.mpf(float(p)) for p in pair.log_probabilities]
    return mpmath.log(sum(mpmath.exp(w + a * z - a * a / 2) for a, w in zip(shifts, logs, strict=True)))


def normal(low: float, high: float) -> mpmath.mpf:
    return (mpmath.erfc(mpmath.mpf(low) / mpmath.sqrt(2)) - mpmath.erfc(mpmath.mpf(high) / mpmath.sqrt(2))) / 2


def test_normal_mass_within_its_stated_error() -> None:
    rng = np.random.default_rng(3)
    low = rng.uniform(-35.0, 35.0, 100)
    high = low + np.exp(rng.uniform(np.log(1e-7), np.log(5.0), 100))
    logs, errors = normal_mass(low, high)
    with mpmath.workdps(330):
        for a, b, value, error in zip(low, high, logs, errors, strict=True):
            assert abs(mpmath.log(normal(a, b)) - mpmath.mpf(value)) <= error + 4e-16 * abs(value)


def test_normal_mass_of_unbounded_and_empty_intervals() -> None:
    logs, errors = normal_mass(np.array([-np.inf, 0.0, 1.0, -np.inf]), np.array([0.0, np.inf, 1.0, np.inf]))
    np.testing.assert_allclose(np.exp(logs), [0.5, 0.5, 0.0, 1.0], rtol=1e-15)
    assert np.all(np.isfinite(errors))


@pytest.mark.family
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("spacing", [3e-5, 2e-3, 0.1])
def test_cells_hold_the_exact_masses(spacing: float, direction: str) -> None:
    pair = Mixture.poisson(3, 0.05, 0.8)
    area = pair.truncate(direction, math.log(1e-20), math.log(1e-12))
    upper, _ = area.cells(spacing, [3.0], 8.0, 1 << 20)
    sign = 1.0 if direction == "present-first" else -1.0
    losses = upper.lowest + spacing * upper.index
    rng = np.random.default_rng(5)
    with mpmath.workdps(40):
        for i in rng.choice(np.arange(1, len(upper.mass) - 1), 12, replace=False):
            ends = sorted(
                mpmath.findroot(
                    lambda z, at=at: log_ratio(pair, z) - sign * at,
                    float(pair.ratio.inverse(np.array(float(sign * at)))),
                )
                for at in (mpmath.mpf(losses[i]), mpmath.mpf(losses[i + 1]))
            )
            group = mpmath.mpf(0)
            for a, p in zip(pair.ratio.shifts, pair.probabilities, strict=True):
                group += mpmath.mpf(float(p)) * normal(ends[0] - float(a), ends[1] - float(a))
            none = normal(*ends)
            first, second = (group, none) if sign > 0 else (none, group)
            scaled = second * mpmath.exp(mpmath.mpf(losses[i]))
            # ends of cells are only known up to ``shift``, so that single masses cannot be compared
            blur = first * upper.shift * 4 / spacing
            assert abs(first - mpmath.mpf(upper.mass[i])) <= first * upper.error[i] + blur
            excess = mpmath.mpf(upper.excess[i])
            allowed = (first - scaled) * upper.error[i] + first * upper.slip[i] + blur * spacing
            assert abs(excess - (first - scaled)) <= allowed


def test_a_grid_over_the_limit_is_refused() -> None:
    pair = Mixture.poisson(4, 0.01, 1.0)
    area = pair.truncate("present-first", math.log(1e-18), math.log(1e-12))
    with pytest.raises(TooLongError) as caught:
        area.cells(1e-5, [2.0], 1.0, 1000)
    assert caught.value.factor > 100.0


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_left_out_components_are_charged(direction: str) -> None:
    pair = Mixture.poisson(2000, 0.01, 5.0)
    area = pair.truncate(direction, math.log(1e-12), math.log(1e-9))
    assert len(area.ratio.shifts) < 400
    assert 0.0 < area.dropped < 1e-14
    assert (area.pull > 0.0) == (direction == "absent-first")
    assert area.pull < 1e-15


def test_stated_noise_of_the_log_ratio() -> None:
    pair = Mixture.poisson(16, 0.01, 1.0)
    z = np.random.default_rng(1).uniform(-9.0, 25.0, 200)
    area = pair.truncate("present-first", math.log(1e-18), math.log(1e-12))
    upper, _ = area.cells(1e-3, [1.0], 1.0, 1 << 20)
    values = pair.ratio(z)
    with mpmath.workdps(40):
        worst = max(abs(mpmath.mpf(v) - log_ratio(pair, mpmath.mpf(x))) for x, v in zip(z, values, strict=True))
    assert worst < upper.shift


@pytest.mark.ci
def test_mixture_mass_within_its_stated_error() -> None:
    pair = Mixture.poisson(30, 0.05, 1.3)
    low = np.linspace(-6.0, 25.0, 60)
    high = low + 1e-3
    masses = pair.ratio.masses(low, high)
    logs, errors = masses.group, masses.group_error
    with mpmath.workdps(60):
        for a, b, value, error in zip(low, high, logs, errors, strict=True):
            truth = mpmath.mpf(0)
            for shift, p in zip(pair.ratio.shifts, pair.log_probabilities, strict=True):
                s = mpmath.mpf(float(shift))
                truth += mpmath.exp(mpmath.mpf(float(p))) * normal(mpmath.mpf(a) - s, mpmath.mpf(b) - s)
            # z - shift is itself rounded, which moves both ends together
            moved = 4e-16 * 30.0 * 30.0
            assert abs(mpmath.log(truth) - mpmath.mpf(value)) <= error + moved


@pytest.mark.family
@pytest.mark.parametrize(
    ("pair", "epsilon", "direction"),
    [(Mixture.poisson(2, 0.1, 1.0), 0.7, PRESENT), (Mixture.poisson(2, 0.1, 1.0), 0.15, ABSENT)],
)
def test_one_step_against_quadrature_of_the_definition(pair: Mixture, epsilon: float, direction: str) -> None:
    exact = one_step_delta(pair, epsilon, direction)  # 30 digits
    assert float(pair.delta(epsilon, direction)) == pytest.approx(float(exact), rel=1e-12)


@given(mixtures, st.floats(-3.0, 3.0))
def test_swapping_the_directions(pair: Mixture, epsilon: float) -> None:
    swapped = 1.0 - math.exp(epsilon) + math.exp(epsilon) * float(pair.delta(-epsilon, PRESENT))
    assert float(pair.delta(epsilon, ABSENT)) == pytest.approx(swapped, abs=1e-13)


@pytest.mark.family
@pytest.mark.parametrize(
    ("k", "rate", "sigma", "tilt"),
    [(1, 0.01, 1.0, 10.0), (1, 0.3, 0.15, 3.0), (1, 1e-4, 20.0, 2000.0), (5, 0.2, 0.8, 60.0), (2, 0.9, 3.0, 0.02)],
    ids=["usual", "steep", "rare", "group", "frequent"],
)
def test_moments_are_bounds_by_quadrature(k: int, rate: float, sigma: float, tilt: float) -> None:
    bounds = Mixture.poisson(k, rate, sigma).log_moments(np.array([tilt]), ABSENT)
    assert bounds is not None
    with mpmath.workdps(25):
        q, s = mpmath.mpf(rate), mpmath.mpf(sigma)
        weights = [mpmath.binomial(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            ratio = sum(w * mpmath.exp(j * z / s - (j / s) ** 2 / 2) for j, w in enumerate(weights))
            return mpmath.npdf(z) * ratio ** -mpmath.mpf(tilt)

        exact = mpmath.log(mpmath.quad(integrand, [-25 + 2 * i for i in range(26)]))
    assert 0.0 <= float(bounds[0] - exact) <= 1e-10


def test_a_moment_decides_the_smaller_direction() -> None:
    step = PrivacyLoss.gaussian(1.0, rate=0.01, direction="present-first").compose(2000)
    absent = PrivacyLoss(step.phases, ABSENT)
    (larger,) = step.epsilons([1e-6], width=1e-3)
    (smaller,) = absent.epsilons([1e-6], width=1e-3, other_direction=[larger])
    assert smaller.method == "moment of the likelihood ratio"
    assert absent.epsilon(1e-6).upper <= smaller.upper == larger.upper
