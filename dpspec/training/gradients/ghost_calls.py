"""The operations whose per-example gradients have a rule: what each computes, and what it hands over on the way back.

A call works on a whole chunk at once, x (b, k, ...) with b records of k inner rows each (k = 1 unless the model folds
an axis into the batch). ``backward`` gets the gradient of its output and returns that of its input, and the
:class:`~dpspec.training.gradients.ghost_parameters.Gradients` of its parameters by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from dpspec.training.gradients.ghost_parameters import (
    Gradients,
    Lookup,
    Outer,
    Pieces,
    Rows,
    convolved_pays,
    convolved_squares,
    gram_pays,
)

#: CUDA's backward pass of a group norm starts a block for each group of a record along an axis that has so many.
_MOST_GROUPS = 65_535


class Call(ABC):
    """One use of an operation, with the parameters that it was given.

    names: the names of its weight and its bias where they are trained, else None.
    given: its weight and its bias, as they were given.
    batched: whether its input differs from record to record.
    """

    def __init__(self, weight: Tensor | None, bias: Tensor | None, names: tuple[str | None, str | None]) -> None:
        self.given = (weight, bias)
        self.weight = None if weight is None else weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.names = names
        self.batched = False

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the parameters that are trained."""
        return tuple(name for name in self.names if name is not None)

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output (b, k, ...) for ``x`` (b, k, ...), and what else backward needs."""

    @abstractmethod
    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """The gradient with respect to x, if ``wanted``, and the gradients of the trained parameters."""

    def named(self, weight: Callable[[], Gradients], bias: Callable[[], Tensor]) -> dict[str, Gradients]:
        """The gradients of those parameters that are trained; a bias's as rows."""
        found: dict[str, Gradients] = {}
        if self.names[0] is not None:
            found[self.names[0]] = weight()
        if self.names[1] is not None:
            found[self.names[1]] = Rows(bias())
        return found


class Linear(Call):
    """x W^T + b over the last axis."""

    weight: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As torch does it."""
        return nn.functional.linear(x, self.weight, self.bias), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Factors where inner products are cheaper than the products written out."""
        inputs, outputs = x.reshape(len(x), -1, x.shape[-1]), gradient.reshape(len(x), -1, gradient.shape[-1])
        factors = Outer(inputs, outputs, self.weight.shape)
        pays = gram_pays(inputs.shape[1], *self.weight.shape)
        found = self.named(lambda: factors if pays else Rows(factors.rows()), lambda: outputs.sum(1))
        return (gradient @ self.weight if wanted else None), found


class Embedding(Call):
    """Rows of a table by token; ``padding`` is the token that gets no gradient."""

    weight: Tensor

    def __init__(self, weight: Tensor, name: str | None, padding: int | None) -> None:
        super().__init__(weight, None, (name, None))
        self._padding = padding

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As torch does it."""
        return nn.functional.embedding(x, self.weight), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Always factors."""
        tokens, outputs = x.reshape(len(x), -1), gradient.reshape(len(x), -1, gradient.shape[-1])
        if self._padding is not None:
            outputs = outputs * (tokens != self._padding % len(self.weight))[..., None]
        return None, self.named(lambda: Lookup(tokens, outputs, len(self.weight)), lambda: outputs)


