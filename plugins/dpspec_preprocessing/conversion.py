"""Conversion of a pipeline's divergences to epsilon at a delta.

The pipelines of the Gaussian mechanism and of noisy full gradients are mu-GDP, with mu the sum of the mechanism's own
mu and the mu of the smooth bound: in every step the released mean moves at most by the sensitivity plus the smooth
share. Other mechanisms are converted from their Renyi curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dpspec.accounting import best_epsilon, gaussian
from dpspec_preprocessing import private
from dpspec_preprocessing.private import PrivateMechanism, rdp_slope, srdp_slope

Array: TypeAlias = np.ndarray[Any, Any]


#: Orders of the search for curves without a closed-form conversion.
_ORDERS = tuple(1.0 + 10.0 ** (k / 8.0) for k in range(-8, 24))


def pipeline_mu(m: PrivateMechanism, tau: float) -> float | None:
    """Mu of the pipeline at distance ``tau`` for Gaussian noise without sampling, else None."""
    if m.kind not in ("gaussian", "dp-gd"):
        return None
    shared = srdp_slope(m, tau) if tau > 0.0 else 0.0
    return math.sqrt(2.0 * rdp_slope(m)) + math.sqrt(2.0 * shared)


def repaired_mu(m: PrivateMechanism, tau: float | None, changed: float) -> float | None:
    """Minimum of :func:`pipeline_mu` and the mu of a group of ``changed`` + 1 records; None if not GDP."""
    alone = pipeline_mu(m, 0.0)
    if alone is None:
        return None
    by_group = alone * min(m.records, math.floor(changed) + 1)
    whole = pipeline_mu(m, tau) if tau is not None and math.isfinite(tau) else None
    return by_group if whole is None else min(whole, by_group)


def repaired_epsilon(m: PrivateMechanism, tau: float | None, changed: float, delta: float) -> float:
    mu = repaired_mu(m, tau, changed)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    converted = convert_curve(lambda order: private.repaired_divergence(m, order, tau, changed), delta)
    pure = pure_epsilon(m, tau, changed)
    return converted if pure is None else min(converted, pure)


def pure_epsilon(m: PrivateMechanism, tau: float | None, changed: float) -> float | None:
    """Epsilon of the pipeline at delta = 0, or None for mechanisms without pure DP."""
    if m.kind not in ("laplace", "exponential"):
        return None
    by_group = m.noise * min(m.records, math.floor(changed) + 1)
    return by_group if tau is None else min(by_group, m.noise * (1.0 + m.reach * tau))


def gaussian_epsilon(mu: float, delta: float) -> float:
    return 0.0 if mu == 0.0 else gaussian.epsilon_interval(math.log(delta), mu).upper


def convert_curve(
    curve: Callable[[float], float], delta: float, *, lowest: float = 1.0, conversion: str = "improved"
) -> float:
    """Minimum over a grid of orders, refined once. Every order gives a valid bound: a coarse grid only loosens it."""
    orders = np.array([order for order in _ORDERS if order >= lowest] or [max(lowest, _ORDERS[0])])
    if lowest > 1.0:
        orders = np.unique(np.append(orders, lowest))
    coarse = best_epsilon(orders, _values(curve, orders), delta, conversion)  # type: ignore[arg-type]
    place = int(np.argmin(np.abs(orders - coarse.order)))
    low, high = orders[max(0, place - 1)], orders[min(len(orders) - 1, place + 1)]
    finer = np.unique(np.clip(np.geomspace(low - 1.0, high - 1.0, 41) + 1.0, max(low, lowest), high))
    refined = best_epsilon(finer, _values(curve, finer), delta, conversion)  # type: ignore[arg-type]
    return min(coarse.epsilon, refined.epsilon)


def _values(curve: Callable[[float], float], orders: np.ndarray[Any, Any]) -> list[float]:
    values = [curve(order) for order in orders]
    return [math.inf if math.isnan(value) else value for value in values]
