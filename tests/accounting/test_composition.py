"""Compare the composition and its error bound with exact convolution."""

import dataclasses
import functools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpspec.accounting import EPS, Direction, Floats, Mixture, PrivacyLoss, TooLongError
from dpspec.accounting.composition import (
    OUTSIDE,
    UNSURE,
    ComposedProfile,
    FrequencySums,
    TiltedMeasure,
    compose,
    find_window,
    invert,
    multiply_spectra,
    split_rare_steps,
)
from dpspec.accounting.grid import Atoms
from dpspec_papers.group_conversions import log_delta


def atoms(masses: list[float], lowest: float = -0.3, spacing: float = 0.1, infinity: float = 0.0) -> Atoms:
    return Atoms(lowest, spacing, np.arange(len(masses)), np.array(masses), infinity, 0.0)


def convolve(parts: list[TiltedMeasure], length: int) -> tuple[Floats, tuple[float, float]]:
    values, noise = invert(*multiply_spectra(parts, length), length)
    return values, (float(noise[0]), float(noise[1]))


def exact_delta(parts: list[tuple[Atoms, int]], epsilon: float) -> mpmath.mpf:
    total, lowest = [Fraction(1)], mpmath.mpf(0)
    for part, steps in parts:
        lowest += mpmath.mpf(part.lowest) * steps
        for _ in range(steps):
            longer = [Fraction(0)] * (len(total) + len(part.masses) - 1)
            for i, a in enumerate(total):
                for j, b in enumerate(part.masses):
                    longer[i + j] += a * Fraction(float(b))
            total = longer
    result = mpmath.mpf(0)
    for i, mass in enumerate(total):
        loss = lowest + mpmath.mpf(parts[0][0].spacing) * i
        if loss > epsilon:
            weight = 1 - mpmath.exp(mpmath.mpf(epsilon) - loss)
            result += mpmath.mpf(mass.numerator) / mpmath.mpf(mass.denominator) * weight
    return result


STEP = atoms([0.3, 0.0, 0.25, 0.2, 0.1, 0.1, 0.04, 0.01])
OTHER = atoms([0.6, 0.25, 0.1, 0.05], lowest=-0.15)


def test_a_distance_of_losses_from_nodes_widens_both_bounds() -> None:
    composed = compose([(STEP, 5)], 3.0, 0.4, -0.5, 1 << 16)
    shifted = dataclasses.replace(composed, shift=composed.shift + 0.02)
    assert composed.log_upper(0.4) < shifted.log_upper(0.4) == pytest.approx(composed.log_upper(0.38))
    assert composed.log_lower(0.4) > shifted.log_lower(0.4) == pytest.approx(composed.log_lower(0.42))


@pytest.mark.family
@pytest.mark.parametrize("steps", [1, 2, 7, 12])
@pytest.mark.parametrize("tilt", [0.2, 3.0, 12.0])
def test_delta_lies_between_its_bounds(steps: int, tilt: float) -> None:
    parts = [(STEP, steps), (OTHER, 3)]
    with mpmath.workdps(60):
        for place in (0.1, 0.5, 0.8, 0.95):
            low, high = -0.3 * steps - 0.45, 0.4 * steps + 0.45
            epsilon = low + place * (high - low) + 0.013
            composed = compose(parts, tilt, epsilon, epsilon - 0.5, 1 << 16)
            truth = mpmath.log(exact_delta(parts, epsilon))
            assert mpmath.mpf(composed.log_lower(epsilon)) <= truth <= mpmath.mpf(composed.log_upper(epsilon))


@pytest.mark.family
@pytest.mark.parametrize("tilt", [0.02, 0.7, 9.0])
def test_few_frequencies_give_the_sums_over_nodes(tilt: float) -> None:
    step, steps = np.array([5, 0, 4, 3, 2, 1, 1], dtype=object), 120
    parts = [(atoms((step.astype(np.float64) / 16.0).tolist(), lowest=-0.03, spacing=0.01), steps)]
    exact = functools.reduce(np.convolve, [step] * steps)  # integers
    losses = [mpmath.mpf(-0.03) * steps + mpmath.mpf(0.01) * i for i in range(len(exact))]
    with mpmath.workdps(40):
        for reference in (-1.1, -0.6, 0.2):
            composed = compose(parts, tilt, reference, reference - 0.5, 1 << 16)
            assert isinstance(composed.sums, FrequencySums)
            for epsilon in (reference - 0.105, reference, reference + 0.033, 20.0):
                truth = mpmath.fsum(
                    mpmath.mpf(int(mass)) / 16**steps * (1 - mpmath.exp(epsilon - loss))
                    for mass, loss in zip(exact, losses, strict=True)
                    if loss > epsilon
                )
                log_truth = mpmath.log(truth) if truth > 0 else -mpmath.inf
                assert mpmath.mpf(composed.log_lower(epsilon)) <= log_truth <= mpmath.mpf(composed.log_upper(epsilon))
            assert reference > 0.0 or composed.log_upper(reference) - composed.log_lower(reference) < 1e-6


