"""Layers that compute shapes and parameter counts without torch, and build torch modules on demand.

No layer mixes records, so per-example gradients are well defined. Instead of batch normalization there are two layers
that normalize within one record: x to (x - mean) / sqrt(variance + 1e-5) * weight + bias, with initial weight 1 and
bias 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpspec.contract import Facts, FrozenMap, Json

if TYPE_CHECKING:
    import torch


Shape: TypeAlias = tuple[int, ...]


class Layer(ABC):
    """A layer of a model. Shapes are those of one record."""

    @abstractmethod
    def output(self, shape: Shape) -> Shape:
        """Return the output shape for an input shape. Raises ``ValueError`` if the input shape is not supported."""

    def parameters(self, shape: Shape) -> int:
        """Return the number of trainable parameters for an input shape."""
        return 0

    @abstractmethod
    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build the float32 CPU module for an input shape, with weights drawn from ``generator``."""


@dataclass(frozen=True)
class Chain(Layer):
    """A sequence of layers."""

    layers: tuple[Layer, ...]

    def output(self, shape: Shape) -> Shape:
        """Return the last layer's output shape."""
        for layer in self.layers:
            shape = layer.output(shape)
        return shape

    def parameters(self, shape: Shape) -> int:
        """Return the sum over all layers."""
        return sum(layer.parameters(before) for layer, before in self._fitted(shape))

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.Sequential``; weights are drawn in the order of the layers."""
        import torch

        return torch.nn.Sequential(*(layer.module(before, generator) for layer, before in self._fitted(shape)))

    def _fitted(self, shape: Shape) -> Iterator[tuple[Layer, Shape]]:
        for layer in self.layers:
            yield layer, shape
            shape = layer.output(shape)


@dataclass(frozen=True)
class Flatten(Layer):
    """Flatten any shape to one axis."""

    def output(self, shape: Shape) -> Shape:
        """Return (prod(shape),)."""
        return (prod(shape),)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.Flatten``."""
        import torch

        return torch.nn.Flatten(1)


