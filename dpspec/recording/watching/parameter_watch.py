"""Parameters between steps: whether they moved, and the parameters at which gradients are computed."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.audited_steps import AuditedSteps
from dpspec.recording.fingerprints import ParameterMemory, Tally, differ
from dpspec.recording.model_hook import ModelHook

_Guarded = Callable[[Callable[[], None]], None]


class ParameterWatch:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._memories = list(map(ParameterMemory, parameters))
        self._last = [memory.fingerprint() for memory in self._memories]

    def moved(self) -> bool | Tensor:
        """Whether a bit of a parameter changed since the last :meth:`advance`."""
        return differ(self._last, [memory.fingerprint() for memory in self._memories])

    def advance(self) -> bool | Tensor:
        before, self._last = self._last, [memory.fingerprint() for memory in self._memories]
        return differ(before, self._last)


class GradientParameters:
    """Counts the passes of audited steps that compute gradients at other parameters than the last step left."""

    def __init__(self, watch: ParameterWatch, parameters: Sequence[nn.Parameter], audits: AuditedSteps) -> None:
        """watch: keeps the parameters that the last step left. parameters: those that noise is added to."""
        self._watch, self._parameters, self._audits = watch, list(parameters), audits
        self._other = Tally()
        self._passes = self._compared = self._steps = self._unseen = 0
        self._kinds: set[str] = set()

    @property
    def found(self) -> list[int]:
        """[passes, passes at other parameters, steps, steps without a forward pass, passes with compared values]."""
        return [self._passes, int(self._other), self._steps, self._unseen, self._compared]

    def attach(self, model: nn.Module, guarded: _Guarded, undo: ExitStack, compiled: nn.Module | None = None) -> None:
        """Add hooks, until ``undo`` removes them. ``guarded`` keeps faults of the recorder from the training.

        compiled: the wrapper of the model, whose hooks run outside of compiled code.
        """

        def forward(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if not module.training:
                self._audits.include()  # the step after an evaluation
            elif torch.is_grad_enabled():
                guarded(partial(self.observe, "forward"))

        inner = getattr(model, "_module", None)
        for module in (inner if isinstance(inner, nn.Module) else model, compiled):
            if module is not None:
                undo.callback(module.register_forward_pre_hook(ModelHook(forward)).remove)
        if self._parameters:
            first: Any = self._parameters[0]
            undo.callback(first.register_hook(lambda _: guarded(partial(self.observe, "backward"))).remove)

    def observe(self, kind: str) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        self._passes += 1
        self._kinds.add(kind)
        if not self._audits.audited:
            return
        self._compared += 1
        if torch._C._functorch.peek_interpreter_stack() is None:
            self._other.add(self._watch.moved())
        else:
            with torch._C._DisableFuncTorch():  # transforms of torch.func hide the memory of all tensors
                self._other.add(self._watch.moved())

    def stepped(self) -> None:
        self._steps += 1
        self._unseen += "forward" not in self._kinds
        self._kinds.clear()
