"""The six private mechanisms on processed records, with their constants and noise.

Hu, Sanyal & Schoelkopf 2024 (arXiv 2403.13041 v1), Theorems 9 to 14. ``noise`` is the paper's noise parameter, not an
epsilon of a guarantee. Standard deviations and scales are

    gaussian     sensitivity / noise                       laplace, exponential   sensitivity / noise
    dp-gd        L sqrt(T) / (noise n)                     sgd-sampled            L sqrt(c T) / (noise n)
    sgd-iterated 8 sqrt(2 ln n) L / (noise sqrt(n))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import dpspec.contract as dps
from dpspec import kit

#: The mechanisms: two queries, one selection, and three trainings with noisy gradients.
KINDS: Final = ("gaussian", "laplace", "exponential", "dp-gd", "sgd-sampled", "sgd-iterated")

#: Gradient mechanisms, which need the smoothness constant mu of the loss.
GRADIENT: Final = ("dp-gd", "sgd-sampled", "sgd-iterated")


@dataclass(frozen=True, kw_only=True)
class PrivateMechanism:
    """One private mechanism on a dataset of known size.

    Attributes:
        kind: One of ``KINDS``.
        noise: The paper's noise parameter.
        records: n, the number of records.
        lipschitz: L. Queries and qualities: Lipschitz constant in the sum of row distances. Gradients: maximum norm.
        smooth: mu, Lipschitz constant of a record's gradient as a function of the record; infinite if unknown.
        sensitivity: Sensitivity of the query or quality to one replaced record.
        steps: T for dp-gd and sgd-sampled; sgd-iterated makes one pass.
        factor: c, the noise variance of sgd-sampled relative to the paper's.
    """

    kind: str
    noise: float
    records: int = 1
    lipschitz: float = 1.0
    smooth: float = 1.0
    sensitivity: float = 1.0
    steps: int = 1
    factor: float = 1.0

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

    def with_noise_times(self, factor: float) -> PrivateMechanism:
        """Multiply the noise parameter, for example by the size of a group of records."""
        return replace(self, noise=self.noise * factor)


@dataclass(frozen=True, kw_only=True)
class Private(kit.Options):
    """The declared block ``private``; None for values that are not declared.

    Attributes:
        noise: ``eps_noise``.
        loss: The loss of gradient mechanisms.
        theta_radius: Maximum parameter norm of a linear model.
        learning_rate: Learning rate of a linear model.
    """

    kind: str
    noise: float
    lipschitz: float | None
    smooth: float | None
    sensitivity: float
    declared_steps: int | None
    factor: float
    loss: str | None
    theta_radius: float
    learning_rate: float

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Private:
        """Read the block ``private``."""
        lipschitz, smooth, steps, loss = (block.get(key) for key in ("lipschitz", "smooth", "steps", "loss"))
        return cls(
            kind=str(block["kind"]),
            noise=float(block.get("eps_noise", math.nan)),
            lipschitz=None if lipschitz is None else float(lipschitz),
            smooth=None if smooth is None else float(smooth),
            sensitivity=float(block.get("sensitivity", 1.0)),
            declared_steps=None if steps is None else int(steps),
            factor=float(block.get("factor", 4.0)),
            loss=None if loss is None else str(loss),
            theta_radius=float(block.get("theta_radius", 1.0)),
            learning_rate=float(block.get("learning_rate", 0.5)),
        )

    @property
    def steps(self) -> int:
        """T; 1 if not declared."""
        return 1 if self.declared_steps is None else self.declared_steps

    @property
    def takes_gradients(self) -> bool:
        """Whether the mechanism trains with noisy gradients."""
        return self.kind in GRADIENT

    @property
    def network(self) -> bool:
        """Whether the mechanism trains the spec's model, whose gradient constants are unknown."""
        return self.loss == "cross-entropy"

    @property
    def known_loss(self) -> bool:
        """Whether the mechanism trains a linear model with a loss of known constants."""
        return self.loss in ("logistic", "squared")

    def mechanism(self, records: int, norm: float = 1.0) -> PrivateMechanism:
        """The mechanism on ``records`` processed rows of l2 norm at most ``norm``."""
        lipschitz, smooth = self.constants(norm)
        return PrivateMechanism(
            kind=self.kind,
            noise=self.noise,
            records=records,
            lipschitz=lipschitz,
            smooth=smooth,
            sensitivity=self.sensitivity,
            steps=self.steps,
            factor=self.factor,
        )

    def constants(self, norm: float = 1.0) -> tuple[float, float]:
        """L and mu: declared, or derived from the declared loss; mu is infinite if unknown.

        Args:
            norm: Maximum norm of processed rows. Norms below 1 count as 1.
        """
        if not self.takes_gradients:
            return 1.0 if self.lipschitz is None else self.lipschitz, 1.0
        lipschitz, smooth = self.derived_constants(norm)
        return (
            lipschitz if self.lipschitz is None else self.lipschitz,
            smooth if self.smooth is None else self.smooth,
        )

    def derived_constants(self, norm: float = 1.0) -> tuple[float, float]:
        """L and mu of the loss for rows of ``norm``; 1 and infinity if unknown."""
        of_loss = {"logistic": logistic_constants, "squared": squared_constants}.get(self.loss or "")
        return of_loss(self.theta_radius, max(1.0, norm)) if of_loss else (1.0, math.inf)


def logistic_constants(radius: float, norm: float = 1.0) -> tuple[float, float]:
    """L and mu of the logistic loss for ||x|| <= r, ||theta|| <= R: r s and s + R r / 4, with s = 1 / (1 + e^(-R r)).

    The gradient is -y g(-y theta x) x, with the logistic function g <= s, whose slope is at most 1 / 4.
    """
    steep = 1.0 / (1.0 + math.exp(-radius * norm))
    return norm * steep, steep + radius * norm / 4.0


def squared_constants(radius: float, norm: float = 1.0) -> tuple[float, float]:
    """L and mu of (theta x - y)^2 / 2 for ||x|| <= r, |y| <= 1, ||theta|| <= R: r (R r + 1) and 2 R r + 1."""
    reach = radius * norm
    return norm * (reach + 1.0), 2.0 * reach + 1.0
