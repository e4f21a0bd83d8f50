"""What choosing the best of a random number of tries costs: Papernot and Steinke 2022, in Renyi divergences.

A number K is drawn from a declared law, K times a mechanism Q is run afresh, and the best of the K outputs is
published, in some order of outputs that both neighbours share. Let f be the generating function of K, q and q' the
laws of Q's output, and D_l the divergence of order l. With X the chance under q of an output below y, ties broken by a
fair coin, and X' that under q', the published law has the density q(y) E f'(X), and by joint convexity (their Lemma 7)

    e^((l - 1) D_l(A || A')) <= P[K = 0] + e^((l - 1) D_l(Q || Q')) max f'(X)^l f'(X')^(1 - l),

where X and X' are the chances of one event, so that they are as near as Q's privacy makes them.

*Truncated negative binomial* (Theorem 2), K >= 1, eta > -1, gamma in (0, 1], f'(x) proportional to
(1 - (1 - gamma) x)^(-eta - 1): for every order m >= 1,

    D_l(A) <= D_l(Q) + (1 + eta) ((1 - 1/m) D_m(Q) + ln(1 / gamma) / m) + ln(E K) / (l - 1).

eta = 1 is the geometric law, eta = 0 the logarithmic one.

*Poisson* of mean mu (Theorem 6): where Q is (ln(l / (l - 1)), d)-DP, the maximum is at most mu e^((l - 1) mu d), and

    D_l(A) <= ln(e^-mu + mu e^((l - 1) (D_l(Q) + mu d))) / (l - 1).

The chance e^-mu that nothing is tried, and nothing but that is published, is counted here. Without it the bound would
be D_l(Q) + mu d + ln(mu) / (l - 1), which for means below 1 can be less than 0.

*Several cells.* Where each try first draws one of n cells uniformly, whatever the data, and shows which,

    D_l(Q) = ln((1 / n) sum_c e^((l - 1) D_l(Q_c))) / (l - 1),

at most the largest of them; not showing it can only lower it.

D_l bounds the divergence in both directions here: Theorem 2 needs D_m in the other one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics.floats import Floats
from dpspec.accounting.rdp.conversions import best_log_delta
from dpspec.accounting.rdp.divergences import checked_orders

#: The laws of the number of tries.
Law: TypeAlias = Literal["truncated-negative-binomial", "geometric", "logarithmic", "poisson"]

#: Those that are truncated negative binomial, with the shape eta that they stand for.
_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}

#: Orders at which divergences are tabled where none are given: l - 1 in steps of a sixteenth of a decade.
SELECTION_ORDERS: tuple[float, ...] = tuple(1.0 + 10.0 ** (i / 16.0) for i in range(-32, 65))

#: What ln of a mean is raised by, for its rounding.
_SLACK = 1e-12

#: Halvings of a bracket, which leave no more than a few floats in it.
_HALVINGS = 200


@dataclass(frozen=True)
class Tries:
    """The distribution of the number of tries. Invalid values raise ``ValueError``.

    The mean is above 0 for Poisson and at least 1 for others; ``truncated-negative-binomial`` has a shape ``eta`` > -1.
    """

    law: Law
    mean: float
    eta: float | None = None

    def __post_init__(self) -> None:
        if self.law not in (*_SHAPES, "truncated-negative-binomial", "poisson"):
            raise ValueError(f"law must be a law of the number of tries, got {self.law!r}")
        least = 0.0 if self.law == "poisson" else 1.0
        if not (least < self.mean < math.inf or self.mean == least == 1.0):
            raise ValueError(f"mean must be {'above 0' if least == 0.0 else 'at least 1'}, got {self.mean!r}")
        if (self.eta is not None) != (self.law == "truncated-negative-binomial"):
            raise ValueError("eta belongs to truncated-negative-binomial, which needs one")
        if self.eta is not None and not -1.0 < self.eta < math.inf:
            raise ValueError(f"eta must be above -1, got {self.eta!r}")

    @property
    def shape(self) -> float | None:
        """eta of the truncated negative binomial that it is; None for Poisson."""
        return self.eta if self.eta is not None else _SHAPES.get(self.law)

    @property
    def log_inverse_gamma(self) -> float:
        """ln(1 / gamma) >= 0 of a truncated negative binomial with this mean, rounded up.

        With t = ln(1 / gamma) the mean is eta (e^t - 1) / (1 - e^(-eta t)), for eta 0 (e^t - 1) / t, and grows with t.
        Raises ``ValueError`` for Poisson.
        """
        if self.shape is None:
            raise ValueError("a Poisson law has no gamma")
        if self.mean == 1.0:
            return 0.0
        target, high = math.log(self.mean) + _SLACK, 1.0
        while _log_mean(high, self.shape) < target:
            high *= 2.0
        low = 0.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _log_mean(middle, self.shape) < target else (low, middle)
        return high


def _log_mean(t: float, eta: float) -> float:
    """ln of the mean at t = ln(1 / gamma) > 0."""
    if abs(eta) * t < 1e-9:  # (1 - e^(-eta t)) / eta is t, to 1e-9 of itself; both are taken on the side of a larger t
        return _log_expm1(t) - math.log(t) - abs(eta) * t
    below = math.log(-math.expm1(-eta * t)) if eta > 0.0 else _log_expm1(-eta * t)
    return math.log(abs(eta)) + _log_expm1(t) - below


def _log_expm1(x: float) -> float:
    """ln(e^x - 1), x > 0."""
    return math.log(math.expm1(x)) if x < 1.0 else x + math.log1p(-math.exp(-x))


def selection_rdp(orders: npt.ArrayLike, rdp: npt.ArrayLike, tries: Tries) -> Floats:
    """The divergence at each of ``orders`` (n,) of the best of a random number of tries; see the module.

    rdp: that of one try at the same orders, (n,), in both directions, and infinite where nothing is known. Each value
    is a bound whatever the table of orders is; a finer table makes it smaller. In float64: the rounding is what
    ``conversions`` charges for.
    """
    a, d = checked_orders(orders), np.asarray(rdp, dtype=np.float64)
    if a.ndim != 1 or a.shape != d.shape or not a.size:
        raise ValueError("orders and rdp must be lists of one length, at least 1")
    if not np.all(d >= 0.0):
        raise ValueError("rdp must not be negative")
    if tries.shape is None:
        return _poisson(a, d, tries.mean)
    t, more = tries.log_inverse_gamma, 1.0 + tries.shape
    # Order 1 as well, where the first term is 0 whatever the divergence.
    overhead = min(t, float(np.min((1.0 - 1.0 / a) * d + t / a)))
    return np.asarray(d + more * overhead + math.log(tries.mean) / (a - 1.0), dtype=np.float64)


def _poisson(a: Floats, d: Floats, mean: float) -> Floats:
    near = -np.log1p(-1.0 / a)  # ln(a / (a - 1)), and rounded down
    log_deltas = np.array([best_log_delta(a, d, epsilon).value for epsilon in (near * (1.0 - 1e-12)).tolist()])
    below = a - 1.0
    grown = math.log(mean) + below * (d + mean * np.exp(log_deltas))
    return np.asarray(np.maximum(np.logaddexp(-mean, grown), 0.0) / below, dtype=np.float64)


def drawn_cell_rdp(orders: npt.ArrayLike, cells: npt.ArrayLike) -> Floats:
    """The divergence at each of ``orders`` (n,) of running one of the cells, drawn uniformly; ``cells`` (k, n)."""
    a, d = checked_orders(orders), np.asarray(cells, dtype=np.float64)
    if d.ndim != 2 or not len(d) or d.shape[1:] != a.shape:
        raise ValueError("cells must have a row for each cell and a column for each order")
    below = a - 1.0
    mean = np.logaddexp.reduce(below * d, axis=0) - math.log(len(d))
    return np.asarray(np.clip(mean / below, d.min(axis=0), d.max(axis=0)), dtype=np.float64)
