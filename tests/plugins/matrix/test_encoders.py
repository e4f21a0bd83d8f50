"""Encoders against rational numbers, and optimized coefficients against other ones."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from plugins.matrix import oracles

from dpspec_matrix.encoders import encoder_of, optimized_coefficients
from dpspec_matrix.options import EncoderOptions

STEPS = 13


def options(kind: str, **keys: object) -> EncoderOptions:
    return EncoderOptions(kind=kind, **keys)  # type: ignore[arg-type]


CASES: list[tuple[EncoderOptions, oracles.Matrix]] = [
    (options("identity"), oracles.toeplitz([Fraction(1)], STEPS)),
    (options("tree"), oracles.tree(STEPS)),
    (options("square-root", bands=5), oracles.toeplitz(oracles.root_coefficients(5), STEPS)),
    (options("square-root", bands=99), oracles.toeplitz(oracles.root_coefficients(STEPS), STEPS)),
    (options("inverse-square-root", bands=4), oracles.toeplitz(oracles.inverse_root_column(STEPS, 4), STEPS)),
    (options("inverse-square-root", bands=99), oracles.toeplitz(oracles.root_coefficients(STEPS), STEPS)),
    (options("banded", coefficients=(1.0, -0.5)), oracles.toeplitz([Fraction(1), Fraction(-1, 2)], STEPS)),
    (
        options("buffers", weights=(0.25, 0.5), decays=(0.5, 0.75)),
        oracles.toeplitz(
            [Fraction(1), *(Fraction(1, 4) / 2**k + Fraction(3, 4) ** k / 2 for k in range(STEPS))], STEPS
        ),
    ),
]


@pytest.mark.parametrize(("options_of_kind", "exact"), CASES)
def test_entries_are_within_their_stated_error(options_of_kind: EncoderOptions, exact: oracles.Matrix) -> None:
    encoder = encoder_of(options_of_kind, STEPS)
    for row, exact_row in zip(encoder.matrix(), exact, strict=True):
        for value, entry in zip(row, exact_row, strict=True):
            assert abs(Fraction(float(value)) - entry) <= Fraction(encoder.error) * abs(entry)


def test_long_columns_are_within_their_stated_error() -> None:
    steps, bands = 400, 40
    encoder, exact = (
        encoder_of(options("inverse-square-root", bands=bands), steps),
        [float(value) for value in _inverse_root_floats(steps, bands)],
    )
    assert encoder.column is not None
    assert np.all(np.abs(encoder.column / exact - 1.0) <= encoder.error)
    assert encoder.is_monotone


def _inverse_root_floats(steps: int, bands: int) -> Sequence[object]:
    import mpmath

    with mpmath.workdps(60):
        inverse = [mpmath.binomial(mpmath.mpf(1) / 2, k) * (-1) ** k for k in range(bands)]
        column = [mpmath.mpf(1)]
        for k in range(1, steps):
            column.append(-mpmath.fsum(inverse[lag] * column[k - lag] for lag in range(1, min(k + 1, bands))))
        return column


def error_of_prefix_sums(column: np.ndarray, steps: int) -> float:
    matrix = sum(value * np.eye(steps, k=-lag) for lag, value in enumerate(column))
    prefix = np.tril(np.ones((steps, steps)))
    return float(np.linalg.norm(prefix @ np.linalg.inv(matrix)) * np.linalg.norm(column))


@pytest.mark.parametrize(("steps", "bands"), [(1, 1), (4, 4), (40, 2), (64, 8)])
def test_optimized_coefficients_have_a_smaller_error_than_others(steps: int, bands: int) -> None:
    best = optimized_coefficients(steps, bands)
    smallest = error_of_prefix_sums(best, steps)
    root = np.array([float(c) for c in oracles.root_coefficients(bands)])
    assert smallest <= error_of_prefix_sums(root, steps) * (1 + 1e-6)
    random = np.random.default_rng(1)
    for _ in range(20):
        other = best + np.append(0.0, 0.03 * random.normal(size=bands - 1))
        assert smallest <= error_of_prefix_sums(other, steps) * (1 + 1e-6)