class GroupNorm(Call):
    """Normalises groups of channels, then scales and shifts each channel."""

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        names: tuple[str | None, str | None],
        groups: int,
        eps: float,
    ) -> None:
        super().__init__(weight, bias, names)
        self._groups, self._eps = groups, eps

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Keeps the moments of every group."""
        n, channels, size = prod(x.shape[:2]), x.shape[2], prod(x.shape[3:])
        y, mean, rstd = torch.native_group_norm(
            x.contiguous().flatten(0, 1), self.weight, self.bias, n, channels, size, self._groups, self._eps
        )
        return y.view(x.shape), (mean, rstd)

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """As if all records were channels of one: then torch keeps their scales' and shifts' gradients apart.

        Of as many records at once as a GPU's kernel has room for groups.
        """
        n, channels, size = prod(x.shape[:2]), x.shape[2], prod(x.shape[3:])
        rows = gradient.reshape(n, channels, size), x.reshape(n, channels, size), *(t.view(n, -1) for t in kept)
        together = max(1, _MOST_GROUPS // self._groups)
        parts = _parts(together, *rows)
        pieces = [self._apart(outer, inner, mean, rstd, wanted) for outer, inner, mean, rstd in parts]
        before, scales, shifts = zip(*pieces, strict=True)
        found = self.named(
            lambda: Rows(_joined(scales).view(*x.shape[:2], channels).sum(1)),
            lambda: _joined(shifts).view(*x.shape[:2], channels).sum(1),
        )
        return (_joined(before).view(x.shape) if wanted else None), found

    def _apart(self, gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, wanted: bool) -> tuple[Tensor, ...]:
        """Gradients of x, of scales and of shifts for each of the n rows of ``x`` (n, channels, size), one-dimensional.

        What is not wanted is nothing.
        """
        n, channels, size = x.shape
        weight = None if self.weight is None else self.weight.repeat(n)
        found: tuple[Tensor, ...] = torch.ops.aten.native_group_norm_backward.default(
            *(gradient.reshape(1, n * channels, size), x.reshape(1, n * channels, size)),
            *(mean.reshape(1, -1), rstd.reshape(1, -1), weight, 1, n * channels, size, n * self._groups),
            (wanted, self.names[0] is not None, self.names[1] is not None),
        )
        return found


class LayerNorm(Call):
    """Normalises the last axes, then scales and shifts each entry."""

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        names: tuple[str | None, str | None],
        shape: tuple[int, ...],
        eps: float,
    ) -> None:
        super().__init__(weight, bias, names)
        self._shape, self._eps = shape, eps

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Keeps the moments of every row."""
        y, mean, rstd = torch.native_layer_norm(x, self._shape, self.weight, self.bias, self._eps)
        return y, (mean, rstd)

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Scales' gradients are sums of output gradients times normalised inputs."""
        mean, rstd = kept
        before = None
        if wanted:
            before = torch.ops.aten.native_layer_norm_backward.default(
                gradient, x, self._shape, mean, rstd, self.weight, self.bias, (True, False, False)
            )[0]
        each = (len(x), -1, *self._shape)
        found = self.named(
            lambda: Rows((gradient * ((x - mean) * rstd)).reshape(each).sum(1)),
            lambda: gradient.reshape(each).sum(1),
        )
        return before, found


#: Fewer input channels than this per group leave the vector units of a grouped convolution idle.
_NARROW = 8

#: Inputs are unfolded so many bytes at a time on a CPU, that they are read again from the cache of its core (1 MiB is
#: common) and never from new pages: all of a chunk's at once are many times the chunk.
_UNFOLDED = 2**20

#: Gradients of so many bytes a record fill that cache by themselves: a grouped convolution then takes twice the time of
#: one record after the other.
_WIDE = 2**21


