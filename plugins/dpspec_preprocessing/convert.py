"""From the pipeline's divergences to epsilon at a delta, per mode.

Gaussian noise is converted exactly: the pipeline of a Gaussian mechanism, and of noisy full gradients, is mu-GDP with
mu = noise sqrt-sum of shifts, since in every step the released mean moves by its own sensitivity and by the smooth
share at most. All else is converted from its Renyi curve over orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpspec_preprocessing import private, totals
from dpspec_preprocessing.private import Private

#: Orders searched for curves that have no closed conversion.
_ORDERS = tuple(1.0 + 10.0 ** (k / 8.0) for k in range(-8, 24))


def mu(m: Private, tau: float) -> float | None:
    """mu of the whole pipeline at distance ``tau``, for Gaussian noise without sampling; None elsewhere."""
    if m.kind not in ("gaussian", "dp-gd"):
        return None
    shared = private.srdp_slope(m, tau) if tau > 0.0 else 0.0
    return math.sqrt(2.0 * private.rdp_slope(m)) + math.sqrt(2.0 * shared)


def least_mu(m: Private, tau: float | None, changed: float) -> float | None:
    """The smaller of that and of group privacy for changed + 1 records."""
    alone = mu(m, 0.0)
    if alone is None:
        return None
    by_group = alone * min(m.records, math.floor(changed) + 1)
    whole = mu(m, tau) if tau is not None and math.isfinite(tau) else None
    return by_group if whole is None else min(whole, by_group)


def certified(m: Private, tau: float | None, changed: float, delta: float) -> float:
    """The least epsilon that can be proved at ``delta``; the least of pure, exact and Renyi conversions that apply."""
    effect = least_mu(m, tau, changed)
    if effect is not None:
        return gaussian_epsilon(effect, delta)
    found = from_curve(lambda order: totals.least(m, order, tau, changed), delta)
    limit = pure(m, tau, changed)
    return found if limit is None else min(found, limit)


def pure(m: Private, tau: float | None, changed: float) -> float | None:
    """The pure epsilon of the pipeline, where the mechanism has one."""
    if m.kind not in ("laplace", "exponential"):
        return None
    by_group = m.noise * min(m.records, math.floor(changed) + 1)
    return by_group if tau is None else min(by_group, m.noise * (1.0 + m.reach * tau))


def gaussian_epsilon(effect: float, delta: float) -> float:
    """The upper end of epsilon at ``delta`` of a Gaussian pair of effect mu."""
    from dpspec.accounting.gaussian import epsilon_interval

    return 0.0 if effect == 0.0 else epsilon_interval(math.log(delta), effect).upper


def from_line(slope: float, delta: float) -> float:
    """slope + 2 sqrt(slope ln(1 / delta)): the classical conversion of D(a) = slope a."""
    from dpspec.accounting.convert import zcdp_epsilon

    return zcdp_epsilon(slope, delta, "mironov")


def from_curve(
    curve: Callable[[float], float], delta: float, *, lowest: float = 1.0, conversion: str = "improved"
) -> float:
    """The least epsilon at ``delta`` over a grid of orders from ``lowest`` on, refined once around the best.

    Every order gives a true bound, so that a coarse search is only looser.
    """
    from dpspec.accounting.convert import best_epsilon

    orders = np.array([order for order in _ORDERS if order >= lowest] or [max(lowest, _ORDERS[0])])
    if lowest > 1.0:
        orders = np.unique(np.append(orders, lowest))
    value, at, _ = best_epsilon(orders, [_number(curve(a)) for a in orders], delta, conversion)  # type: ignore[arg-type]
    place = int(np.argmin(np.abs(orders - at)))
    low, high = orders[max(0, place - 1)], orders[min(len(orders) - 1, place + 1)]
    finer = np.unique(np.clip(np.geomspace(low - 1.0, high - 1.0, 41) + 1.0, max(low, lowest), high))
    refined = best_epsilon(finer, [_number(curve(a)) for a in finer], delta, conversion)  # type: ignore[arg-type]
    return min(value, refined.epsilon)


def _number(value: float) -> float:
    """Infinite where a curve says nothing."""
    return math.inf if math.isnan(value) else value
