"""Fast max pooling on CPUs in the channels-last layout.

In this layout torch vectorizes over channels, which saves more time than the conversions cost. Values, indices and
gradients are bitwise equal to torch's; the backward pass uses the indices in the model's layout.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

#: One number for both axes, or one for each.
Sizes: TypeAlias = int | tuple[int, ...]

#: Minimum number of channels for which channels-last is faster.
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
    """Replace ``torch.nn.functional.max_pool2d``. Tensors transformed by ``torch.func`` are not supported."""
    sizes = kernel_size, kernel_size if stride is None else stride, padding, dilation
    if return_indices or input.ndim != 4 or input.device.type != "cpu" or input.shape[1] < _CHANNELS:
        plain: Any = nn.functional.max_pool2d
        return plain(input, *sizes, ceil_mode, return_indices)
    return _ChannelsLast.apply(input, *(_both(size) for size in sizes), ceil_mode)  # type: ignore[no-untyped-call]


class FastPooling(TorchFunctionMode):
    """Context in which ``torch.nn.functional.max_pool2d`` is :func:`max_pool2d`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = max_pool2d if func is nn.functional.max_pool2d else func
        return found(*args, **(kwargs or {}))


class _ChannelsLast(torch.autograd.Function):
    """Max pooling of records (b, c, h, w) with any number of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Tensor:
        """Pool, and save the indices in the layout of the input."""
        last = x.contiguous(memory_format=torch.channels_last)
        values, places = torch.ops.aten.max_pool2d_with_indices.default(last, *options)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x, places.contiguous())
            ctx.options = options
        pooled: Tensor = values.contiguous()
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient with torch's kernel."""
        x, places = ctx.saved_tensors
        found = torch.ops.aten.max_pool2d_with_indices_backward.default(gradient, x, *ctx.options, places)
        return found, *(None for _ in ctx.options)


def _both(size: Sizes) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size) * (2 // len(size))
