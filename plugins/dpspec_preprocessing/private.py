"""The six private mechanisms: constants, noise, Renyi divergences and their composition with pre-processing.

Hu, Sanyal & Schoelkopf 2024 (arXiv 2403.13041 v1), Theorems 2 and 9 to 14; formulas:
``docs/explanation/proofs/preprocessing.md``. ``noise`` is the paper's noise parameter, not an epsilon. Curves are
infinite at orders without a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from dpspec import accounting, kit  # accounting loads numpy at the first use

if TYPE_CHECKING:
    from dpspec.accounting import Floats

#: Two queries and a selection, and trainings with noisy gradients, which need the smoothness constant mu of the loss.
QUERIES: Final = ("gaussian", "laplace", "exponential")
GRADIENT: Final = ("dp-gd", "sgd-sampled", "sgd-iterated")


@dataclass(frozen=True, kw_only=True)
class PrivateMechanism:
    """One private mechanism on a dataset of known size.

    Attributes:
        kind: One of ``QUERIES`` or ``GRADIENT``.
        noise: The paper's noise parameter.
        records: n, the number of records.
        lipschitz: L. Queries and qualities: Lipschitz constant in the sum of row distances. Gradients: maximum norm.
        smooth: mu, Lipschitz constant of a record's gradient as a function of the record; infinite if unknown.
        sensitivity: Sensitivity of the query or quality to one replaced record.
        steps: T for dp-gd and sgd-sampled; sgd-iterated makes one pass.
        factor: c, the noise variance of sgd-sampled relative to the paper's.
        released: mu of an earlier Gaussian release about the same records, whose result the mechanism uses (dp-pca);
            0 without one. Adaptive composition adds its divergence.
    """

    kind: str
    noise: float
    records: int = 1
    lipschitz: float = 1.0
    smooth: float = 1.0
    sensitivity: float = 1.0
    steps: int = 1
    factor: float = 1.0
    released: float = 0.0

    @property
    def sigma(self) -> float:
        """Noise standard deviation (for dp-gd of a mean gradient) or scale (laplace)."""
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
        """Weight of one unit of tau: mu / L for gradients, L / sensitivity for queries."""
        return self.smooth / self.lipschitz if self.kind in GRADIENT else self.lipschitz / self.sensitivity

    @property
    def unit(self) -> bool:
        """Whether all constants are 1, as in Table 2 of the paper."""
        return self.lipschitz == 1.0 and (self.smooth if self.kind in GRADIENT else self.sensitivity) == 1.0


@dataclass(frozen=True, kw_only=True)
class Private(kit.Options):
    kind: str
    eps_noise: float = math.nan
    lipschitz: float | None = None
    smooth: float | None = None
    sensitivity: float = 1.0
    steps: int = 1
    factor: float = 4.0
    loss: str | None = None
    theta_radius: float = 1.0
    learning_rate: float = 0.5

    @property
    def takes_gradients(self) -> bool:
        return self.kind in GRADIENT

    @property
    def network(self) -> bool:
        # The gradient constants of the spec's model are unknown.
        return self.loss == "cross-entropy"

    @property
    def known_loss(self) -> bool:
        return self.loss in ("logistic", "squared")

    def mechanism(self, records: int, norm: float = 1.0) -> PrivateMechanism:
        lipschitz, smooth = self.derived_constants(norm) if self.takes_gradients else (1.0, 1.0)
        return PrivateMechanism(
            kind=self.kind,
            noise=self.eps_noise,
            records=records,
            lipschitz=lipschitz if self.lipschitz is None else self.lipschitz,
            smooth=smooth if self.smooth is None else self.smooth,
            sensitivity=self.sensitivity,
            steps=self.steps,
            factor=self.factor,
        )

    def derived_constants(self, norm: float = 1.0) -> tuple[float, float]:
        """L and mu of the loss for ||x|| <= r = max(1, norm) and ||theta|| <= R; 1 and infinity if unknown.

        Logistic: the gradient is -y g(-y theta x) x, with the logistic function g <= s = 1 / (1 + e^(-R r)), whose
        slope is at most 1 / 4: r s and s + R r / 4. Squared, with |y| <= 1: r (R r + 1) and 2 R r + 1.
        """
        norm = max(1.0, norm)
        reach = self.theta_radius * norm
        if self.loss == "logistic":
            steep = 1.0 / (1.0 + math.exp(-reach))
            return norm * steep, steep + reach / 4.0
        if self.loss == "squared":
            return norm * (reach + 1.0), 2.0 * reach + 1.0
        return 1.0, math.inf


#: Maximum order of sampled gradients, because the sum has as many terms as the order.
LARGEST_ORDER = 1024


def repaired_rdp(m: PrivateMechanism, order: float) -> float:
    """The RDP at ``order`` for one replaced record; sgd-sampled uses the next integer order, an upper bound."""
    e = m.noise
    if m.kind == "gaussian":
        return 0.5 * order * e * e
    if m.kind == "laplace":
        return float(accounting.laplace_rdp(order, e))
    if m.kind == "exponential":
        return e
    if m.kind == "sgd-sampled":
        return at_integer_order(sampled_curve(m), order)
    if m.kind == "sgd-iterated" and 2.0 * order * (m.lipschitz / m.sigma) ** 2 > 1.0 / (order - 1.0):
        return math.inf
    return rdp_slope(m) * order


def rdp_slope(m: PrivateMechanism) -> float:
    """RDP divided by the order, for mechanisms with a linear curve (gaussian, dp-gd, sgd-iterated)."""
    if m.kind == "gaussian":
        return 0.5 * m.noise**2
    if m.kind == "dp-gd":
        return 2.0 * m.steps * (m.lipschitz / (m.records * m.sigma)) ** 2
    return 4.0 * harmonic(m.records) / m.records * (m.lipschitz / m.sigma) ** 2


def srdp_slope(m: PrivateMechanism, tau: float) -> float:
    """Smooth RDP divided by the order; for sgd-sampled ``tau`` is n times the maximum displacement of one record."""
    shift = m.smooth * tau / m.sigma
    if m.kind == "gaussian":
        return 0.5 * (m.noise * m.reach * tau) ** 2
    if m.kind == "sgd-iterated":
        return harmonic(m.records) / m.records * shift**2
    return 0.5 * m.steps * (shift / m.records) ** 2


@lru_cache(maxsize=16)
def sampled_curve(m: PrivateMechanism, replaced: int = 1) -> list[float]:
    step_divergences = divergences(LARGEST_ORDER, min(1.0, replaced / m.records), 2.0 * m.lipschitz / m.sigma)
    return [math.nan, math.nan, *(m.steps * step_divergences).tolist()]


def at_integer_order(curve: list[float], order: float) -> float:
    """The curve at the next integer order, an upper bound; infinite beyond its end."""
    integer = max(2, math.ceil(order))
    return curve[integer] if integer < len(curve) else math.inf


def harmonic(n: int) -> float:
    """The harmonic number 1 + 1/2 + ... + 1/n; asymptotic expansion for n >= 64 (error below 1e-15)."""
    if n < 64:
        return math.fsum(1.0 / k for k in range(1, n + 1))
    return math.log(n) + 0.57721566490153286061 + 1.0 / (2 * n) - 1.0 / (12 * n**2) + 1.0 / (120 * n**4)


#: A divergence as a function of the order, infinite at orders without a proof.
Curve: TypeAlias = Callable[[float], float]

#: Number of nodes of the grid over ln(p - 1), its end, and the number of refinements around the best node.
_NODES, _REACH, _ROUNDS = 161, 16.0, 8


def smooth_divergence(m: PrivateMechanism, order: float, tau: float) -> float:
    """The divergence with datasets at distance ``tau``, whichever rows differ."""
    if m.kind == "laplace":
        return repaired_rdp(replace(m, noise=m.noise * (1.0 + m.reach * tau)), order)
    if m.kind == "exponential":
        return m.noise * (1.0 + m.reach * tau)
    if m.kind in ("gaussian", "dp-gd"):
        return order * composed_slope(rdp_slope(m), srdp_slope(m, tau))
    if m.kind == "sgd-sampled":
        return compose_sampled(sampled_curve(m), srdp_slope(m, tau), order)

    def smooth(order: float) -> float:
        proved = 0.5 * order * (m.smooth * tau / m.sigma) ** 2 <= 1.0 / (order - 1.0)
        return srdp_slope(m, tau) * order if proved else math.inf

    return compose_lines(lambda a: repaired_rdp(m, a), smooth, order)


def group_divergence(m: PrivateMechanism, order: float, changed: float) -> float:
    """The divergence for a group of k = min(n, changed + 1) records: k times the shift, or sampling rate k / n."""
    k = min(m.records, math.floor(changed) + 1)
    if m.kind == "exponential":
        return k * m.noise
    if m.kind == "sgd-sampled":
        return at_integer_order(sampled_curve(m, k), order)
    return repaired_rdp(replace(m, noise=m.noise * k), order)


def repaired_divergence(m: PrivateMechanism, order: float, tau: float | None, changed: float) -> float:
    """The smaller one of the smooth and the group bound, plus the divergence of an earlier release."""
    divergence = group_divergence(m, order, changed)
    if tau is not None and math.isfinite(tau):
        divergence = min(divergence, smooth_divergence(m, order, tau))
    return divergence + 0.5 * order * m.released**2


def compose(rdp: Curve, srdp: Curve, order: float) -> float:
    """The minimum of T1 and T2 over p and q; infinite if no required order is proved."""
    if not order > 1.0:
        raise ValueError(f"order must exceed 1, got {order!r}")
    return min(_minimum(lambda p: _term(srdp, rdp, order, p)), _minimum(lambda q: _term(rdp, srdp, order, q)))


def compose_lines(rdp: Curve, srdp: Curve, order: float) -> float:
    """:func:`compose` for two curves that are lines up to some order: in closed form if the orders are in range."""
    x, y = rdp(1.0 + 1e-9), srdp(1.0 + 1e-9)
    if 0.0 < y < math.inf and 0.0 < x < math.inf:
        for scaled, unscaled, ratio in ((srdp, rdp, x / y), (rdp, srdp, y / x)):
            p = 1.0 + (order - 1.0) / order * math.sqrt(ratio)
            value = _term(scaled, unscaled, order, p)
            if math.isfinite(value):
                return value
    return compose(rdp, srdp, order)


def composed_slope(private_slope: float, smooth_slope: float) -> float:
    """Slope (sqrt(x) + sqrt(y))^2 of the minimum for two lines that hold at all orders."""
    return (math.sqrt(private_slope) + math.sqrt(smooth_slope)) ** 2


def _term(scaled: Curve, unscaled: Curve, order: float, p: float) -> float:
    """T1(p) if ``scaled``, evaluated at order p a, is the smooth curve; T2(p) if it is the private curve."""
    return (order * p - 1.0) / (p * (order - 1.0)) * scaled(order * p) + unscaled((p * order - 1.0) / (p - 1.0))


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


def divergences(largest: int, rate: float, effect: float) -> Floats:
    """Divergence of one step at integer orders 2 to ``largest``, shape (largest - 1,): ln(1 + excess) / (order - 1)."""
    import numpy as np

    orders = np.arange(2.0, largest + 1.0)
    if rate == 1.0:
        return accounting.gaussian_rdp(orders, effect)
    logs = (orders - 1.0) * accounting.sampled_gaussian_integer_rdp(orders, rate, 1.0 / effect)
    excess = logs + np.log(-np.expm1(-logs))  # ln(E[r^m] - 1)
    above = 0.5 * (1.0 + math.erf(1.5 * effect / math.sqrt(2.0)))
    share = above - np.exp((orders - 2.0) * math.log1p(-rate)) * (1.0 - above)
    variance = effect**2 + math.log(-math.expm1(-(effect**2)))
    added = np.log(0.5 * orders * (orders - 1.0) * share) + 2.0 * math.log(rate) + variance
    return np.asarray(np.logaddexp(0.0, np.logaddexp(excess, added)) / (orders - 1.0), dtype=np.float64)


def compose_sampled(curve: Sequence[float], slope: float, order: float) -> float:
    """Minimum over integers k > a of T2 at q = k / a: a (k - 1) / (k (a - 1)) e(k) + s a (k - 1) / (k - a)."""
    import numpy as np

    if math.floor(order) + 1 >= len(curve):
        return math.inf
    k = np.arange(math.floor(order) + 1, len(curve), dtype=np.float64)
    values = order * (k - 1.0) / (k * (order - 1.0)) * np.asarray(curve)[k.astype(int)]
    values += slope * order * (k - 1.0) / (k - order)
    return float(values.min())
