"""The parameters that FSDP2 gathers for the passes of a rank, and their gradients before they are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import Bits, Tally
from dpspec.recording.ranks.shards import local

#: Observes the gradient of a whole parameter, given the parameter's number.
Observer = Callable[[int, Tensor], None]


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    FSDP2 gathers the parameters of a module for its forward pass; autograd differentiates by the gathered ones.

    Attributes:
        other: The number of gathered parameters whose rows of this rank are not the rank's own.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], starts: Sequence[int]) -> None:
        """starts: the place of the first coordinate of this rank in each parameter."""
        self._model, self._parameters, self._starts = model, list(parameters), list(starts)
        self.other = Tally()
        self._gathered: dict[int, Tensor] = {}
        self._handles: list[Any] = []
        self._observer: Observer | None = None
        self._discarding = False

    def attach(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        self._guarded = guarded
        numbers = {id(p): number for number, p in enumerate(self._parameters)}
        for module in self._model.modules():
            own = {name: numbers[id(p)] for name, p in module._parameters.items() if id(p) in numbers}
            if own:
                self._handles.append(module.register_forward_pre_hook(partial(self._gather, own)))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def observe(self, observer: Observer | None) -> None:
        """Give the gradients of the training's passes to an observer from now on; None ends it."""
        self._observer = observer

    def differentiate(self, value: Tensor, observer: Observer) -> None:
        """Give the gradients of a value to an observer, one parameter at a time, and keep none.

        The pass gathers parameters, so all ranks must make it at the same time.
        """
        before, self._observer, self._discarding = self._observer, observer, True
        try:
            torch.autograd.grad(value, list(self._gathered.values()), retain_graph=True, allow_unused=True)
        finally:
            self._observer, self._discarding = before, False

    def _gather(self, own: dict[str, int], module: nn.Module, _: Any) -> None:
        for name, number in own.items():
            p: Any = module._parameters[name]
            if p is None or local(p) is not p:
                continue
            if p is not self._gathered.get(number) and p.requires_grad:
                self._gathered[number] = p
                self._handles.append(p.register_hook(partial(self._differentiated, number)))
            if torch.is_grad_enabled() and module.training:
                self._guarded(partial(self._compare, number, p))

    def _compare(self, number: int, gathered: Tensor) -> None:
        rows, start, bits = local(self._parameters[number]).detach(), self._starts[number], Bits()
        # A copy: FSDP2 cannot free memory that NumPy shares.
        same = gathered.detach().reshape(-1)[start : start + rows.numel()].view(rows.shape).clone()
        bits.keep([rows])
        self.other.add(bits.differ([same]))

    def _differentiated(self, number: int, gradient: Tensor) -> Tensor | None:
        if self._observer is not None:
            self._observer(number, gradient.detach())
        return gradient.new_zeros(()).expand_as(gradient) if self._discarding else None
