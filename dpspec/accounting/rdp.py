"""Renyi differential privacy: divergences of steps, their conversion to (epsilon, delta), and selection.

D_a(P || Q) = ln E_Q[(P/Q)^a] / (a - 1) for an order a > 1; present-first is D_a(with || without). The relative error of
a divergence is below 1e-12, or below 1e-11 if it is tiny.

>>> step = Mixture.poisson(1, 0.01, 1.0)
>>> total = composed_rdp([(step, 2000)], [4.0, 8.0])  # two divergences, of all 2000 steps

A divergence D at order a bounds delta at epsilon. With c(a) = (a - 1) ln(a - 1) - a ln a < 0,

    Mironov 2017, Proposition 3:           ln delta <= (a - 1) (D - epsilon)
    Canonne, Kamath and Steinke 2020,      ln delta <= (a - 1) (D - epsilon) + c(a)
      Proposition 12; Balle et al. 2020, Theorem 21

Results err upwards: 4e-12 of the divergence and the rounding of the other terms are added. ``selection_rdp`` is the
divergence of the best of a random number of tries (``docs/explanation/proofs/selection.md``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.densities import log_binomial
from dpspec.accounting.laplace import Laplace
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.moments import log_gaussian_excess, log_laplace_excess
from dpspec.accounting.numerics import (
    EPS,
    LARGEST_EFFECT,
    SMALLEST_EFFECT,
    AnyDirection,
    Directions,
    Floats,
    bisect,
    directions,
    finite,
    inside,
    whole,
)
from dpspec.renames import old_arguments

#: Renyi divergences as a function of orders, same shape.
Curve: TypeAlias = Callable[[Floats], Floats]


def checked_orders(orders: npt.ArrayLike) -> Floats:
    """``orders`` as an array. Raises ``ValueError`` unless each is above 1 and at most 1e100."""
    array = np.asarray(orders, dtype=np.float64)
    if not np.all((array > 1.0) & (array <= LARGEST_EFFECT)):
        raise ValueError("orders must be above 1 and at most 1e100")
    return array


def gaussian_rdp(orders: npt.ArrayLike, effect: npt.ArrayLike) -> Floats:
    """a effect^2 / 2: the Gaussian mechanism of sensitivity / sigma = ``effect`` >= 0, in either direction.

    Mironov 2017, Proposition 7. Arrays broadcast.
    """
    return np.asarray(0.5 * checked_orders(orders) * np.square(_numbers("effect", effect)), dtype=np.float64)


def laplace_rdp(orders: npt.ArrayLike, effect: npt.ArrayLike) -> Floats:
    """The Laplace mechanism of sensitivity / scale = ``effect`` s >= 0, in either direction; arrays broadcast.

    ln[a / (2a - 1) e^((a - 1) s) + (a - 1) / (2a - 1) e^(-a s)] / (a - 1) (Mironov 2017, Proposition 6), as its
    excess over one, in which linear parts cancel.
    """
    a, s = np.broadcast_arrays(checked_orders(orders), _numbers("effect", effect))
    below = a - 1.0
    with np.errstate(divide="ignore"):
        up = np.log(a / (a + below)) + _log_exp_gap(below * s)
        down = np.log(below / (a + below)) + _log_exp_gap(-a * s)
    return np.asarray(np.logaddexp(0.0, np.logaddexp(up, down)) / below, dtype=np.float64)


@old_arguments("dpspec.accounting.sampled_gaussian_rdp")
def sampled_gaussian_rdp(
    orders: npt.ArrayLike, rate: npt.ArrayLike, noise_multiplier: npt.ArrayLike, direction: AnyDirection = "both"
) -> Floats:
    """One step of the Gaussian mechanism on a Poisson sample, sensitivity 1; arrays broadcast.

    With r(z) = 1 - q + q e^(z / sigma - 1 / (2 sigma^2)) and z standard normal, present-first is ln E[r(z)^a] / (a
    - 1), absent-first ln E[r(z)^(1 - a)] / (a - 1). ``both`` is the first (Mironov, Talwar and Zhang 2019, Theorem
    5).

    Args: orders: any real numbers above 1. rate: 0 < q <= 1. noise_multiplier: sigma, the noise's standard deviation,
    above 0. direction: of the divergence.
    """
    noise = _numbers("noise_multiplier", noise_multiplier)
    a, q, sd = np.broadcast_arrays(checked_orders(orders), _numbers("rate", rate), noise)
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


@old_arguments("dpspec.accounting.sampled_gaussian_integer_rdp")
def sampled_gaussian_integer_rdp(orders: npt.ArrayLike, rate: float, noise_multiplier: npt.ArrayLike) -> Floats:
    """The closed form of ``sampled_gaussian_rdp``, present-first, at integer orders; orders and noise broadcast.

    ln sum_k C(a, k) (1 - q)^(a - k) q^k e^(k (k - 1) / (2 sigma^2)) / (a - 1) (Mironov, Talwar and Zhang 2019,
    3.3), with e^x replaced by e^x - 1, which omits exactly the one that the weights sum to.
    """
    a, sd = np.broadcast_arrays(checked_orders(orders), _numbers("noise_multiplier", noise_multiplier))
    q = float(_numbers("rate", rate))
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


@lru_cache(maxsize=4096)  # every noise level of a rate needs the same weights
def _log_weights(order: int, rate: float) -> Floats:
    weights = log_binomial(order, rate)
    weights.flags.writeable = False
    return weights


def sampled_laplace_rdp(
    orders: npt.ArrayLike, rate: npt.ArrayLike, effect: npt.ArrayLike, direction: Directions = "both"
) -> Floats:
    """One step of the Laplace mechanism on a Poisson sample; arrays broadcast.

    With the loss l of the unsampled pair under Lap(0, 1) and r(l) = 1 - q + q e^l, present-first is
    ln E[r^a] / (a - 1), absent-first ln E[r^(1 - a)] / (a - 1); ``both`` is the worse.

    Args:
        orders: any real numbers above 1.
        rate: 0 < q <= 1.
        effect: sensitivity / scale, at least 0.
        direction: of the divergence.
    """
    a, q, m = np.broadcast_arrays(checked_orders(orders), _numbers("rate", rate), _numbers("effect", effect))
    worst = np.zeros(a.shape)
    for side in directions(direction):
        powers = a.ravel() if side == "present-first" else 1.0 - a.ravel()
        arguments = zip(powers.tolist(), q.ravel().tolist(), m.ravel().tolist(), strict=True)
        excess = np.array([log_laplace_excess(*values) for values in arguments])
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
            shifts = np.broadcast_to(mixture.sensitivities / mixture.noise_multiplier, shape)
            logs = np.broadcast_to(mixture.log_probabilities, shape)
            one_side += count * _divergence(a.ravel(), log_gaussian_excess(powers, shifts, logs)).reshape(a.shape)
        total = np.maximum(total, one_side)
    return total


def _divergence(orders: Floats, log_moment_excess: Floats) -> Floats:
    """ln(1 + excess) / (a - 1)."""
    return np.asarray(np.logaddexp(0.0, log_moment_excess) / (orders - 1.0), dtype=np.float64)


def _log_exp_gap(x: Floats) -> Floats:
    """ln(e^x - 1 - x), by its series if x is small; -inf at 0."""
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


def _numbers(name: Literal["effect", "rate", "noise_multiplier"], values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if name == "effect" and not np.all((array == 0.0) | ((array >= SMALLEST_EFFECT) & (array <= LARGEST_EFFECT))):
        raise ValueError("effect must be 0 or from 1e-100 to 1e100")
    if name == "rate" and not np.all((array > 0.0) & (array <= 1.0)):
        raise ValueError("rate must be above 0 and at most 1")
    if name == "noise_multiplier" and not np.all((array >= SMALLEST_EFFECT) & (array <= LARGEST_EFFECT)):
        raise ValueError("noise_multiplier must be from 1e-100 to 1e100")
    return array


#: Which inequality turns a divergence into (epsilon, delta).
Conversion: TypeAlias = Literal["improved", "mironov"]

#: Relative error of a divergence that is charged to the result.
_SLACK = 4e-12


class Best(NamedTuple):
    """The smallest value over orders, the order that gives it, and whether that is the first or last order searched.

    If ``at_edge``, orders outside the search could give a smaller value; this one is valid in any case.
    """

    value: float
    order: float
    at_edge: bool


class BestEpsilon(NamedTuple):
    """The smallest epsilon over orders; see ``Best``. An epsilon of 0 is never at the edge."""

    epsilon: float
    order: float
    at_edge: bool


def epsilon_at_orders(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: npt.ArrayLike, conversion: Conversion = "improved"
) -> Floats:
    """Epsilon >= 0 at ``delta`` in (0, 1) from the divergence ``rdp`` at each of ``orders``; arrays broadcast.

    With the improved conversion 0 also where delta >= sqrt(1 - e^-D), which bounds the total variation (Bretagnolle
    and Huber).
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
    if not np.all(np.abs(eps) <= LARGEST_EFFECT):
        raise ValueError("epsilon must be from -1e100 to 1e100")
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
    """The smallest epsilon at ``delta`` over ``orders`` and their divergences, both (n,); these may be infinite.

    The cost of the conversions, for one Gaussian step whose epsilon is 4.378 by its exact profile:

    >>> orders = np.arange(1.01, 64.0, 0.01)
    >>> rdp = gaussian_rdp(orders, 1.0)
    >>> [f"{best_epsilon(orders, rdp, 1e-5, name).epsilon:.2f}" for name in ("improved", "mironov")]
    ['4.73', '5.30']
    """
    target = inside("delta", delta)
    best = _smallest(orders, rdp, lambda a, d: epsilon_at_orders(a, d, target, conversion))
    return BestEpsilon(best.value, best.order, best.at_edge and best.value > 0.0)


