"""Operations with a per-example gradient rule: forward, and gradients from inputs and output gradients.

A call processes a whole chunk x (b, k, ...): b records of k rows that the model folds into the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.training.gradients.ghost_parameters import Gradients, Lookup, Outer, Pieces, Rows, gram_pays


class Call(ABC):
    """One use of a torch function, built from its arguments and the names of the trained parameters by tensor id.

    ``supported``: the rule covers these arguments. ``batched``: the input differs between records.
    """

    def __init__(
        self, name_of: Mapping[int, str], weight: Tensor | None, bias: Tensor | None, supported: bool = True
    ) -> None:
        self.given = (weight, bias)
        self.weight = None if weight is None else weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.names = name_of.get(id(weight)), name_of.get(id(bias))
        self.supported = supported
        self.batched = False

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
    def backward(self, x: Tensor, gradient: Tensor, wanted: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Gradient with respect to x, if ``wanted``, and gradients of the trained parameters."""

    def named(self, weight: Callable[[], Gradients], bias: Callable[[], Tensor]) -> dict[str, Gradients]:
        found: dict[str, Gradients] = {}
        if self.names[0] is not None:
            found[self.names[0]] = weight()
        if self.names[1] is not None:
            found[self.names[1]] = Rows(bias())
        return found


class Linear(Call):
    """x W^T + b over the last axis. Factors are kept if inner products are cheaper than written-out products."""

    weight: Tensor

    def __init__(self, name_of: Mapping[int, str], input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(name_of, weight, bias, weight.ndim == 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def backward(self, x: Tensor, gradient: Tensor, wanted: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        inputs, outputs = x.reshape(len(x), -1, x.shape[-1]), gradient.reshape(len(x), -1, gradient.shape[-1])
        factors = Outer(inputs, outputs, self.weight.shape)
        pays = gram_pays(inputs.shape[1], *self.weight.shape)
        found = self.named(lambda: factors if pays else Rows(factors.rows()), lambda: outputs.sum(1))
        return (gradient @ self.weight if wanted else None), found


class Embedding(Call):
    weight: Tensor

    def __init__(
        self,
        name_of: Mapping[int, str],
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        super().__init__(name_of, weight, None, max_norm is None and not (scale_grad_by_freq or sparse))
        self._padding = padding_idx

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x, self.weight)

    def backward(self, x: Tensor, gradient: Tensor, wanted: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        tokens, outputs = x.reshape(len(x), -1), gradient.reshape(len(x), -1, gradient.shape[-1])
        if self._padding is not None:
            outputs = outputs * (tokens != self._padding % len(self.weight))[..., None]
        return None, self.named(lambda: Lookup(tokens, outputs, len(self.weight)), lambda: outputs)


class Scaled(Call):
    @abstractmethod
    def aligned(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the parameters that broadcasts with one row of ``x`` (b, k, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        shape = self.aligned(x)
        y = x if self.weight is None else x * self.weight.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)

    def backward(self, x: Tensor, gradient: Tensor, wanted: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        shape, parameter = self.aligned(x), self.bias if self.weight is None else self.weight

        def summed(products: Tensor) -> Tensor:
            assert parameter is not None
            axes = (1, *(axis for axis, size in enumerate(shape, start=2) if size == 1))
            return products.sum(axes).view(len(x), *parameter.shape)

        found = self.named(lambda: Rows(summed(gradient * x)), lambda: summed(gradient))
        return (gradient if self.weight is None else gradient * self.weight.view(shape)) if wanted else None, found


class GroupNorm(Scaled):
    """Normalize groups of channels, then scale and shift each channel."""

    def __init__(
        self,
        name_of: Mapping[int, str],
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(name_of, weight, bias)
        self._groups, self._eps = num_groups, eps

    def prepared(self, x: Tensor) -> Tensor:
        return nn.functional.group_norm(x, self._groups, eps=self._eps)

    def aligned(self, x: Tensor) -> tuple[int, ...]:
        return (x.shape[2], *[1] * (x.ndim - 3))


class LayerNorm(Scaled):
    """Normalize the last axes, then scale and shift each entry."""

    def __init__(
        self,
        name_of: Mapping[int, str],
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(name_of, weight, bias)
        self._shape, self._eps = tuple(normalized_shape), eps

    def prepared(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self._shape, eps=self._eps)

    def aligned(self, x: Tensor) -> tuple[int, ...]:
        return (*[1] * (x.ndim - 2 - len(self._shape)), *self._shape)


#: Grouped convolutions with fewer input channels per group leave vector units idle.
_NARROW = 8

#: Bytes of unfolded inputs per piece on a CPU, to fit the core's cache (commonly 1 MiB) and reuse pages. Unfolding a
#: whole chunk takes many times its memory.
_UNFOLDED = 2**20

#: Gradients of this many bytes per record fill the cache: grouped convolution is then twice as slow as a loop.
_WIDE = 2**21


class Convolution(Call):
    weight: Tensor

    def __init__(
        self,
        name_of: Mapping[int, str],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        supported = not isinstance(padding, str) and input.ndim == weight.ndim
        super().__init__(name_of, weight, bias, supported)
        spatial = weight.ndim - 2
        sizes = [(size,) if isinstance(size, int) else tuple(size) for size in (stride, padding, dilation)]
        self.stride, self.padding, self.dilation = (size * spatial if len(size) == 1 else size for size in sizes)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        y = torch.convolution(
            *(x.flatten(0, 1), self.weight, self.bias, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), self.groups),
        )
        return y.view(*x.shape[:2], *y.shape[1:])

    def backward(self, x: Tensor, gradient: Tensor, wanted: bool) -> tuple[Tensor | None, dict[str, Gradients]]:
        flat, outputs = x.flatten(0, 1), gradient.flatten(0, 1)
        before = self._transposed(outputs, flat, self.weight, self.groups, 0).view(x.shape) if wanted else None
        return before, self.named(lambda: self._weight(x, gradient), lambda: gradient.flatten(3).sum(3).sum(1))

    def _weight(self, x: Tensor, gradient: Tensor) -> Gradients:
        """Keep factors of the unfolded input if cheaper, else write out rows by one grouped convolution.

        Without enough channels for that, the unfolded input is multiplied piece by piece.
        """
        depth, positions = prod(self.weight.shape[1:]), x.shape[1] * prod(gradient.shape[3:])
        if self.groups == 1 and gram_pays(positions, len(self.weight), depth):
            return self._unfolded(x, gradient)
        write, some = self._grouped, len(x)
        if self.groups == 1 and (x.is_cuda or self.weight.shape[1] < _NARROW):
            write = self._product
            if not x.is_cuda:
                some = max(1, _UNFOLDED // (x.element_size() * depth * positions))
        elif self.weight.nbytes >= _WIDE and not x.is_cuda:
            some = 1
        return Pieces(lambda: (write(inner, outer) for inner, outer in _parts(some, x, gradient)))

    def _unfolded(self, x: Tensor, gradient: Tensor) -> Outer:
        """Factors: the receptive field of each output position (n, c * kernel) and its gradient."""
        spatial, columns = len(self.stride), x.flatten(0, 1)
        columns = nn.functional.pad(columns, [side for p in reversed(self.padding) for side in (p, p)])
        for axis, (size, step, gap) in enumerate(
            zip(self.weight.shape[2:], self.stride, self.dilation, strict=True), start=2
        ):
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
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
            *(outputs, x, weight, None, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), groups, (which == 0, which == 1, False)),
        )
        return found[which]


def _parts(some: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if len(tensors[0]) <= some:
        return (tensors,)
    return zip(*(torch.split(t, some) for t in tensors), strict=True)
