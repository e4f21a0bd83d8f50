"""Trade-off functions: the least type-II error of a test, at each level of type-I error (f-DP).

f(alpha) = inf {1 - P(S) : Q(S) <= alpha} for tests S of "the output comes from Q" against P (Dong, Roth and Su 2022,
Definition 2.1): convex, falling, 0 <= f(alpha) <= 1 - alpha. It carries the same information as the privacy profile of
P against Q at all real epsilon, through convex duality (their Proposition 2.12, one direction):

    f(alpha) = max over epsilon of 1 - delta(epsilon) - e^epsilon alpha,
    delta(epsilon) = max over alpha of 1 - f(alpha) - e^epsilon alpha.

Of a pair seen in direction d, the curve has as P that direction's first distribution. So the present-first curve is
the one that tests "absent" and looks for "present", and ``rero`` belongs to it. Values are proved formulas in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from dpspec.accounting import gaussian
from dpspec.accounting.numerics.floats import Floats, finite, inside
from dpspec.accounting.numerics.search import bisect, bisect_each

#: The largest epsilon that is looked for: e^700 is the last that float64 holds comfortably.
_LAST = 700.0


class TradeOff(ABC):
    """A trade-off function, immutable; arguments are arrays of any shape, with values in [0, 1]."""

    @abstractmethod
    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """The least type-II error beta at type-I error ``alpha``."""

    @abstractmethod
    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """1 - f(``fpr``), the most power at that level, with its own relative precision where it is small."""

    @abstractmethod
    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """The privacy profile at each real ``epsilon``: the convex conjugate."""

    @abstractmethod
    def inverse(self) -> TradeOff:
        """The same pair with its roles exchanged: alpha as a function of beta."""

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with ``self.delta(epsilon) <= delta``, a bisection's safe end; infinite if none."""
        target = inside("delta", delta)
        if float(self.delta(0.0)) <= target:
            return 0.0
        if float(self.delta(_LAST)) > target:
            return math.inf
        return bisect(lambda epsilon: float(self.delta(epsilon)) <= target, _LAST, 0.0)[0]

    def advantage(self) -> float:
        """The largest tpr - fpr of a test: the total variation distance, delta at epsilon 0."""
        return float(self.delta(0.0))

    def rero(self, kappa: float) -> float:
        """The most that a reconstruction attack can succeed whose baseline success is ``kappa``, 0 < kappa <= 1.

        1 - f(kappa) (Hayes, Mahloujifar and Balle 2023; Kaissis et al. 2023, Theorem 1), of the present-first curve.
        """
        return float(self.tpr(inside("kappa", kappa, one=True)))

    def on_diagonal(self, difference: Floats) -> Floats:
        """The alpha at which f(alpha) - alpha = ``difference``, in [-1, 1]; same shape."""
        ends = np.zeros(difference.shape), np.ones(difference.shape)
        low, high = bisect_each(lambda alpha: self(alpha) - alpha > difference, *ends, halvings=60)
        return np.asarray(0.5 * (low + high), dtype=np.float64)


@dataclass(frozen=True)
class GaussianTradeOff(TradeOff):
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), mu >= 0: N(0, 1) against N(mu, 1), in either direction."""

    mu: float

    def __post_init__(self) -> None:
        if finite("mu", self.mu) < 0.0:
            raise ValueError(f"mu must not be negative, got {self.mu!r}")

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """Phi(-Phi^-1(alpha) - mu)."""
        return np.asarray(ndtr(-ndtri(check_levels("alpha", alpha)) - self.mu), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """Phi(Phi^-1(fpr) + mu)."""
        return np.asarray(ndtr(ndtri(check_levels("fpr", fpr)) + self.mu), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018)."""
        if self.mu == 0.0:
            return np.asarray(-np.expm1(np.minimum(np.asarray(epsilon, dtype=np.float64), -0.0)), dtype=np.float64)
        return gaussian.delta(epsilon, self.mu)

    def inverse(self) -> GaussianTradeOff:
        """Itself."""
        return self


@dataclass(frozen=True)
class LaplaceTradeOff(TradeOff):
    """Laplace noise with sensitivity / scale = ``effect`` s >= 0, in either direction (Dong, Roth and Su 2022, A.6).

    f(alpha) = 1 - e^s alpha up to e^-s / 2, e^-s / (4 alpha) up to 1/2, e^-s (1 - alpha) beyond.
    """

    effect: float

    def __post_init__(self) -> None:
        if finite("effect", self.effect) < 0.0:
            raise ValueError(f"effect must not be negative, got {self.effect!r}")

    def __call__(self, alpha: npt.ArrayLike) -> Floats:
        """The three branches above."""
        a, shrink = check_levels("alpha", alpha), math.exp(-self.effect)
        with np.errstate(divide="ignore", over="ignore"):
            middle = 0.25 * shrink / a
        first, last = 1.0 - np.exp(self.effect + _log(a)), shrink * (1.0 - a)
        return np.asarray(np.where(a < 0.5 * shrink, first, np.where(a <= 0.5, middle, last)), dtype=np.float64)

    def tpr(self, fpr: npt.ArrayLike) -> Floats:
        """e^s fpr; 1 - e^-s / (4 fpr); 1 - e^-s (1 - fpr)."""
        a, shrink = check_levels("fpr", fpr), math.exp(-self.effect)
        first = np.exp(self.effect + _log(np.minimum(a, 0.5 * shrink)))
        return np.asarray(np.where(a < 0.5 * shrink, first, 1.0 - self(a)), dtype=np.float64)

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """1 - e^((epsilon - s) / 2) for |epsilon| <= s; 0 above, 1 - e^epsilon below."""
        eps = np.asarray(epsilon, dtype=np.float64)
        inner = -np.expm1(np.minimum(0.5 * (eps - self.effect), 0.0))
        return np.asarray(np.where(eps < -self.effect, -np.expm1(np.minimum(eps, 0.0)), inner), dtype=np.float64)

    def inverse(self) -> LaplaceTradeOff:
        """Itself."""
        return self


def check_levels(name: str, values: npt.ArrayLike) -> Floats:
    """``values`` as an array. Raises ``ValueError`` naming the argument unless all lie in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & (array <= 1.0)):
        raise ValueError(f"{name} must be at least 0 and at most 1")
    return array


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values), dtype=np.float64)
