"""Models of dense, convolutional and residual layers, and a small transformer for texts.

``lenet5``: LeCun, Bottou, Bengio and Haffner 1998. ``resnet20``: He, Zhang, Ren and Sun 2016, for CIFAR.
``wide-resnet-16-4``: Zagoruyko and Komodakis 2016, as in De et al. 2022. Residual networks have group normalization.
``transformer``: Vaswani et al. 2017, with normalization before each part (Xiong et al. 2020). Attention and the final
mean ignore padding, id 0. There is no dropout, because the noise of DP-SGD already regularizes.

Layers compute shapes and parameter counts without torch, and build torch modules on demand. No layer mixes records:
instead of batch normalization there is group normalization within one record, with variance + 1e-5, initial weight 1
and bias 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import Facts, FrozenMap, Json, Model
from dpspec.contract.fragments import array, block, choice, flag, integer

if TYPE_CHECKING:
    import torch

#: Shape of one record.
Shape: TypeAlias = tuple[int, ...]


class Layer(ABC):
    @abstractmethod
    def size(self, shape: Shape) -> tuple[Shape, int]:
        """Return the output shape and the number of parameters for an input shape.

        Raises:
            ValueError: The input shape is not supported.
        """

    @abstractmethod
    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build the float32 CPU module for an input shape, with weights drawn from ``generator``."""


@dataclass(frozen=True)
class Chain(Layer):
    layers: tuple[Layer, ...]

    def size(self, shape: Shape) -> tuple[Shape, int]:
        parameters = 0
        for layer in self.layers:
            shape, layer_parameters = layer.size(shape)
            parameters += layer_parameters
        return shape, parameters

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        import torch

        modules = []
        for layer in self.layers:
            modules.append(layer.module(shape, generator))
            shape, _ = layer.size(shape)
        return torch.nn.Sequential(*modules)


@dataclass(frozen=True)
class Plain(Layer):
    """A layer without parameters: the output shape, and the module from ``dpspec.models.modules`` and input shape."""

    shaped: Callable[[Shape], Shape]
    made: Callable[[Any, Shape], torch.nn.Module]

    def size(self, shape: Shape) -> tuple[Shape, int]:
        return self.shaped(shape), 0

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        from dpspec.models import modules

        return self.made(modules, shape)


#: Any shape to one axis.
FLATTEN = Plain(lambda shape: (prod(shape),), lambda modules, _: modules.nn.Flatten(1))

#: (channels, h, w) to (channels, 1, 1): the mean over all pixels.
GLOBAL_AVERAGE = Plain(lambda shape: (shape[0], 1, 1), lambda modules, _: modules.nn.AdaptiveAvgPool2d(1))


def activation(name: str) -> Layer:
    return Plain(lambda shape: shape, lambda modules, _: modules.nn.ReLU() if name == "relu" else modules.nn.Tanh())


