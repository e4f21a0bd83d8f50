"""The learning rate of each step, and whether updates can be undone; told from the spec alone, without torch.

Rates are public and fixed before training, so that they say nothing of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, isfinite, pi
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rates:
    """``peak`` for each of ``total`` steps, times what the schedule says.

    kind: constant (1); linear and cosine (from 1 down to ``final``, which one step after the last would have); step
        (``factor`` to the power of the whole ``every`` steps that have passed).
    warmup: before that the rate rises in equal parts and reaches ``peak`` at this step; 0 for none.

    Every rate is above 0 where ``peak`` is.
    """

    peak: float
    total: int
    kind: str = "constant"
    warmup: int = 0
    final: float = 0.0
    every: int = 1
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.peak) and self.peak > 0):
            raise ValueError(f"learning_rate must be finite and above 0, got {self.peak}")
        if self.kind not in ("constant", "linear", "cosine", "step"):
            raise ValueError(f"schedule must be constant, linear, cosine or step, got {self.kind!r}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}")
        if not 0.0 <= self.final <= 1.0:
            raise ValueError(f"final must be within [0, 1], got {self.final}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")
        if not 0.0 < self.factor <= 1.0:
            raise ValueError(f"factor must be within (0, 1], got {self.factor}")

    def __call__(self, step: int) -> float:
        """The learning rate of one step, counted from 1; steps beyond the last have the last one's."""
        step = min(step, self.total)
        if step <= self.warmup:
            return self.peak * step / self.warmup
        passed = step - 1 - self.warmup
        if self.kind == "step":
            return self.peak * self.factor ** (passed // self.every)
        if self.kind == "constant":
            return self.peak
        share = passed / (self.total - self.warmup)
        height = 1.0 - share if self.kind == "linear" else (1.0 + cos(pi * share)) / 2.0
        return self.peak * (self.final + (1.0 - self.final) * height)


def rates_of(options: Mapping[str, Any], steps: int) -> Rates:
    """The rates of a spec's training block over ``steps`` steps; raises ``ValueError`` naming what does not fit."""
    schedule = {key: value for key, value in (options.get("schedule") or {}).items() if value is not None}
    return Rates(peak=float(options["learning_rate"]), total=steps, **schedule)


#: The updates that whoever sees every model, in order, can undo (:mod:`dpspec.training.loop.optimizers`).
_UNDONE = ("sgd", "momentum")


def optimizer_kind(options: Mapping[str, Any]) -> str:
    """The kind of optimizer that a training block names: ``sgd`` where it names none."""
    return str((options.get("optimizer") or {}).get("kind", "sgd"))


def updates_invertible(options: Mapping[str, Any]) -> bool:
    """Whether each update can be undone by who sees every model, for a spec's training block: Adam's cannot."""
    return optimizer_kind(options) in _UNDONE


def shows_every_sum(options: Mapping[str, Any], steps: int) -> bool:
    """Whether all iterates together are as good as all noisy sums, for a spec's training block.

    Where the update can be undone and no learning rate is 0, each model, with those before it, gives the noisy sum that
    led to it. Adam's update keeps some of it back, and so an adversary of all iterates may know less.
    """
    if not updates_invertible(options):
        return False
    rates = rates_of({"learning_rate": 1.0, **options}, steps)
    return min(rates(1), rates(steps)) > 0.0  # rates rise to their peak and fall from there