def test_two_steps_with_few_frequencies_are_charged_for_their_sums() -> None:
    """The sums over frequencies round more than the transforms of two steps do."""
    parts = [(atoms([math.comb(64, i) / 2.0**64 for i in range(65)], spacing=0.01), 2)]
    for epsilon in (-0.2, 0.2, 0.4, 0.6):
        composed = compose(parts, 0.7, epsilon, epsilon - 0.5, 1 << 16)
        assert isinstance(composed.sums, FrequencySums)
        with mpmath.workdps(40):
            truth = mpmath.log(exact_delta(parts, epsilon))
            assert mpmath.mpf(composed.log_lower(epsilon)) <= truth <= mpmath.mpf(composed.log_upper(epsilon))


def test_a_good_tilt_keeps_a_tiny_delta_precise() -> None:
    parts = [(STEP, 12)]
    epsilon = 4.5  # of at most 4.8
    with mpmath.workdps(60):
        truth = mpmath.log(exact_delta(parts, epsilon))
        assert truth < -42
        composed = compose(parts, 25.0, epsilon, epsilon - 1.0, 1 << 16)
        assert composed.log_upper(epsilon) - composed.log_lower(epsilon) < 1e-9
        assert mpmath.mpf(composed.log_lower(epsilon)) <= truth <= mpmath.mpf(composed.log_upper(epsilon))
        # without one the rounding of the transform drowns it, and the bounds say so
        flat = compose(parts, 0.01, epsilon, epsilon - 1.0, 1 << 16)
        assert flat.log_lower(epsilon) < truth - 1.0
        assert flat.log_upper(epsilon) > truth


def test_stated_error_of_the_convolution_holds_and_is_not_absurd() -> None:
    rng = np.random.default_rng(2)
    part = TiltedMeasure.of(atoms(list(rng.dirichlet(np.full(40, 0.3)))), 300, 0.0)
    values, (single, squared) = convolve([part], 16_384)
    exact = np.ones(1)
    for _ in range(300):  # sums of positive products: good to 300 * 40 units in the last place of each value
        exact = np.convolve(exact, part.masses)
    error = np.abs(values[: len(exact)] - exact)
    assert error.max() <= single
    assert math.sqrt(float(error @ error)) <= squared
    assert single < 1e-11


@pytest.mark.parametrize(("nodes", "length"), [(7, 4096), (400, 40_000)])
@pytest.mark.parametrize("phases", [2, 10])
def test_omitted_frequencies_are_charged(nodes: int, length: int, phases: int) -> None:
    rng = np.random.default_rng(nodes + phases)
    parts = [TiltedMeasure.of(atoms(list(rng.dirichlet(np.full(nodes, 0.3)))), 200, 0.0) for _ in range(phases)]
    product, _ = multiply_spectra(parts, length)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for part in parts:
        spectrum *= np.fft.rfft(np.bincount(part.index % length, part.masses, length)) ** part.steps
    assert len(product) < length // 4
    assert np.abs(spectrum[len(product) :]).max() < math.exp(-50.0) * (1.0 + 1e-6)
    values, (single, squared) = convolve(parts, length)
    error = np.abs(values - np.fft.irfft(spectrum, length))
    assert error.max() <= single < 1e-9
    assert math.sqrt(float(error @ error)) <= squared


def test_sums_over_many_masses_are_charged() -> None:
    """Few frequencies of the first phase are left: the masses of the second one are summed without a transform."""
    rng, length = np.random.default_rng(3), 800_000
    far = np.sort(rng.choice(60_000, 400, replace=False))
    first = TiltedMeasure.of(Atoms(0.0, 0.1, far, rng.dirichlet(np.ones(400)), 0.0, 0.0), 60, 0.0)
    second = TiltedMeasure.of(atoms(list(rng.dirichlet(np.ones(19_200)))), 1, 0.0)
    product, _ = multiply_spectra([first], length)
    assert 8 * len(second.index) * math.ceil(math.sqrt(len(product))) < length
    values, (single, squared) = convolve([first, second], length)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for part in (first, second):
        spectrum *= np.fft.rfft(np.bincount(part.index, part.masses, length)) ** part.steps
    error = np.abs(values - np.fft.irfft(spectrum, length))
    assert error.max() <= single < 1e-9
    assert math.sqrt(float(error @ error)) <= squared


