"""Repaired Renyi curves of the private mechanisms, and of whole pipelines: Theorem 2, and group privacy beside it.

A mechanism is (a, e)-RDP if neighbours diverge by at most e(a) at order a, and (a, e~)-SRDP if data sets whose rows
differ by tau in the sum of their distances diverge by at most e~(a, tau). Both are infinite at orders for which they
are not proved. With e the RDP of the private mechanism, e~ its smooth RDP at tau = moved * changed, for all p, q > 1,

    T1(p) = (a p - 1) / (p (a - 1)) e~(a p) + e((p a - 1) / (p - 1))
    T2(q) = (a q - 1) / (q (a - 1)) e(a q) + e~((q a - 1) / (q - 1)).

The theorem takes the larger of the two. The auxiliary data set between the neighbours can be built either way in both
directions, so that each alone is a bound, and so is the smaller of both. For lines e = x a and e~ = y a both have the
least value a (sqrt(x) + sqrt(y))^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from dpspec_preprocessing.theory.private import PrivateMechanism

#: Orders above this are not evaluated for sampled gradients: the sum has as many terms.
LARGEST_ORDER = 1024


def repaired_rdp(m: PrivateMechanism, order: float) -> float:
    """The RDP at ``order``, for every replaced record; of sgd-sampled at the next whole order, which is never less."""
    e = m.noise
    if m.kind == "gaussian":
        return 0.5 * order * e * e
    if m.kind == "laplace":
        return _laplace(order, e)
    if m.kind == "exponential":
        return e
    if m.kind == "sgd-sampled":
        return at_whole_order(sampled_curve(m), order)
    a = rdp_slope(m)
    if m.kind == "sgd-iterated" and 2.0 * order * (m.lipschitz / m.sigma) ** 2 > 1.0 / (order - 1.0):
        return math.inf
    return a * order


def repaired_srdp(m: PrivateMechanism, order: float, tau: float) -> float:
    """The smooth RDP at ``order`` of every pair of data sets at distance ``tau``, whichever rows differ."""
    moved = m.reach * tau
    if m.kind == "laplace":
        return _laplace(order, m.noise * moved)
    if m.kind == "exponential":
        return m.noise * moved
    if m.kind == "gaussian":
        return 0.5 * order * (m.noise * moved) ** 2
    if m.kind == "sgd-iterated" and 0.5 * order * (m.smooth * tau / m.sigma) ** 2 > 1.0 / (order - 1.0):
        return math.inf
    return srdp_slope(m, tau) * order


def rdp_slope(m: PrivateMechanism) -> float:
    """The repaired RDP divided by the order, for mechanisms whose curve is a line (gaussian, dp-gd, sgd-iterated)."""
    if m.kind == "gaussian":
        return 0.5 * m.noise**2
    if m.kind == "dp-gd":
        return 2.0 * m.steps * (m.lipschitz / (m.records * m.sigma)) ** 2
    return 4.0 * harmonic(m.records) / m.records * (m.lipschitz / m.sigma) ** 2


def srdp_slope(m: PrivateMechanism, tau: float) -> float:
    """The repaired smooth RDP divided by the order.

    For sgd-sampled, which sees one record at a time, ``tau`` is n times the largest displacement of one record.
    """
    shift = m.smooth * tau / m.sigma
    if m.kind == "gaussian":
        return 0.5 * (m.noise * m.reach * tau) ** 2
    if m.kind == "sgd-iterated":
        return harmonic(m.records) / m.records * shift**2
    return 0.5 * m.steps * (shift / m.records) ** 2


@lru_cache(maxsize=16)
def sampled_curve(m: PrivateMechanism, replaced: int = 1) -> list[float]:
    """Divergences of all steps of sgd-sampled, one record a step, at whole orders by index from 2 to LARGEST_ORDER.

    replaced: of how many records; each step draws one of them with probability replaced / n.
    """
    from dpspec_preprocessing.theory.sampled import divergences

    each = divergences(LARGEST_ORDER, min(1.0, replaced / m.records), 2.0 * m.lipschitz / m.sigma)
    return [math.nan, math.nan, *(m.steps * each).tolist()]


def at_whole_order(curve: list[float], order: float) -> float:
    """A curve at the next whole order, which is never less; infinite beyond its end."""
    whole = max(2, math.ceil(order))
    return curve[whole] if whole < len(curve) else math.inf


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n, by its expansion from 64 on (error below 1e-15)."""
    if n < 64:
        return math.fsum(1.0 / k for k in range(1, n + 1))
    return math.log(n) + 0.57721566490153286061 + 1.0 / (2 * n) - 1.0 / (12 * n**2) + 1.0 / (120 * n**4)


