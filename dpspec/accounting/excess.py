"""A power of one plus w without its value and its tangent at w = 0: g(w) = (1 + w)^s - 1 - s w, in log space.

g >= 0 for s > 1 and for s < 0. Averaged over a w of mean 0 it is a moment in excess of one.
"""

from __future__ import annotations

import numpy as np

from dpspec.accounting.checks import Floats

#: Terms of the series of g in w, and where it is used.
_TERMS, _SMALL = 16, 0.05


def log_excess_power(power: Floats, loss: Floats, change: Floats) -> Floats:
    """ln g(w) at w = ``change`` = e^``loss`` - 1 for the powers s > 1 or s < 0; arrays of one shape.

    Where |w| and |s w| are small, g is its Taylor series. Else, with r = 1 + s w > 0, g = r (e^d - 1) for
    d = s l - ln r, and the logarithm of r is taken so that nothing cancels near s = 1 or s = 0; with r <= 0 the two
    parts of g have the same sign. ``change`` may be capped where ``loss`` is above 700; -inf where w = 0.
    """
    s, w = power, change
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        small = (np.abs(w) < _SMALL) & (np.abs(s * w) < _SMALL)
        far = loss > 30.0
        # r e^-l = 1 - (s - 1) (e^-l - 1), which is what matters near s = 1
        scaled = 1.0 - (s - 1.0) * np.expm1(-loss)
        log_r = np.where(s > 0.0, loss + np.log1p(-(s - 1.0) * np.expm1(-loss)), np.log1p(s * w))
        gap = np.where(s > 0.0, (s - 1.0) * loss - np.log1p(-(s - 1.0) * np.expm1(-loss)), s * loss - np.log1p(s * w))
        log_gap = np.where(gap > 30.0, gap + np.log1p(-np.exp(-gap)), np.log(np.expm1(np.minimum(gap, 30.0))))
        positive = np.where(s > 0.0, scaled > 0.0, s * w > -1.0)
        # r <= 0: s > 1 and w < 0, or s < 0 and w > 0
        plain = np.log(np.expm1(np.minimum(s * loss, 700.0)) - s * w)
        steep = (
            np.log(np.abs(s))
            + loss
            + np.log1p((np.exp(np.minimum(s * loss, 0.0)) - 1.0 + s) * np.exp(-loss) / np.abs(s))
        )
        result = np.where(positive, log_r + log_gap, np.where((s < 0.0) & far, steep, plain))
    result[small] = _series(s[small], w[small])
    return np.asarray(result, dtype=np.float64)


def _series(s: Floats, w: Floats) -> Floats:
    """ln of sum over j >= 2 of C(s, j) w^j, by Horner's rule; -inf at w = 0."""
    tail = np.ones_like(w)
    for j in range(_TERMS, 2, -1):
        tail = 1.0 + (s - (j - 1.0)) / j * w * tail
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(0.5 * s * (s - 1.0)) + 2.0 * np.log(np.abs(w)) + np.log(tail), dtype=np.float64)
