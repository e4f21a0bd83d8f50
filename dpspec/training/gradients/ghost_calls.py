"""Operations with a per-example gradient rule: forward, and gradients from inputs and output gradients.

A call processes a whole chunk x (b, k, ...): b records of k rows that the model folds into the batch. Gradients are
written out or factored: norms ("ghost norms": Goodfellow 2015; Li, Tramer, Liang and Hashimoto 2022) and weighted sums
(Bu, Wang, Zha and Karypis 2023) need only the factors. Squared norms are float64 and never below the gradient's: if
terms can cancel, a bound on rounding is added.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

#: Number of entries converted to float64 per piece.
_SUMMED = 2**17


class Gradients(ABC):
    @abstractmethod
    def squares(self) -> Tensor: ...

    @abstractmethod
    def rows(self) -> Tensor: ...

    @abstractmethod
    def add(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to ``total`` (*shape) in place; weights (b,) float32."""

    def settled(self) -> "Gradients":
        """Equivalent gradients without references to other tensors, kept until a chunk is summed."""
        return self


@dataclass(frozen=True)
class Rows(Gradients):
    values: Tensor

    def squares(self) -> Tensor:
        return squares_of(self.values)

    def rows(self) -> Tensor:
        return self.values

    def add(self, total: Tensor, weights: Tensor) -> None:
        rows = self.values.reshape(len(weights), total.numel())
        total.view(-1).addmv_(rows.T, weights.to(rows.dtype))


@dataclass(frozen=True)
class Pieces(Gradients):
    """Gradients that ``pieces`` writes out on demand as values (n, *shape), b in total."""

    pieces: Callable[[], Iterator[Tensor]]

    def squares(self) -> Tensor:
        return _joined([squares_of(piece) for piece in self.pieces()])

    def rows(self) -> Tensor:
        return _joined(list(self.pieces()))

    def add(self, total: Tensor, weights: Tensor) -> None:
        self.settled().add(total, weights)

    def settled(self) -> Rows:
        return Rows(self.rows())


@dataclass(frozen=True)
class Outer(Gradients):
    """sum_t outputs_it inputs_it^T: inputs (b, T, d), outputs (b, T, p), for a weight (p, ...) of p d entries."""

    inputs: Tensor
    outputs: Tensor
    shape: tuple[int, ...]

    def squares(self) -> Tensor:
        """sum_st (a_s . a_t) (b_s . b_t), which is |a|^2 |b|^2 for T = 1."""
        if self.inputs.shape[1] == 1:
            return squares_of(self.inputs) * squares_of(self.outputs)
        return gram_squares(self.inputs, self.outputs)

    def rows(self) -> Tensor:
        return torch.bmm(self.outputs.transpose(1, 2), self.inputs).view(-1, *self.shape)

    def add(self, total: Tensor, weights: Tensor) -> None:
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        total.view(len(total), -1).addmm_(weighted.flatten(0, 1).T, self.inputs.flatten(0, 1))