def _laplace(order: float, shift: float) -> float:
    from dpspec.accounting import laplace_rdp

    return float(laplace_rdp(order, shift))


#: A divergence as a function of the order, infinite where it is not proved.
Curve: TypeAlias = Callable[[float], float]

#: Nodes of the first grid over ln(p - 1), its ends, and how often it is refined around the best node.
_NODES, _REACH, _ROUNDS = 161, 16.0, 8


def smooth_divergence(m: PrivateMechanism, order: float, tau: float) -> float:
    """The proved divergence of the pipeline at distance ``tau``, without the group baseline."""
    if m.kind == "laplace":
        return repaired_rdp(m.with_noise_times(1.0 + m.reach * tau), order)
    if m.kind == "exponential":
        return m.noise * (1.0 + m.reach * tau)
    if m.kind in ("gaussian", "dp-gd"):
        return order * composed_slope(rdp_slope(m), srdp_slope(m, tau))
    if m.kind == "sgd-sampled":
        from dpspec_preprocessing.theory.sampled import compose_sampled

        return compose_sampled(sampled_curve(m), srdp_slope(m, tau), order)
    return compose_lines(lambda a: repaired_rdp(m, a), lambda a: repaired_srdp(m, a, tau), order)


def group_divergence(m: PrivateMechanism, order: float, changed: float) -> float:
    """Group privacy for k = min(n, changed + 1) records, of each mechanism itself: k times the move, or k / n draws."""
    k = min(m.records, math.floor(changed) + 1)
    if m.kind == "exponential":
        return k * m.noise
    if m.kind == "sgd-sampled":
        return at_whole_order(sampled_curve(m, k), order)
    return repaired_rdp(m.with_noise_times(k), order)


def least_divergence(m: PrivateMechanism, order: float, tau: float | None, changed: float) -> float:
    """What can be proved: the smaller of the repaired bound and the group baseline.

    tau: None where no smooth bound holds (chains of steps), infinite where it is vacuous.
    """
    by_group = group_divergence(m, order, changed)
    return by_group if tau is None or math.isinf(tau) else min(smooth_divergence(m, order, tau), by_group)


def compose(rdp: Curve, srdp: Curve, order: float) -> float:
    """The least of T1 and T2 over p and q; infinite where no order that they need is proved.

    Raises ``ValueError`` for orders of at most 1.
    """
    if not order > 1.0:
        raise ValueError(f"order must exceed 1, got {order!r}")
    return min(_least(lambda p: _term(srdp, rdp, order, p)), _least(lambda q: _term(rdp, srdp, order, q)))


def compose_lines(rdp: Curve, srdp: Curve, order: float) -> float:
    """:func:`compose` for two lines that hold up to some order each: in closed form where the orders are held.

    Elsewhere the least value is searched for.
    """
    x, y = rdp(1.0 + 1e-9), srdp(1.0 + 1e-9)
    if 0.0 < y < math.inf and 0.0 < x < math.inf:
        for scaled, other, ratio in ((srdp, rdp, x / y), (rdp, srdp, y / x)):
            p = 1.0 + (order - 1.0) / order * math.sqrt(ratio)
            value = _term(scaled, other, order, p)
            if math.isfinite(value):
                return value
    return compose(rdp, srdp, order)


def composed_slope(private_slope: float, smooth_slope: float) -> float:
    """(sqrt(x) + sqrt(y))^2: the slope of the least value for two lines that hold at all orders."""
    return (math.sqrt(private_slope) + math.sqrt(smooth_slope)) ** 2


def _term(scaled: Curve, other: Curve, order: float, p: float) -> float:
    """T1(p) with the smooth curve as ``scaled``, which is taken at order p a; T2(p) with the private one."""
    return (order * p - 1.0) / (p * (order - 1.0)) * scaled(order * p) + other((p * order - 1.0) / (p - 1.0))


def _least(value: Callable[[float], float]) -> float:
    """The least value over p > 1; a grid over ln(p - 1) is refined around its best node."""
    low, high, least = -_REACH, _REACH, math.inf
    for _ in range(_ROUNDS):
        width = (high - low) / (_NODES - 1)
        nodes = [low + i * width for i in range(_NODES)]
        smallest, node = min(((value(1.0 + math.exp(x)), x) for x in nodes), key=lambda pair: pair[0])
        least = min(least, smallest)
        if not math.isfinite(smallest):
            break
        low, high = node - width, node + width
    return least
