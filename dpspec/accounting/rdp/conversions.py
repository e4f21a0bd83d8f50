"""From Renyi divergences and zero-concentrated DP to (epsilon, delta).

A divergence D at order a > 1 bounds delta at epsilon. With c(a) = (a - 1) ln(a - 1) - a ln a,

    Mironov 2017, Proposition 3:           ln delta <= (a - 1) (D - epsilon)
    Canonne, Kamath and Steinke 2020,      ln delta <= (a - 1) (D - epsilon) + c(a)
      Proposition 12; Balle et al. 2020, Theorem 21

and the second is always the smaller, c(a) < 0. Every order gives a true bound, so the least over any orders does. As
(a - 1) D and c are convex in a, the least over orders of epsilon, or of delta, has no other local minimum: refining a
grid around its best node finds it. Results err upwards: 4e-12 of the divergence and the rounding of the other terms
are added, more than the error that the divergences of ``divergences`` have.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics.floats import EPS, Floats, finite, inside
from dpspec.accounting.rdp.divergences import Curve, checked_orders

#: Which inequality turns a divergence into (epsilon, delta).
Conversion: TypeAlias = Literal["improved", "mironov"]

#: Relative error of a divergence that is charged to the result.
_SLACK = 4e-12

#: Orders searched when none are given, the nodes of the first grid and of each refinement, and how many of those.
_LOWEST, _HIGHEST = 1.0 + 1e-4, 1e5
_NODES, _FINER, _ROUNDS = 46, 21, 5


class Best(NamedTuple):
    """The least value over orders, the order that gives it, and whether that is the least or largest order searched.

    ``at_edge`` says that orders outside the search could give a smaller value; what is given is valid all the same.
    """

    value: float
    order: float
    at_edge: bool


class BestEpsilon(NamedTuple):
    """The least epsilon over orders; see ``Best``. An epsilon of 0 is never at the edge."""

    epsilon: float
    order: float
    at_edge: bool


def epsilon_at_orders(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: npt.ArrayLike, conversion: Conversion = "improved"
) -> Floats:
    """Epsilon >= 0 at ``delta`` in (0, 1) from the divergence ``rdp`` at each of ``orders``; arrays broadcast.

    Improved: D + ln((a - 1) / a) - (ln delta + ln a) / (a - 1); Mironov: D + ln(1 / delta) / (a - 1). With the improved
    one 0 also where delta >= sqrt(1 - e^-D), which bounds the total variation distance (Bretagnolle and Huber).
    """
    target = np.asarray(delta, dtype=np.float64)
    if not np.all((target > 0.0) & (target < 1.0)):
        raise ValueError("delta must be above 0 and below 1")
    a, d, log_delta = np.broadcast_arrays(checked_orders(orders), _divergences(rdp), np.log(target))
    gain, size = _gain(a, conversion)
    with np.errstate(invalid="ignore"):
        value = d + (gain - log_delta) / (a - 1.0)
        value = value + _SLACK * d + 8.0 * EPS * (size - log_delta) / (a - 1.0)
    if conversion == "improved":
        value = np.where(-np.expm1(-d * (1.0 + _SLACK)) <= np.exp(2.0 * log_delta) * (1.0 - 1e-14), 0.0, value)
    return np.asarray(np.maximum(value, 0.0), dtype=np.float64)


def log_delta_at_orders(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: npt.ArrayLike, conversion: Conversion = "improved"
) -> Floats:
    """ln delta <= 0 at any finite ``epsilon`` from the divergence ``rdp`` at each of ``orders``; arrays broadcast."""
    eps = np.asarray(epsilon, dtype=np.float64)
    if not np.all(np.isfinite(eps)):
        raise ValueError("epsilon must be finite")
    a, d, eps = np.broadcast_arrays(checked_orders(orders), _divergences(rdp), eps)
    gain, size = _gain(a, conversion)
    value = (a - 1.0) * (d - eps) + gain
    value = value + (a - 1.0) * (_SLACK * d + 4.0 * EPS * np.abs(eps)) + 8.0 * EPS * size
    if conversion == "improved":
        with np.errstate(divide="ignore"):
            variation = 0.5 * np.log(-np.expm1(-d * (1.0 + _SLACK))) + 1e-14
        value = np.where(eps >= 0.0, np.minimum(value, variation), value)
    return np.asarray(np.minimum(value, 0.0), dtype=np.float64)


def best_epsilon(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float, conversion: Conversion = "improved"
) -> BestEpsilon:
    """The least epsilon at ``delta`` over given ``orders`` and their divergences, both (n,), infinite ones included."""
    a, d = _table(orders, rdp)
    return _epsilon(_least(a, epsilon_at_orders(a, d, inside("delta", delta), conversion)))


def optimal_epsilon(
    curve: Curve,
    delta: float,
    *,
    lowest: float = _LOWEST,
    highest: float = _HIGHEST,
    conversion: Conversion = "improved",
) -> BestEpsilon:
    """The least epsilon at ``delta`` over real orders from ``lowest`` to ``highest``; ``curve`` maps orders to D."""
    target = inside("delta", delta)
    return _epsilon(_search(lambda a: epsilon_at_orders(a, curve(a), target, conversion), lowest, highest))


def best_log_delta(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float, conversion: Conversion = "improved"
) -> Best:
    """The least ln delta at ``epsilon`` over given ``orders`` and their divergences, both (n,)."""
    a, d = _table(orders, rdp)
    return _least(a, log_delta_at_orders(a, d, finite("epsilon", epsilon), conversion))


def optimal_log_delta(
    curve: Curve,
    epsilon: float,
    *,
    lowest: float = _LOWEST,
    highest: float = _HIGHEST,
    conversion: Conversion = "improved",
) -> Best:
    """The least ln delta at ``epsilon`` over all real orders from ``lowest`` to ``highest``."""
    eps = finite("epsilon", epsilon)
    return _search(lambda a: log_delta_at_orders(a, curve(a), eps, conversion), lowest, highest)


def zcdp_epsilon(rho: float, delta: float, conversion: Conversion = "improved") -> float:
    """Epsilon at ``delta`` of a rho-zCDP mechanism, D <= rho a at every order.

    Mironov's inequality has the closed form rho + 2 sqrt(rho ln(1 / delta)) (Bun and Steinke 2016, Proposition 1.3);
    the improved one is minimised over orders.
    """
    if not 0.0 <= rho < math.inf:
        raise ValueError(f"rho must be finite and not negative, got {rho!r}")
    target = inside("delta", delta)
    if rho == 0.0:
        return 0.0
    if conversion == "mironov":
        return (rho + 2.0 * math.sqrt(rho * -math.log(target))) * (1.0 + 8.0 * EPS)
    best = 1.0 + math.sqrt(-math.log(target) / rho)  # the order that is best for Mironov's
    low, high = 1.0 + 1e-3 * (best - 1.0), 1.0 + 1e3 * (best - 1.0)
    return optimal_epsilon(lambda a: rho * a, target, lowest=low, highest=high).epsilon


def _gain(a: Floats, conversion: str) -> tuple[Floats, Floats]:
    """c(a), or 0 for Mironov's, and the size of the terms it is made of."""
    if conversion == "mironov":
        return np.zeros_like(a), np.zeros_like(a)
    if conversion != "improved":
        raise ValueError(f"conversion must be improved or mironov, got {conversion!r}")
    first, second = (a - 1.0) * np.log1p(-1.0 / a), -np.log(a)
    return first + second, np.abs(first) + np.abs(second)


