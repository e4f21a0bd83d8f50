"""What parts of a run remember between steps, as named arrays: what a checkpoint keeps and what a new run lacks.

A part or an observer with a memory has two methods, ``state()`` and ``restore(state)``; ``restore({})`` makes it as
new. A part without them has no memory. An observer whose ``state()`` is None cannot tell what it remembers, and a run
that it watches cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

#: Arrays by name; names may have parts, set off by dots.
Memory: TypeAlias = Mapping[str, np.ndarray[Any, Any]]


@runtime_checkable
class Remembering(Protocol):
    """Something with a memory."""

    def state(self) -> Memory | None:
        """What it remembers, as arrays that later steps do not change; None where it cannot tell."""

    def restore(self, state: Memory) -> None:
        """Remember what ``state()`` gave; an empty memory is that of a new run."""


class Random:
    """The memory of a generator: the place in its stream."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state(self) -> Memory:
        """Where the stream stands."""
        return {"place": self._generator.get_state().numpy()}

    def restore(self, state: Memory) -> None:
        """Go on from there; a new run has a new generator."""
        if state:
            self._generator.set_state(torch.tensor(state["place"], dtype=torch.uint8))


def collect(named: Mapping[str, Remembering]) -> dict[str, np.ndarray[Any, Any]] | None:
    """All memories as one, each name's under ``name.``; None where one of them cannot tell."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, thing in named.items():
        state = thing.state()
        if state is None:
            return None
        found |= {f"{name}.{key}": value for key, value in state.items()}
    return found


def distribute(named: Mapping[str, Remembering], memory: Memory) -> None:
    """Give everything its part of a memory that :func:`collect` made."""
    for name, thing in named.items():
        thing.restore(part(memory, name))


def part(memory: Memory, name: str) -> Memory:
    """What stands under ``name.`` in a memory."""
    return {key.removeprefix(f"{name}."): value for key, value in memory.items() if key.startswith(f"{name}.")}


def tensors(**named: Tensor | None) -> Memory:
    """Tensors as arrays; what is None is left out."""
    return {name: value.cpu().numpy().copy() for name, value in named.items() if value is not None}


def tensor(memory: Memory, name: str) -> Tensor | None:
    """A tensor on the CPU with a storage of its own; None where the memory lacks it."""
    return torch.tensor(memory[name]) if name in memory else None
