"""Torch modules that torch lacks, and fast max pooling on CPUs in the channels-last layout.

In that layout torch vectorizes pooling over channels, which saves more time than the conversions cost. Values, indices
and gradients are bitwise equal to torch's; the backward pass uses the indices in the model's layout.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Sum(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total


class Subsample(nn.Module):
    """Select every second pixel and append ``more`` channels of zeros."""

    def __init__(self, channels_added: int) -> None:
        super().__init__()
        self.more = channels_added

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))


#: Attention score of padding, whose softmax is 0.
_MASKED = -1e9


#: Torch's initialization draws no random numbers on the meta device.
_META: dict[str, Any] = {"device": "meta", "dtype": torch.float32}


class Encoder(nn.Module):
    """Ids (n, length) to (n, width): attention and dense layers, then the mean over all tokens except padding (id 0).

    The caller must initialize the weights.
    """

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, **_META)
        self.positions = nn.Embedding(length, width, **_META)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width, **_META)
        self.to_empty(device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        ids = x.long()
        real = (ids != 0).to(self.norm.weight.dtype)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        h = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            h = layer(h, real)
        weights = real.unsqueeze(-1)
        mean: Tensor = (self.norm(h) * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return mean


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + dense(norm(x)), with all parameters in torch layers."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width, **_META)
        self.packed = nn.Linear(width, 3 * width, **_META)
        self.attended = nn.Linear(width, width, **_META)
        self.before_dense = nn.LayerNorm(width, **_META)
        self.inner = nn.Linear(width, hidden, **_META)
        self.outer = nn.Linear(hidden, width, **_META)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        split = (*x.shape[:2], 3, self.heads, x.shape[2] // self.heads)
        q, k, v = self.packed(self.before_attention(x)).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (1.0 - real)[:, None, None, :] * _MASKED
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.attended(attended)
        output: Tensor = x + self.outer(nn.functional.gelu(self.inner(self.before_dense(x))))
        return output


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
    pairs = ([size, size] if isinstance(size, int) else list(size) * (2 // len(size)) for size in sizes)
    return _ChannelsLast.apply(input, *pairs, ceil_mode)  # type: ignore[no-untyped-call]


class FastPooling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = max_pool2d if func is nn.functional.max_pool2d else func
        return function(*args, **(kwargs or {}))


class _ChannelsLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Tensor:
        last = x.contiguous(memory_format=torch.channels_last)
        values, indices = torch.ops.aten.max_pool2d_with_indices.default(last, *options)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x, indices.contiguous())
            ctx.options = options
        pooled: Tensor = values.contiguous()
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, indices = ctx.saved_tensors
        input_gradient = torch.ops.aten.max_pool2d_with_indices_backward.default(gradient, x, *ctx.options, indices)
        return input_gradient, *(None for _ in ctx.options)