@pytest.mark.parametrize(("nodes", "steps"), [(60, 2000), (250, 50), (200, 10**5)])
def test_few_frequencies_are_found_without_all(nodes: int, steps: int) -> None:
    rng = np.random.default_rng(nodes)
    part = TiltedMeasure.of(atoms(list(rng.dirichlet(np.full(nodes, 0.3)))), steps, 0.0)
    length = math.ceil(20.0 * math.sqrt(part.variance) / 0.1)
    product, noise = multiply_spectra([part], length)
    spectrum = np.fft.rfft(np.bincount(part.index % length, part.masses, length)) ** steps
    assert np.abs(spectrum[len(product) :]).max() < math.exp(-50.0) * (1.0 + 1e-6) <= np.abs(spectrum[len(product) - 1])
    error = np.abs(product - spectrum[: len(product)])
    assert len(product) < 40
    assert error.max() < 10.0 * steps * EPS * math.log2(length)  # of numpy's transform
    assert noise[0] < 8.0 * steps * EPS * math.log2(length)  # less than the charge for a transform


def test_a_lattice_keeps_all_frequencies() -> None:
    part = TiltedMeasure.of(atoms([0.5, 0.0, 0.3, 0.0, 0.2]), 10**6, 0.0)
    assert len(multiply_spectra([part], 4096)[0]) == 2049
    assert convolve([part], 4096)[0][1::2].max() < 1e-9  # nothing on nodes that no sum of losses reaches


def test_the_window_holds_all_but_the_stated_mass() -> None:
    part = TiltedMeasure.of(STEP, 400, 2.0)
    low, high = find_window([part], 0.1)
    values, _ = convolve([part], 4096)
    assert values[: math.floor(low)].sum() + values[math.ceil(high) + 1 :].sum() < 2.0 * OUTSIDE + 1e-13
    assert 0.1 * (high - low) < 18.0 * math.sqrt(part.variance)


def test_a_single_atom_composes_to_a_single_atom() -> None:
    composed = compose([(atoms([0.0, 1.0, 0.0]), 1000)], 1.0, -210.0, -250.0, 1 << 12)
    assert math.exp(composed.log_upper(-210.0)) == pytest.approx(-math.expm1(-10.0), rel=1e-6)
    assert math.exp(composed.log_lower(-210.0)) == pytest.approx(-math.expm1(-10.0), rel=1e-6)


def test_infinite_losses_happen_at_least_once() -> None:
    composed = compose([(atoms([0.5, 0.5], infinity=1e-3), 1000)], 1.0, 5.0, 0.0, 1 << 12)
    truth = mpmath.mpf(1) - (1 - mpmath.mpf(1e-3)) ** 1000
    assert composed.log_lower(5.0) <= mpmath.log(truth) <= composed.log_upper(5.0)
    assert math.exp(composed.log_upper(5.0)) == pytest.approx(float(truth), rel=1e-11)
    assert composed.log_finite(5.0) < -25.0


def test_epsilons_under_the_floor_get_the_trivial_bound() -> None:
    composed = compose([(STEP, 3)], 2.0, 0.9, 0.8, 1 << 12)
    assert composed.log_upper(0.5) == 0.0
    assert composed.log_upper(0.85) < 0.0
    assert composed.log_upper(1e6) < -30.0


@pytest.mark.parametrize(("reference", "epsilon"), [(20.0, 0.55), (400.0, 20.55), (4000.0, 20.55)])
def test_losses_beyond_the_window_count_for_any_reference(reference: float, epsilon: float) -> None:
    """The mass outside of the window is charged for a far reference as for a near one."""
    masses = functools.reduce(np.convolve, [STEP.masses] * 60)
    losses = 60 * STEP.lowest + STEP.spacing * np.arange(len(masses))
    composed = compose([(STEP, 60)], 1.0, reference, 0.0, 1 << 16)
    delta = float(masses[losses > epsilon] @ -np.expm1(epsilon - losses[losses > epsilon]))
    assert composed.log_upper(epsilon) >= math.log(delta)


def test_losses_far_apart_need_another_summation() -> None:
    wide = atoms([0.9, 0.0999, 0.0001], lowest=-400.0, spacing=400.0)
    parts = [(wide, 9)]
    composed = compose(parts, 0.004, 250.0, -3000.0, 1 << 12)
    with mpmath.workdps(60):
        for epsilon in (-1000.0, 10.0, 390.0):
            truth = mpmath.log(exact_delta(parts, epsilon))
            assert mpmath.mpf(composed.log_lower(epsilon)) <= truth <= mpmath.mpf(composed.log_upper(epsilon))
            assert composed.log_upper(epsilon) - composed.log_lower(epsilon) < 1e-6


