"""A mechanism's own options as a frozen dataclass, made once when a spec is read, and once where trials are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import dpspec.contract as dps


class Options(ABC):
    """The base of a mechanism's options: frozen dataclasses that say once how a block of the spec is read.

    Specs and the inputs of trials hold the same blocks, so that both are read by the same code:
    ``MyOptions.of(spec.mechanism.options)`` and ``MyOptions.of(inputs["mechanism"])``, or ``of(spec)`` and
    ``of(inputs)`` for the whole document. What is made of a block is kept with it (``FrozenMap.typed``), so that asking
    again costs nothing, and travels with no task.
    """

    @classmethod
    @abstractmethod
    def read(cls, block: dps.FrozenMap) -> Self:
        """From a block, or a whole document. Everything that the schema leaves optional may be absent."""

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        """The options of ``block``, or of a spec's whole document; :meth:`read` makes them when first asked for."""
        block = block.document if isinstance(block, dps.Spec) else block
        return (block if isinstance(block, dps.FrozenMap) else dps.FrozenMap(block)).typed(cls.read)