class Convolution(Call):
    """A convolution in one to three dimensions."""

    weight: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        names: tuple[str | None, str | None],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> None:
        super().__init__(weight, bias, names)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All inner rows of all records as one batch."""
        y = torch.convolution(
            *(x.flatten(0, 1), self.weight, self.bias, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), self.groups),
        )
        return y.view(*x.shape[:2], *y.shape[1:]), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Factors of an unfolded input where that pays, else rows from one convolution with a group per record."""
        flat, outputs = x.flatten(0, 1), gradient.flatten(0, 1)
        before = self._transposed(outputs, flat, self.weight, self.groups, 0).view(x.shape) if wanted else None
        return before, self.named(lambda: self._weight(x, gradient), lambda: gradient.flatten(3).sum(3).sum(1))

    def _weight(self, x: Tensor, gradient: Tensor) -> Gradients:
        width, depth = len(self.weight), prod(self.weight.shape[1:])
        pixels, positions = prod(x.shape[3:]), prod(gradient.shape[3:])
        pays = gram_pays(x.shape[1] * positions, width, depth)
        narrow = x.is_cuda or self.weight.shape[1] < _NARROW
        if self.groups > 1 or not (pays or narrow):
            some = 1 if self.weight.nbytes >= _WIDE and not x.is_cuda else len(x)
            single = x.shape[1] == self.groups == 1 and not x.is_cuda
            measured = single and convolved_pays(pixels, positions, width, depth, x.shape[2])
            return Pieces(
                partial(_pieces, self._grouped, some, x, gradient),
                partial(self._squares, x, gradient) if measured else None,
            )
        if pays:
            return self._unfolded(x, gradient)
        one = x.element_size() * depth * prod(gradient.shape[3:]) * x.shape[1]
        some = len(x) if x.is_cuda else max(1, _UNFOLDED // one)
        return Pieces(partial(_pieces, lambda *part: self._unfolded(*part).rows(), some, x, gradient))

    def _squares(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Squared norms (b,) by inner products of pixels, those of so many records at once as stay in the cache."""
        flat, outputs = x.flatten(0, 1), gradient.flatten(0, 1)
        some = max(1, _UNFOLDED // (8 * prod(x.shape[3:]) ** 2))
        how = self.weight.shape[2:], self.stride, self.padding, self.dilation
        return torch.cat([convolved_squares(inner, outer, *how) for inner, outer in _parts(some, flat, outputs)])

    def _unfolded(self, x: Tensor, gradient: Tensor) -> Outer:
        columns = self._columns(x.flatten(0, 1))
        inputs = columns.view(*x.shape[:2], *columns.shape[1:]).transpose(2, 3).flatten(1, 2)
        outputs = gradient.flatten(3).transpose(2, 3).flatten(1, 2)
        return Outer(inputs, outputs, self.weight.shape)

    def _grouped(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The weights' gradients (b, *shape): records side by side as channels, each with groups of its own."""
        b, shape = len(x), self.weight.shape
        weight = self.weight.new_empty(b * shape[0], *shape[1:])  # only its shape is read
        inputs, outputs = (t.transpose(0, 1).flatten(1, 2) for t in (x, gradient))
        return self._transposed(outputs, inputs, weight, b * self.groups, 1).view(b, *shape)

    def _transposed(self, outputs: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        """The gradient of the input (which = 0) or of the weight (1) of a convolution."""
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward.default(
            *(outputs, x, weight, None, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), groups, (which == 0, which == 1, False)),
        )
        return found[which]

    def _columns(self, x: Tensor) -> Tensor:
        """Inputs (n, c, ...) as (n, c * kernel, positions): what each output position sees."""
        n, spatial = len(x), len(self.stride)
        x = nn.functional.pad(x, [side for p in reversed(self.padding) for side in (p, p)])
        for axis, (size, step, gap) in enumerate(
            zip(self.weight.shape[2:], self.stride, self.dilation, strict=True), start=2
        ):
            x = x.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
        order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
        return x.permute(order).reshape(n, prod(self.weight.shape[1:]), -1)


def _parts(some: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """So many records of all the tensors (b, ...) after the others."""
    if len(tensors[0]) <= some:
        return (tensors,)
    return zip(*(torch.split(t, some) for t in tensors), strict=True)


def _pieces(write: Callable[[Tensor, Tensor], Tensor], some: int, x: Tensor, gradient: Tensor) -> Iterator[Tensor]:
    """What ``write`` makes of so many records at a time."""
    return (write(inner, outer) for inner, outer in _parts(some, x, gradient))


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """One axis, of the numbers of all parts."""
    return parts[0].flatten() if len(parts) == 1 else torch.cat([part.flatten() for part in parts])