def test_too_long_a_window_is_refused() -> None:
    with pytest.raises(TooLongError):
        compose([(STEP, 10_000)], 1.0, 0.0, -10.0, 100)


#: A bulk around 0 and a loss of 40 that is met once in 10^15 steps.
BULK = np.array([0.3, 0.4, 0.3])
RARE = 1e-15


def step(infinity: float = 0.0) -> Atoms:
    masses = np.append(BULK * (1.0 - RARE), RARE)
    return Atoms(-0.5, 0.5, np.array([0, 1, 2, 81]), masses, infinity, 0.0)


def exact_log_delta(steps: int, epsilon: float) -> float:
    """All ways to have 0, 1 or 2 rare steps, in fractions."""
    atoms = step()
    bulk = [Fraction(1)]
    powers = [bulk]
    for _ in range(steps):
        longer = [Fraction(0)] * (len(bulk) + 2)
        for i, mass in enumerate(bulk):
            for j in range(3):
                longer[i + j] += mass * Fraction(float(atoms.masses[j]))
        bulk = longer
        powers.append(bulk)
    total = mpmath.mpf(0)
    for rare in range(3):
        ways = math.comb(steps, rare) * Fraction(float(atoms.masses[3])) ** rare
        for i, mass in enumerate(powers[steps - rare]):
            loss = -0.5 * steps + 0.5 * i + 40.5 * rare
            weight = ways * mass
            if loss > epsilon:
                gain = 1 - mpmath.exp(mpmath.mpf(epsilon) - loss)
                total += mpmath.mpf(weight.numerator) / mpmath.mpf(weight.denominator) * gain
    return float(mpmath.log(total))


@pytest.mark.parametrize("epsilon", [20.3, 30.3, 38.3])
def test_one_rare_step_decides(epsilon: float) -> None:
    with mpmath.workdps(50):
        truth = exact_log_delta(30, epsilon)
    whole = compose([(step(), 30)], 3.0, epsilon, epsilon - 15.0, 1 << 14)
    value, error = whole.sum_at(epsilon)
    assert error > UNSURE * value
    split = split_rare_steps([(step(), 30)], epsilon, epsilon - 15.0, 1 << 14, truth)
    assert split is not None
    found = ComposedProfile((split,))
    assert found.bound("log_lower", epsilon) <= truth <= found.bound("log_upper", epsilon)
    assert whole.log_lower(epsilon) <= truth <= whole.log_upper(epsilon)
    assert found.bound("log_upper", epsilon) - found.bound("log_lower", epsilon) < 1e-6
    assert len(split[0]) == 2


def test_infinite_losses_are_counted_once() -> None:
    phases = [(step(infinity=1e-12), 30)]
    split = split_rare_steps(phases, 30.3, 20.0, 1 << 14, math.log(3e-11))
    assert split is not None
    found = ComposedProfile((split,))
    assert math.exp(found.bound("log_upper", 30.3)) == pytest.approx(3e-11, rel=1e-3)
    assert math.exp(found.bound("log_finite", 30.3)) < 1e-12


@pytest.mark.ci
@pytest.mark.parametrize(
    ("pair", "steps", "delta"),
    [
        (Mixture.poisson(30, 1e-6, 1.0), 1000, 1e-30),
        pytest.param(Mixture.poisson(30, 1e-6, 1.0), 10_000, 1e-30, marks=pytest.mark.slow),
        (Mixture.poisson(1, 1e-6, 1.0), 100, 1e-20),
        (Mixture.poisson(10_000, 1e-8, 1.0), 100, 1e-20),
        (Mixture.poisson(1, 1e-8, 0.5), 1000, 1e-30),
    ],
)
@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
def test_tiny_rates_and_deltas(pair: Mixture, steps: int, delta: float, direction: Direction) -> None:
    loss = PrivacyLoss.of(pair, direction).compose(steps)
    interval = loss.epsilon(delta)
    assert interval.relative_width < 1e-3
    # the profile through another question, and through an integral where that converges
    assert loss.delta(interval.upper, width=1e-3).lower <= delta
    assert loss.delta(interval.lower, width=1e-3).upper >= delta
    if len(pair.sensitivities) > 2:  # where it takes long
        return
    try:
        below = log_delta(loss.phases, direction, interval.upper)
    except ArithmeticError:
        return
    assert below <= math.log(delta) * (1.0 - 1e-9)
