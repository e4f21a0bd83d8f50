"""The moments of a traced step: when its sum, its noise and its update had their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Moment:
    """A moment of a step.

    Attributes:
        operations: The number of operations before it.
        tensors: What had its values then.
        values: Copies of these values; none if they are not kept.
    """

    operations: int
    tensors: Sequence[Tensor] = ()
    values: Sequence[Tensor] = ()

    @classmethod
    def of(cls, operations: int, tensors: Sequence[Tensor]) -> Moment:
        """A moment that keeps the values."""
        return cls(operations, [*tensors], [tensor.detach().clone() for tensor in tensors])
