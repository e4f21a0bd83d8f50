"""Encoders in rational numbers, changes over all sets of steps, losses by quadrature: without code of dpspec."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product

import mpmath
import numpy as np

Matrix = list[list[Fraction]]


def toeplitz(column: Sequence[Fraction], steps: int) -> Matrix:
    entries = [*column, *[Fraction(0)] * steps]
    return [[entries[row - place] if place <= row else Fraction(0) for place in range(steps)] for row in range(steps)]


def root_coefficients(steps: int) -> list[Fraction]:
    """Of the square root of the prefix sums."""
    return [Fraction(math.comb(2 * k, k), 4**k) for k in range(steps)]


def inverse_root_column(steps: int, bands: int) -> list[Fraction]:
    """The first column of C if C^-1 has the first ``bands`` of the coefficients of (1 - x)^(1/2)."""
    inverse = [Fraction(math.comb(2 * k, k), 4**k * (1 - 2 * k)) for k in range(bands)]
    column: list[Fraction] = []
    for k in range(steps):
        terms = (inverse[lag] * column[k - lag] for lag in range(1, min(k + 1, bands)))
        column.append(Fraction(k == 0) - sum(terms))
    return column


def tree(steps: int) -> Matrix:
    """Row t is the last block of the binary decomposition of the first t steps."""
    rows = []
    for last in range(1, steps + 1):
        length = len(f"{last:b}") - len(f"{last:b}".rstrip("0"))
        rows.append([Fraction(last - 2**length < step <= last) for step in range(1, steps + 1)])
    return rows


def sets_of_steps(scheme: str, steps: int, separation: int, times: int) -> Iterator[tuple[int, ...]]:
    """All sets of steps of one record."""
    if scheme == "single":
        yield from ((step,) for step in range(steps))
    elif scheme == "cyclic":
        yield from (tuple(range(slot, steps, separation)) for slot in range(min(separation, steps)))
    else:
        for size in range(1, (times or steps) + 1):
            for chosen in combinations(range(steps), size):
                if all(b - a >= separation for a, b in pairwise(chosen)):
                    yield chosen


def squared_change(matrix: Matrix, chosen: Sequence[int], signs: Sequence[int] | None = None) -> Fraction:
    """||sum of signed columns||^2."""
    signs = signs or [1] * len(chosen)
    sums = (sum(sign * row[step] for step, sign in zip(chosen, signs, strict=True)) for row in matrix)
    return sum((Fraction(value) ** 2 for value in sums), Fraction(0))


def largest_change(matrix: Matrix, sets: Iterator[tuple[int, ...]]) -> Fraction:
    """The largest squared change over sets and gradients +-1 along one direction."""
    return max(
        squared_change(matrix, chosen, signs) for chosen in sets for signs in product([1, -1], repeat=len(chosen))
    )


def gaussian_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


def grid_delta(dimension: int, sigma: float, choices: Sequence[tuple[float, object]], epsilon: float) -> float:
    """The larger hockey-stick divergence of both orders, by sums over a grid of outputs of 1 to 3 rows.

    A mean is an array (rows,), or a function from the outputs to the rows of means, for adaptive gradients.
    """
    points = {1: 4001, 2: 601, 3: 111}[dimension]
    reach = 7.0 * sigma + 3.5
    axis = np.linspace(-reach, reach, points)
    outputs = np.meshgrid(*[axis] * dimension, indexing="ij", sparse=True)

    def density(means: Sequence[object]) -> np.ndarray:
        value: np.ndarray = np.ones(())
        for y, m in zip(outputs, means, strict=True):
            value = value * np.exp(-0.5 * ((y - m) / sigma) ** 2) / (math.sqrt(2.0 * math.pi) * sigma)  # type: ignore[operator]
        return value

    absent = density([0.0] * dimension)
    present = sum(weight * density(mean(outputs) if callable(mean) else mean) for weight, mean in choices)  # type: ignore[arg-type]
    cell = (axis[1] - axis[0]) ** dimension
    sides = (present - math.exp(epsilon) * absent, absent - math.exp(epsilon) * present)
    return float(max(np.maximum(side, 0.0).sum() for side in sides) * cell)


def sampled_delta(
    means: np.ndarray, weights: np.ndarray, sigma: float, epsilon: float, seed: int
) -> tuple[float, float]:
    """The divergence present-first of a mixture of N(means, sigma^2) from N(0, sigma^2), with its standard error."""
    random = np.random.default_rng(seed)
    draws = random.choice(len(weights), size=400_000, p=weights)
    y = means[draws] + sigma * random.normal(size=(len(draws), means.shape[1]))
    logs = (y @ means.T - 0.5 * np.square(means).sum(axis=1)) / sigma**2
    loss = np.log(np.exp(logs) @ weights)
    values = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - loss)))
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
