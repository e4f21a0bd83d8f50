"""The paper's utility theorems as calculators: as printed, and with the constants that its own inequalities give.

They bound expectations for smooth losses and speak of no particular data. ``printed`` values are shown for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


def convex(
    *,
    distance: float,
    dimension: int,
    thresholds: npt.ArrayLike,
    steps: int,
    gamma: float,
    lipschitz: float,
    rate: float,
    records: int,
    noise_square: float,
    smoothness: float,
    enforcement: str = "exact",
) -> float:
    """Theorem 3.1: E[F(mean model) - F(best)] for convex losses, step size gamma / (n q sqrt(T)), clipped at L.

    distance: sup ||w - w*||; thresholds: tau_k, one number or (steps,); noise_square: E||noise||^2 = d sigma^2. The
    enforced gap adds d tau^2 / 12 a step where it is exact. The literal rule adds up to tau: d tau^2 / 4 then.
    """
    share = {"exact": 12.0, "literal": 4.0}[enforcement]
    tau = np.broadcast_to(np.asarray(thresholds, dtype=np.float64), (steps,))
    moved = dimension * float(np.square(tau).sum()) / share
    root, size = math.sqrt(steps), math.sqrt(noise_square)
    first = (3.0 * distance**2 + moved) / (2.0 * gamma * root)
    second = gamma * (lipschitz**2 / rate**2 + noise_square / (records * rate) ** 2) / root
    third = 12.0 * distance**2 / (8.0 * steps)
    third += 2.0 * gamma * distance * (lipschitz + size / records) / (rate * steps**1.5)
    third += 11.0 * gamma**2 * (lipschitz**2 + noise_square / records**2) / (8.0 * steps * rate**2)
    return float(first + second + smoothness * third)


class Bias(NamedTuple):
    """E<grad, clipped gradient> >= min(a1 ||grad||^2 - a2, a3 ||grad||) (Lemma B.1)."""

    a1: float
    a2: float
    a3: float


def clipping_bias(clip_norm: float, tail: float, parts: float = 4.0) -> Bias:
    """Lemma B.1 with c = p' c_0, p' = ``parts`` > 2; noise of samples has the tail e^(-u / kappa), kappa = ``tail``."""
    if parts <= 2.0:
        raise ValueError(f"parts must be above 2, got {parts}")
    part = clip_norm / parts
    left = math.exp(-part / tail)
    kept = 1.0 - left
    a3 = clip_norm * (kept * (1.0 - 1.0 / (parts - 1.0) - 1.0 / (parts - 2.0)) - left)
    return Bias(kept / 2.0, ((part + tail) * left / kept) ** 2, a3)


@dataclass(frozen=True, kw_only=True)
class NonConvex:
    """What Theorems B.1 and 3.2 are about: a smooth loss that need not be convex.

    span: sup F - inf F; noise: v, with E||noise||^2 / (n q)^2 = v d T ln(1 / delta) / (n epsilon)^2.
    """

    dimension: int
    records: int
    rate: float
    clip_norm: float
    epsilon: float
    delta: float
    smoothness: float
    span: float
    noise: float

    @property
    def steps(self) -> float:
        """T = (n epsilon)^2 / (d ln(1 / delta))."""
        return (self.records * self.epsilon) ** 2 / self._leak

    def covers(self, tail: float) -> bool:
        """Whether clip_norm is as large as the proof needs: c >= 4 kappa ln 10, with kappa = ``tail``, and
        c / (2 kappa) - ln((c / 4 + kappa)^2 / c) >= 0.4 - ln(sqrt(R beta d ln(1 / delta)) / (n epsilon)).
        """
        c, ratio = self.clip_norm, self._unit(1.0) / self.clip_norm
        left = c / (2.0 * tail) - math.log((c / 4.0 + tail) ** 2 / c)
        return c >= 4.0 * tail * math.log(10.0) and left >= 0.4 - math.log(ratio)

    def dpsgd(self, *, printed: bool = False) -> float:
        """Theorem B.1: the mean of min(9/20 ||grad||^2, c/20 ||grad||) over the steps of clipped DP-SGD.

        Re-derived first factor 3 / (2 q) + 1 + v q / (2 c^2); printed v / 2 + 5 / 2, which drops the rate.
        """
        rederived = 1.5 / self.rate + 1.0 + self._share
        return (self.noise / 2.0 + 2.5 if printed else rederived) * self._unit(1.0)

    def modelmix(self, moved: float, start: float, *, printed: bool = False) -> float:
        """Theorem 3.2: the same with mixing. moved: sum over steps of d tau_k^2; start: ||w_0 - w_-1||.

        Re-derived first factor 2 / q + 1 + v q / (2 c^2), and sqrt(d ln(1 / delta)) in the third term, whose root the
        paper drops.
        """
        n_eps = self.records * self.epsilon
        first = (self.noise / 2.0 + 2.5 if printed else 2.0 / self.rate + 1.0 + self._share) * self._unit(101.0 / 12.0)
        second = 28.0 * self.clip_norm * self.smoothness * self._leak * start / (12.0 * self.rate * n_eps**2)
        leak = self._leak if printed else math.sqrt(self._leak)
        third = self.clip_norm * leak * math.sqrt(101.0 / 12.0) * self.smoothness**1.5
        third *= (moved / 12.0 + 21.0 * start**2 / 24.0) / (self.rate * n_eps * math.sqrt(self.span))
        return float(first + second + third)

    @property
    def _leak(self) -> float:
        return self.dimension * math.log(1.0 / self.delta)

    @property
    def _share(self) -> float:
        return self.noise * self.rate / (2.0 * self.clip_norm**2)

    def _unit(self, factor: float) -> float:
        root = math.sqrt(self.span * factor * self.smoothness * self._leak)
        return self.clip_norm * root / (self.records * self.epsilon)
