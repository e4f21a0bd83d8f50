"""What every model kind has in common: layers one after the other, from a record to one score per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.models.layers import Layer, Shape

if TYPE_CHECKING:
    import torch

#: The schema of an activation function, less its default.
ACTIVATION: dict[str, Json] = {
    "enum": ["relu", "tanh"],
    "description": "The function between layers. Bounded ones such as tanh often train better under clipping.",
}


class Stack(ABC):
    """A :class:`~dpspec.contract.ModelFactory` that has still to say its layers.

    The module maps float32 records (n, *shape) to scores (n, classes), before softmax. Raises ``ValueError`` where
    the layers do not fit the data.
    """

    def __init__(self, options: FrozenMap, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self._layers = tuple(self._fitted())

    @abstractmethod
    def layers(self) -> Iterable[Layer]:
        """The layers, first to last, that map ``facts.shape`` to (classes,)."""

    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(layer.parameters(shape) for layer, shape in self._layers)

    def build(self, seed: int) -> torch.nn.Module:
        """A module whose weights depend on the seed alone; torch's global generators are neither read nor moved."""
        import torch

        generator = torch.Generator(device="cpu").manual_seed(seed)
        return torch.nn.Sequential(*(layer.module(shape, generator) for layer, shape in self._layers))

    def _fitted(self) -> Iterator[tuple[Layer, Shape]]:
        """Every layer with the shape that goes into it."""
        shape = self.facts.shape or (self.facts.features,)
        for layer in self.layers():
            yield layer, shape
            shape = layer.output(shape)
