"""The encoder C: noise of covariance sigma^2 (C^T C)^-1 is added to the clipped sums, row by row.

C is lower triangular. Entries are float64 with a relative error of at most ``Encoder.error``; the mechanism that they
describe is the one with exact entries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from dpspec.accounting import EPS, Floats
from dpspec_matrix.options import EncoderOptions

#: Optimized coefficients are multiples of this number, so that processors agree on them.
_UNIT = 2.0**-13


@dataclass(frozen=True, eq=False)
class Encoder:
    """C of ``steps`` rows: Toeplitz with the first ``column``, or the binary tree of prefix sums without one.

    Attributes:
        error: Bound of the relative error of each entry.
        inverse: The first column of C^-1 if it is short.
    """

    options: EncoderOptions
    steps: int
    column: Floats | None
    error: float = 0.0
    inverse: Floats | None = None

    @property
    def bands(self) -> int:
        """Number of diagonals that are not 0."""
        return self.steps if self.column is None else len(self.column)

    @property
    def is_nonnegative(self) -> bool:
        return self.column is None or bool(np.all(self.column >= 0.0))

    @property
    def is_monotone(self) -> bool:
        """Whether C is Toeplitz with coefficients that certainly do not increase and are not negative."""
        if self.column is None or not self.is_nonnegative:
            return False
        return bool(np.all(self.column[1:] * (1.0 + 4.0 * self.error) <= self.column[:-1]))

    def matrix(self) -> Floats:
        """C, of shape (steps, steps)."""
        if self.column is None:
            rows, columns = np.arange(1, self.steps + 1)[:, None], np.arange(1, self.steps + 1)[None, :]
            return ((columns <= rows) & (columns > rows - (rows & -rows))).astype(np.float64)
        matrix = np.zeros((self.steps, self.steps))
        for lag, value in enumerate(self.column):
            np.fill_diagonal(matrix[lag:], value)
        return matrix


@functools.lru_cache(maxsize=16)
def encoder_of(options: EncoderOptions, steps: int) -> Encoder:
    bands = min(options.bands, steps)
    match options.kind:
        case "tree":
            return Encoder(options, steps, None)
        case "banded":
            return Encoder(options, steps, np.array(options.coefficients[:steps]))
        case "optimized":
            return Encoder(options, steps, optimized_coefficients(steps, bands))
        case "square-root":
            k = np.arange(1.0, bands)
            return Encoder(options, steps, np.cumprod(np.append(1.0, (k - 0.5) / k)), 4.0 * bands * EPS)
        case "inverse-square-root":
            k = np.arange(1.0, bands)
            inverse = np.cumprod(np.append(1.0, (k - 1.5) / k))
            column = _filter(inverse, np.eye(1, steps)[0])
            return Encoder(options, steps, column, steps * (4.0 * bands + 8.0) * EPS, inverse)
        case "buffers":
            powers = np.power(np.array(options.decays)[:, None], np.arange(steps - 1.0))
            column = np.append(1.0, np.array(options.weights) @ powers)
            return Encoder(options, steps, column, (len(options.decays) + 16.0) * EPS)
        case _:
            return Encoder(options, steps, np.ones(1))


def optimized_coefficients(steps: int, bands: int) -> Floats:
    """The banded Toeplitz C of minimal mean squared error of prefix sums, for columns that no record combines.

    Minimizes ||c||^2 ||A C^-1||_F^2 over c with c_0 = 1, where A sums prefixes: BandMF (Choquette-Choo et al. 2023,
    Section 4). A C^-1 is Toeplitz with the first column b, the solution of C b = 1, and its gradient needs one further
    solution. Any result is a valid encoder.
    """
    from scipy import optimize

    weights = np.arange(steps, 0.0, -1.0)

    def objective(free: Floats) -> tuple[float, Floats]:
        column = np.append(1.0, free)
        b = _filter(column, np.ones(steps))
        squared_error, squared_norm = float(weights @ b**2), float(column @ column)
        adjoint = _filter(column, (2.0 * weights * b)[::-1])[::-1]
        slopes = np.array([-adjoint[lag:] @ b[: steps - lag] for lag in range(1, bands)])
        return squared_error * squared_norm / steps, (slopes * squared_norm + 2.0 * squared_error * free) / steps

    k = np.arange(1.0, bands)
    start = np.cumprod((k - 0.5) / k)
    if bands == 1:
        return np.ones(1)
    with np.errstate(over="ignore", invalid="ignore"):
        best = optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * (bands - 1), options={"ftol": 1e-12}
        )
    return np.append(1.0, np.round(best.x / _UNIT) * _UNIT)


def _filter(column: Floats, values: Floats) -> Floats:
    """The solution x of T x = values for the lower triangular Toeplitz T with this first column."""
    from scipy.signal import lfilter  # takes longer to import than all else

    return np.asarray(lfilter([1.0], column, values), dtype=np.float64)
