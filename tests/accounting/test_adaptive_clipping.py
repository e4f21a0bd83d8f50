"""Adaptive clipping: mpmath, quadrature in the plane, enumeration of batches, and an executed loop."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from dpspec.accounting import (
    Mixture,
    PrivacyLoss,
    gaussian,
    gradient_noise_multiplier,
    joint_noise_multiplier,
    real_divisor_pair,
)


def plane_delta(shift: tuple[float, float], rate: float, epsilon: float) -> float:
    """Present-first delta of one step that shows both sums, in units of their noise, by a sum over a grid."""
    axis = np.linspace(-7.0, 7.0 + max(shift), 301)
    none = np.outer(norm.pdf(axis), norm.pdf(axis))
    member = np.outer(norm.pdf(axis, shift[0]), norm.pdf(axis, shift[1]))
    gain = (1.0 - rate) * none + rate * member - math.exp(epsilon) * none
    return float(np.maximum(gain, 0.0).sum()) * (axis[1] - axis[0]) ** 2


def test_both_sums_are_one_release_in_100_random_settings() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        noise, count = float(rng.uniform(0.5, 3.0)), float(rng.uniform(0.3, 3.0))
        rate, epsilon, centered = float(rng.uniform(0.01, 1.0)), float(rng.choice([0.0, 0.3, 1.0])), rng.random() < 0.7
        largest = 0.5 if centered else 1.0
        joint = joint_noise_multiplier(noise, count, centered=bool(centered))
        with mpmath.workdps(40):
            exact = 1 / mpmath.sqrt(mpmath.mpf(noise) ** -2 + (largest / mpmath.mpf(count)) ** 2)
            assert joint <= exact <= joint * (1.0 + 1e-14)
        expected = plane_delta((1.0 / noise, largest / count), rate, epsilon)
        found = PrivacyLoss.gaussian(joint, rate=rate, direction="present-first").delta(epsilon)
        assert found.lower - 1e-3 <= expected <= found.upper + 1e-3
        assert expected == pytest.approx(found.upper, rel=5e-3, abs=1e-5)


def test_the_raised_multiplier_costs_the_joint_one_and_less_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        joint = float(10.0 ** rng.uniform(-2.0, 2.0))
        count = joint * float(0.5 + 10.0 ** rng.uniform(-6.0, 3.0))
        raised = gradient_noise_multiplier(joint, count)
        assert raised > joint
        back = joint_noise_multiplier(raised, count)
        assert joint * (1.0 - 1e-13) <= back <= joint * (1.0 + 1e-7)
        opacus = (joint**-2 - (2.0 * count) ** -2) ** -0.5
        assert raised == pytest.approx(opacus, rel=1e-6)
    loss = [PrivacyLoss.gaussian(sigma, rate=0.01).compose(1000).epsilon(1e-5) for sigma in (1.0, 1.281025230440707)]
    assert loss[1].upper < 0.7 * loss[0].lower


def test_an_executed_loop_with_adaptive_clip_norms_attains_the_bound() -> None:
    """20,000 runs of four full-batch steps: the sum of log ratios of both sums separates as G_mu, mu = 2 / sigma."""
    rng, runs, steps, noise, count_std = np.random.default_rng(5), 20_000, 4, 2.0, 0.7
    sigma = joint_noise_multiplier(noise, count_std)
    ratios = {}
    for member in (True, False):
        clip, total = np.ones(runs), np.zeros(runs)
        for _ in range(steps):
            gradients = clip * member  # as long as the clip norm, so that it is not clipped
            gradient_sums = gradients + noise * clip * rng.standard_normal(runs)
            counts = 0.5 * member + count_std * rng.standard_normal(runs)
            shifts = np.array([1.0 / noise, 0.5 / count_std])
            total += shifts[0] * gradient_sums / (noise * clip) + shifts[1] * counts / count_std
            clip = clip * np.exp(-0.2 * (counts + 0.5 - 0.5))
        ratios[member] = total
    mu = math.sqrt(steps) / sigma
    for z in (0.5, 1.0, 2.0):
        threshold = mu * z
        for member, chance in ((False, norm.sf(z)), (True, norm.sf(z - mu))):
            assert abs((ratios[member] > threshold).mean() - chance) < 4.5 * math.sqrt(chance * (1 - chance) / runs)


def quotient_delta(rate: float, noise: float, count_std: float, epsilon: float, *, replaced: bool, flags: list[int]):
    """Delta of one step of four records that shows the noisy sum and the noisy count over the real batch size."""
    sums, quotients = np.linspace(-7.0 * noise, 7.0 * noise, 161), np.linspace(-9.0, 10.0, 801)
    first = np.zeros((len(sums), len(quotients)))
    second = np.zeros_like(first)
    for bits in itertools.product([0, 1], repeat=4):
        size = sum(bits)
        if size == 0:
            continue
        chance = rate**size * (1.0 - rate) ** (4 - size)
        others = sum(bit * flag for bit, flag in zip(bits[1:], flags, strict=True))
        for density, (gradient, flag) in ((first, (1.0, 0)), (second, (-1.0 if replaced else 0.0, 1))):
            mean = (others + bits[0] * flag) / size
            density += chance * np.outer(
                norm.pdf(sums, bits[0] * gradient, noise), norm.pdf(quotients, mean, count_std / size)
            )
    area = (sums[1] - sums[0]) * (quotients[1] - quotients[0])
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * area


@pytest.mark.parametrize("replaced", [False, True])
def test_a_real_divisor_leaks_at_most_the_pair_that_reveals_the_batch(replaced: bool) -> None:
    rng = np.random.default_rng(6)
    largest = 0.0
    for _ in range(10):
        rate, noise, count = float(rng.uniform(0.1, 0.9)), float(rng.uniform(0.7, 2.0)), float(rng.uniform(0.5, 1.5))
        epsilon, flags = float(rng.choice([0.0, 0.3, 1.0])), rng.integers(0, 2, 3).tolist()
        pair = real_divisor_pair(rate, noise, count, replaced=replaced)
        bound = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])
        leaked = quotient_delta(rate, noise, count, epsilon, replaced=replaced, flags=flags)
        assert leaked <= bound + 1e-4
        largest = max(largest, leaked / bound)
    assert largest > 0.5


def test_the_revealed_pair_is_the_mean_of_gaussian_profiles() -> None:
    for size, rate, replaced in ((1, 0.2, False), (3, 0.1, True), (2, 1.0, False)):
        pair = real_divisor_pair(rate, 1.5, 2.0, size, replaced=replaced)
        mu = math.sqrt((4.0 if replaced else 1.0) / 1.5**2 + 0.25)
        for epsilon in (0.1, 1.0):
            exact = sum(
                math.comb(size, j) * rate**j * (1.0 - rate) ** (size - j) * gaussian.delta(epsilon, j * mu)
                for j in range(1, size + 1)
            )
            low, high = np.exp(pair.log_delta_bounds(epsilon, "absent-first"))
            assert low * (1.0 - 1e-12) <= exact <= high * (1.0 + 1e-12)
    composed = PrivacyLoss.of(real_divisor_pair(0.01, 1.0, 20.0)).compose(1000).epsilon(1e-5)
    assert composed.lower > PrivacyLoss.gaussian(1.0, rate=0.01).compose(1000).epsilon(1e-5).upper
    assert composed.relative_width < 1e-3


@pytest.mark.family
@pytest.mark.parametrize("noise", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("count", [1e-9, 1.0, 1e9])
def test_extremes_are_below_both_noises(noise: float, count: float) -> None:
    joint = joint_noise_multiplier(noise, count)
    assert 0.0 < joint <= min(noise, 2.0 * count)
    assert joint >= 0.7 * min(noise, 2.0 * count)
    assert PrivacyLoss.of(Mixture.full(1, joint)).epsilon(1e-5).lower >= 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: joint_noise_multiplier(0.0, 1.0), "noise_multiplier"),
        (lambda: joint_noise_multiplier(1.0, math.inf), "count_std"),
        (lambda: gradient_noise_multiplier(2.0, 1.0), "count_std must be above joint / 2 = 1.0, got 1.0"),
        (lambda: real_divisor_pair(0.0, 1.0, 1.0), "rate"),
        (lambda: real_divisor_pair(0.1, 1.0, 1.0, 0), "group_size"),
    ],
)
def test_bad_arguments_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
