"""Learning rates of a spec and invertibility of its updates, without torch.

Rates are public and fixed before training, so they reveal nothing about the records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rate schedule: ``peak`` times a factor for each of ``total`` steps. All rates are positive.

    The factor of ``kind`` constant is 1; of linear and cosine it falls from 1 to ``final`` one step after the last. It
    rises linearly during the first ``warmup`` steps.
    """

    peak: float
    total: int
    kind: str = "constant"
    warmup: int = 0
    final: float = 0.0

    def __call__(self, step: int) -> float:
        """Learning rate of a step, counted from 1. Later steps use the last one's."""
        step = min(step, self.total)
        if step <= self.warmup:
            return self.peak * step / self.warmup
        if self.kind == "constant":
            return self.peak
        share = (step - 1 - self.warmup) / (self.total - self.warmup)
        height = 1.0 - share if self.kind == "linear" else (1.0 + cos(pi * share)) / 2.0
        return self.peak * (self.final + (1.0 - self.final) * height)


def rates_of(options: Mapping[str, Any], steps: int) -> Rates:
    schedule = {key: value for key, value in (options.get("schedule") or {}).items() if value is not None}
    return Rates(peak=float(options["learning_rate"]), total=steps, **schedule)


#: Updates that an adversary with all models can invert (:mod:`dpspec.training.loop.optimizers`).
_INVERTIBLE = ("sgd", "momentum")


def optimizer_kind(options: Mapping[str, Any]) -> str:
    return str((options.get("optimizer") or {}).get("kind", "sgd"))


def updates_invertible(options: Mapping[str, Any]) -> bool:
    """Whether an adversary with all models can recover each noisy sum from the update. False for Adam."""
    return optimizer_kind(options) in _INVERTIBLE


def iterates_reveal_sums(options: Mapping[str, Any], steps: int) -> bool:
    """Whether all iterates together are equivalent to all noisy sums.

    If updates are invertible and no learning rate is 0, each model with its predecessors determines the noisy sum.
    Adam's update loses information, so an adversary with all iterates may learn less.
    """
    if not updates_invertible(options):
        return False
    rates = rates_of({"learning_rate": 1.0, **options}, steps)
    return min(rates(1), rates(steps)) > 0.0  # rates rise to the peak, then fall
