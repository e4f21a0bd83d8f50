"""Masses of slices of two laws on the line, from the logarithms of their densities.

Gauss's rule with 16 nodes is used. At its nodes the loss is known, so that the two masses of a slice agree with each
other to rounding; their errors are taken to be no more than what the rules with 16 and with 8 nodes differ by, for the
mass and for what it exceeds the other mass by. Slices where that is not small are halved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpspec.accounting.checks import EPS, Floats

#: ln of a density at many outcomes, (n,) to (n,).
LogDensity: TypeAlias = Callable[[Floats], Floats]

#: A log density is taken to be off by so many units in the last place of one or of itself.
_ACCURACY = 16.0

#: Slices on which the rules differ by more than this, relative to the mass, are halved, and how often.
_AGREE, _HALVINGS = 1e-14, 24


def _rule(count: int) -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (nodes + 1.0), 0.5 * weights


_RULES = (_rule(16), _rule(8))


def noise(size: float | Floats) -> float:
    """How far a loss may be off whose log densities are up to ``size``."""
    return 2.0 * _ACCURACY * EPS * max(1.0, float(np.max(size)))


def values(function: LogDensity, x: Floats) -> Floats:
    """``function`` at ``x`` (n,). Raises ``ValueError`` when what it returns is of another shape or not a number."""
    found = np.asarray(function(x), dtype=np.float64)
    if found.shape != x.shape:
        raise ValueError(f"present and absent must map arrays to arrays of one shape, got {found.shape} for {x.shape}")
    if np.any(np.isnan(found)):
        raise ValueError("present and absent must be numbers everywhere between the knots")
    return found


def integrate(
    present: LogDensity, absent: LogDensity, left: Floats, right: Floats, base: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """The masses of slices under the first law, ln of their ratios, and bounds on the errors: relative, and absolute.

    left, right: the slices' ends; base: a loss that none in the slice is below by much; all (n,).
    """
    count = len(left)
    sums, errors = np.zeros((3, count)), np.zeros((3, count))
    doubt = np.zeros(count)
    owner = np.arange(count)
    for turn in range(_HALVINGS + 1):
        fine, rough, blur = _sums(present, absent, left, right, base[owner])
        gaps = np.abs(fine - rough)
        with np.errstate(invalid="ignore"):
            again = np.any(gaps > _AGREE * np.array([1.0, 1.0, 1.0])[:, None] * np.maximum(fine[0], fine[2]), axis=0)
        again &= (turn < _HALVINGS) & (right - left > 64.0 * EPS * np.maximum(np.abs(left), np.abs(right)))
        for row in range(3):
            np.add.at(sums[row], owner[~again], fine[row, ~again])
            np.add.at(errors[row], owner[~again], gaps[row, ~again])
        np.maximum.at(doubt, owner, blur)
        if not again.any():
            break
        middle = left[again] + 0.5 * (right[again] - left[again])
        left, right = np.concatenate((left[again], middle)), np.concatenate((middle, right[again]))
        owner = np.concatenate((owner[again], owner[again]))
    return _read(sums, errors, base, doubt)


def _sums(
    present: LogDensity, absent: LogDensity, left: Floats, right: Floats, base: Floats
) -> tuple[Floats, Floats, Floats]:
    """By either rule: the mass, what it exceeds e^base times the other by, and that, (3, n); and the loss's noise."""
    width = right - left
    results = []
    blur = np.zeros(len(left))
    for nodes, weights in _RULES:
        x = left[:, None] + width[:, None] * nodes
        first = values(present, x.ravel()).reshape(x.shape)
        second = values(absent, x.ravel()).reshape(x.shape)
        gap = base[:, None] - (first - second)
        density = np.exp(first) * (width[:, None] * weights)
        scaled = np.exp(np.minimum(second + base[:, None], 700.0)) * (width[:, None] * weights)
        results.append(
            np.stack(
                (density.sum(axis=1), -(density * np.expm1(np.minimum(gap, 700.0))).sum(axis=1), scaled.sum(axis=1))
            )
        )
        size = np.maximum(np.abs(first), np.abs(second)).max(axis=1)
        blur = np.maximum(blur, 2.0 * _ACCURACY * EPS * np.maximum(1.0, size))
    return results[0], results[1], blur


def _read(sums: Floats, errors: Floats, base: Floats, doubt: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    mass, excess, other = sums
    safe = np.where(mass > 0.0, mass, 1.0)
    beside = np.where(other > 0.0, other, 1.0)
    near = np.abs(excess) <= 0.5 * mass
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = base + np.where(near, -np.log1p(-np.where(near, excess / safe, 0.0)), np.log(safe) - np.log(beside))
    off = np.where(near, 2.0 * (errors[0] + errors[1]) / safe, errors[0] / safe + errors[2] / beside)
    return mass, loss, errors[0] / safe + doubt + 64.0 * EPS, off + doubt + 64.0 * EPS
