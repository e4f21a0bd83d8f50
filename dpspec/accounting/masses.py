"""Probabilities of intervals under the pair of a mixture, in log space, with bounds on their rounding error.

Everything is in units of sigma. Differences are always taken between the smaller tails, so that an interval of width
h loses about 1e-16 / h of relative precision and no more.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from dpspec.accounting.checks import EPS, Floats
from dpspec.accounting.ratio import Ratio

#: Elements of a component-by-interval table that are held at once.
_CHUNK = 1 << 19


def normal_mass(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """ln(Phi(high) - Phi(low)) for low <= high, and a bound on its absolute error.

    The error is that of log_ndtr, taken as 2 (8 + z^2) units in the last place, over 1 - (smaller tail / larger).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        flip = low + high > 0.0
        near, far = np.where(flip, -low, high), np.where(flip, -high, low)
        tail = log_ndtr(near)
        share = -np.expm1(np.minimum(log_ndtr(far) - tail, 0.0))
        mass = tail + np.log(share)
        error = 2.0 * EPS * (8.0 + np.square(np.minimum(near, 0.0))) / share
        # cells that reach to minus infinity, and those that hold everything
        empty = near <= far
    return np.where(empty, -np.inf, mass), np.where(empty | np.isnan(error), 0.0, error)


def mixture_mass(ratio: Ratio, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """ln of the mixture's probability of [low, high] (n,), and a bound on its absolute error."""
    result, errors = np.empty(low.shape), np.empty(low.shape)
    rows = max(1, _CHUNK // len(ratio.shifts))
    for start in range(0, len(result), rows):
        block = slice(start, start + rows)
        part = ratio.relevant(low[block], high[block])
        terms, error = normal_mass(low[None, block] - part.shifts[:, None], high[None, block] - part.shifts[:, None])
        terms += part.log_weights[:, None]
        top = terms.max(axis=0)
        top[np.isneginf(top)] = 0.0
        np.exp(np.subtract(terms, top, out=terms), out=terms)
        total = terms.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            result[block] = top + np.log(total)
            shares = np.sum(terms * error, axis=0) / total
        errors[block] = np.where(total > 0.0, shares, 0.0) + 8.0 * EPS
    return result, errors


def upper_tail(ratio: Ratio, z: float) -> float:
    """ln of the mixture's probability beyond ``z``."""
    return float(np.logaddexp.reduce(ratio.log_weights + log_ndtr(ratio.shifts - z)))


def lower_tail(ratio: Ratio, z: float) -> float:
    """ln of the mixture's probability below ``z``."""
    return float(np.logaddexp.reduce(ratio.log_weights + log_ndtr(z - ratio.shifts)))
