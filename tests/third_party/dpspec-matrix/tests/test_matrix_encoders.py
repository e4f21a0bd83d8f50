"""Sensitivities against brute force over all patterns, and the bound against the Gaussian profile in 60 digits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from dpspec_matrix import Matrix
from dpspec_matrix.decoding import expected, whitener
from dpspec_matrix.encoders import Banded, Encoder, Tree, effect
from hypothesis import given, settings
from hypothesis import strategies as st

import dpspec.contract as dps

small = st.integers(1, 9)


def dense(encoder: Encoder) -> np.ndarray:
    """C, its rows in the order of their numbers, in float64."""
    columns = [encoder.column(step) for step in range(encoder.steps)]
    rows = sorted({row for column in columns for row in column})
    return np.array([[float(column.get(row, 0) * encoder.unit) for column in columns] for row in rows])


def patterns(steps: int, separation: int) -> list[tuple[int, ...]]:
    """Every set of steps at least ``separation`` apart."""
    every = (chosen for size in range(1, steps + 1) for chosen in combinations(range(steps), size))
    return [chosen for chosen in every if all(b - a >= separation for a, b in pairwise(chosen))]


@given(small, small, small)
@settings(deadline=None, max_examples=25)
def test_no_pattern_moves_a_banded_encoder_more_than_the_worst_slot(steps: int, bands: int, separation: int) -> None:
    encoder = Banded(steps, bands)
    slot, square = encoder.worst_slot(separation)
    matrix = dense(encoder)
    assert slot == 0
    assert float(square) == pytest.approx(
        max(float(np.square(matrix[:, chosen].sum(axis=1)).sum()) for chosen in patterns(steps, separation))
    )


@given(small, small)
@settings(deadline=None)
def test_the_worst_slot_of_a_tree_is_the_worst(steps: int, separation: int) -> None:
    matrix = dense(Tree(steps))
    squares = [np.square(matrix[:, slot::separation].sum(axis=1)).sum() for slot in range(min(separation, steps))]
    slot, square = Tree(steps).worst_slot(separation)
    assert float(square) == max(squares) == squares[slot]


@given(st.sampled_from([Banded(8, 3), Banded(8, 8), Tree(8), Tree(7)]), st.integers(1, 8), st.integers(0, 10**6))
@settings(deadline=None)
def test_gradients_of_any_directions_move_no_encoder_further(encoder: Encoder, separation: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gradients = np.zeros((encoder.steps, 3))
    slot = int(random.integers(min(separation, encoder.steps)))
    drawn = random.normal(size=gradients[slot::separation].shape)
    gradients[slot::separation] = drawn / np.maximum(1.0, np.linalg.norm(drawn, axis=1, keepdims=True))
    moved = np.linalg.norm(dense(encoder) @ gradients)
    assert moved <= math.sqrt(encoder.worst_slot(separation)[1]) * (1 + 1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_all_bands_are_the_square_root_of_the_prefix_sums(steps: int) -> None:
    encoder = Banded(steps, 64)
    columns = [encoder.column(step) for step in range(steps)]
    for row in range(steps):
        for column in range(steps):
            terms = (columns[k].get(row, 0) * columns[column].get(k, 0) for k in range(steps))
            assert encoder.unit**2 * sum(terms) == (1 if row >= column else 0)


def test_known_sensitivities() -> None:
    assert [Tree(steps).worst_slot(steps)[1] for steps in (1, 2, 4, 8, 1024)] == [1, 2, 3, 4, 11]  # log2 T + 1
    assert Banded(100, 1).worst_slot(10)[1] == 10  # one band: k participations of DP-SGD
    assert Banded(100, 8).worst_slot(10)[1] == 10 * Banded(8, 8).squared([0])  # orthogonal columns
    assert Banded(5, 5).squared([0]) == sum(Fraction(math.comb(2 * k, k), 4**k) ** 2 for k in range(5))


@pytest.mark.parametrize("steps", range(1, 34))
def test_every_running_sum_is_put_together_of_nodes(steps: int) -> None:
    tree = Tree(steps)
    columns = [tree.column(step) for step in range(steps)]
    for step in range(steps):
        sums = [sum(column.get(node, 0) for node in tree.prefix(step)) for column in columns]
        assert sums == [1] * (step + 1) + [0] * (steps - step - 1)
    used = {node for step in range(steps) for node in tree.prefix(step)}
    assert used == {node for column in columns for node in column}


@given(st.integers(1, 16), small, st.integers(1, 16), st.floats(1e-3, 1e6), st.integers(1, 8))
@settings(deadline=None)
def test_mu_lies_between_its_two_ends(steps: int, bands: int, separation: int, noise: float, size: int) -> None:
    low, high = effect(Banded(steps, bands), separation, noise, size)
    with mpmath.workdps(60):
        square = Banded(steps, bands).worst_slot(separation)[1]
        mu = size * mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator) / mpmath.mpf(noise)
        assert low <= mu <= high
    assert high <= math.nextafter(low, math.inf)


@pytest.mark.parametrize("encoder", ["banded", "tree"])
@pytest.mark.parametrize(("delta", "size"), [(1e-6, 1), (1e-3, 2), (1e-12, 1)])
def test_epsilon_is_that_of_the_gaussian_profile(encoder: str, delta: float, size: int) -> None:
    options = {"encoder": encoder, "steps": 12, "bands": 4, "separation": 4, "noise_multiplier": 2.0}
    spec = SimpleNamespace(phases=(dps.Phase(options),))
    found = Matrix().epsilon(spec, delta, size)
    with mpmath.workdps(60):
        square = (Tree(12) if encoder == "tree" else Banded(12, 4)).worst_slot(4)[1]
        mu = size * mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator) / 2

        def profile(epsilon: float) -> mpmath.mpf:
            e = mpmath.mpf(epsilon)
            return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)

        assert profile(found.upper) <= delta <= profile(found.lower)
    assert found.width < 1e-6 * found.upper


@pytest.mark.parametrize("steps", [1, 2, 7, 12, 16])
def test_what_iterates_of_a_tree_show_is_no_more_than_its_nodes(steps: int) -> None:
    white = whitener(Tree(steps))
    for separation in range(1, steps + 1):
        square = float(Tree(steps).worst_slot(separation)[1])
        for slot in range(separation):
            seen = expected(white, slot, separation)
            assert float(seen @ seen) <= square * (1 + 1e-9)


@pytest.mark.parametrize("steps", [1, 5, 8])
def test_a_square_encoder_is_its_own_whitener(steps: int) -> None:
    assert np.array_equal(whitener(Banded(steps, 3)), dense(Banded(steps, 3)))
