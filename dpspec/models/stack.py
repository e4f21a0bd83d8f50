"""Base class of the model kinds: a sequence of layers from a record to one score per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.models.layers import Chain, Layer, Shape

if TYPE_CHECKING:
    import torch

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


def images(kind: str, shape: Shape, least: int) -> None:
    """Raise ``ValueError`` unless ``shape`` is (channels, h, w) with h and w at least ``least``."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"{kind} needs images (channels, height, width) of at least {least} x {least}, got records {shape}"
        )
