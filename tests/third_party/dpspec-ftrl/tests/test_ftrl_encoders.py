"""Sensitivities against brute force over all patterns, and the bound against the Gaussian profile in 60 digits."""

import math
from fractions import Fraction
from itertools import combinations, pairwise
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from dpspec_ftrl import Matrix
from dpspec_ftrl.decoding import whitener
from dpspec_ftrl.encoders import Banded, effect
from hypothesis import given, settings
from hypothesis import strategies as st

import dpspec.contract as dps

small = st.integers(1, 9)


def patterns(steps: int, separation: int) -> list[tuple[int, ...]]:
    """Every set of steps at least ``separation`` apart."""
    every = (chosen for size in range(1, steps + 1) for chosen in combinations(range(steps), size))
    return [chosen for chosen in every if all(b - a >= separation for a, b in pairwise(chosen))]


@given(small, small, small)
@settings(deadline=None, max_examples=25)
def test_no_pattern_moves_an_encoder_more_than_slot_0(steps: int, bands: int, separation: int) -> None:
    encoder = Banded(steps, bands)
    matrix = whitener(encoder)
    assert float(encoder.moved(separation)) == pytest.approx(
        max(float(np.square(matrix[:, chosen].sum(axis=1)).sum()) for chosen in patterns(steps, separation))
    )


@given(st.sampled_from([Banded(8, 3), Banded(8, 8)]), st.integers(1, 8), st.integers(0, 10**6))
@settings(deadline=None)
def test_gradients_of_any_directions_move_no_encoder_further(encoder: Banded, separation: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gradients = np.zeros((encoder.steps, 3))
    slot = int(random.integers(min(separation, encoder.steps)))
    drawn = random.normal(size=gradients[slot::separation].shape)
    gradients[slot::separation] = drawn / np.maximum(1.0, np.linalg.norm(drawn, axis=1, keepdims=True))
    moved = np.linalg.norm(whitener(encoder) @ gradients)
    assert moved <= math.sqrt(encoder.moved(separation)) * (1 + 1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_all_bands_are_the_square_root_of_the_prefix_sums(steps: int) -> None:
    encoder = Banded(steps, 64)
    columns = [encoder.column(step) for step in range(steps)]
    for row in range(steps):
        for column in range(steps):
            terms = (columns[k].get(row, 0) * columns[column].get(k, 0) for k in range(steps))
            assert encoder.unit**2 * sum(terms) == (1 if row >= column else 0)


def test_known_sensitivities() -> None:
    assert Banded(100, 1).moved(10) == 10  # one band: k participations of DP-SGD
    assert Banded(100, 8).moved(10) == 10 * Banded(8, 8).squared([0])  # orthogonal columns
    assert Banded(5, 5).squared([0]) == sum(Fraction(math.comb(2 * k, k), 4**k) ** 2 for k in range(5))


@given(st.integers(1, 16), small, st.integers(1, 16), st.floats(1e-3, 1e6), st.integers(1, 8))
@settings(deadline=None)
def test_mu_lies_between_its_two_ends(steps: int, bands: int, separation: int, noise: float, size: int) -> None:
    low, high = effect(Banded(steps, bands), separation, noise, size)
    with mpmath.workdps(60):
        square = Banded(steps, bands).moved(separation)
        mu = size * mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator) / mpmath.mpf(noise)
        assert low <= mu <= high
    assert high <= math.nextafter(low, math.inf)


@pytest.mark.parametrize(("delta", "size"), [(1e-6, 1), (1e-3, 2), (1e-12, 1)])
def test_epsilon_is_that_of_the_gaussian_profile(delta: float, size: int) -> None:
    options = {"steps": 12, "bands": 4, "separation": 4, "noise_multiplier": 2.0}
    spec = SimpleNamespace(phases=(dps.Phase(options),))
    found = Matrix().epsilon(spec, delta, size)
    with mpmath.workdps(60):
        square = Banded(12, 4).moved(4)
        mu = size * mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator) / 2

        def profile(epsilon: float) -> mpmath.mpf:
            e = mpmath.mpf(epsilon)
            return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)

        assert profile(found.upper) <= delta <= profile(found.lower)
    assert found.width < 1e-6 * found.upper
