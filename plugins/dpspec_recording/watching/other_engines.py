"""Steps of other private optimizers in the block, such as the optimizers of one engine for each round."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from dpspec_recording.model_hook import suppressed


class OtherEngines:
    """Counts the steps of optimizers of torch, other than the recorded one, on tensors that Opacus prepared.

    Attributes:
        steps: Their number.
    """

    def __init__(self, recorded: Iterable[Any], undo: ExitStack) -> None:
        """Observe until ``undo`` ends it. recorded: the optimizer, inside and outside of its wrappers."""
        self.steps = 0
        self._recorded = list(recorded)
        undo.callback(register_optimizer_step_post_hook(suppressed(self._observe)).remove)

    def _observe(self, optimizer: Any, *_: Any) -> None:
        if any(optimizer is recorded for recorded in self._recorded) or hasattr(optimizer, "original_optimizer"):
            return
        tensors = (p for group in optimizer.param_groups for p in group["params"])
        self.steps += any(hasattr(p, "grad_sample") for p in tensors)