@dataclass(frozen=True)
class Lookup(Gradients):
    """sum_t outputs_it at row tokens_it: tokens (b, T), outputs (b, T, p), for a table (count, p)."""

    tokens: Tensor
    outputs: Tensor
    count: int

    def squares(self) -> Tensor:
        """Sum outputs by token in float64 first, because a token may repeat within a record."""
        b, width = len(self.tokens), self.outputs.shape[-1]
        record = torch.arange(b, device=self.tokens.device)[:, None]
        keys, key_index = torch.unique(record * self.count + self.tokens, return_inverse=True)
        sums = self.outputs.new_zeros(len(keys), width, dtype=torch.float64)
        add_rows(sums, key_index.flatten(), self.outputs.reshape(-1, width).double())
        return add_rows(sums.new_zeros(b), keys // self.count, sums.square().sum(1))

    def rows(self) -> Tensor:
        b, length = self.tokens.shape
        rows = self.outputs.new_zeros(b, self.count, self.outputs.shape[-1])
        record = torch.arange(b, device=self.tokens.device).repeat_interleave(length)
        return rows.index_put_((record, self.tokens.flatten()), self.outputs.flatten(0, 1), accumulate=True)

    def add(self, total: Tensor, weights: Tensor) -> None:
        weighted = self.outputs * weights.to(self.outputs.dtype)[:, None, None]
        add_rows(total, self.tokens.flatten(), weighted.flatten(0, 1))


def add_rows(total: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """Add ``rows`` (m, ...) to the entries ``where`` (m,) of ``total`` in place, deterministically on either device."""
    if total.is_cuda:
        return total.index_put_((where,), rows, accumulate=True)
    return total.index_add_(0, where, rows)


def squares_of(rows: Tensor) -> Tensor:
    """Squared l2 norm (b,), float64, of rows (b, ...).

    torch copies the operand of a sum in another dtype, so rows are processed in pieces that fit the cache.
    """
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    block_size = max(1, _SUMMED // max(1, flat.shape[1]))
    blocks = [flat] if len(flat) <= block_size else torch.split(flat, block_size)
    return _joined([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in blocks]).square_()


def _joined(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def gram_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Squared norm (b,) of sum_t b_t a_t^T for vectors a (b, T, d) and b (b, T, p), from two Gram matrices, rounded up.

    The terms may cancel, so n 2^-52 (sum_t |a_t| |b_t|)^2 is added, with n = d + p + T^2 operations per term.
    """
    a, b = inputs.double(), outputs.double()
    ga, gb = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
    lengths = (ga.diagonal(dim1=1, dim2=2) * gb.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    operations = a.shape[2] + b.shape[2] + a.shape[1] ** 2
    return ga.mul_(gb).sum((1, 2)) + operations * 2.0**-52 * lengths.square()


def gram_pays(positions: int, width: int, depth: int) -> bool:
    """Whether T^2 (width + depth) float64 products of Gram matrices cost less than half of T width depth."""
    return positions == 1 or 4 * positions * (width + depth) <= width * depth


class Call(ABC):
    """One use of a torch function, built from its arguments and the names of the trained parameters by tensor id.

    ``arguments``: the function's arguments in order; ``options``: the given ones, without tensors. ``supported``: the
    rule covers them. ``batched``: the input differs between records.
    """

    arguments: tuple[str, ...]

    def __init__(self, name_of: Mapping[int, str], *args: Any, **kwargs: Any) -> None:
        named_arguments = dict(zip(self.arguments, args, strict=False)) | kwargs
        weight: Tensor | None = named_arguments.get("weight")
        bias: Tensor | None = named_arguments.get("bias")
        self.options = {name: value for name, value in named_arguments.items() if not isinstance(value, Tensor)}
        self.given = (weight, bias)
        self.input_axes: int = named_arguments["input"].ndim
        self.weight = None if weight is None else weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.names = name_of.get(id(weight)), name_of.get(id(bias))
        self.batched = False

    @property
    def supported(self) -> bool:
        return True

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name is not None)

    def prepared(self, x: Tensor) -> Tensor:
        """Input of the rule, computed from the function's by operations without parameters."""
        return x

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Output (b, k, ...) for ``x`` (b, k, ...)."""

    @abstractmethod
    def backward(self, x: Tensor, gradient: Tensor, input_needed: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Gradient with respect to x, if ``input_needed``, and gradients of the trained parameters."""

    def named(self, weight: Callable[[], Gradients], bias: Callable[[], Tensor]) -> dict[str, Gradients]:
        gradients: dict[str, Gradients] = {}
        if self.names[0] is not None:
            gradients[self.names[0]] = weight()
        if self.names[1] is not None:
            gradients[self.names[1]] = Rows(bias())
        return gradients


class Linear(Call):
    """x W^T + b over the last axis. Factors are kept if inner products are cheaper than written-out products."""

    arguments = ("input", "weight", "bias")
    weight: Tensor

    @property
    def supported(self) -> bool:
        return self.weight.ndim == 2

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def backward(self, x: Tensor, gradient: Tensor, input_needed: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        inputs, outputs = x.reshape(len(x), -1, x.shape[-1]), gradient.reshape(len(x), -1, gradient.shape[-1])
        factors = Outer(inputs, outputs, self.weight.shape)
        pays = gram_pays(inputs.shape[1], *self.weight.shape)
        gradients = self.named(lambda: factors if pays else Rows(factors.rows()), lambda: outputs.sum(1))
        return (gradient @ self.weight if input_needed else None), gradients


class Embedding(Call):
    arguments = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    weight: Tensor

    @property
    def supported(self) -> bool:
        changes_gradients = self.options.get("scale_grad_by_freq") or self.options.get("sparse")
        return self.options.get("max_norm") is None and not changes_gradients

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x, self.weight)

    def backward(self, x: Tensor, gradient: Tensor, input_needed: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        tokens, outputs = x.reshape(len(x), -1), gradient.reshape(len(x), -1, gradient.shape[-1])
        padding = self.options.get("padding_idx")
        if padding is not None:
            outputs = outputs * (tokens != padding % len(self.weight))[..., None]
        return None, self.named(lambda: Lookup(tokens, outputs, len(self.weight)), lambda: outputs)


class Scaled(Call):
    @abstractmethod
    def aligned(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the parameters that broadcasts with one row of ``x`` (b, k, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        shape = self.aligned(x)
        y = x if self.weight is None else x * self.weight.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)

    def backward(self, x: Tensor, gradient: Tensor, input_needed: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        shape, parameter = self.aligned(x), self.bias if self.weight is None else self.weight

        def summed(products: Tensor) -> Tensor:
            assert parameter is not None
            axes = (1, *(axis for axis, size in enumerate(shape, start=2) if size == 1))
            return products.sum(axes).view(len(x), *parameter.shape)

        gradients = self.named(lambda: Rows(summed(gradient * x)), lambda: summed(gradient))
        scaled = gradient if self.weight is None or not input_needed else gradient * self.weight.view(shape)
        return scaled if input_needed else None, gradients


class GroupNorm(Scaled):
    """Normalize groups of channels, then scale and shift each channel."""

    arguments = ("input", "num_groups", "weight", "bias", "eps")

    def prepared(self, x: Tensor) -> Tensor:
        return nn.functional.group_norm(x, self.options["num_groups"], eps=self.options.get("eps", 1e-5))

    def aligned(self, x: Tensor) -> tuple[int, ...]:
        return (x.shape[2], *[1] * (x.ndim - 3))


class LayerNorm(Scaled):
    """Normalize the last axes, then scale and shift each entry."""

    arguments = ("input", "normalized_shape", "weight", "bias", "eps")

    def prepared(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.options["normalized_shape"], eps=self.options.get("eps", 1e-5))

    def aligned(self, x: Tensor) -> tuple[int, ...]:
        shape = tuple(self.options["normalized_shape"])
        return (*[1] * (x.ndim - 2 - len(shape)), *shape)


#: Grouped convolutions with fewer input channels per group leave vector units idle.
_NARROW = 8

#: Bytes of unfolded inputs per piece on a CPU, to fit the core's cache (commonly 1 MiB) and reuse pages. Unfolding a
#: whole chunk takes many times its memory.
_UNFOLDED = 2**20

#: Gradients of this many bytes per record fill the cache: grouped convolution is then twice as slow as a loop.
_WIDE = 2**21


#: Defaults of sizes that may be one number for all axes.
_USUAL = {"stride": 1, "padding": 0, "dilation": 1}


class Convolution(Call):
    arguments = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    weight: Tensor

    def __init__(self, name_of: Mapping[int, str], *args: Any, **kwargs: Any) -> None:
        super().__init__(name_of, *args, **kwargs)
        spatial, settings = self.weight.ndim - 2, [self.options.get(name, usual) for name, usual in _USUAL.items()]
        sizes = [(size,) if isinstance(size, int) else tuple(size) for size in settings]
        self.stride, self.padding, self.dilation = (size * spatial if len(size) == 1 else size for size in sizes)
        self.groups: int = self.options.get("groups", 1)

    @property
    def supported(self) -> bool:
        """Not ``padding`` by name, nor a record without an axis for the batch."""
        return not isinstance(self.options.get("padding"), str) and self.input_axes == self.weight.ndim

    def forward(self, x: Tensor) -> Tensor:
        y = torch.convolution(
            *(x.flatten(0, 1), self.weight, self.bias, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), self.groups),
        )
        return y.view(*x.shape[:2], *y.shape[1:])

    def backward(self, x: Tensor, gradient: Tensor, input_needed: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        flat, outputs = x.flatten(0, 1), gradient.flatten(0, 1)
        before = self._transposed(outputs, flat, self.weight, self.groups, 0).view(x.shape) if input_needed else None
        return before, self.named(lambda: self._weight(x, gradient), lambda: gradient.flatten(3).sum(3).sum(1))

    def _weight(self, x: Tensor, gradient: Tensor) -> Gradients:
        """Keep factors of the unfolded input if cheaper, else write out rows by one grouped convolution.

        Without enough channels for that, the unfolded input is multiplied piece by piece.
        """
        depth, positions = prod(self.weight.shape[1:]), x.shape[1] * prod(gradient.shape[3:])
        if self.groups == 1 and gram_pays(positions, len(self.weight), depth):
            return self._unfolded(x, gradient)
        write, block_size = self._grouped, len(x)
        if self.groups == 1 and (x.is_cuda or self.weight.shape[1] < _NARROW):
            write = self._product
            if not x.is_cuda:
                block_size = max(1, _UNFOLDED // (x.element_size() * depth * positions))
        elif self.weight.nbytes >= _WIDE and not x.is_cuda:
            block_size = 1
        return Pieces(lambda: (write(inner, outer) for inner, outer in _parts(block_size, x, gradient)))

    def _unfolded(self, x: Tensor, gradient: Tensor) -> Outer:
        """Factors: the receptive field of each output position (n, c * kernel) and its gradient."""
        spatial, columns = len(self.stride), x.flatten(0, 1)
        columns = nn.functional.pad(columns, [side for p in reversed(self.padding) for side in (p, p)])
        kernels = zip(self.weight.shape[2:], self.stride, self.dilation, strict=True)
        for axis, (size, step, gap) in enumerate(kernels, start=2):
            columns = columns.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
        order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
        columns = columns.permute(order).reshape(*x.shape[:2], prod(self.weight.shape[1:]), -1)
        inputs = columns.transpose(2, 3).flatten(1, 2)
        return Outer(inputs, gradient.flatten(3).transpose(2, 3).flatten(1, 2), self.weight.shape)

    def _product(self, x: Tensor, gradient: Tensor) -> Tensor:
        return self._unfolded(x, gradient).rows()

    def _grouped(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Weight gradients (b, *shape): records as channels, each in its own groups."""
        b, shape = len(x), self.weight.shape
        weight = self.weight.new_empty(b * shape[0], *shape[1:])  # only the shape is read
        inputs, outputs = (t.transpose(0, 1).flatten(1, 2) for t in (x, gradient))
        return self._transposed(outputs, inputs, weight, b * self.groups, 1).view(b, *shape)

    def _transposed(self, outputs: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        """Gradient of the input (which = 0) or the weight (1) of a convolution."""
        both: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
            *(outputs, x, weight, None, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), groups, (which == 0, which == 1, False)),
        )
        return both[which]


def _parts(block_size: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if len(tensors[0]) <= block_size:
        return (tensors,)
    return zip(*(torch.split(t, block_size) for t in tensors), strict=True)
