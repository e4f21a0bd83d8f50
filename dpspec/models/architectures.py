"""Models of dense, convolutional and residual layers.

``logistic`` uses a reference class, so that two classes have one logit. ``linear`` has one score per class: the
decision regions of its softmax are the same, but adding a constant to all scores has no effect, and for two classes a
record's gradient is sqrt(2) times as long.

``lenet5``: LeCun, Bottou, Bengio and Haffner 1998. ``resnet20``: He, Zhang, Ren and Sun 2016, for CIFAR.
``wide-resnet-16-4``: Zagoruyko and Komodakis 2016, as in De et al. 2022. Residual networks have group normalization.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.contract import Json, Model
from dpspec.models.layers import (
    ACTIVATION,
    HIDDEN,
    Activation,
    Chain,
    Convolution,
    Dense,
    Flatten,
    GroupNorm,
    Layer,
    LayerNorm,
    Pool,
    Shape,
    Stack,
    check_images,
)

if TYPE_CHECKING:
    import torch


LINEAR = Model(
    kind="linear",
    summary="One linear score per class (multinomial logistic regression).",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Add a constant term to every score."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:Linear",
)


class Linear(Stack):
    """Linear scores with features x classes weights and ``classes`` biases."""

    def layers(self) -> Iterable[Layer]:
        """Return a flatten and a dense layer."""
        return Flatten(), Dense(self.facts.classes, bias=bool(self.options.get("bias", True)))


LOGISTIC = Model(
    kind="logistic",
    summary="Logistic regression: one linear score per class except the first, whose score is 0.",
    schema={
        "type": "object",
        "properties": {
            "bias": {"type": "boolean", "default": True, "description": "Add a constant term to every score."},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:Logistic",
)


class Logistic(Stack):
    """Logistic regression with (features + 1) (classes - 1) parameters.

    For two classes the loss is log(1 + exp(-s z)) with z = w x + b, s = 1 for class 1 and s = -1 for class 0. The norm
    of its gradient in (w, b) is at most sqrt(||x||^2 + 1).
    """

    def layers(self) -> Iterable[Layer]:
        """Return a flatten and a dense layer, and the score of the reference class."""
        return Flatten(), Dense(self.facts.classes - 1, bias=bool(self.options.get("bias", True))), Reference()


@dataclass(frozen=True)
class Reference(Layer):
    """(k,) to (k + 1,): prepend the score 0 of the reference class."""

    def output(self, shape: Shape) -> Shape:
        """Return (k + 1,)."""
        return (shape[0] + 1,)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Return a :class:`dpspec.models.modules.ZeroFirst`."""
        from dpspec.models.modules import ZeroFirst

        return ZeroFirst()


MLP = Model(
    kind="mlp",
    summary="Dense layers with activations between them.",
    schema={
        "type": "object",
        "properties": {
            "hidden": {**HIDDEN, "default": [64]},
            "activation": {**ACTIVATION, "default": "relu"},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:Mlp",
)


class Mlp(Stack):
    """Hidden widths h_1, ..., h_k: (features + 1) h_1 + (h_1 + 1) h_2 + ... + (h_k + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        """Yield a flatten layer, then dense layers and activations."""
        yield Flatten()
        for width in self.options.get("hidden", (64,)):
            yield Dense(int(width))
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)


TABULAR_MLP = Model(
    kind="tabular-mlp",
    summary="Dense layers with layer normalization, for tabular records.",
    schema={
        "type": "object",
        "properties": {
            "hidden": {**HIDDEN, "default": [128, 64]},
            "activation": {**ACTIVATION, "default": "relu"},
            "layer_norm": {
                "type": "boolean",
                "default": True,
                "description": "Normalize the output of each hidden layer per record before the activation. Unlike "
                "batch normalization, this uses no statistics of the data.",
            },
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:TabularMlp",
)


class TabularMlp(Stack):
    """Like ``mlp``, with 2 h additional parameters for each normalized hidden layer of width h.

    Features are not scaled: use ``data.standardise`` with public constants.
    """

    def layers(self) -> Iterable[Layer]:
        """Yield dense layer, normalization and activation per entry of ``hidden``, then the scores."""
        shape = self.facts.shape or (self.facts.features,)
        if len(shape) != 1:
            raise ValueError(f"tabular-mlp needs records of shape (features,), got {shape}; use mlp for images")
        for width in self.options.get("hidden", (128, 64)):
            yield Dense(int(width))
            if self.options.get("layer_norm", True):
                yield LayerNorm()
            yield Activation(self.options.get("activation", "relu"))
        yield Dense(self.facts.classes)


CNN_SMALL = Model(
    kind="cnn-small",
    summary="3 x 3 convolutions with pooling, then one dense layer; for images of at least 8 x 8.",
    schema={
        "type": "object",
        "properties": {
            "channels": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 4096},
                "minItems": 1,
                "maxItems": 8,
                "default": [16, 32],
                "description": "The number of channels after each convolution.",
            },
            "activation": {**ACTIVATION, "default": "relu"},
        },
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:CnnSmall",
)


class CnnSmall(Stack):
    """Convolutions from b to c channels with (9 b + 1) c parameters each, then (inputs + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        """Yield convolution, activation and max pooling per entry of ``channels``, then the scores."""
        check_images("cnn-small", self.facts.shape, 8)
        for width in self.options.get("channels", (16, 32)):
            yield Convolution(int(width), kernel=3, padding=1)
            yield Activation(self.options.get("activation", "relu"))
            yield Pool("max")
        yield Flatten()
        yield Dense(self.facts.classes)


LENET5 = Model(
    kind="lenet5",
    summary="LeNet-5 for images of 28 x 28 or 32 x 32.",
    schema={
        "type": "object",
        "properties": {"activation": {**ACTIVATION, "default": "tanh"}},
        "additionalProperties": False,
    },
    factory="dpspec.models.architectures:Lenet5",
)


class Lenet5(Stack):
    """LeNet-5 with 61,706 parameters for ten classes of grayscale images.

    Unlike in the original, the second convolution uses all channels, pooling has no parameters, and the scores are
    linear.
    """

    def layers(self) -> Iterable[Layer]:
        """Return the layers. The first convolution pads images of 28 x 28 to 32 x 32."""
        shape = self.facts.shape
        if shape[1:] not in ((28, 28), (32, 32)):
            raise ValueError(
                f"lenet5 needs images (channels, height, width) of 28 x 28 or 32 x 32, got records {shape}"
            )
        activation = Activation(self.options.get("activation", "tanh"))
        return (
            *(Convolution(6, kernel=5, padding=(32 - shape[1]) // 2), activation, Pool("average")),
            *(Convolution(16, kernel=5), activation, Pool("average")),
            *(Flatten(), Dense(120), activation, Dense(84), activation, Dense(self.facts.classes)),
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
    factory="dpspec.models.architectures:Resnet20",
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
    factory="dpspec.models.architectures:WideResnet16x4",
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
