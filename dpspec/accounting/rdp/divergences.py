"""Renyi differential privacy: divergences of one step, their sum over steps, and groups.

D_a(P || Q) = ln E_Q[(P/Q)^a] / (a - 1) for an order a > 1. Present-first is D_a(with || without), absent-first the
other way round. All functions are vectorised, work in log space and evaluate proved formulas in float64: the relative
error of a divergence is below 1e-11 where it is tiny and below 1e-12 elsewhere, on either side.

>>> step = Mixture.poisson(1, 0.01, 1.0)
>>> total = composed_rdp([(step, 2000)], [4.0, 8.0])  # two divergences, of all 2000 steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.laplace import Laplace
from dpspec.accounting.mixture.masses import log_binomial
from dpspec.accounting.mixture.mixture import Mixture
from dpspec.accounting.numerics.floats import Directions, Floats, directions, whole
from dpspec.accounting.rdp.moments import log_gaussian_excess, log_laplace_excess

#: Renyi divergences as a function of orders, same shape.
Curve: TypeAlias = Callable[[Floats], Floats]


def checked_orders(orders: npt.ArrayLike) -> Floats:
    """``orders`` as an array. Raises ``ValueError`` unless all are finite and above 1."""
    array = np.asarray(orders, dtype=np.float64)
    if not np.all((array > 1.0) & np.isfinite(array)):
        raise ValueError("orders must be finite and above 1")
    return array


def gaussian_rdp(orders: npt.ArrayLike, effect: npt.ArrayLike) -> Floats:
    """a effect^2 / 2: the Gaussian mechanism of sensitivity / sigma = ``effect`` >= 0, in either direction.

    Mironov 2017, Proposition 7. Arrays broadcast.
    """
    return np.asarray(0.5 * checked_orders(orders) * np.square(_effects(effect)), dtype=np.float64)


def laplace_rdp(orders: npt.ArrayLike, effect: npt.ArrayLike) -> Floats:
    """The Laplace mechanism of sensitivity / scale = ``effect`` s >= 0, in either direction; arrays broadcast.

    ln[a / (2a - 1) e^((a - 1) s) + (a - 1) / (2a - 1) e^(-a s)] / (a - 1) (Mironov 2017, Proposition 6). The bracket
    exceeds one by a / (2a - 1) f((a - 1) s) + (a - 1) / (2a - 1) f(-a s), f(x) = e^x - 1 - x: linear parts cancel.
    """
    a, s = np.broadcast_arrays(checked_orders(orders), _effects(effect))
    below = a - 1.0
    with np.errstate(divide="ignore"):
        up = np.log(a / (a + below)) + _log_exp_gap(below * s)
        down = np.log(below / (a + below)) + _log_exp_gap(-a * s)
    return np.asarray(np.logaddexp(0.0, np.logaddexp(up, down)) / below, dtype=np.float64)


def sampled_gaussian_rdp(
    orders: npt.ArrayLike, rate: npt.ArrayLike, sigma: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """One step of the Gaussian mechanism on a Poisson sample, sensitivity 1; any real orders > 1; arrays broadcast.

    rate: 0 < q <= 1; sigma: the noise's deviation, above 0. With r(z) = 1 - q + q e^(z / sigma - 1 / (2 sigma^2)) and z
    standard normal, present-first is ln E[r(z)^a] / (a - 1), absent-first ln E[r(z)^(1 - a)] / (a - 1). ``both`` is the
    first, which is never less (Mironov, Talwar and Zhang 2019, Theorem 5).
    """
    a, q, sd = np.broadcast_arrays(checked_orders(orders), _rates(rate), _sigmas(sigma))
    present = "present-first" in directions(direction)
    shifts = np.zeros((a.size, 2))
    shifts[:, 1] = 1.0 / sd.ravel()
    with np.errstate(divide="ignore"):
        logs = np.stack((np.log1p(-q.ravel()), np.log(q.ravel())), axis=1)
    flat = a.ravel()
    values = np.empty(flat.shape)
    full = q.ravel() == 1.0
    values[full] = 0.5 * flat[full] * np.square(shifts[full, 1])
    powers = flat if present else 1.0 - flat
    values[~full] = _divergence(flat[~full], log_gaussian_excess(powers[~full], shifts[~full], logs[~full]))
    return values.reshape(a.shape)


def sampled_gaussian_integer_rdp(orders: npt.ArrayLike, rate: float, sigma: npt.ArrayLike) -> Floats:
    """The closed form of ``sampled_gaussian_rdp``, present-first, at integer orders; orders and sigma broadcast.

    ln sum_k C(a, k) (1 - q)^(a - k) q^k e^(k (k - 1) / (2 sigma^2)) / (a - 1) (Mironov, Talwar and Zhang 2019, 3.3),
    with e^x replaced by e^x - 1, which leaves out exactly the one that the weights sum to. a + 1 terms for order a.
    """
    a, sd = np.broadcast_arrays(checked_orders(orders), _sigmas(sigma))
    q = float(_rates(rate))
    if np.any(a != np.floor(a)):
        raise ValueError("orders must be integers here")
    if q == 1.0:
        return gaussian_rdp(a, 1.0 / sd)
    result = np.empty(a.shape)
    for order in np.unique(a):
        chosen = a == order
        weights = _log_weights(int(order), q)
        count = np.arange(len(weights))
        growth = 0.5 * count * (count - 1.0) / np.square(sd[chosen])[:, None]
        with np.errstate(divide="ignore"):
            logs = growth + np.log(-np.expm1(-growth)) + weights
        result[chosen] = _divergence(a[chosen], np.logaddexp.reduce(logs, axis=1))
    return result


@lru_cache(maxsize=4096)
def _log_weights(order: int, rate: float) -> Floats:
    """Those of ``log_binomial``, asked for again at every noise that shares a rate; nobody may write to them."""
    weights = log_binomial(order, rate)
    weights.flags.writeable = False
    return weights


def sampled_laplace_rdp(
    orders: npt.ArrayLike, rate: npt.ArrayLike, effect: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """One step of the Laplace mechanism on a Poisson sample, any real orders > 1; arrays broadcast.

    rate: 0 < q <= 1; effect: sensitivity / scale >= 0. With the loss l of the unsampled pair under Lap(0, 1) and r(l) =
    1 - q + q e^l, present-first is ln E[r^a] / (a - 1), absent-first ln E[r^(1 - a)] / (a - 1); ``both`` is the worse.
    """
    a, q, m = np.broadcast_arrays(checked_orders(orders), _rates(rate), _effects(effect))
    worst = np.zeros(a.shape)
    for side in directions(direction):
        powers = a.ravel() if side == "present-first" else 1.0 - a.ravel()
        each = zip(powers.tolist(), q.ravel().tolist(), m.ravel().tolist(), strict=True)
        excess = np.array([log_laplace_excess(*values) for values in each])
        worst = np.maximum(worst, _divergence(a.ravel(), excess).reshape(a.shape))
    return worst


def composed_rdp(
    phases: Sequence[tuple[Mixture | Laplace, int]], orders: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """The sum over ``phases`` of (pair, steps): RDP composes by adding (Mironov 2017, Proposition 1), also adaptively.

    ``both`` is the worse of the two sums: all members of a group are added or all are removed.
    """
    a = checked_orders(orders)
    total = np.zeros(a.shape)
    for side in directions(direction):
        powers = a.ravel() if side == "present-first" else 1.0 - a.ravel()
        one_side = np.zeros(a.shape)
        for mixture, steps in phases:
            count = whole("steps", steps, 1)
            if isinstance(mixture, Laplace):
                one_side += count * sampled_laplace_rdp(a, mixture.rate, mixture.edge, side)
                continue
            if mixture.effect is not None:
                one_side += count * gaussian_rdp(a, mixture.effect)
                continue
            shape = (a.size, len(mixture.sensitivities))
            shifts = np.broadcast_to(mixture.sensitivities / mixture.sigma, shape)
            logs = np.broadcast_to(mixture.log_probabilities, shape)
            one_side += count * _divergence(a.ravel(), log_gaussian_excess(powers, shifts, logs)).reshape(a.shape)
        total = np.maximum(total, one_side)
    return total


def _divergence(orders: Floats, log_moment_excess: Floats) -> Floats:
    """ln(1 + excess) / (a - 1)."""
    return np.asarray(np.logaddexp(0.0, log_moment_excess) / (orders - 1.0), dtype=np.float64)


def _log_exp_gap(x: Floats) -> Floats:
    """ln(e^x - 1 - x), by its series where x is small; -inf at 0."""
    small = np.abs(x) < 0.1
    y = np.where(small, x, 0.0)
    tail = np.ones_like(y)
    for j in range(12, 2, -1):
        tail = 1.0 + y / j * tail
    with np.errstate(divide="ignore", invalid="ignore"):
        series = 2.0 * np.log(np.abs(y)) - math.log(2.0) + np.log(tail)
        far = x + np.log1p(-(1.0 + x) * np.exp(-np.maximum(x, 1.0)))
        direct = np.log(np.expm1(np.minimum(x, 30.0)) - x)
    return np.asarray(np.where(small, series, np.where(x > 30.0, far, direct)), dtype=np.float64)


def _effects(values: npt.ArrayLike, name: str = "effect") -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & np.isfinite(array)):
        raise ValueError(f"{name} must be finite and not negative")
    return array


def _rates(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array > 0.0) & (array <= 1.0)):
        raise ValueError("rate must be above 0 and at most 1")
    return array


def _sigmas(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array > 0.0) & np.isfinite(array)):
        raise ValueError("sigma must be finite and above 0")
    return array
