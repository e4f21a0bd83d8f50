"""Parameters that FSDP2 shards over the processes: the rows of this process, and the gradients of whole parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.errors import UsageError

#: Observes the gradient of a whole parameter, given the parameter's number.
Observer = Callable[[int, Tensor], None]

_ADVICE = "use FSDP2Wrapper of Opacus, without mp_policy, on a model in float32, over all processes"


def local(value: Any) -> Any:
    """The rows of a sharded tensor in this process; any other value unchanged."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is None or type(value) is not kind:
        return value
    with torch.no_grad():
        return value.to_local()


def shard_of(p: Any) -> tuple[int, int]:
    """The place of the first coordinate of this process in a parameter, and the number of all its coordinates.

    Raises:
        UsageError: The processes do not hold consecutive rows of the parameter, each row once, in float32 or float64.
    """
    mesh, own, rows = getattr(p, "device_mesh", None), local(p), len(p) if p.dim() else 0
    if mesh is None or not rows:
        raise UsageError(f"the optimizer is for sharded parameters, and one is whole: {_ADVICE}")
    each = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * each, rows) if mesh.ndim == 1 else 0
    fits = mesh.ndim == 1 and mesh.size() == torch.distributed.get_world_size()
    fits = fits and [type(one).__name__ for one in p.placements] == ["Shard"] and p.placements[0].dim == 0
    if (
        not fits
        or own.shape != (min(each, rows - start), *p.shape[1:])
        or own.dtype not in (torch.float32, torch.float64)
    ):
        raise UsageError(f"a parameter is not sharded by rows over all processes: {_ADVICE}")
    return start * (p.numel() // rows), p.numel()


def refuse_precision(model: nn.Module) -> None:
    """Raise ``UsageError`` if FSDP2 gathers parameters or sums gradients in another precision than their own."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        policy = getattr(state(), "_mp_policy", None) if callable(state) else None
        kinds = {getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype", "output_dtype")}
        if kinds - {None, torch.float32}:
            raise UsageError(
                f"the model has a mixed precision policy, whose rounding the recorder cannot bound: {_ADVICE}"
            )


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    FSDP2 gathers the parameters of a module for its forward pass; autograd differentiates by the gathered ones.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        self._model, self._parameters = model, list(parameters)
        self._gathered: dict[int, Tensor] = {}
        self._handles: list[Any] = []
        self._observer: Observer | None = None
        self._discarding = False

    def attach(self) -> None:
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
            p = module._parameters[name]
            if p is not None and p is not self._gathered.get(number) and p.requires_grad and local(p) is p:
                self._gathered[number] = p
                leaf: Any = p
                self._handles.append(leaf.register_hook(partial(self._differentiated, number)))

    def _differentiated(self, number: int, gradient: Tensor) -> Tensor | None:
        if self._observer is not None:
            self._observer(number, gradient.detach())
        return gradient.new_zeros(()).expand_as(gradient) if self._discarding else None
