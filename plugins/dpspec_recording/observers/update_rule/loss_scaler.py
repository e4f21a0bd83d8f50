"""Torch's ``GradScaler`` around the recorded optimizer.

The mistake: the scaler skips a step and lowers its scale if a gradient overflows, which depends on the records and has
no noise::

    scaler = torch.amp.GradScaler()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun


@dataclass(frozen=True, kw_only=True)
class LossScalerFacts:
    """Whether an enabled scaler called a step of the optimizer."""

    used: bool = field(metadata=join_by(max))


class LossScaler(Observer[LossScalerFacts]):
    """Observes the method ``step`` of the class, because a scaler may be made after the recording begins."""

    name, kind = "loss_scaler", LossScalerFacts

    def __init__(self) -> None:
        self._used = False

    def start(self, training: Training) -> None:
        """Wrap the method of the class."""
        if training.optimizer is None:
            return
        import torch

        from dpspec_recording.watching.step_hooks import put_method

        original, optimizers = torch.amp.GradScaler.step, (training.script_parts.optimizer, training.optimizer)

        @wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **named: Any) -> Any:
            observed = any(optimizer is watched for watched in optimizers)
            self._used = self._used or (observed and scaler.is_enabled())
            return original(scaler, optimizer, *args, **named)

        training.undo.callback(put_method(torch.amp.GradScaler, "step", step))

    def facts(self) -> LossScalerFacts:
        """Whether one was used until now."""
        return LossScalerFacts(used=self._used)

    @staticmethod
    def judge(facts: LossScalerFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """A scaler leaves the update rule open."""
        if facts is not None and facts.used:
            text = (
                "torch's GradScaler skips a step and lowers its scale if a gradient overflows, which depends on "
                "records and has no noise: train without it, under autocast in bfloat16"
            )
            yield doubted("update-rule", text=text)
