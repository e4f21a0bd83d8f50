"""Repaired Renyi divergences of the private mechanisms and of pipelines: Theorem 2 and group privacy.

A mechanism is (a, e)-RDP if neighbours diverge by at most e(a) at order a, and (a, e~)-SRDP if datasets whose rows
differ by tau in the sum of their distances diverge by at most e~(a, tau). Both are infinite at orders without a proof.
With e the RDP of the private mechanism, e~ its smooth RDP at tau = moved * changed, for all p, q > 1,

    T1(p) = (a p - 1) / (p (a - 1)) e~(a p) + e((p a - 1) / (p - 1))
    T2(q) = (a q - 1) / (q (a - 1)) e(a q) + e~((q a - 1) / (q - 1)).

The theorem uses the maximum of T1 and T2. The auxiliary dataset between the neighbours can be built from either
neighbour in both directions, so that each term alone is a bound, and so is their minimum. For lines e = x a and e~ = y
a both terms have the minimum a (sqrt(x) + sqrt(y))^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from dpspec_preprocessing.theory.private import PrivateMechanism

#: Maximum order of sampled gradients, because the sum has as many terms as the order.
LARGEST_ORDER = 1024


def repaired_rdp(m: PrivateMechanism, order: float) -> float:
    """The RDP at ``order`` for one replaced record; sgd-sampled uses the next integer order, an upper bound."""
    e = m.noise
    if m.kind == "gaussian":
        return 0.5 * order * e * e
    if m.kind == "laplace":
        return _laplace(order, e)
    if m.kind == "exponential":
        return e
    if m.kind == "sgd-sampled":
        return at_integer_order(sampled_curve(m), order)
    if m.kind == "sgd-iterated" and 2.0 * order * (m.lipschitz / m.sigma) ** 2 > 1.0 / (order - 1.0):
        return math.inf
    return rdp_slope(m) * order


def repaired_srdp(m: PrivateMechanism, order: float, tau: float) -> float:
    """The smooth RDP at ``order`` for datasets at distance ``tau``, whichever rows differ."""
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
    """RDP divided by the order, for mechanisms with a linear curve (gaussian, dp-gd, sgd-iterated)."""
    if m.kind == "gaussian":
        return 0.5 * m.noise**2
    if m.kind == "dp-gd":
        return 2.0 * m.steps * (m.lipschitz / (m.records * m.sigma)) ** 2
    return 4.0 * harmonic(m.records) / m.records * (m.lipschitz / m.sigma) ** 2


def srdp_slope(m: PrivateMechanism, tau: float) -> float:
    """Smooth RDP divided by the order.

    For sgd-sampled, which reads one record per step, ``tau`` is n times the maximum displacement of one record.
    """
    shift = m.smooth * tau / m.sigma
    if m.kind == "gaussian":
        return 0.5 * (m.noise * m.reach * tau) ** 2
    if m.kind == "sgd-iterated":
        return harmonic(m.records) / m.records * shift**2
    return 0.5 * m.steps * (shift / m.records) ** 2


@lru_cache(maxsize=16)
def sampled_curve(m: PrivateMechanism, replaced: int = 1) -> list[float]:
    """Divergences of all steps of sgd-sampled by integer order, from 2 to LARGEST_ORDER.

    Args:
        m: The mechanism, with one record per step.
        replaced: Number of replaced records; each step draws one of them with probability replaced / n.

    Returns:
        Divergences by order; entries 0 and 1 are NaN.
    """
    from dpspec_preprocessing.theory.sampled import divergences

    each = divergences(LARGEST_ORDER, min(1.0, replaced / m.records), 2.0 * m.lipschitz / m.sigma)
    return [math.nan, math.nan, *(m.steps * each).tolist()]


def at_integer_order(curve: list[float], order: float) -> float:
    """The curve at the next integer order, an upper bound; infinite beyond its end."""
    integer = max(2, math.ceil(order))
    return curve[integer] if integer < len(curve) else math.inf


def harmonic(n: int) -> float:
    """The harmonic number 1 + 1/2 + ... + 1/n; asymptotic expansion for n >= 64 (error below 1e-15)."""
    if n < 64:
        return math.fsum(1.0 / k for k in range(1, n + 1))
    return math.log(n) + 0.57721566490153286061 + 1.0 / (2 * n) - 1.0 / (12 * n**2) + 1.0 / (120 * n**4)


def _laplace(order: float, shift: float) -> float:
    from dpspec.accounting import laplace_rdp

    return float(laplace_rdp(order, shift))


#: A divergence as a function of the order, infinite at orders without a proof.
Curve: TypeAlias = Callable[[float], float]

#: Number of nodes of the grid over ln(p - 1), its end, and the number of refinements around the best node.
_NODES, _REACH, _ROUNDS = 161, 16.0, 8


def smooth_divergence(m: PrivateMechanism, order: float, tau: float) -> float:
    """The smooth bound on the divergence of the pipeline at distance ``tau``."""
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
    """The divergence for a group of k = min(n, changed + 1) records: k times the shift, or sampling rate k / n."""
    k = min(m.records, math.floor(changed) + 1)
    if m.kind == "exponential":
        return k * m.noise
    if m.kind == "sgd-sampled":
        return at_integer_order(sampled_curve(m, k), order)
    return repaired_rdp(m.with_noise_times(k), order)


def repaired_divergence(m: PrivateMechanism, order: float, tau: float | None, changed: float) -> float:
    """The minimum of the smooth bound and the group bound.

    Args:
        m: The private mechanism.
        order: Renyi order, above 1.
        tau: Distance of the smooth bound; None if no smooth bound holds (chains), infinite if it is vacuous.
        changed: Maximum number of changed common records.
    """
    by_group = group_divergence(m, order, changed)
    return by_group if tau is None or math.isinf(tau) else min(smooth_divergence(m, order, tau), by_group)


def compose(rdp: Curve, srdp: Curve, order: float) -> float:
    """The minimum of T1 and T2 over p and q; infinite if no required order is proved.

    Raises:
        ValueError: If the order is at most 1.
    """
    if not order > 1.0:
        raise ValueError(f"order must exceed 1, got {order!r}")
    return min(_minimum(lambda p: _term(srdp, rdp, order, p)), _minimum(lambda q: _term(rdp, srdp, order, q)))


def compose_lines(rdp: Curve, srdp: Curve, order: float) -> float:
    """:func:`compose` for two curves that are lines up to some order: in closed form if the orders are in range."""
    x, y = rdp(1.0 + 1e-9), srdp(1.0 + 1e-9)
    if 0.0 < y < math.inf and 0.0 < x < math.inf:
        for scaled, other, ratio in ((srdp, rdp, x / y), (rdp, srdp, y / x)):
            p = 1.0 + (order - 1.0) / order * math.sqrt(ratio)
            value = _term(scaled, other, order, p)
            if math.isfinite(value):
                return value
    return compose(rdp, srdp, order)


def composed_slope(private_slope: float, smooth_slope: float) -> float:
    """Slope (sqrt(x) + sqrt(y))^2 of the minimum for two lines that hold at all orders."""
    return (math.sqrt(private_slope) + math.sqrt(smooth_slope)) ** 2


def _term(scaled: Curve, other: Curve, order: float, p: float) -> float:
    """T1(p) if ``scaled``, evaluated at order p a, is the smooth curve; T2(p) if it is the private curve."""
    return (order * p - 1.0) / (p * (order - 1.0)) * scaled(order * p) + other((p * order - 1.0) / (p - 1.0))


def _minimum(value: Callable[[float], float]) -> float:
    """Minimum over p > 1 by a grid over ln(p - 1), refined around the best node."""
    low, high, minimum = -_REACH, _REACH, math.inf
    for _ in range(_ROUNDS):
        width = (high - low) / (_NODES - 1)
        nodes = [low + i * width for i in range(_NODES)]
        smallest, node = min(((value(1.0 + math.exp(x)), x) for x in nodes), key=lambda pair: pair[0])
        minimum = min(minimum, smallest)
        if not math.isfinite(smallest):
            break
        low, high = node - width, node + width
    return minimum
