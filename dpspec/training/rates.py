"""The learning rate of each step. It is public and fixed before training, so that it says nothing of the records."""

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
