"""Max pooling on a CPU by way of the layout in which torch does it fast.

With channels last, torch compares many channels at once; with channels first it goes through one window after the
other, which takes longer than both ways between the layouts. What comes out is the same to the last bit: values, the
places that they come from, and gradients, which go back by those places in the layout that the model has.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

#: One number for both axes, or one for each.
Sizes: TypeAlias = int | tuple[int, ...]

#: With fewer channels than this the other layout has nothing to compare at once.
_CHANNELS = 8


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """``torch.nn.functional.max_pool2d``, of whatever it takes; no transformed tensors of ``torch.func``."""
    sizes = kernel_size, kernel_size if stride is None else stride, padding, dilation
    if return_indices or input.ndim != 4 or input.device.type != "cpu" or input.shape[1] < _CHANNELS:
        plain: Any = nn.functional.max_pool2d
        return plain(input, *sizes, ceil_mode, return_indices)
    return _ChannelsLast.apply(input, *(_both(size) for size in sizes), ceil_mode)  # type: ignore[no-untyped-call]


class FastPooling(TorchFunctionMode):
    """Within it, whatever asks for ``torch.nn.functional.max_pool2d`` gets :func:`max_pool2d`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = max_pool2d if func is nn.functional.max_pool2d else func
        return found(*args, **(kwargs or {}))


class _ChannelsLast(torch.autograd.Function):
    """Records (b, c, h, w), of any number of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Tensor:
        """Keeps the places, in the order of the input."""
        last = x.contiguous(memory_format=torch.channels_last)
        values, places = torch.ops.aten.max_pool2d_with_indices.default(last, *options)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x, places.contiguous())
            ctx.options = options
        pooled: Tensor = values.contiguous()
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """As torch's own."""
        x, places = ctx.saved_tensors
        found = torch.ops.aten.max_pool2d_with_indices_backward.default(gradient, x, *ctx.options, places)
        return found, *(None for _ in ctx.options)


def _both(size: Sizes) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size) * (2 // len(size))
