"""Replaced records: mpmath, quadrature of two steps, random neighbors, executed samplers, closed forms and a peer."""

import math
import time

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import binom, hypergeom, norm

from dpspec.accounting import DoubleMixture, Mixture, PrivacyLoss, SymmetricMixture, gaussian
from dpspec.accounting.numerics import DIRECTIONS, Direction
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Poisson

PRESENT, ABSENT = "present-first", "absent-first"


def exact_delta(removed: int, inserted: int, rate: float, sigma: float, epsilon: float, digits: int = 30) -> mpmath.mpf:
    """Present-first delta of one step: the mass over the threshold at which the densities cross."""
    with mpmath.workdps(digits):
        q = mpmath.mpf(rate)
        sides = [
            [(mpmath.binomial(k, j) * q**j * (1 - q) ** (k - j), sign * mpmath.mpf(j) / sigma) for j in range(k + 1)]
            for k, sign in ((removed, 1), (inserted, -1))
        ]
        low, high = mpmath.mpf(-400), mpmath.mpf(400)
        for _ in range(max(70, 4 * digits)):
            z = (low + high) / 2
            first, second = (mpmath.fsum(p * mpmath.exp(z * a - a * a / 2) for p, a in side) for side in sides)
            low, high = (z, high) if mpmath.log(first) - mpmath.log(second) < epsilon else (low, z)
        first, second = (mpmath.fsum(p * mpmath.ncdf(a - low) for p, a in side) for side in sides)
        return first - mpmath.exp(mpmath.mpf(epsilon)) * second


def random_settings(count: int, seed: int) -> list[tuple[int, int, float, float, float]]:
    rng = np.random.default_rng(seed)
    return [
        (
            int(rng.integers(1, 7)),
            int(rng.integers(1, 7)),
            float(10.0 ** rng.uniform(-5.0, -0.02)),
            float(10.0 ** rng.uniform(-0.4, 1.0)),
            float(rng.choice([0.0, 0.05, 0.5, 2.0, -0.1])),
        )
        for _ in range(count)
    ]


@pytest.mark.ci
def test_one_step_contains_the_exact_value_in_100_random_settings() -> None:
    for removed, inserted, rate, sigma, epsilon in random_settings(100, 1):
        pair = DoubleMixture.poisson(removed, inserted, rate, sigma)
        for direction, (m, n) in ((PRESENT, (removed, inserted)), (ABSENT, (inserted, removed))):
            exact = float(exact_delta(m, n, rate, sigma, epsilon))
            low, high = np.exp(pair.log_delta_bounds(epsilon, direction))
            assert low * (1.0 - 1e-13) <= exact <= high * (1.0 + 1e-13), (m, n, rate, sigma, epsilon)
            assert high - low <= 1e-6 * exact + 1e-14


EPSILONS = [-0.1, 0.0, 0.05, 0.5, 2.0]


@pytest.mark.parametrize(("removed", "inserted"), [(1, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (1e-4, 0.5), (0.6, 3.0)])
def test_several_epsilons_at_once_contain_their_exact_values(
    removed: int, inserted: int, rate: float, sigma: float
) -> None:
    bounds = DoubleMixture.poisson(removed, inserted, rate, sigma).all_log_delta_bounds(EPSILONS, PRESENT)
    for epsilon, (low, high) in zip(EPSILONS, bounds, strict=True):
        exact = mpmath.log(exact_delta(removed, inserted, rate, sigma, epsilon))
        assert low - 1e-13 <= exact <= high + 1e-13
        assert high - low <= 1e-6


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (1e-12, 1.0), (0.5, 0.05), (0.999, 100.0), (1e-6, 0.3)])
def test_the_inverse_of_equal_mixtures_in_closed_form(rate: float, sigma: float) -> None:
    values = np.array([-800.0, -3.0, -1e-9, 0.0, 1e-300, 1e-12, 0.3, 4.0, 60.0, 5000.0])
    z = DoubleMixture.poisson(1, 1, rate, sigma)._ratio(PRESENT).inverse(values)
    assert np.all(np.diff(z) >= 0.0)
    with mpmath.workdps(50):
        shift, q = 1 / mpmath.mpf(sigma), mpmath.mpf(rate)
        for value, found in zip(values.tolist(), z.tolist(), strict=True):
            at = mpmath.mpf(found)
            sides = [(1 - q) + q * mpmath.exp(sign * at * shift - shift**2 / 2) for sign in (1, -1)]
            error = abs(mpmath.log(sides[0] / sides[1]) - value)
            assert error <= 1e-13 * (1 + abs(value) + shift * abs(at))  # rounding of z alone moves it by so much


