"""The six private mechanisms that run on processed records: their Renyi and smooth Renyi curves, printed and certified.

Hu, Sanyal & Schoelkopf 2024 (arXiv 2403.13041 v1), Table 1 and Theorems 9 to 14. A mechanism is (a, e)-RDP if
neighbours diverge by at most e(a) at order a, and (a, e~)-SRDP if data sets whose rows differ by tau in the sum of
their distances diverge by at most e~(a, tau). Both are infinite at orders for which they are not proved.

``noise`` is the paper's noise parameter, which is no epsilon of (epsilon, delta): deviations and scales are

    gaussian     sensitivity / noise                       laplace, exponential   sensitivity / noise
    dp-gd        L sqrt(T) / (noise n)                     sgd-sampled            L sqrt(c T) / (noise n)
    sgd-iterated 8 sqrt(2 ln n) L / (noise sqrt(n))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

#: The mechanisms: two that answer a query, one that chooses, and three that train by noisy gradients.
KINDS: Final = ("gaussian", "laplace", "exponential", "dp-gd", "sgd-sampled", "sgd-iterated")

#: Those that take gradients, and so need the constant mu of the loss.
GRADIENT: Final = ("dp-gd", "sgd-sampled", "sgd-iterated")

#: Orders above this are not evaluated for sampled gradients: the sum has as many terms.
LARGEST_ORDER = 1024


@dataclass(frozen=True, kw_only=True)
class Private:
    """One mechanism on ``records`` records.

    lipschitz: L. For queries and qualities in the sum of row distances; for gradients the bound on a record's norm.
    smooth: mu, how fast a record's gradient moves with the record, at every parameter.
    sensitivity: of the query, or of the quality, for one replaced record.
    steps: T of dp-gd and sgd-sampled; sgd-iterated passes once over the records.
    factor: c, by which the variance of sgd-sampled exceeds the paper's.
    changed: kappa, in how many records processed data sets can differ; printed curves of sgd-iterated read it.
    """

    kind: str
    noise: float
    records: int = 1
    lipschitz: float = 1.0
    smooth: float = 1.0
    sensitivity: float = 1.0
    steps: int = 1
    factor: float = 1.0
    changed: float = 0.0

    @property
    def sigma(self) -> float:
        """The deviation (gaussian, gradients; of a mean gradient for dp-gd) or the scale (laplace) of the noise."""
        n = self.records
        if self.kind == "dp-gd":
            return self.lipschitz * math.sqrt(self.steps) / (self.noise * n)
        if self.kind == "sgd-sampled":
            return self.lipschitz * math.sqrt(self.factor * self.steps) / (self.noise * n)
        if self.kind == "sgd-iterated":
            return 8.0 * math.sqrt(2.0 * math.log(n)) * self.lipschitz / (self.noise * math.sqrt(n))
        return self.sensitivity / self.noise

    @property
    def reach(self) -> float:
        """How much one unit of tau counts: mu / L for gradients, L / sensitivity for queries."""
        return self.smooth / self.lipschitz if self.kind in GRADIENT else self.lipschitz / self.sensitivity

    @property
    def unit(self) -> bool:
        """Whether all constants are 1, as Table 2 of the paper takes them."""
        return self.lipschitz == 1.0 and (self.smooth if self.kind in GRADIENT else self.sensitivity) == 1.0

    def louder(self, factor: float) -> Private:
        """The same mechanism with another noise parameter, ``factor`` times as large."""
        return replace(self, noise=self.noise * factor)


def printed_rdp(m: Private, order: float) -> float:
    """Table 1's RDP, misprints repaired; refuted for sgd-sampled with less noise than twice the paper's."""
    e = m.noise
    if m.kind in ("laplace", "exponential"):
        return e
    if m.kind == "dp-gd":
        return 2.0 * order * e * e
    if m.kind == "sgd-sampled":
        return 0.5 * (order * e) ** 2 if order <= sampled_limit(m) else math.inf
    if m.kind == "sgd-iterated" and m.lipschitz * math.sqrt(2.0 * order * (order - 1.0)) > m.sigma:
        return math.inf
    return 0.5 * order * e * e


def printed_srdp(m: Private, order: float, tau: float) -> float:
    """Table 1's smooth RDP at distance ``tau``, misprints repaired, with gamma = 1."""
    e, moved = m.noise, m.reach * tau
    if m.kind in ("laplace", "exponential"):
        return e * moved
    if m.kind == "sgd-sampled" and order > sampled_limit(m):
        return math.inf
    if m.kind == "sgd-iterated":
        if m.lipschitz * max(1.0, tau) * math.sqrt(2.0 * order * (order - 1.0)) > m.sigma:
            return math.inf
        n, left = m.records, m.records - m.changed
        late = n * math.log(left + 2.0) / (2.0 * (left + 1.0) * math.log(n))
        return order * (moved * e) ** 2 * late
    return 0.5 * order * (moved * e) ** 2


def sampled_limit(m: Private) -> float:
    """Theorem 13: the largest order that it covers, min(sqrt(T) / e, L^2 T / (e n)^2 ln(n^2 e / (L sqrt(T))))."""
    e, n, root = m.noise, m.records, math.sqrt(m.steps)
    scale = (m.lipschitz * root / (e * n)) ** 2
    return min(root / e, scale * math.log(n * n * e / (m.lipschitz * root)))


def certified_rdp(m: Private, order: float) -> float:
    """Proved for every replaced record. sgd-sampled is evaluated at the next whole order, which is never less."""
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


def certified_srdp(m: Private, order: float, tau: float) -> float:
    """Proved for every pair of data sets at distance ``tau``, without conditions on which rows differ."""
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


def rdp_slope(m: Private) -> float:
    """The certified RDP divided by the order, for mechanisms whose curve is a line (gaussian, dp-gd, sgd-iterated)."""
    if m.kind == "gaussian":
        return 0.5 * m.noise**2
    if m.kind == "dp-gd":
        return 2.0 * m.steps * (m.lipschitz / (m.records * m.sigma)) ** 2
    return 4.0 * harmonic(m.records) / m.records * (m.lipschitz / m.sigma) ** 2


def srdp_slope(m: Private, tau: float) -> float:
    """The certified smooth RDP divided by the order.

    For sgd-sampled, which sees one record at a time, ``tau`` is n times the largest displacement of one record.
    """
    shift = m.smooth * tau / m.sigma
    if m.kind == "gaussian":
        return 0.5 * (m.noise * m.reach * tau) ** 2
    if m.kind == "sgd-iterated":
        return harmonic(m.records) / m.records * shift**2
    return 0.5 * m.steps * (shift / m.records) ** 2


@lru_cache(maxsize=16)
def sampled_curve(m: Private, replaced: int = 1) -> list[float]:
    """Divergences of all steps of sgd-sampled, one record a step, at whole orders by index from 2 to LARGEST_ORDER.

    replaced: of how many records; each step draws one of them with probability replaced / n.
    """
    from dpspec_preprocessing.sampled import divergences

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
    from dpspec.accounting.rdp import laplace_rdp

    return float(laplace_rdp(order, shift))