@dataclass(frozen=True)
class Dense(Layer):
    """(inputs,) to (width,): x W^T + b."""

    width: int
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        """Return (width,)."""
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        """Return the number of weights and biases."""
        return (shape[0] + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.Linear``."""
        import torch

        made = torch.nn.Linear(shape[0], self.width, bias=self.bias, device="meta", dtype=torch.float32)
        return _drawn(made, shape[0], generator)


@dataclass(frozen=True)
class Convolution(Layer):
    """(channels, h, w) to (width, h', w') with square kernels, h' = (h + 2 padding - kernel) // stride + 1."""

    width: int
    kernel: int
    padding: int = 0
    stride: int = 1
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        """Return (width, h', w'). Raises ``ValueError`` for small images and records that are not images."""
        if len(shape) != 3:
            raise ValueError(f"needs images of shape (channels, height, width), got records of shape {shape}")
        h, w = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in shape[1:])
        if min(h, w) < 1:
            raise ValueError(
                f"images of {shape[1]} x {shape[2]} are smaller than the {self.kernel} x {self.kernel} kernel"
            )
        return (self.width, h, w)

    def parameters(self, shape: Shape) -> int:
        """Return the number of weights and biases."""
        return (shape[0] * self.kernel**2 + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.Conv2d``."""
        import torch

        made = torch.nn.Conv2d(
            *(shape[0], self.width, self.kernel),
            stride=self.stride,
            padding=self.padding,
            bias=self.bias,
            device="meta",
            dtype=torch.float32,
        )
        return _drawn(made, shape[0] * self.kernel**2, generator)


@dataclass(frozen=True)
class Pool(Layer):
    """Maximum or average of 2 x 2 pixels; halves height and width, rounded down."""

    by: Literal["max", "average"] = "max"

    def output(self, shape: Shape) -> Shape:
        """Return (channels, h // 2, w // 2). Raises ``ValueError`` if h or w is 1."""
        channels, h, w = shape
        if min(h, w) < 2:
            raise ValueError(f"images of {h} x {w} are too small for pooling")
        return (channels, h // 2, w // 2)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.MaxPool2d`` or ``torch.nn.AvgPool2d``."""
        import torch

        return torch.nn.MaxPool2d(2) if self.by == "max" else torch.nn.AvgPool2d(2)


@dataclass(frozen=True)
class Activation(Layer):
    """Element-wise ``relu`` or ``tanh``."""

    function: Literal["relu", "tanh"]

    def output(self, shape: Shape) -> Shape:
        """The same shape."""
        return shape

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.ReLU`` or ``torch.nn.Tanh``."""
        import torch

        return torch.nn.ReLU() if self.function == "relu" else torch.nn.Tanh()


def _drawn(module: torch.nn.Module, fan_in: int, generator: torch.Generator) -> torch.nn.Module:
    """Draw weights and biases uniform in +-1/sqrt(fan_in), torch's default, from ``generator``.

    ``module`` is on the meta device, so that torch's initialization draws no random numbers.
    """
    import torch

    bound, module = fan_in**-0.5, module.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return module


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Group normalization (Wu and He 2018), with mean and variance per group of channels."""

    groups: int

    def output(self, shape: Shape) -> Shape:
        """Return the same shape. Raises ``ValueError`` if ``groups`` does not divide the number of channels."""
        if shape[0] % self.groups:
            raise ValueError(f"{shape[0]} channels cannot be divided into {self.groups} equal groups")
        return shape

    def parameters(self, shape: Shape) -> int:
        """Return the number of parameters: a weight and a bias per channel."""
        return 2 * shape[0]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.GroupNorm``."""
        import torch

        return torch.nn.GroupNorm(self.groups, shape[0], device="cpu", dtype=torch.float32)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Layer normalization (Ba, Kiros and Hinton 2016), with mean and variance over all values of a record."""

    def output(self, shape: Shape) -> Shape:
        """The same shape."""
        return shape

    def parameters(self, shape: Shape) -> int:
        """Return the number of parameters: a weight and a bias per value."""
        return 2 * shape[0]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """Build a ``torch.nn.LayerNorm``."""
        import torch

        return torch.nn.LayerNorm(shape[0], device="cpu", dtype=torch.float32)


#: Schema of an activation function, without default.
ACTIVATION: dict[str, Json] = {
    "enum": ["relu", "tanh"],
    "description": "The activation function. Bounded functions such as tanh often train better with clipping.",
}

#: Schema of the hidden layers' widths, without default.
HIDDEN: dict[str, Json] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "maximum": 65536},
    "minItems": 1,
    "maxItems": 16,
    "description": "The widths of the hidden layers.",
}


class Stack(ABC):
    """Base class of :class:`~dpspec.contract.ModelFactory` for sequences of layers.

    The module maps float32 records (n, *shape) to scores (n, classes) before softmax.

    Args:
        options: The model block.
        facts: The public facts of the data.

    Raises:
        ValueError: The layers do not fit the data.
    """

    def __init__(self, options: FrozenMap, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self._chain = Chain(tuple(self.layers()))
        self._chain.output(self._shape)

    @property
    def _shape(self) -> Shape:
        """The shape of one record; (features,) if the data declares none."""
        return self.facts.shape or (self.facts.features,)

    @abstractmethod
    def layers(self) -> Iterable[Layer]:
        """Return the layers that map ``facts.shape`` to (classes,)."""

    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        return self._chain.parameters(self._shape)

    def build(self, seed: int) -> torch.nn.Module:
        """Build a module whose weights depend only on the seed, without using torch's global generators."""
        import torch

        return self._chain.module(self._shape, torch.Generator(device="cpu").manual_seed(seed))


def check_images(kind: str, shape: Shape, least: int) -> None:
    """Raise ``ValueError`` unless ``shape`` is (channels, h, w) with h and w at least ``least``."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"{kind} needs images (channels, height, width) of at least {least} x {least}, got records {shape}"
        )