def density(z: np.ndarray, members: int, rate: float, sigma: float, sign: float) -> np.ndarray:
    j = np.arange(members + 1)
    return np.asarray((binom.pmf(j, members, rate)[:, None] * norm.pdf(z, sign * j[:, None], sigma)).sum(axis=0))


@pytest.mark.family
@pytest.mark.parametrize(
    ("k", "rate", "sigma", "epsilon"), [(1, 0.1, 1.0, 0.5), (1, 0.4, 0.6, 2.0), (2, 0.2, 1.5, 0.3), (3, 0.05, 0.9, 1.0)]
)
def test_two_steps_by_quadrature(k: int, rate: float, sigma: float, epsilon: float) -> None:
    reach = k + 9.0 * sigma
    z = np.linspace(-reach, reach, 3001)
    first, second = density(z, k, rate, sigma, 1.0), density(z, k, rate, sigma, -1.0)
    gain = np.outer(first, first) - math.exp(epsilon) * np.outer(second, second)
    exact = float(np.maximum(gain, 0.0).sum()) * (z[1] - z[0]) ** 2
    for direction in DIRECTIONS:
        found = PrivacyLoss.of(DoubleMixture.poisson(k, k, rate, sigma), direction).compose(2).delta(epsilon)
        assert found.lower * (1.0 - 1e-4) <= exact <= found.upper * (1.0 + 1e-4)
        assert found.relative_width <= 1e-3


@pytest.mark.ci
def test_many_steps_contain_the_value_of_a_peer():
    # dp-accounting 0.6, PLDAccountant(REPLACE_ONE): the upper end of a grid of 1e-4
    loss = PrivacyLoss.of(DoubleMixture.poisson(1, 1, 0.01, 1.0)).compose(2000)
    found = loss.epsilon(1e-5)
    assert found.lower <= 4.192781756816147 <= found.upper * (1.0 + 1e-4)
    assert found.relative_width <= 1e-4
    # the same steps in 100,000 simulated runs: E[(1 - e^(epsilon - L))+] under the first distribution
    rng, runs = np.random.default_rng(3), 100_000
    epsilon, loss_sums = 1.0, np.zeros(runs)
    for _ in range(200):
        z = rng.standard_normal(runs) + (rng.random(runs) < 0.05)
        loss_sums += np.log(0.95 + 0.05 * np.exp(z - 0.5)) - np.log(0.95 + 0.05 * np.exp(-z - 0.5))
    gains = np.maximum(-np.expm1(epsilon - loss_sums), 0.0)
    simulated, error = gains.mean(), gains.std() / math.sqrt(runs)
    exact = PrivacyLoss.of(DoubleMixture.poisson(1, 1, 0.05, 1.0), PRESENT).compose(200).delta(epsilon)
    assert exact.lower - 4.0 * error <= simulated <= exact.upper + 4.0 * error
    assert error < 0.002


