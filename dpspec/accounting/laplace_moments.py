"""Moments of the likelihood ratio of a sampled Laplace pair, in excess of one, for any real power.

In terms of the loss l of the unsampled pair, r = 1 + w, w = q (e^l - 1), has under Lap(0, b) an atom 1/2 at l = -m, one
of e^-m / 2 at m and the density e^(-(l + m) / 2) / 4 between. As in ``moments``, E[w] = 0 is left out:

    E[r^s] - 1 = E[g(w)],   g(w) = (1 + w)^s - 1 - s w >= 0 for s > 1 and for s < 0.

The integral is by Gauss's rule on panels that shrink towards both ends, where large powers have all of it; panels are
halved until two results agree to 5e-13.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from dpspec.accounting.checks import Floats
from dpspec.accounting.excess import log_excess_power

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS

#: How often the panels next to the ends are halved, and how often all of them are.
_GRADES, _HALVINGS = 44, 6

#: Two results must agree to this, relative to the moment or to its logarithm where that is larger.
_AGREE = 5e-13


def log_excess(power: float, rate: float, effect: float) -> float:
    """ln(E[r^s] - 1) for the power s > 1 or s < 0; -inf where it is 0 in float64.

    rate: 0 < q <= 1; effect: m = sensitivity / scale >= 0. Raises ``ArithmeticError`` where panels do not settle.
    """
    if effect == 0.0:
        return -math.inf
    ends = np.array([-effect, effect])
    atoms = _log_gain(power, rate, ends) + np.array([0.0, -effect]) - math.log(2.0)
    near = np.concatenate(([0.0], 0.5 ** np.arange(_GRADES, -1.0, -1.0)))
    panels = effect * np.unique(np.concatenate((near - 1.0, 1.0 - near)))
    last = math.nan
    for _ in range(_HALVINGS):
        width = np.diff(panels)
        l = panels[:-1, None] + width[:, None] * _NODES  # noqa: E741
        with np.errstate(divide="ignore"):
            logs = _log_gain(power, rate, l.ravel()) + np.log((width[:, None] * _WEIGHTS).ravel())
        inner = float(logsumexp(logs - 0.5 * (l.ravel() + effect))) - math.log(4.0)
        found = float(logsumexp(np.append(atoms, inner)))
        if found == last or abs(found - last) <= _AGREE * max(1.0, found):
            return found
        last = found
        panels = np.sort(np.concatenate((panels, panels[:-1] + 0.5 * width)))
    raise ArithmeticError(f"the moment of order {power:g} needs too many points for an effect of {effect:g}")


def _log_gain(power: float, rate: float, l: Floats) -> Floats:  # noqa: E741
    """ln g(w) at w = q (e^l - 1)."""
    change = rate * np.expm1(np.minimum(l, 700.0))
    with np.errstate(divide="ignore"):
        plain = np.log((1.0 - rate) + rate * np.exp(np.minimum(l, 0.0)))
    loss = np.where(change < -0.5, plain, np.log1p(np.maximum(change, -0.5)))
    loss = l if rate == 1.0 else np.where(l > 30.0, l + np.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-l)), loss)
    return log_excess_power(np.full(l.shape, power), loss, change)
