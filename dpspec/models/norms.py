"""Normalisation within one record: what stands in for batch normalisation, which would mix records.

Both replace x by (x - mean) / sqrt(variance + 1e-5) * weight + bias, weight 1 and bias 0 at first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec.models.layers import Layer, Shape

if TYPE_CHECKING:
    import torch


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
