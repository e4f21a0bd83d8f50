"""A model as a function of one flat vector: the order of ``parameters()``, trainable ones only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter stands in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model. Raises ``ValueError`` where it has nothing to train."""
        found = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        if not found:
            raise ValueError("the model has no trainable parameters")
        return cls(names=tuple(name for name, _ in found), shapes=tuple(shape for _, shape in found))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each parameter."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """The length P of the flat vector."""
        return sum(self.sizes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of ``flat`` (P,) by parameter name."""
        if flat.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} parameters, got shape {tuple(flat.shape)}")
        pieces = torch.split(flat, list(self.sizes))
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Views (b, *shape) of ``rows`` (b, P) by parameter name."""
        pieces = torch.split(rows, list(self.sizes), dim=1)
        shaped = zip(self.names, pieces, self.shapes, strict=True)
        return {name: piece.view(len(rows), *shape) for name, piece, shape in shaped}

    def flatten(self, named: Mapping[str, Tensor], leading: int = 0) -> Tensor:
        """One vector (P,) from tensors by name; with ``leading`` batch dimensions kept, (..., P)."""
        pieces = [named[name] for name in self.names]
        return torch.cat([piece.reshape(*piece.shape[:leading], -1) for piece in pieces], dim=leading)


def places(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a model by each of its places: one that is tied stands in more than one.

    A module that is used twice is one place. ``torch.func.functional_call`` fills exactly these with
    ``tie_weights=False``; left to tie them itself, it does not give a module that is used twice its parameters back.
    """
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        found.update(module.named_parameters(prefix, recurse=False, remove_duplicate=False))
        found.update(module.named_buffers(prefix, recurse=False, remove_duplicate=False))
    return found


def trained(model: nn.Module) -> dict[str, str]:
    """The places of everything that is trained, each with its name in the layout; a tied parameter has several."""
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    return {place: names[id(value)] for place, value in places(model).items() if id(value) in names}


def flatten(model: nn.Module) -> Tensor:
    """A copy of the model's trainable parameters as one vector (P,)."""
    layout = Layout.of(model)
    return layout.flatten({name: p.detach() for name, p in model.named_parameters() if p.requires_grad})


def load(model: nn.Module, flat: Tensor) -> None:
    """Write a vector (P,) into the model's trainable parameters, in place."""
    views = Layout.of(model).unflatten(flat)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in views:
                parameter.copy_(views[name])