def test_no_random_neighbors_leak_more_than_the_pairs() -> None:
    """20 random settings of vectors in the plane: Poisson, and batches of a fixed size with the displaced record."""
    rng = np.random.default_rng(7)
    axis = np.linspace(-7.0, 7.0, 201)
    x, y = np.meshgrid(axis, axis)

    def gauss(mean: np.ndarray, sigma: float) -> np.ndarray:
        return np.asarray(norm.pdf(x, mean[0], sigma) * norm.pdf(y, mean[1], sigma))

    for _ in range(20):
        angles, lengths = rng.uniform(0.0, 2.0 * math.pi, 3), rng.choice([0.3, 1.0, 1.0], 3)
        vectors = np.stack((lengths * np.cos(angles), lengths * np.sin(angles)), axis=1)
        rate, sigma, epsilon = rng.uniform(0.05, 0.95), rng.uniform(0.6, 1.5), rng.choice([-0.5, 0.0, 0.3, 1.0])
        double = DoubleMixture.poisson(1, 1, rate, sigma)
        fixed = Mixture([0.0, 2.0], [1.0 - rate, rate], sigma)
        for displaced, pairs in ((np.zeros(2), [double]), (vectors[2], [SymmetricMixture((1.0, fixed))])):
            first, second = ((1.0 - rate) * gauss(displaced, sigma) + rate * gauss(v, sigma) for v in vectors[:2])
            leaked = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * (axis[1] - axis[0]) ** 2
            for pair in pairs:
                assert leaked <= math.exp(pair.log_delta_bounds(epsilon, PRESENT)[1]) + 1e-5


@pytest.mark.family
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_executed_neighbors_have_the_probabilities_of_the_pair(scheme: str) -> None:
    """6,000 runs of the native samplers: the replaced record has 1 or -1, all others 0 (Poisson) or -1 (fixed)."""
    records, size, sigma, runs = 10, 3, 0.7, 6000
    generator, noise = torch.Generator().manual_seed(4), np.random.default_rng(4)
    sampler = Poisson(records, size / records) if scheme == "poisson" else FixedSize(records, size)
    others = 0.0 if scheme == "poisson" else -1.0
    outputs = {}
    for value in (1.0, -1.0):
        vectors = np.full(records, others)
        vectors[-1] = value
        sums = np.array([vectors[sampler.draw(generator).numpy()].sum() for _ in range(runs)])
        outputs[value] = sums + sigma * noise.standard_normal(runs) - (0.0 if scheme == "poisson" else -size)
    rate = size / records
    for z in (-1.0, 0.0, 0.5, 1.5):
        if scheme == "poisson":
            expected = {v: (1.0 - rate) * norm.sf(z / sigma) + rate * norm.sf((z - v) / sigma) for v in (1.0, -1.0)}
        else:
            expected = {
                1.0: (1.0 - rate) * norm.sf(z / sigma) + rate * norm.sf((z - 2.0) / sigma),
                -1.0: norm.sf(z / sigma),
            }
        for value, chance in expected.items():
            assert abs((outputs[value] > z).mean() - chance) < 4.5 * math.sqrt(chance * (1.0 - chance) / runs)


@pytest.mark.parametrize("rate", [0.001, 0.2, 0.9])
@pytest.mark.parametrize("epsilon", [-1.0, -0.01, 0.0, 0.01, 1.0])
def test_the_symmetric_pair_has_the_profile_of_its_mixture(rate: float, epsilon: float) -> None:
    mixture = Mixture([0.0, 2.0], [1.0 - rate, rate], 1.1)
    loss = PrivacyLoss.of(mixture, PRESENT)
    at_zero = loss.delta(abs(epsilon))
    expected = at_zero.lower if epsilon >= 0.0 else 1.0 - math.exp(epsilon) * (1.0 - at_zero.lower)
    for direction in DIRECTIONS:
        found = PrivacyLoss.of(SymmetricMixture((1.0, mixture)), direction).delta(epsilon)
        assert found.lower * (1.0 - 1e-9) <= expected <= found.upper * (1.0 + 1e-9)


