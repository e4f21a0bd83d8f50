"""The six private mechanisms that run on processed records, with their constants and their noise.

Hu, Sanyal & Schoelkopf 2024 (arXiv 2403.13041 v1), Theorems 9 to 14. ``noise`` is the paper's noise parameter, which is
no epsilon of (epsilon, delta): deviations and scales are

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

#: The mechanisms: two that answer a query, one that chooses, and three that train by noisy gradients.
KINDS: Final = ("gaussian", "laplace", "exponential", "dp-gd", "sgd-sampled", "sgd-iterated")

#: Those that take gradients, and so need the constant mu of the loss.
GRADIENT: Final = ("dp-gd", "sgd-sampled", "sgd-iterated")


@dataclass(frozen=True, kw_only=True)
class PrivateMechanism:
    """One mechanism on ``records`` records.

    lipschitz: L. For queries and qualities in the sum of row distances; for gradients the bound on a record's norm.
    smooth: mu, how fast a record's gradient moves with the record, at every parameter; infinite where it is unknown.
    sensitivity: of the query, or of the quality, for one replaced record.
    steps: T of dp-gd and sgd-sampled; sgd-iterated passes once over the records.
    factor: c, by which the variance of sgd-sampled exceeds the paper's.
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

    def with_noise_times(self, factor: float) -> PrivateMechanism:
        """The same mechanism with the noise parameter times ``factor``: a group of so many records behaves like it."""
        return replace(self, noise=self.noise * factor)


@dataclass(frozen=True, kw_only=True)
class Private(kit.Options):
    """The block ``private`` as it is declared; None for what follows from the loss, or is not declared.

    noise: eps_noise. loss: what is trained. theta_radius, learning_rate: of a linear model.
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
        """From the block."""
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
        """T; 1 where none is declared."""
        return 1 if self.declared_steps is None else self.declared_steps

    @property
    def takes_gradients(self) -> bool:
        """Whether it trains by noisy gradients."""
        return self.kind in GRADIENT

    @property
    def network(self) -> bool:
        """Whether it trains the spec's own model, of whose gradients no constant is known here."""
        return self.loss == "cross-entropy"

    @property
    def known_loss(self) -> bool:
        """Whether it trains a linear model by a loss whose constants are known."""
        return self.loss in ("logistic", "squared")

    def mechanism(self, records: int, norm: float = 1.0) -> PrivateMechanism:
        """It on ``records`` processed rows of l2 norm at most ``norm``."""
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
        """L and mu: declared, or those of the declared loss; mu is infinite where nothing is known of it.

        norm: of processed rows. Constants of a loss are those for norm 1 at least, also where rows are shorter.
        """
        if not self.takes_gradients:
            return 1.0 if self.lipschitz is None else self.lipschitz, 1.0
        lipschitz, smooth = self.derived_constants(norm)
        return (
            lipschitz if self.lipschitz is None else self.lipschitz,
            smooth if self.smooth is None else self.smooth,
        )

    def derived_constants(self, norm: float = 1.0) -> tuple[float, float]:
        """L and mu of the loss for rows of ``norm``; 1 and infinity where they are not known."""
        of_loss = {"logistic": logistic_constants, "squared": squared_constants}.get(self.loss or "")
        return of_loss(self.theta_radius, max(1.0, norm)) if of_loss else (1.0, math.inf)


def logistic_constants(radius: float, norm: float = 1.0) -> tuple[float, float]:
    """L and mu of the logistic loss for ||x|| <= r, ||theta|| <= R: r s and s + R r / 4, with s = 1 / (1 + e^(-R r)).

    The gradient is -y s(-y theta x) x, with s the logistic function, which is s at most and has slope 1 / 4 at most.
    """
    steep = 1.0 / (1.0 + math.exp(-radius * norm))
    return norm * steep, steep + radius * norm / 4.0


def squared_constants(radius: float, norm: float = 1.0) -> tuple[float, float]:
    """L and mu of (theta x - y)^2 / 2 for ||x|| <= r, |y| <= 1, ||theta|| <= R: r (R r + 1) and 2 R r + 1."""
    reach = radius * norm
    return norm * (reach + 1.0), 2.0 * reach + 1.0
