"""What residual networks are made of: sums of two ways, a shortcut without parameters, and a mean over all pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json
from dpspec.models.layers import Chain, Layer, Shape

if TYPE_CHECKING:
    import torch

#: The schema of the number of groups, less its default. It must divide the least number of channels, which is 16.
GROUPS: dict[str, Json] = {
    "enum": [1, 2, 4, 8, 16],
    "description": "How many groups of channels are normalised apart. Group normalisation replaces the batch "
    "normalisation of the original, which would mix records.",
}


@dataclass(frozen=True)
class Residual(Layer):
    """x to body(x) + shortcut(x). A shortcut of no layers is the identity."""

    body: Chain
    shortcut: Chain

    def output(self, shape: Shape) -> Shape:
        """What both make of it; raises ``ValueError`` where they differ."""
        out, beside = self.body.output(shape), self.shortcut.output(shape)
        if out != beside:
            raise ValueError(f"a residual block of shape {out} has a shortcut of shape {beside}")
        return out

    def parameters(self, shape: Shape) -> int:
        """Of both."""
        return self.body.parameters(shape) + self.shortcut.parameters(shape)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """:class:`dpspec.models.modules.Sum`."""
        from dpspec.models.modules import Sum

        return Sum(self.body.module(shape, generator), self.shortcut.module(shape, generator))


@dataclass(frozen=True)
class Subsample(Layer):
    """(channels, h, w) to (width, ceil(h / stride), ceil(w / stride)): leaves pixels out, adds channels of zeros."""

    width: int
    stride: int

    def output(self, shape: Shape) -> Shape:
        """(width, ceil(h / stride), ceil(w / stride))."""
        return (self.width, *(-(-side // self.stride) for side in shape[1:]))

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """:class:`dpspec.models.modules.Subsample`."""
        from dpspec.models.modules import Subsample as Module

        return Module(self.stride, self.width - shape[0])


@dataclass(frozen=True)
class GlobalAverage(Layer):
    """(channels, h, w) to (channels, 1, 1): the mean over all pixels."""

    def output(self, shape: Shape) -> Shape:
        """(channels, 1, 1)."""
        return (shape[0], 1, 1)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.AdaptiveAvgPool2d``."""
        import torch

        return torch.nn.AdaptiveAvgPool2d(1)
