"""The bound by way of Renyi divergences, which came first: a baseline, looser than the trade-off curve.

If D_a(present || absent) <= eps_a then gamma <= (kappa e^eps_a)^((a - 1) / a), for every order a > 1 (Balle, Cherubin
and Hayes 2022). Divergences of steps add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpspec.accounting.checks import Floats, inside
from dpspec.accounting.rdp import laplace_rdp, sampled_gaussian_rdp
from dpspec_rero.steps import Steps
from dpspec_rero.table import table

SOURCE = "Balle, Cherubin and Hayes 2022"

#: Orders minus one that are tried first, and how often the best one's surroundings are.
_FIRST, _ROUNDS, _ZOOM = np.geomspace(1e-4, 1e4, 193), 3, 33


def gammas_rdp(kappas: Sequence[float], phases: Sequence[Steps]) -> list[tuple[float, float]]:
    """(gamma, the order that gives it) at each kappa: the least over orders a of (kappa e^eps_a)^((a - 1) / a).

    A proved formula at any order, so the search for the best can only cost tightness. Raises ``ValueError`` naming the
    argument.
    """
    first = _divergences(1.0 + _FIRST, phases)
    return [_least(math.log(inside("kappa", kappa, one=True)), phases, first) for kappa in kappas]


def _least(log_kappa: float, phases: Sequence[Steps], first: Floats) -> tuple[float, float]:
    orders, divergences = 1.0 + _FIRST, first
    for _ in range(_ROUNDS + 1):
        values = (1.0 - 1.0 / orders) * (log_kappa + divergences)
        best = int(np.argmin(values))
        value, order = float(values[best]), float(orders[best])
        low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
        orders = 1.0 + np.geomspace(low - 1.0, high - 1.0, _ZOOM)
        divergences = _divergences(orders, phases)
    return min(1.0, math.exp(min(value, 0.0))), order


def _divergences(orders: Floats, phases: Sequence[Steps]) -> Floats:
    """The sum over all steps of the present-first divergences at ``orders``, same shape."""
    total = np.zeros(orders.shape)
    for phase in phases:
        if phase.effect == 0.0:
            continue
        if phase.noise == "gaussian":
            one = sampled_gaussian_rdp(orders, phase.rate, 1.0 / phase.effect, "present-first")
        elif phase.rate == 1.0:
            one = laplace_rdp(orders, phase.effect)
        else:
            one = np.maximum(table(phase).moment(orders), 0.0) / (orders - 1.0)
        total += phase.count * one
    return total