def symmetric_two_steps(weight: float, rate: float, sigma: float, epsilon: float) -> float:
    """Delta of two steps: ``weight`` of the mixture's losses above 0, their mirror images, and an atom at 0."""
    z = np.linspace(1.0 / sigma, 2.0 / sigma + 8.0, 3001)
    losses = np.log1p(rate * np.expm1(2.0 / sigma * z - 2.0 / sigma**2))
    middles = 0.5 * (losses[1:] + losses[:-1])
    first = -weight * np.diff((1.0 - rate) * norm.sf(z) + rate * norm.sf(z - 2.0 / sigma))
    every = np.concatenate((middles, -middles, [0.0]))
    masses = np.concatenate((first, first * np.exp(-middles)))
    masses = np.append(masses, 1.0 - masses.sum())
    gains = (
        mass * np.maximum(-np.expm1(epsilon - every - loss), 0.0) @ masses
        for mass, loss in zip(masses, every, strict=True)
    )
    return float(sum(gains))


@pytest.mark.family
@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.1, 1.0, 0.5), (0.4, 0.8, 2.0), (0.02, 2.0, 0.01)])
def test_two_symmetric_steps_by_quadrature(rate: float, sigma: float, epsilon: float) -> None:
    pair = SymmetricMixture((1.0, Mixture([0.0, 2.0], [1.0 - rate, rate], sigma)))
    exact, found = symmetric_two_steps(1.0, rate, sigma, epsilon), PrivacyLoss.of(pair).compose(2).delta(epsilon)
    assert found.lower * (1.0 - 1e-3) <= exact <= found.upper * (1.0 + 1e-3)
    assert found.relative_width <= 1e-3


@pytest.mark.ci
def test_the_symmetric_pair_is_above_both_attained_pairs_and_below_the_double_one() -> None:
    rng = np.random.default_rng(11)
    for _ in range(12):
        records, steps = int(rng.integers(20, 2000)), int(rng.integers(2, 300))
        size, sigma = int(rng.integers(1, records)), float(rng.uniform(0.6, 4.0))
        drawn = Mixture.fixed(1, records - 1, size, sigma)
        assert drawn.probabilities[-1] == pytest.approx(hypergeom.pmf(1, records, 1, size), rel=1e-9)
        half = Mixture(0.5 * drawn.sensitivities, drawn.probabilities, sigma)
        pairs = (SymmetricMixture((1.0, drawn)), DoubleMixture(drawn, drawn), drawn, DoubleMixture(half, half))
        best, double, *attained = (PrivacyLoss.of(pair).compose(steps).epsilon(1e-5) for pair in pairs)
        assert best.lower <= double.upper
        assert all(best.upper >= value.lower for value in attained)


@pytest.mark.ci
def test_two_steps_of_both_pairs_in_40_random_settings() -> None:
    rng = np.random.default_rng(100)
    for _ in range(20):
        removed, inserted = (int(k) for k in rng.integers(1, 5, 2))
        rate, sigma = float(10.0 ** rng.uniform(-3.0, -0.02)), float(10.0 ** rng.uniform(-0.1, 0.7))
        epsilon = float(rng.choice([0.05, 0.5, 1.5]))
        z = np.linspace(-max(removed, inserted) - 8.0 * sigma, max(removed, inserted) + 8.0 * sigma, 2001)
        first, second = density(z, removed, rate, sigma, 1.0), density(z, inserted, rate, sigma, -1.0)
        gain = np.outer(first, first) - math.exp(epsilon) * np.outer(second, second)
        exact = float(np.maximum(gain, 0.0).sum()) * (z[1] - z[0]) ** 2
        found = PrivacyLoss.of(DoubleMixture.poisson(removed, inserted, rate, sigma), PRESENT).compose(2).delta(epsilon)
        assert found.lower * (1.0 - 2e-4) - 1e-9 <= exact <= found.upper * (1.0 + 2e-4) + 1e-9
        weight = float(rng.choice([1.0, 0.3]))
        exact = symmetric_two_steps(weight, rate, sigma, epsilon)
        pair = SymmetricMixture((weight, Mixture([0.0, 2.0], [1.0 - rate, rate], sigma)))
        found = PrivacyLoss.of(pair).compose(2).delta(epsilon)
        assert found.lower * (1.0 - 2e-3) - 1e-9 <= exact <= found.upper * (1.0 + 2e-3) + 1e-9


