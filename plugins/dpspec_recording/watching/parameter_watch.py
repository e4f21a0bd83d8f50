"""Parameters between steps: whether they moved, and the parameters at which gradients are computed."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from xxhash import xxh3_128

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.fingerprints import KEY, Tally, differ, fingerprint, is_plain, memory_of
from dpspec_recording.folder.probe_facts import PassFacts
from dpspec_recording.model_hook import ModelHook
from dpspec_recording.ranks.shards import local

#: The largest number of steps whose parameters are remembered, by 16 bytes each.
_MOST_STEPS = 2**20

_Guarded = Callable[[Callable[[], None]], None]


class ParameterWatch:
    """The fingerprint of all parameters: in the host's memory one digest, otherwise one of each parameter."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._whole = all(local(p) is p for p in self._parameters)
        self._addresses: list[tuple[int, tuple[int, ...]]] | None = None
        self._memories: list[Any] | None = None  # at these addresses; None if not in the host's memory
        self._last = self._read()
        self._earlier: set[bytes] = set()

    def moved(self) -> bool | Tensor:
        """Whether a bit of a parameter changed since the last :meth:`advance`."""
        now = self._read()
        return now != self._last if isinstance(now, bytes) else differ(self._last, now)

    def returned(self) -> bool:
        """Whether the parameters, which moved, are those that an earlier step left; only in the host's memory."""
        now = self._read()
        return isinstance(now, bytes) and now in self._earlier

    def advance(self) -> None:
        if isinstance(self._last, bytes) and len(self._earlier) < _MOST_STEPS:
            self._earlier.add(self._last)
        self._last = self._read()

    def _read(self) -> Any:
        parameters = self._parameters if self._whole else [local(p) for p in self._parameters]
        addresses = [(p.data_ptr(), p.stride()) for p in parameters]
        if addresses != self._addresses:
            self._addresses, self._memories = addresses, None
            if all(map(is_plain, parameters)):
                self._memories = [memory_of(p.detach()) if p.is_contiguous() else None for p in parameters]
        if self._memories is None:
            return [fingerprint(p) for p in parameters]
        whole = xxh3_128(seed=KEY[0])
        for p, memory in zip(parameters, self._memories, strict=True):
            whole.update(memory_of(p.detach().contiguous()) if memory is None else memory)
        return whole.digest()


class GradientParameters:
    """Counts the passes of audited steps that compute gradients at other parameters than the last step left."""

    def __init__(self, watch: ParameterWatch, parameters: Sequence[nn.Parameter], audits: AuditedSteps) -> None:
        """watch: keeps the parameters that the last step left. parameters: those that noise is added to."""
        self._watch, self._parameters, self._audits = watch, list(parameters), audits
        self._other = Tally()
        self._passes = self._compared = self._steps = self._unseen = 0
        self._kinds: set[str] = set()

    @property
    def facts(self) -> PassFacts:
        return PassFacts(
            passes=self._passes,
            moved=int(self._other),
            steps=self._steps,
            unseen=self._unseen,
            compared=self._compared,
        )

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
                self.observe("forward", guarded)

        inner = getattr(model, "_module", None)
        for module in (inner if isinstance(inner, nn.Module) else model, compiled):
            if module is not None:
                undo.callback(module.register_forward_pre_hook(ModelHook(forward)).remove)
        if self._parameters:
            first: Any = self._parameters[0]
            undo.callback(first.register_hook(lambda _: self.observe("backward", guarded)).remove)

    def observe(self, kind: str, guarded: _Guarded) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        self._passes += 1
        self._kinds.add(kind)
        if self._audits.audited:
            guarded(self._compare)

    def _compare(self) -> None:
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