def best_log_delta(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float, conversion: Conversion = "improved"
) -> Best:
    """The smallest ln delta at ``epsilon`` over ``orders`` and their divergences, both (n,)."""
    eps = finite("epsilon", epsilon)
    return _smallest(orders, rdp, lambda a, d: log_delta_at_orders(a, d, eps, conversion))


def _gain(a: Floats, conversion: str) -> tuple[Floats, Floats]:
    """c(a), or 0 for Mironov's, and the size of its terms."""
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


def _smallest(orders: npt.ArrayLike, rdp: npt.ArrayLike, bound: Callable[[Floats, Floats], Floats]) -> Best:
    a, d = np.atleast_1d(checked_orders(orders)), np.atleast_1d(_divergences(rdp))
    if a.ndim != 1 or a.size == 0 or a.shape != d.shape:
        raise ValueError(f"orders and rdp must be lists of one length, got shapes {a.shape} and {d.shape}")
    order = np.argsort(a)
    a = a[order]
    values = bound(a, d[order])
    index = int(np.argmin(values))
    return Best(float(values[index]), float(a[index]), index in (0, len(a) - 1))


#: Distributions of the number of tries.
Law: TypeAlias = Literal["truncated-negative-binomial", "geometric", "logarithmic", "poisson"]

#: The shape eta of named truncated negative binomial distributions.
_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}