def _divergences(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(array >= 0.0):
        raise ValueError("rdp must not be negative")
    return array


def _table(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[Floats, Floats]:
    a, d = np.atleast_1d(checked_orders(orders)), np.atleast_1d(_divergences(rdp))
    if a.ndim != 1 or a.size == 0 or a.shape != d.shape:
        raise ValueError(f"orders and rdp must be lists of one length, got shapes {a.shape} and {d.shape}")
    order = np.argsort(a)
    return a[order], d[order]


def _epsilon(best: Best) -> BestEpsilon:
    return BestEpsilon(best.value, best.order, best.at_edge and best.value > 0.0)


def _least(a: Floats, values: Floats) -> Best:
    index = int(np.argmin(values))
    return Best(float(values[index]), float(a[index]), index in (0, len(a) - 1))


def _search(value: Curve, lowest: float, highest: float) -> Best:
    """The least of a function of orders that falls and then rises."""
    if not 1.0 < lowest < highest < math.inf:
        raise ValueError(f"lowest and highest must satisfy 1 < lowest < highest, got {lowest!r} and {highest!r}")
    ends = np.log(np.array([lowest, highest]) - 1.0)
    grid = np.linspace(ends[0], ends[1], _NODES)
    best = Best(math.inf, highest, True)
    for turn in range(_ROUNDS + 1):
        a = np.clip(1.0 + np.exp(grid), lowest, highest)
        candidate = _least(a, value(a))
        index = int(np.flatnonzero(a == candidate.order)[0])
        outer = candidate.order <= lowest or candidate.order >= highest
        if turn == 0 or candidate.value < best.value:
            best = Best(candidate.value, candidate.order, outer)
        grid = np.linspace(grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)], _FINER)
    return best