@pytest.mark.parametrize("epsilon", [-0.05, 0.0, 0.05, 0.5])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_one_symmetric_step_by_quadrature(weight: float, epsilon: float) -> None:
    """At negative epsilon by delta(-epsilon) = 1 - e^-epsilon (1 - delta(epsilon)), as of every symmetric pair."""
    rate, sigma = 0.3, 0.8
    z = np.linspace(-8.0, 10.0, 200_001)
    absent = norm.pdf(z, 0.0, sigma)
    present = (1.0 - rate) * absent + rate * norm.pdf(z, 2.0, sigma)
    exact = weight * float(np.maximum(present - math.exp(abs(epsilon)) * absent, 0.0).sum()) * (z[1] - z[0])
    if epsilon < 0.0:
        exact = 1.0 - math.exp(epsilon) * (1.0 - exact)
    pair = SymmetricMixture((weight, Mixture([0.0, 2.0], [1.0 - rate, rate], sigma)))
    for direction in DIRECTIONS:
        low, high = np.exp(pair.log_delta_bounds(epsilon, direction))
        assert low <= exact * (1.0 + 1e-7)
        assert exact * (1.0 - 1e-7) <= high
        assert high - low < 1e-12


@pytest.mark.family
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_side_without_records_is_the_mixture(direction: Direction) -> None:
    mixture, none = Mixture.poisson(3, 0.1, 0.8), Mixture([0.0], [1.0], 0.8)
    pair, mirrored = DoubleMixture(mixture, none), DoubleMixture(none, mixture)
    other: Direction = ABSENT if direction == PRESENT else PRESENT
    for epsilon in (-0.2, 0.0, 0.7, 3.0):
        exact = np.exp(mixture.log_delta_bounds(epsilon, direction))
        assert np.exp(pair.log_delta_bounds(epsilon, direction)) == pytest.approx(exact, abs=1e-9)
        assert np.exp(mirrored.log_delta_bounds(epsilon, other)) == pytest.approx(exact, abs=1e-9)


@pytest.mark.ci
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_steps_without_records_on_one_side_are_those_of_the_mixture(direction: Direction) -> None:
    mixture, none = Mixture.poisson(3, 0.1, 0.8), Mixture([0.0], [1.0], 0.8)
    pair = DoubleMixture(mixture, none)
    steps = PrivacyLoss.of(mixture, direction).compose(30).epsilon(1e-5)
    found = PrivacyLoss.of(pair, direction).compose(30).epsilon(1e-5)
    assert max(steps.lower, found.lower) <= min(steps.upper, found.upper)


def test_full_batches_are_gaussian_of_twice_the_effect() -> None:
    loss = PrivacyLoss.of(DoubleMixture.poisson(3, 3, 1.0, 4.0)).compose(7)
    exact = gaussian.epsilon(1e-6, 6.0 * math.sqrt(7.0) / 4.0)
    assert loss.epsilon(1e-6).lower <= exact <= loss.epsilon(1e-6).upper
    assert loss.epsilon(1e-6).relative_width < 1e-9