#: Default orders of divergences: l - 1 in steps of a sixteenth of a decade.
SELECTION_ORDERS: tuple[float, ...] = tuple(1.0 + 10.0 ** (i / 16.0) for i in range(-32, 65))

#: Rounding charged to ln of a mean.
_SELECTION_SLACK = 1e-12


@dataclass(frozen=True)
class Tries:
    """The distribution of the number of tries.

    Args:
        law: its name.
        mean: above 0 for Poisson, at least 1 for others.
        eta: the shape of truncated-negative-binomial, above -1; None for others.
    """

    law: Law
    mean: float
    eta: float | None = None

    def __post_init__(self) -> None:
        if self.law not in (*_SHAPES, "truncated-negative-binomial", "poisson"):
            raise ValueError(f"law must be a law of the number of tries, got {self.law!r}")
        bottom = 0.0 if self.law == "poisson" else 1.0
        if not (bottom < self.mean < math.inf or self.mean == bottom == 1.0):
            raise ValueError(f"mean must be {'above 0' if bottom == 0.0 else 'at least 1'}, got {self.mean!r}")
        if (self.eta is not None) != (self.law == "truncated-negative-binomial"):
            raise ValueError("eta belongs to truncated-negative-binomial, which needs one")
        if self.eta is not None and not -1.0 < self.eta < math.inf:
            raise ValueError(f"eta must be above -1, got {self.eta!r}")

    @property
    def shape(self) -> float | None:
        """eta of a truncated negative binomial; None for Poisson."""
        return self.eta if self.eta is not None else _SHAPES.get(self.law)

    @property
    def log_inverse_gamma(self) -> float:
        """ln(1 / gamma) >= 0 of a truncated negative binomial with this mean, rounded up.

        With t = ln(1 / gamma) the mean is eta (e^t - 1) / (1 - e^(-eta t)), for eta 0 (e^t - 1) / t, and grows with t.

        Raises:
            ValueError: for Poisson.
        """
        shape = self.shape
        if shape is None:
            raise ValueError("a Poisson law has no gamma")
        if self.mean == 1.0:
            return 0.0
        target, high = math.log(self.mean) + _SELECTION_SLACK, 1.0
        while _log_mean(high, shape) < target:
            high *= 2.0
        return bisect(lambda t: _log_mean(t, shape) >= target, high, 0.0)[0]


