"""Parameters between steps: whether they moved, and the parameters at which gradients are computed."""

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from dpspec.recording.fingerprints import Bits, Tally, overlap
from dpspec.recording.ranks.shards import local
from dpspec.recording.watching.model_state import ModelState

#: One in this number of further passes of a step compares values.
_FURTHER = 8

_Guarded = Callable[[Callable[[], None]], None]


class ParameterWatch:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters, self._last = list(parameters), Bits()
        self._last.keep(self._parameters)
        self._apart = not overlap(map(local, self._parameters))

    @property
    def copied(self) -> bool:
        """Whether the recorder has copies of all parameters, not fingerprints."""
        return len(self._last.copies) == len(self._parameters)

    def moved(self) -> bool | Tensor:
        """Whether a bit of a parameter changed since the last :meth:`advance`, or two parameters share memory now."""
        return self._last.differ(self._parameters, apart=self._apart)

    def advance(self) -> bool | Tensor:
        return self._last.replace(self._parameters)


class GradientParameters:
    """Counts the passes that compute gradients at other parameters than the last step left.

    It compares values at each pass of a small model, of a large one at the first forward and the first backward pass of
    a step. At further passes it compares version counters and addresses, and values again if any of these changed or at
    one of eight passes at random.
    """

    def __init__(
        self, watch: ParameterWatch, parameters: Sequence[nn.Parameter], model_state: ModelState | None = None
    ) -> None:
        """watch: keeps the parameters that the last step left. parameters: those that noise is added to. model_state:
        keeps the names of parameters."""
        self._model_state = model_state
        self._watch, self._parameters = watch, list(parameters)
        self._sharded = any(local(p) is not p for p in self._parameters)
        self._random = random.SystemRandom()
        self._known: list[tuple[int, int]] | None = None
        self._other = Tally()
        self._passes = self._compared = self._steps = self._unseen = 0
        self._small = watch.copied
        self._kinds: set[str] = set()

    @property
    def found(self) -> list[int]:
        """[passes, passes at other parameters, steps, steps without a forward pass, passes with compared values]."""
        return [self._passes, int(self._other), self._steps, self._unseen, self._compared]

    def attach(self, model: nn.Module, guarded: _Guarded, undo: ExitStack, compiled: nn.Module | None = None) -> None:
        """Add hooks, until ``undo`` removes them. ``guarded`` keeps faults of the recorder from the training.

        compiled: the wrapper of the model, whose hooks run outside of compiled code.
        """
        inner = getattr(model, "_module", None)
        for module in (inner if isinstance(inner, nn.Module) else model, compiled):
            if module is not None:
                undo.callback(module.register_forward_pre_hook(_ForwardHook(self, guarded)).remove)
        if self._parameters:
            first: Any = self._parameters[0]
            undo.callback(first.register_hook(lambda _: guarded(lambda: self.observe("backward"))).remove)

    def observe(self, kind: str) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        self._passes += 1
        if kind == "forward" and self._model_state is not None:
            self._model_state.compare_names(in_pass=True)
        if kind in self._kinds and not self._small:
            parameters = map(local, self._parameters) if self._sharded else self._parameters
            known, self._known = self._known, [(p._version, p.data_ptr()) for p in parameters]
            if known == self._known and self._random.randrange(_FURTHER):
                return
        self._kinds.add(kind)
        self._compared += 1
        if torch._C._functorch.peek_interpreter_stack() is not None:
            with torch._C._DisableFuncTorch():  # transforms of torch.func hide the memory of all tensors
                self._other.add(self._watch.moved())
            return
        self._other.add(self._watch.moved())
        if self._model_state is not None:
            self._model_state.compare_tensors(in_pass=True)

    def stepped(self) -> None:
        self._steps += 1
        self._unseen += "forward" not in self._kinds
        self._known = None
        self._kinds.clear()


class _ForwardHook:
    def __init__(self, watch: GradientParameters, guarded: _Guarded) -> None:
        self._watch, self._guarded = watch, guarded

    def __call__(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or not module.training:
            return
        if torch.is_grad_enabled() or _is_recomputed_later():
            self._guarded(lambda: self._watch.observe("forward"))

    def __reduce__(self) -> Any:
        return no_hook, ()


def _is_recomputed_later() -> bool:
    """Whether a pass without gradients is one of ``torch.utils.checkpoint``, whose output enters the loss."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def no_hook() -> Callable[..., None]:
    return _ignore


def _ignore(*_: Any) -> None:
    """Replace the hook in copies of the model."""
