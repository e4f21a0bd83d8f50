"""What every model kind has in common: layers one after the other, from a record to one score per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.models.layers import Chain, Layer, Shape

if TYPE_CHECKING:
    import torch

#: The schema of an activation function, less its default.
ACTIVATION: dict[str, Json] = {
    "enum": ["relu", "tanh"],
    "description": "The function between layers. Bounded ones such as tanh often train better under clipping.",
}

#: The schema of the hidden layers' widths, less its default.
HIDDEN: dict[str, Json] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "maximum": 65536},
    "minItems": 1,
    "maxItems": 16,
    "description": "The widths of the hidden layers, first to last.",
}


class Stack(ABC):
    """A :class:`~dpspec.contract.ModelFactory` that has still to say its layers.

    The module maps float32 records (n, *shape) to scores (n, classes), before softmax. Raises ``ValueError`` where
    the layers do not fit the data.
    """

    def __init__(self, options: FrozenMap, facts: Facts) -> None:
        self.options = options
        self.facts = facts
        self._chain = Chain(tuple(self.layers()))
        self._chain.output(self._shape)

    @property
    def _shape(self) -> Shape:
        """The shape of one record; data that states none is flat."""
        return self.facts.shape or (self.facts.features,)

    @abstractmethod
    def layers(self) -> Iterable[Layer]:
        """The layers, first to last, that map ``facts.shape`` to (classes,)."""

    def parameters(self) -> int:
        """The number of trainable parameters."""
        return self._chain.parameters(self._shape)

    def build(self, seed: int) -> torch.nn.Module:
        """A module whose weights depend on the seed alone; torch's global generators are neither read nor moved."""
        import torch

        return self._chain.module(self._shape, torch.Generator(device="cpu").manual_seed(seed))


def images(kind: str, shape: Shape, least: int) -> None:
    """Raise ``ValueError`` unless ``shape`` is that of images (channels, h, w) with h and w at least ``least``."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"{kind} needs images (channels, height, width) of at least {least} x {least}, got records {shape}"
        )
