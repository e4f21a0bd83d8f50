"""Theorem 2: the divergence of a private mechanism after a pre-processing, from its RDP and smooth RDP curves.

With e the RDP, e~ the smooth RDP at tau = moved * changed, for all p, q > 1,

    T1(p) = (a p - 1) / (p (a - 1)) e~(a p) + e((p a - 1) / (p - 1))
    T2(q) = (a q - 1) / (q (a - 1)) e(a q) + e~((q a - 1) / (q - 1)).

The theorem takes the larger of the two. The auxiliary data set between the neighbours can be built either way in both
directions, so that each alone is a bound, and so is the least of either. For lines e = x a and e~ = y a both have the
least value a (sqrt(x) + sqrt(y))^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

#: A divergence as a function of the order, infinite where it is not proved.
Curve: TypeAlias = Callable[[float], float]

#: Nodes of the first grid over ln(p - 1), its ends, and how often it is refined around the best node.
_NODES, _REACH, _ROUNDS = 161, 16.0, 8


class Optimum(NamedTuple):
    """The least value over ``free`` (p or q), and which of T1 and T2 has it."""

    value: float
    free: float
    term: str


def first(rdp: Curve, srdp: Curve, order: float, p: float) -> float:
    """T1(p): the smooth step at order p a, the private one at (p a - 1) / (p - 1)."""
    return _term(srdp, rdp, order, p)


def second(rdp: Curve, srdp: Curve, order: float, q: float) -> float:
    """T2(q): the private step at order q a, the smooth one at (q a - 1) / (q - 1)."""
    return _term(rdp, srdp, order, q)


def as_printed(rdp: Curve, srdp: Curve, order: float, p: float = 2.0, q: float = 2.0) -> float:
    """max(T1(p), T2(q)), as the theorem states it."""
    return max(first(rdp, srdp, order, p), second(rdp, srdp, order, q))


def optimum(rdp: Curve, srdp: Curve, order: float) -> Optimum:
    """The least of T1 and T2 over p and q; infinite where no order that they need is proved."""
    if not order > 1.0:
        raise ValueError(f"order must exceed 1, got {order!r}")
    found = [
        Optimum(*_least(lambda p: first(rdp, srdp, order, p)), "T1"),
        Optimum(*_least(lambda q: second(rdp, srdp, order, q)), "T2"),
    ]
    return min(found, key=lambda o: o.value)


def of_lines(rdp: Curve, srdp: Curve, order: float) -> float:
    """The optimum of two lines that hold up to some order each: in closed form where the orders that it needs are held.

    Elsewhere it is searched for.
    """
    x, y = rdp(1.0 + 1e-9), srdp(1.0 + 1e-9)
    if 0.0 < y < math.inf and 0.0 < x < math.inf:
        for scaled, other, ratio in ((srdp, rdp, x / y), (rdp, srdp, y / x)):
            p = 1.0 + (order - 1.0) / order * math.sqrt(ratio)
            value = _term(scaled, other, order, p)
            if math.isfinite(value):
                return value
    return optimum(rdp, srdp, order).value


def closed_form(rdp_slope: float, srdp_slope: float) -> float:
    """(sqrt(x) + sqrt(y))^2: the slope of the optimum for two lines."""
    return (math.sqrt(rdp_slope) + math.sqrt(srdp_slope)) ** 2


def _term(scaled: Curve, other: Curve, order: float, p: float) -> float:
    return (order * p - 1.0) / (p * (order - 1.0)) * scaled(order * p) + other((p * order - 1.0) / (p - 1.0))


def _least(value: Callable[[float], float]) -> tuple[float, float]:
    """The least value over p > 1 and where it is; the grid is refined around its best node."""
    low, high = -_REACH, _REACH
    best = (math.inf, 2.0)
    for _ in range(_ROUNDS):
        width = (high - low) / (_NODES - 1)
        nodes = [low + i * width for i in range(_NODES)]
        found = min(((value(1.0 + math.exp(x)), x) for x in nodes), key=lambda pair: pair[0])
        if found[0] < best[0]:
            best = (found[0], 1.0 + math.exp(found[1]))
        if not math.isfinite(found[0]):
            break
        low, high = found[1] - width, found[1] + width
    return best
