"""What the whole pipeline loses at one order, in three modes that never mix, and the baselines beside them.

``printed``: Table 2 (Theorem 16) as published. ``theorem2``: Theorem 2 with the paper's curves and sensitivities,
optimised over p and q. ``certified``: the same argument with corrected curves and sensitivities; it alone can prove.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec_preprocessing import private, theorem2
from dpspec_preprocessing.private import Private, certified_rdp, certified_srdp, printed_rdp, printed_srdp

#: Table 2 holds from this order on, and its last column from so many records on.
PRINTED_ORDER, PRINTED_RECORDS = 11.0, 101

#: The constant of Table 2's last column: tau = 12.2 / eigengap.
PRINTED_PCA = 12.2


def base(m: Private, order: float) -> float:
    """The divergence of the private mechanism alone, by the paper's curve: what ignores pre-processing."""
    return printed_rdp(m, order)


def printed(m: Private, order: float, moved: float, *, missing: int | None = None) -> float:
    """Table 2 with x = ``moved`` (tau as the paper takes it); NaN where the table has no entry.

    Theorem 16 takes p = q = 2, and so needs the curves at twice the order.

    missing: p of imputation, where the row for sgd-iterated has it; otherwise ``m.changed`` is p.
    """
    if order < PRINTED_ORDER or not math.isfinite(printed_srdp(m, 2.0 * order, moved) + printed_rdp(m, 2.0 * order)):
        return math.nan
    e2 = m.noise**2
    if m.kind in ("laplace", "exponential"):
        return m.noise * (1.0 + moved)
    if m.kind == "gaussian":
        return 1.05 * order * e2 * (1.0 + moved**2)
    if m.kind == "dp-gd":
        return 1.05 * order * e2 * (4.0 + moved**2)
    if m.kind == "sgd-sampled":
        return 1.05 * order * e2 * (2.0 * order + moved**2)
    n, p = m.records, m.changed if missing is None else missing
    late = n * math.log(n - p) / ((n - p) * math.log(n))
    return 1.1 * order * e2 * (1.0 + moved**2 * late)


def theorem(m: Private, order: float, tau: float, *, p: float = 2.0, q: float = 2.0) -> float:
    """Theorem 2 at fixed p and q with the paper's curves; its limit p = 1 where they do not depend on the order."""
    if m.kind in ("laplace", "exponential"):
        return printed_rdp(m, order) + printed_srdp(m, order, tau)
    return theorem2.as_printed(lambda a: printed_rdp(m, a), lambda a: printed_srdp(m, a, tau), order, p, q)


def optimised(m: Private, order: float, tau: float) -> float:
    """Theorem 2 with the paper's curves at the best p and q."""
    if m.kind in ("gaussian", "dp-gd"):
        at = printed_rdp(m, order) / order, printed_srdp(m, order, tau) / order
        return order * theorem2.closed_form(*at)
    if m.kind in ("laplace", "exponential"):
        return theorem(m, order, tau)
    curves = (lambda a: printed_rdp(m, a)), (lambda a: printed_srdp(m, a, tau))
    if m.kind == "sgd-iterated":
        return theorem2.of_lines(*curves, order)
    return theorem2.optimum(*curves, order).value


def certified(m: Private, order: float, tau: float) -> float:
    """The proved divergence of the pipeline at distance ``tau``, without the group baseline."""
    if m.kind == "laplace":
        return certified_rdp(m.louder(1.0 + m.reach * tau), order)
    if m.kind == "exponential":
        return m.noise * (1.0 + m.reach * tau)
    if m.kind in ("gaussian", "dp-gd"):
        return order * theorem2.closed_form(private.rdp_slope(m), private.srdp_slope(m, tau))
    if m.kind == "sgd-sampled":
        return of_samples(private.sampled_curve(m), private.srdp_slope(m, tau), order)
    return theorem2.of_lines(lambda a: certified_rdp(m, a), lambda a: certified_srdp(m, a, tau), order)


def group(m: Private, order: float, changed: float) -> float:
    """Group privacy for k = min(n, changed + 1) records, of each mechanism itself: k times the move, or k / n draws."""
    k = min(m.records, math.floor(changed) + 1)
    if m.kind == "exponential":
        return k * m.noise
    if m.kind == "sgd-sampled":
        return private.at_whole_order(private.sampled_curve(m, k), order)
    return certified_rdp(m.louder(k), order)


def least(m: Private, order: float, tau: float | None, changed: float) -> float:
    """What can be proved: the smaller of the certified bound and the group baseline.

    tau: None where no smooth bound holds (chains of steps), infinite where it is vacuous.
    """
    by_group = group(m, order, changed)
    return by_group if tau is None or math.isinf(tau) else min(certified(m, order, tau), by_group)


def of_samples(curve: Sequence[float], slope: float, order: float) -> float:
    """min over whole orders k > a of a (k - 1) / (k (a - 1)) e(k) + s a (k - 1) / (k - a): T2 at q = k / a.

    curve: e at whole orders, by index from 2 on. slope: s, the smooth divergence divided by its order.
    """
    import numpy as np

    k = np.arange(math.floor(order) + 1, len(curve), dtype=np.float64)
    if not len(k):
        return math.inf
    values = order * (k - 1.0) / (k * (order - 1.0)) * np.asarray(curve)[k.astype(int)]
    values += slope * order * (k - 1.0) / (k - order)
    return float(values.min())
