"""Whether gradients are computed at the parameters that the last step left.

The recorder compares at each forward pass that computes gradients, and when a backward pass reaches the first noisy
parameter. After the first pass of each kind in a step it compares the version counters of the parameters, which count
changes in place, and their addresses; it compares values again if any of these changed, and at one of eight further
passes at random. So loops that make a pass for each record stay fast.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dpspec.recording.fingerprints import Tally
from dpspec.recording.watching.parameter_watch import ParameterWatch

#: One in this number of further passes of a step compares values.
_FURTHER = 8

_Guarded = Callable[[Callable[[], None]], None]


class GradientParameters:
    """Counts the passes at other parameters."""

    def __init__(self, watch: ParameterWatch, parameters: Sequence[nn.Parameter]) -> None:
        """watch: keeps the parameters that the last step left. parameters: those that noise is added to."""
        self._watch, self._parameters = watch, list(parameters)
        self._random = random.SystemRandom()
        self._handles: list[Any] = []
        self._known: list[tuple[int, int]] | None = None
        self._other = Tally()
        self._passes = self._steps = self._unseen = 0
        self._kinds: set[str] = set()

    @property
    def found(self) -> list[int]:
        """[passes, those at other parameters, steps, steps without a pass]."""
        return [self._passes, int(self._other), self._steps, self._unseen]

    def attach(self, model: nn.Module, guarded: _Guarded) -> None:
        """Begin to watch. ``guarded`` keeps faults of the recorder from the training."""
        inner = getattr(model, "_module", None)
        module = inner if isinstance(inner, nn.Module) else model
        self._handles.append(module.register_forward_pre_hook(_ForwardHook(self, guarded)))
        if self._parameters:
            first: Any = self._parameters[0]
            self._handles.append(first.register_hook(lambda _: guarded(lambda: self.look("backward"))))

    def detach(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def look(self, kind: str) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        self._passes += 1
        now = [(p._version, p.data_ptr()) for p in self._parameters]
        if kind in self._kinds and now == self._known and self._random.randrange(_FURTHER):
            return
        self._kinds.add(kind)
        self._known = now
        if self._watch.same():
            return
        self._other.add(self._watch.moved() > 0.0)

    def stepped(self) -> None:
        """A step is over, and its parameters are kept."""
        self._steps += 1
        self._unseen += not self._kinds
        self._kinds.clear()


class _ForwardHook:
    """The hook on the model; copies of the model, in memory or in a file, get one that does nothing."""

    def __init__(self, watch: GradientParameters, guarded: _Guarded) -> None:
        self._watch, self._guarded = watch, guarded

    def __call__(self, module: nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and module.training:
            self._guarded(lambda: self._watch.look("forward"))

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _ignore(*_: Any) -> None:
    return None


def _no_hook() -> Callable[..., None]:
    return _ignore