@pytest.mark.family
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("k", "rate", "sigma", "steps", "delta"),
    [
        (1, 1e-30, 1.0, 10**4, 1e-10),
        (1, 1e-7, 0.3, 10**4, 1e-12),
        (1, 0.5, 1e-6, 3, 1e-5),
        (1, 0.01, 0.05, 1000, 1e-6),
        (1, 1.0 - 1e-12, 1.0, 100, 1e-6),
        (500, 0.3, 50.0, 10, 1e-6),
        (2, 0.1, 1e6, 10**5, 1e-9),
        (1, 0.2, 1.0, 10, 1e-300),
        (4, 0.2, 1.0, 10, 0.9),
    ],
)
def test_extremes_are_between_added_records_and_twice_the_effect(k, rate, sigma, steps, delta):
    found = PrivacyLoss.of(DoubleMixture.poisson(k, k, rate, sigma)).compose(steps).epsilon(delta, width=1e-3)
    added = PrivacyLoss.of(Mixture.poisson(k, rate, sigma)).compose(steps).epsilon(delta, width=1e-3)
    largest = gaussian.epsilon(delta, 2.0 * k * math.sqrt(steps) / sigma)
    assert found.upper >= added.lower * (1.0 - 1e-9)
    assert found.lower <= largest * (1.0 + 1e-9)
    fixed = Mixture([0.0, 2.0], [1.0 - rate, rate], sigma) if k == 1 else None
    if fixed is not None:
        symmetric = PrivacyLoss.of(SymmetricMixture((1.0, fixed))).compose(steps).epsilon(delta, width=1e-3)
        assert symmetric.upper >= found.lower * (1.0 - 1e-9)


def test_bad_arguments_are_named() -> None:
    one = Mixture.poisson(1, 0.1, 1.0)
    with pytest.raises(ValueError, match="both mixtures must have the same noise_multiplier"):
        DoubleMixture(one, Mixture.poisson(1, 0.1, 2.0))
    with pytest.raises(ValueError, match="removed"):
        DoubleMixture.poisson(-1, 1, 0.1, 1.0)
    with pytest.raises(ValueError, match="0 and another one"):
        SymmetricMixture((1.0, Mixture.poisson(2, 0.1, 1.0)))
    with pytest.raises(ValueError, match="weights above 0, at most 1 in total"):
        SymmetricMixture((0.7, one), (0.4, one))


@pytest.mark.ci
def test_rare_draws_keep_their_digits() -> None:
    """Rates down to 1e-25: the delta of one step is a difference of almost equal probabilities."""
    rng = np.random.default_rng(59)
    for _ in range(25):
        members, rate, sigma = int(rng.integers(1, 6)), float(10.0 ** rng.uniform(-25.0, -12.0)), rng.uniform(0.4, 3.0)
        epsilon = float(rng.choice([0.0, 0.3 * rate, 10.0 * rate, 1e-9]))
        exact = exact_delta(members, members, rate, sigma, epsilon, digits=90)
        with mpmath.workdps(90):
            bounds = DoubleMixture.poisson(members, members, rate, sigma).log_delta_bounds(epsilon, PRESENT)
            low, high = map(mpmath.exp, bounds)
            assert low * (1 - mpmath.mpf(1e-14)) <= exact <= high * (1 + mpmath.mpf(1e-14))
            assert high - low <= 1e-3 * exact


@pytest.mark.ci
def test_rare_replacements_take_seconds_and_have_a_lower_end() -> None:
    """The answer was 0 to 2.82e-5 after 22 s: rounding of the usual outcomes exceeded the mass of all rare ones."""
    started = time.process_time()
    found = PrivacyLoss.of(DoubleMixture.poisson(3, 3, 1e-15, 0.3)).compose(100).epsilon(1e-20)
    assert time.process_time() - started < 10.0  # 1 s on a quiet machine
    assert found.relative_width < 0.01
    # one draw decides, up to a relative 1e-10: 100 times the profile of one step
    for epsilon, sign in ((found.lower, 1.0), (found.upper, -1.0)):
        assert sign * float(100 * exact_delta(3, 3, 1e-15, 0.3, epsilon, digits=60)) >= sign * 1e-20 * (
            1.0 - sign * 1e-6
        )


def test_both_directions_of_an_equal_pair_are_one_answer() -> None:
    pair = DoubleMixture.poisson(2, 2, 0.01, 0.9)
    answers = [PrivacyLoss.of(pair, side).compose(300).epsilon(1e-6) for side in (*DIRECTIONS, "both")]
    assert answers[0] == answers[2]
    assert max(answer.lower for answer in answers) <= min(answer.upper for answer in answers)
    assert not DoubleMixture.poisson(2, 1, 0.01, 0.9).is_symmetric
