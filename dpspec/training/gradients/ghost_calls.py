"""Operations with a per-example gradient rule: forward, and gradients from inputs and output gradients.

A call processes a whole chunk x (b, k, ...): b records of k inner rows (k = 1 unless the model folds an axis into the
batch). ``backward`` takes the gradient of the output and returns the gradient of the input and the parameters'
:class:`~dpspec.training.gradients.ghost_parameters.Gradients` by name.
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

#: CUDA's group norm backward launches a block per group along a grid axis of this size.
_MOST_GROUPS = 65_535


class Call(ABC):
    """One use of an operation with given parameters.

    Attributes:
        names: Names of weight and bias, None for those that are not trained.
        given: Weight and bias as passed.
        batched: Whether the input differs between records.
    """

    def __init__(self, weight: Tensor | None, bias: Tensor | None, names: tuple[str | None, str | None]) -> None:
        self.given = (weight, bias)
        self.weight = None if weight is None else weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.names = names
        self.batched = False

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the trained parameters."""
        return tuple(name for name in self.names if name is not None)

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output (b, k, ...) for ``x`` (b, k, ...), and values that backward needs."""

    @abstractmethod
    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Gradient with respect to x, if ``wanted``, and gradients of the trained parameters."""

    def named(self, weight: Callable[[], Gradients], bias: Callable[[], Tensor]) -> dict[str, Gradients]:
        """Gradients of the trained parameters by name, a bias's as rows."""
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
        """Same as torch."""
        return nn.functional.linear(x, self.weight, self.bias), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Keep factors if inner products are cheaper than written-out products."""
        inputs, outputs = x.reshape(len(x), -1, x.shape[-1]), gradient.reshape(len(x), -1, gradient.shape[-1])
        factors = Outer(inputs, outputs, self.weight.shape)
        pays = gram_pays(inputs.shape[1], *self.weight.shape)
        found = self.named(lambda: factors if pays else Rows(factors.rows()), lambda: outputs.sum(1))
        return (gradient @ self.weight if wanted else None), found


class Embedding(Call):
    """Table lookup by token; the token ``padding`` gets no gradient."""

    weight: Tensor

    def __init__(self, weight: Tensor, name: str | None, padding: int | None) -> None:
        super().__init__(weight, None, (name, None))
        self._padding = padding

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Same as torch."""
        return nn.functional.embedding(x, self.weight), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Always keep factors."""
        tokens, outputs = x.reshape(len(x), -1), gradient.reshape(len(x), -1, gradient.shape[-1])
        if self._padding is not None:
            outputs = outputs * (tokens != self._padding % len(self.weight))[..., None]
        return None, self.named(lambda: Lookup(tokens, outputs, len(self.weight)), lambda: outputs)


class GroupNorm(Call):
    """Normalize groups of channels, then scale and shift each channel."""

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
        """Keep the moments of every group."""
        n, channels, size = prod(x.shape[:2]), x.shape[2], prod(x.shape[3:])
        y, mean, rstd = torch.native_group_norm(
            x.contiguous().flatten(0, 1), self.weight, self.bias, n, channels, size, self._groups, self._eps
        )
        return y.view(x.shape), (mean, rstd)

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Treat all records as channels of one, so that torch returns separate gradients of their scales and shifts.

        Limited to as many records as a GPU kernel's grid has groups.
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
        """Gradients of x, scales and shifts for each of n rows ``x`` (n, channels, size), one-dimensional; None if not
        wanted.
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
    """Normalize the last axes, then scale and shift each entry."""

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
        """Keep the moments of every row."""
        y, mean, rstd = torch.native_layer_norm(x, self._shape, self.weight, self.bias, self._eps)
        return y, (mean, rstd)

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Sum output gradients times normalized inputs for the scale."""
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


#: Grouped convolutions with fewer input channels per group leave vector units idle.
_NARROW = 8

#: Bytes of unfolded inputs per piece on a CPU, to fit the core's cache (commonly 1 MiB) and reuse pages. Unfolding a
#: whole chunk takes many times its memory.
_UNFOLDED = 2**20

#: Gradients of this many bytes per record fill the cache: grouped convolution is then twice as slow as a loop.
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
        """Fold all inner rows of all records into one batch."""
        y = torch.convolution(
            *(x.flatten(0, 1), self.weight, self.bias, self.stride, self.padding, self.dilation),
            *(False, (0,) * len(self.stride), self.groups),
        )
        return y.view(*x.shape[:2], *y.shape[1:]), ()

    def backward(
        self, x: Tensor, kept: tuple[Tensor, ...], gradient: Tensor, wanted: bool
    ) -> tuple[Tensor | None, dict[str, Gradients]]:
        """Keep factors of the unfolded input if cheaper, else compute rows by one grouped convolution."""
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
        """Squared norms (b,) from inner products of pixels, in pieces that fit the cache."""
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

    def _columns(self, x: Tensor) -> Tensor:
        """Unfold inputs (n, c, ...) to (n, c * kernel, positions)."""
        n, spatial = len(x), len(self.stride)
        x = nn.functional.pad(x, [side for p in reversed(self.padding) for side in (p, p)])
        for axis, (size, step, gap) in enumerate(
            zip(self.weight.shape[2:], self.stride, self.dilation, strict=True), start=2
        ):
            x = x.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
        order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
        return x.permute(order).reshape(n, prod(self.weight.shape[1:]), -1)


def _parts(some: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Split all tensors (b, ...) into pieces of at most ``some`` records."""
    if len(tensors[0]) <= some:
        return (tensors,)
    return zip(*(torch.split(t, some) for t in tensors), strict=True)


def _pieces(write: Callable[[Tensor, Tensor], Tensor], some: int, x: Tensor, gradient: Tensor) -> Iterator[Tensor]:
    """Apply ``write`` to pieces of at most ``some`` records."""
    return (write(inner, outer) for inner, outer in _parts(some, x, gradient))


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0].flatten() if len(parts) == 1 else torch.cat([part.flatten() for part in parts])
