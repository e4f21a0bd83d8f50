"""Residual networks with group normalization: ``resnet20`` (He, Zhang, Ren and Sun 2016, for CIFAR) and
``wide-resnet-16-4`` (Zagoruyko and Komodakis 2016, as in De et al. 2022), and their layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json, Model
from dpspec.models.layers import (
    ACTIVATION,
    Activation,
    Chain,
    Convolution,
    Dense,
    Flatten,
    GroupNorm,
    Layer,
    Shape,
    Stack,
    check_images,
)

if TYPE_CHECKING:
    import torch


#: Schema of the number of groups, without default. It must divide the minimum number of channels, 16.
GROUPS: dict[str, Json] = {
    "enum": [1, 2, 4, 8, 16],
    "description": "The number of groups of channels. Group normalization replaces the original's batch "
    "normalization, which mixes records.",
}


@dataclass(frozen=True)
class Residual(Layer):
    """x to body(x) + shortcut(x). An empty shortcut is the identity."""

    body: Chain
    shortcut: Chain

    def output(self, shape: Shape) -> Shape:
        """Return the common output shape. Raises ``ValueError`` if body and shortcut differ."""
        body, shortcut = self.body.output(shape), self.shortcut.output(shape)
        if body != shortcut:
            raise ValueError(f"a residual block of shape {body} has a shortcut of shape {shortcut}")
        return body

    def parameters(self, shape: Shape) -> int:
        """Return the sum over body and shortcut."""
        return self.body.parameters(shape) + self.shortcut.parameters(shape)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a :class:`dpspec.models.modules.Sum`."""
        from dpspec.models.modules import Sum

        return Sum(self.body.module(shape, generator), self.shortcut.module(shape, generator))


@dataclass(frozen=True)
class Subsample(Layer):
    """(channels, h, w) to (width, ceil(h / stride), ceil(w / stride)): drop pixels, add channels of zeros."""

    width: int
    stride: int

    def output(self, shape: Shape) -> Shape:
        """Return (width, ceil(h / stride), ceil(w / stride))."""
        return (self.width, *(-(-side // self.stride) for side in shape[1:]))

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a :class:`dpspec.models.modules.Subsample`."""
        from dpspec.models.modules import Subsample as Module

        return Module(self.stride, self.width - shape[0])


@dataclass(frozen=True)
class GlobalAverage(Layer):
    """(channels, h, w) to (channels, 1, 1): the mean over all pixels."""

    def output(self, shape: Shape) -> Shape:
        """Return (channels, 1, 1)."""
        return (shape[0], 1, 1)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.AdaptiveAvgPool2d``."""
        import torch

        return torch.nn.AdaptiveAvgPool2d(1)


RESNET20 = Model(
    kind="resnet20",
    summary="ResNet-20 for images of at least 8 x 8, with group normalization instead of batch normalization.",
    schema={
        "type": "object",
        "properties": {"groups": {**GROUPS, "default": 8}, "activation": {**ACTIVATION, "default": "relu"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.residual:Resnet20",
)


class Resnet20(Stack):
    """ResNet-20 with 269,722 parameters for ten classes of color images.

    Weights have the original's shapes: three stages of three blocks with 16, 32 and 64 channels, convolutions without
    biases, and shortcuts without parameters (the paper's option A).
    """

    def layers(self) -> Iterable[Layer]:
        """Yield a convolution, nine blocks, the mean over all pixels, then the scores."""
        check_images("resnet20", self.facts.shape, 8)
        norm = GroupNorm(int(self.options.get("groups", 8)))
        activation = Activation(self.options.get("activation", "relu"))
        yield from (Convolution(16, kernel=3, padding=1, bias=False), norm, activation)
        for width in (16, 32, 64):
            for first in (True, False, False):
                stride = 2 if first and width > 16 else 1
                body = (
                    *(Convolution(width, kernel=3, padding=1, stride=stride, bias=False), norm, activation),
                    *(Convolution(width, kernel=3, padding=1, bias=False), norm),
                )
                shortcut = (Subsample(width, stride),) if stride > 1 else ()
                yield from (Residual(Chain(body), Chain(shortcut)), activation)
        yield from (GlobalAverage(), Flatten(), Dense(self.facts.classes))


WIDE_RESNET_16_4 = Model(
    kind="wide-resnet-16-4",
    summary="Wide ResNet of depth 16 and width 4 for images of at least 8 x 8, with group normalization.",
    schema={
        "type": "object",
        "properties": {"groups": {**GROUPS, "default": 16}, "activation": {**ACTIVATION, "default": "relu"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.residual:WideResnet16x4",
)


class WideResnet16x4(Stack):
    """Wide ResNet with 2,748,890 parameters for ten classes of color images.

    Weights have the original's shapes: three stages of two blocks with 64, 128 and 256 channels, normalization and
    activation before each convolution, convolutions without biases, and a 1 x 1 convolution as shortcut if the shape
    changes. Unlike in De et al., weights are not standardized.
    """

    def layers(self) -> Iterable[Layer]:
        """Yield a convolution, six blocks, normalization, the mean over all pixels, then the scores."""
        check_images("wide-resnet-16-4", self.facts.shape, 8)
        before = (
            GroupNorm(int(self.options.get("groups", 16))),
            Activation(self.options.get("activation", "relu")),
        )
        yield Convolution(16, kernel=3, padding=1, bias=False)
        for width in (64, 128, 256):
            stride = 2 if width > 64 else 1
            changed = Convolution(width, kernel=1, stride=stride, bias=False)
            yield from before
            yield Residual(Chain(_convolutions(width, stride, before)), Chain((changed,)))
            yield Residual(Chain((*before, *_convolutions(width, 1, before))), Chain(()))
        yield from (*before, GlobalAverage(), Flatten(), Dense(self.facts.classes))


def _convolutions(width: int, stride: int, between: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return two 3 x 3 convolutions with normalization and activation between them."""
    return (
        Convolution(width, kernel=3, padding=1, stride=stride, bias=False),
        *between,
        Convolution(width, kernel=3, padding=1, bias=False),
    )
