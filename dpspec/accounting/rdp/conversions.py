"""From Renyi divergences to (epsilon, delta).

A divergence D at order a > 1 bounds delta at epsilon. With c(a) = (a - 1) ln(a - 1) - a ln a,

    Mironov 2017, Proposition 3:           ln delta <= (a - 1) (D - epsilon)
    Canonne, Kamath and Steinke 2020,      ln delta <= (a - 1) (D - epsilon) + c(a)
      Proposition 12; Balle et al. 2020, Theorem 21

and the second is always the smaller, c(a) < 0. Every order gives a true bound, so the least over any orders does.
Results err upwards: 4e-12 of the divergence and the rounding of the other terms are added, more than the error that the
divergences of ``divergences`` have.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics.floats import EPS, Floats, finite, inside
from dpspec.accounting.rdp.divergences import checked_orders

#: Which inequality turns a divergence into (epsilon, delta).
Conversion: TypeAlias = Literal["improved", "mironov"]

#: Relative error of a divergence that is charged to the result.
_SLACK = 4e-12


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


def best_log_delta(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float, conversion: Conversion = "improved"
) -> Best:
    """The least ln delta at ``epsilon`` over given ``orders`` and their divergences, both (n,)."""
    a, d = _table(orders, rdp)
    return _least(a, log_delta_at_orders(a, d, finite("epsilon", epsilon), conversion))


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
