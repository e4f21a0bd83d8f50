"""Layers as light values: they know their shapes and parameters without torch, and make their torch module on demand.

No layer mixes records: every record's gradient is its own. In place of batch normalisation, which would mix them, stand
two within one record, x to (x - mean) / sqrt(variance + 1e-5) * weight + bias, weight 1 and bias 0 at first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch


Shape: TypeAlias = tuple[int, ...]


class Layer(ABC):
    """One step of a stack; shapes are those of one record."""

    @abstractmethod
    def output(self, shape: Shape) -> Shape:
        """The shape that comes out when ``shape`` goes in; raises ``ValueError`` where it does not fit."""

    def parameters(self, shape: Shape) -> int:
        """The number of trainable parameters when ``shape`` goes in."""
        return 0

    @abstractmethod
    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """The torch module when ``shape`` goes in, float32 on the CPU, its weights drawn from ``generator``."""


@dataclass(frozen=True)
class Chain(Layer):
    """Layers one after the other."""

    layers: tuple[Layer, ...]

    def output(self, shape: Shape) -> Shape:
        """What the last layer makes of it."""
        for layer in self.layers:
            shape = layer.output(shape)
        return shape

    def parameters(self, shape: Shape) -> int:
        """Of all layers."""
        return sum(layer.parameters(before) for layer, before in self._fitted(shape))

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.Sequential``; weights are drawn first layer first."""
        import torch

        return torch.nn.Sequential(*(layer.module(before, generator) for layer, before in self._fitted(shape)))

    def _fitted(self, shape: Shape) -> Iterator[tuple[Layer, Shape]]:
        """Every layer with the shape that goes into it."""
        for layer in self.layers:
            yield layer, shape
            shape = layer.output(shape)


@dataclass(frozen=True)
class Flatten(Layer):
    """Any shape to one axis."""

    def output(self, shape: Shape) -> Shape:
        """(prod(shape),)."""
        return (prod(shape),)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.Flatten``."""
        import torch

        return torch.nn.Flatten(1)


@dataclass(frozen=True)
class Dense(Layer):
    """(inputs,) to (width,): x W^T + b."""

    width: int
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        """(width,)."""
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        """Weights and biases."""
        return (shape[0] + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.Linear``."""
        import torch

        made = torch.nn.Linear(shape[0], self.width, bias=self.bias, device="meta", dtype=torch.float32)
        return _drawn(made, shape[0], generator)


@dataclass(frozen=True)
class Convolution(Layer):
    """(channels, h, w) to (width, h', w') by square kernels, h' = (h + 2 padding - kernel) // stride + 1."""

    width: int
    kernel: int
    padding: int = 0
    stride: int = 1
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        """(width, h', w'); raises ``ValueError`` for images smaller than the kernel and for records that are none."""
        if len(shape) != 3:
            raise ValueError(f"needs images of shape (channels, height, width), got records of shape {shape}")
        h, w = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in shape[1:])
        if min(h, w) < 1:
            raise ValueError(
                f"images of {shape[1]} x {shape[2]} are smaller than the {self.kernel} x {self.kernel} kernel"
            )
        return (self.width, h, w)

    def parameters(self, shape: Shape) -> int:
        """Kernels and, where there are any, biases."""
        return (shape[0] * self.kernel**2 + self.bias) * self.width

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.Conv2d``."""
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
    """Halves height and width, rounding down: the largest or the average of every 2 x 2 pixels."""

    by: Literal["max", "average"] = "max"

    def output(self, shape: Shape) -> Shape:
        """(channels, h // 2, w // 2); raises ``ValueError`` where nothing is left."""
        channels, h, w = shape
        if min(h, w) < 2:
            raise ValueError(f"images of {h} x {w} cannot be halved once more")
        return (channels, h // 2, w // 2)

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.MaxPool2d`` or ``torch.nn.AvgPool2d``."""
        import torch

        return torch.nn.MaxPool2d(2) if self.by == "max" else torch.nn.AvgPool2d(2)


@dataclass(frozen=True)
class Activation(Layer):
    """``relu`` or ``tanh``, entry by entry."""

    function: Literal["relu", "tanh"]

    def output(self, shape: Shape) -> Shape:
        """The same shape."""
        return shape

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.ReLU`` or ``torch.nn.Tanh``."""
        import torch

        return torch.nn.ReLU() if self.function == "relu" else torch.nn.Tanh()


def _drawn(module: torch.nn.Module, fan_in: int, generator: torch.Generator) -> torch.nn.Module:
    """Weights and biases uniform in +-1/sqrt(fan_in), which is torch's own default, but from ``generator`` alone.

    ``module`` comes on the meta device, where torch's own initialisation draws nothing.
    """
    import torch

    bound, module = fan_in**-0.5, module.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return module


@dataclass(frozen=True)
class GroupNorm(Layer):
    """Wu and He (2018): mean and variance over the pixels and channels of each of ``groups`` groups of channels."""

    groups: int

    def output(self, shape: Shape) -> Shape:
        """The same shape; raises ``ValueError`` where the channels cannot be shared out."""
        if shape[0] % self.groups:
            raise ValueError(f"{shape[0]} channels cannot be cut into {self.groups} equal groups")
        return shape

    def parameters(self, shape: Shape) -> int:
        """A weight and a bias per channel."""
        return 2 * shape[0]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.GroupNorm``; nothing is drawn."""
        import torch

        return torch.nn.GroupNorm(self.groups, shape[0], device="cpu", dtype=torch.float32)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Ba, Kiros and Hinton (2016): mean and variance over all values of a record."""

    def output(self, shape: Shape) -> Shape:
        """The same shape."""
        return shape

    def parameters(self, shape: Shape) -> int:
        """A weight and a bias per value."""
        return 2 * shape[0]

    def module(self, shape: Shape, generator: torch.Generator) -> torch.nn.Module:
        """``torch.nn.LayerNorm``; nothing is drawn."""
        import torch

        return torch.nn.LayerNorm(shape[0], device="cpu", dtype=torch.float32)
