"""Adaptive clipping: the next clip norm follows from a noisy count of unclipped records (Andrew et al. 2021).

Imports no torch, because specs are validated with the same limits. The limits of ``docs/explanation/proofs`` apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpspec.contract.phase import Phase

if TYPE_CHECKING:
    from torch import Tensor

#: A clipped norm is shorter than the clip norm by rounding only, so that shorter contributions are unclipped.
_SHORTER = 1.0 - 2.0**-20

#: Default limits of the clip norm, relative to the first one.
_FARTHEST = 100.0

#: Largest exponent of a change of the clip norm, within the range of floats.
_MOST_EXPONENT = 700.0


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """The count of a step, and the clip norm of the next one.

    A record adds 1/2 to a centered count if its contribution is unclipped, and -1/2 otherwise; to a plain count 1 or 0.
    With the share count / batch_size, plus 1/2 for centered counts, and a public batch size, the next clip norm is

        clip_norm * exp(-clipbound_learning_rate * (share - target_unclipped_quantile)),

    within the limits (Andrew et al. 2021, Algorithm 1). Keys have the names of Opacus' ``AdaClipDPOptimizer``.
    """

    count_std: float
    centered: bool = True
    target_unclipped_quantile: float = 0.5
    clipbound_learning_rate: float = 0.2
    min_clipbound: float
    max_clipbound: float

    @classmethod
    def of(cls, phase: Mapping[str, Any]) -> AdaptiveClipping | None:
        """The rule of a phase; None for another scheme. Raises ``KeyError`` without ``count_std``."""
        options, clip_norm = dict(phase.get("clipping") or {}), Phase.of(phase).clip_norm
        if options.pop("scheme", None) != "adaptive":
            return None
        return cls(**{"min_clipbound": clip_norm / _FARTHEST, "max_clipbound": clip_norm * _FARTHEST, **options})

    def count(self, unclipped: float, records: int) -> float:
        """The count of a batch of ``records``, with ``unclipped`` records among them."""
        return float(unclipped) - 0.5 * records if self.centered else float(unclipped)

    def next_clip_norm(self, clip_norm: float, noisy_count: float, batch_size: float) -> float:
        """The clip norm after a step with ``clip_norm`` and a public ``batch_size``."""
        share = noisy_count / batch_size + (0.5 if self.centered else 0.0)
        exponent = -self.clipbound_learning_rate * (share - self.target_unclipped_quantile)
        factor = math.exp(max(-_MOST_EXPONENT, min(_MOST_EXPONENT, exponent)))
        return min(self.max_clipbound, max(self.min_clipbound, clip_norm * factor))


def unclipped(norms: Tensor, clip_norm: float | Tensor) -> Tensor:
    """Number of contributions with ``norms`` (..., b) shorter than ``clip_norm``, a number or (..., 1)."""
    return (norms < _SHORTER * clip_norm).sum(-1)


def largest_clip_norm(phase: Phase) -> float:
    """The largest clip norm of any step of a phase."""
    rule = AdaptiveClipping.of(phase)
    return phase.clip_norm if rule is None else rule.max_clipbound


def with_count(phase: Phase) -> Phase:
    """The phase with the noise multiplier that gradients and counts have together (Theorem 54), for accountants."""
    rule = AdaptiveClipping.of(phase)
    if rule is None:
        return phase
    from dpspec.accounting import joint_noise_multiplier  # loads numpy

    joint = joint_noise_multiplier(phase.noise_multiplier, rule.count_std, centered=rule.centered)
    return phase.replace(noise_multiplier=joint)