def pool(by: str) -> Layer:
    """Maximum (``max``) or ``average`` of 2 x 2 pixels; halves height and width, rounded down."""

    def halved(shape: Shape) -> Shape:
        channels, h, w = shape
        if min(h, w) < 2:
            raise ValueError(f"images of {h} x {w} are too small for pooling")
        return (channels, h // 2, w // 2)

    return Plain(halved, lambda modules, _: modules.nn.MaxPool2d(2) if by == "max" else modules.nn.AvgPool2d(2))


@dataclass(frozen=True)
class Dense(Layer):
    width: int
    bias: bool = True

    def size(self, shape: Shape) -> tuple[Shape, int]:
        return (self.width,), (shape[0] + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        import torch

        linear = torch.nn.Linear(shape[0], self.width, bias=self.bias, device="meta", dtype=torch.float32)
        return _drawn(linear, shape[0], generator)


@dataclass(frozen=True)
class Convolution(Layer):
    """(channels, h, w) to (width, h', w') with square kernels, h' = (h + 2 padding - kernel) // stride + 1."""

    width: int
    kernel: int
    padding: int = 0
    stride: int = 1
    bias: bool = True

    def size(self, shape: Shape) -> tuple[Shape, int]:
        if len(shape) != 3:
            raise ValueError(f"needs images of shape (channels, height, width), got records of shape {shape}")
        k = self.kernel
        h, w = ((side + 2 * self.padding - k) // self.stride + 1 for side in shape[1:])
        if min(h, w) < 1:
            raise ValueError(f"images of {shape[1]} x {shape[2]} are smaller than the {k} x {k} kernel")
        return (self.width, h, w), (shape[0] * self.kernel**2 + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        import torch

        sizes = shape[0], self.width, self.kernel, self.stride, self.padding
        convolution = torch.nn.Conv2d(*sizes, bias=self.bias, device="meta", dtype=torch.float32)
        return _drawn(convolution, shape[0] * self.kernel**2, generator)


def _drawn(module: torch.nn.Module, fan_in: int, generator: torch.Generator) -> torch.nn.Module:
    """Draw weights and biases uniform in +-1/sqrt(fan_in), torch's default, from ``generator``.

    ``module`` is on the meta device, so that torch's initialization draws no random numbers.
    """
    import torch

    bound = fan_in**-0.5
    for name, parameter in [*module.named_parameters()]:
        # `to_empty` of a meta module imports sympy, which takes a second
        drawn = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
        setattr(module, name, torch.nn.Parameter(drawn.uniform_(-bound, bound, generator=generator)))
    return module


@dataclass(frozen=True)
class Norm(Layer):
    """Group normalization (Wu and He 2018): mean and variance per group, weight and bias per channel."""

    groups: int

    def size(self, shape: Shape) -> tuple[Shape, int]:
        return shape, 2 * shape[0]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        import torch

        return torch.nn.GroupNorm(self.groups, shape[0], device="cpu", dtype=torch.float32)


class Stack(ABC):
    """Base class of model factories that map float32 records (n, *shape) to scores (n, classes) before softmax."""

    def __init__(self, options: FrozenMap, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self._shape = facts.shape or (facts.features,)
        self._chain = Chain(tuple(self.layers()))
        _, self._parameters = self._chain.size(self._shape)

    @abstractmethod
    def layers(self) -> Iterable[Layer]:
        """Return the layers that map ``facts.shape`` to (classes,)."""

    def parameters(self) -> int:
        return self._parameters

    def build(self, seed: int) -> torch.nn.Module:
        import torch

        return self._chain.module(self._shape, torch.Generator(device="cpu").manual_seed(seed))


_BIAS: dict[str, Json] = flag("Add a constant term to every score.", default=True)

_ACTIVATION: dict[str, Json] = choice(
    "The activation function. Bounded functions such as tanh often train better with clipping.", "relu", "tanh"
)

_HIDDEN: dict[str, Json] = {
    **array("The widths of the hidden layers.", {"type": "integer", "minimum": 1, "maximum": 65536}, least=1, most=16),
    "default": [64],
}

#: The number of groups must divide the minimum number of channels, 16.
_GROUPS: dict[str, Json] = {
    "enum": [1, 2, 4, 8, 16],
    "description": "The number of groups of channels. Group normalization replaces the original's batch "
    "normalization, which mixes records.",
}


def _activation(default: str) -> dict[str, Json]:
    return {**_ACTIVATION, "default": default}


def _model(kind: str, name: str, summary: str, *, tokens: bool = False, **options: Json) -> Model:
    factory = f"dpspec.models.architectures:{name}"
    return Model(kind=kind, summary=summary, schema=block(**options), factory=factory, tokens=tokens)


LINEAR = _model("linear", "Linear", "One linear score per class (multinomial logistic regression).", bias=_BIAS)


class Linear(Stack):
    def layers(self) -> Iterable[Layer]:
        return FLATTEN, Dense(self.facts.classes, bias=bool(self.options.get("bias", True)))


_DENSE = "Dense layers with activations between them."
MLP = _model("mlp", "Mlp", _DENSE, hidden=_HIDDEN, activation=_activation("relu"))


class Mlp(Stack):
    """Hidden widths h_1, ..., h_k: (features + 1) h_1 + (h_1 + 1) h_2 + ... + (h_k + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        yield FLATTEN
        for width in self.options.get("hidden", (64,)):
            yield from (Dense(int(width)), activation(self.options.get("activation", "relu")))
        yield Dense(self.facts.classes)


def _require_images(kind: str, shape: Shape) -> None:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(
            f"{kind} needs images (channels, height, width) of at least 8 x 8, got records {shape}; kind: mlp takes "
            "records of any shape"
        )


CNN_SMALL = _model(
    "cnn-small",
    "CnnSmall",
    "3 x 3 convolutions with pooling, then one dense layer; for images of at least 8 x 8.",
    channels=array(
        "The number of channels after each convolution.",
        {"type": "integer", "minimum": 1, "maximum": 4096},
        least=1,
        most=8,
        default=[16, 32],
    ),
    activation=_activation("relu"),
)


class CnnSmall(Stack):
    """Convolutions from b to c channels with (9 b + 1) c parameters each, then (inputs + 1) classes parameters."""

    def layers(self) -> Iterable[Layer]:
        _require_images("cnn-small", self.facts.shape)
        between = activation(self.options.get("activation", "relu"))
        for width in self.options.get("channels", (16, 32)):
            yield from (Convolution(int(width), kernel=3, padding=1), between, pool("max"))
        yield from (FLATTEN, Dense(self.facts.classes))


LENET5 = _model("lenet5", "Lenet5", "LeNet-5 for images of 28 x 28 or 32 x 32.", activation=_activation("tanh"))


class Lenet5(Stack):
    """LeNet-5 with 61,706 parameters for ten classes of grayscale images.

    Unlike in the original, the second convolution uses all channels, pooling has no parameters, and the scores are
    linear. The first convolution pads images of 28 x 28 to 32 x 32.
    """

    def layers(self) -> Iterable[Layer]:
        shape = self.facts.shape
        if shape[1:] not in ((28, 28), (32, 32)):
            raise ValueError(
                f"lenet5 needs images (channels, height, width) of 28 x 28 or 32 x 32, got records {shape}; "
                "kind: mlp takes records of any shape"
            )
        between = activation(self.options.get("activation", "tanh"))
        return (
            *(Convolution(6, kernel=5, padding=(32 - shape[1]) // 2), between, pool("average")),
            *(Convolution(16, kernel=5), between, pool("average")),
            *(FLATTEN, Dense(120), between, Dense(84), between, Dense(self.facts.classes)),
        )


@dataclass(frozen=True)
class Residual(Layer):
    """x to body(x) + shortcut(x). An empty shortcut is the identity."""

    body: Chain
    shortcut: Chain

    def size(self, shape: Shape) -> tuple[Shape, int]:
        body, inner = self.body.size(shape)
        return body, inner + self.shortcut.size(shape)[1]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        from dpspec.models.modules import Sum

        return Sum(self.body.module(shape, generator), self.shortcut.module(shape, generator))


def _subsample(width: int) -> Layer:
    """(channels, h, w) to (width, ceil(h / 2), ceil(w / 2)): drop every second pixel, add channels of zeros."""
    return Plain(
        lambda shape: (width, *(-(-side // 2) for side in shape[1:])),
        lambda modules, shape: modules.Subsample(width - shape[0]),
    )


RESNET20 = _model(
    "resnet20",
    "Resnet20",
    "ResNet-20 for images of at least 8 x 8, with group normalization instead of batch normalization.",
    groups={**_GROUPS, "default": 8},
    activation=_activation("relu"),
)


class Resnet20(Stack):
    """ResNet-20 with 269,722 parameters for ten classes of color images.

    Weights have the original's shapes: three stages of three blocks with 16, 32 and 64 channels, convolutions without
    biases, and shortcuts without parameters (the paper's option A).
    """

    def layers(self) -> Iterable[Layer]:
        _require_images("resnet20", self.facts.shape)
        between = Norm(int(self.options.get("groups", 8))), activation(self.options.get("activation", "relu"))
        yield from (Convolution(16, kernel=3, padding=1, bias=False), *between)
        for width in (16, 32, 64):
            for first in (True, False, False):
                stride = 2 if first and width > 16 else 1
                shortcut = (_subsample(width),) if stride > 1 else ()
                body = (*_convolutions(width, stride, between), between[0])
                yield from (Residual(Chain(body), Chain(shortcut)), between[1])
        yield from (GLOBAL_AVERAGE, FLATTEN, Dense(self.facts.classes))


WIDE_RESNET_16_4 = _model(
    "wide-resnet-16-4",
    "WideResnet16x4",
    "Wide ResNet of depth 16 and width 4 for images of at least 8 x 8, with group normalization.",
    groups={**_GROUPS, "default": 16},
    activation=_activation("relu"),
)


class WideResnet16x4(Stack):
    """Wide ResNet with 2,748,890 parameters for ten classes of color images.

    Three stages of two blocks with 64, 128 and 256 channels, normalization and activation before each convolution,
    convolutions without biases, and a 1 x 1 convolution as shortcut if the shape changes. Unlike in De et al., weights
    are not standardized.
    """

    def layers(self) -> Iterable[Layer]:
        _require_images("wide-resnet-16-4", self.facts.shape)
        before = Norm(int(self.options.get("groups", 16))), activation(self.options.get("activation", "relu"))
        yield Convolution(16, kernel=3, padding=1, bias=False)
        for width in (64, 128, 256):
            stride = 2 if width > 64 else 1
            changed = Convolution(width, kernel=1, stride=stride, bias=False)
            yield from before
            yield Residual(Chain(_convolutions(width, stride, before)), Chain((changed,)))
            yield Residual(Chain((*before, *_convolutions(width, 1, before))), Chain(()))
        yield from (*before, GLOBAL_AVERAGE, FLATTEN, Dense(self.facts.classes))


def _convolutions(width: int, stride: int, between: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Two 3 x 3 convolutions with normalization and activation between them."""
    return (
        Convolution(width, kernel=3, padding=1, stride=stride, bias=False),
        *between,
        Convolution(width, kernel=3, padding=1, bias=False),
    )


TRANSFORMER = _model(
    "transformer",
    "Transformer",
    "A small transformer encoder for token sequences, with scores from the mean over all tokens.",
    tokens=True,
    width=integer("The length of a token's vector; a multiple of heads.", least=1, most=4096, default=32),
    heads=integer("The number of attention heads.", least=1, most=64, default=2),
    layers=integer("The number of layers, each with attention and two dense layers.", least=1, most=48, default=1),
    hidden=integer("The width between the two dense layers of each layer.", least=1, most=65536, default=64),
)


class Transformer(Stack):
    def layers(self) -> Iterable[Layer]:
        if self.facts.vocabulary is None or len(self.facts.shape) != 1:
            raise ValueError("transformer needs records of token ids, such as data of kind tokens")
        width, heads = int(self.options.get("width", 32)), int(self.options.get("heads", 2))
        if width % heads:
            raise ValueError(f"width must be a multiple of heads ({heads}), got {width}")
        depth, hidden = int(self.options.get("layers", 1)), int(self.options.get("hidden", 64))
        return Encoder(self.facts.vocabulary, width, heads, depth, hidden), Dense(self.facts.classes)


@dataclass(frozen=True)
class Encoder(Layer):
    vocabulary: int
    width: int
    heads: int
    depth: int
    hidden: int

    def size(self, shape: Shape) -> tuple[Shape, int]:
        w, h = self.width, self.hidden
        layer_parameters = 4 * w * (w + 1) + 4 * w + 2 * h * w + h + w
        return (w,), w * (self.vocabulary + shape[0]) + self.depth * layer_parameters + 2 * w

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Draw embeddings from N(0, 0.1^2), and dense layers by fan-in."""
        import torch

        from dpspec.models.modules import Encoder as Module

        encoder = Module(self.vocabulary, shape[0], self.width, self.heads, self.depth, self.hidden)
        with torch.no_grad():
            for part in encoder.modules():
                if isinstance(part, torch.nn.Embedding):
                    part.weight.normal_(0.0, 0.1, generator=generator)
                elif isinstance(part, torch.nn.Linear):
                    bound = part.in_features**-0.5
                    part.weight.uniform_(-bound, bound, generator=generator)
                    part.bias.uniform_(-bound, bound, generator=generator)
                elif isinstance(part, torch.nn.LayerNorm):
                    part.weight.fill_(1.0)
                    part.bias.zero_()
        return encoder


MODELS = (CNN_SMALL, LENET5, LINEAR, MLP, RESNET20, TRANSFORMER, WIDE_RESNET_16_4)
