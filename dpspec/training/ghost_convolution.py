"""Per-example gradients of convolutions: a convolution with a group per record, or products with an unfolded input."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from dpspec.training.ghost_calls import Call
from dpspec.training.ghost_gradients import Gradients, Outer, Rows, gram_pays

#: Fewer input channels than this per group leave the vector units of a grouped convolution idle.
_NARROW = 8


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
        pays = gram_pays(x.shape[1] * prod(gradient.shape[3:]), width, depth)
        narrow = x.is_cuda or self.weight.shape[1] < _NARROW
        if self.groups > 1 or not (pays or narrow):
            return Rows(self._grouped(x, gradient))
        columns = self._columns(x.flatten(0, 1))
        inputs = columns.view(*x.shape[:2], *columns.shape[1:]).transpose(2, 3).flatten(1, 2)
        outputs = gradient.flatten(3).transpose(2, 3).flatten(1, 2)
        factors = Outer(inputs, outputs, self.weight.shape)
        return factors if pays else Rows(factors.rows())

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
