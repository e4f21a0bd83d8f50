"""Layers that compute shapes and parameter counts without torch, and build torch modules on demand.

No layer mixes records: instead of batch normalization there is group normalization within one record, with variance +
1e-5, initial weight 1 and bias 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import Facts, FrozenMap

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
            shape, more = layer.size(shape)
            parameters += more
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

    def size(self, shape: Shape) -> tuple[Shape, int]:
        if len(shape) != 3:
            raise ValueError(f"needs images of shape (channels, height, width), got records of shape {shape}")
        h, w = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in shape[1:])
        if min(h, w) < 1:
            raise ValueError(
                f"images of {shape[1]} x {shape[2]} are smaller than the {self.kernel} x {self.kernel} kernel"
            )
        return (self.width, h, w), (shape[0] * self.kernel**2 + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        import torch

        sizes = shape[0], self.width, self.kernel, self.stride, self.padding
        made = torch.nn.Conv2d(*sizes, bias=self.bias, device="meta", dtype=torch.float32)
        return _drawn(made, shape[0] * self.kernel**2, generator)


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