def _log_mean(t: float, eta: float) -> float:
    """ln of the mean at t = ln(1 / gamma) > 0."""
    if abs(eta) * t < 1e-9:  # (1 - e^(-eta t)) / eta is t, to 1e-9 of itself; rounded to the side of a larger t
        return _log_expm1(t) - math.log(t) - abs(eta) * t
    below = math.log(-math.expm1(-eta * t)) if eta > 0.0 else _log_expm1(-eta * t)
    return math.log(abs(eta)) + _log_expm1(t) - below


def _log_expm1(x: float) -> float:
    """ln(e^x - 1), x > 0."""
    return math.log(math.expm1(x)) if x < 1.0 else x + math.log1p(-math.exp(-x))


def selection_rdp(orders: npt.ArrayLike, rdp: npt.ArrayLike, tries: Tries) -> Floats:
    """The divergence at each of ``orders`` (n,) of the best of a random number of tries.

    Theorem 9 of ``docs/explanation/proofs/selection.md`` in float64; the conversions charge its rounding.

    Args: orders: of the divergences; a finer table gives smaller values. rdp: the divergence of one try at these
    orders, (n,), in both directions; infinite if unknown. tries: the distribution of the number of tries.
    """
    a, d = checked_orders(orders), _divergences(rdp)
    if a.ndim != 1 or a.shape != d.shape or not a.size:
        raise ValueError("orders and rdp must be lists of one length, at least 1")
    if tries.shape is None:  # Poisson
        log_ratio = -np.log1p(-1.0 / a)  # ln(a / (a - 1)), and rounded down
        log_deltas = np.array([best_log_delta(a, d, epsilon).value for epsilon in (log_ratio * (1.0 - 1e-12)).tolist()])
        grown = math.log(tries.mean) + (a - 1.0) * (d + tries.mean * np.exp(log_deltas))
        return np.asarray(np.maximum(np.logaddexp(-tries.mean, grown), 0.0) / (a - 1.0), dtype=np.float64)
    t, shape_plus_one = tries.log_inverse_gamma, 1.0 + tries.shape
    # Order 1 as well, with the first term 0 for any divergence.
    overhead = min(t, float(np.min((1.0 - 1.0 / a) * d + t / a)))
    return np.asarray(d + shape_plus_one * overhead + math.log(tries.mean) / (a - 1.0), dtype=np.float64)


def drawn_cell_rdp(orders: npt.ArrayLike, cells: npt.ArrayLike) -> Floats:
    """The divergence at each of ``orders`` (n,) of running one of the cells, drawn uniformly; ``cells`` (k, n)."""
    a, d = checked_orders(orders), np.asarray(cells, dtype=np.float64)
    if d.ndim != 2 or not len(d) or d.shape[1:] != a.shape:
        raise ValueError("cells must have a row for each cell and a column for each order")
    below = a - 1.0
    mean = np.logaddexp.reduce(below * d, axis=0) - math.log(len(d))
    return np.asarray(np.clip(mean / below, d.min(axis=0), d.max(axis=0)), dtype=np.float64)
