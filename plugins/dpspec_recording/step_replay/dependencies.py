"""Which values from before a step its targets move with, and where these come from.

Targets are tensors of a traced step, such as its clipped sum. An :class:`Origin` names the tensors from before the step
that have one source: a table of all records, values of the batch before, weights of an earlier training. A replay
gives these other values. The targets depend on them if they move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpspec_recording.step_replay.held_records import DrawnRecords, HeldRecords
from dpspec_recording.step_replay.limits import ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, address_of

#: Factors and summands of other values. A clamp from below hides that a value of 1.7 becomes -2, but not that it is 0.
_OTHER_VALUES, _SAME = ((-1.5, 0.5), (0.0, 0.0)), (1.0, 0.0)

#: Factors of the features of all records in the replays with other records.
_SCALES = (1.0, -30.0)

#: The largest number of tensors of an origin that are tested one by one.
_MOST = 8


@dataclass(frozen=True)
class TracedStep:
    """A traced step.

    Attributes:
        trace: Its stopped trace.
        batch: The tensors of its batch, each with a row for each record.
        skipped: The numbers (``id``) of the tensors of the batch and of the trained parameters.
        trained: The numbers (``id``) of the trained parameters, which hold no records.
        drawn: The records of the batch in their dataset; None if they are not skipped.
    """

    trace: StepTrace
    batch: Sequence[Tensor]
    skipped: AbstractSet[int]
    trained: AbstractSet[int] = frozenset()
    drawn: DrawnRecords | None = None

    @property
    def unknown(self) -> list[Tensor]:
        """The other tensors from before the step that its operations read or write."""
        tensors = self.trace.tensors_before()
        return [tensor for tensor in tensors if id(tensor) not in self.skipped and tensor.layout == torch.strided]

    def held_records(self) -> HeldRecords:
        """The other tensors in which the step holds the records of its batch."""
        values = list(map(self.trace.value_before, self.batch))
        return HeldRecords(self.trace, self.batch, values, self.drawn, omitted=self.trained)

    def with_other_records(self, targets: Sequence[Tensor], end: int) -> Iterator[list[Tensor]]:
        """The targets in replays of the first ``end`` operations with each record of the batch in the next row."""
        part = self.trace.part(self.trace.operations[:end], self.trace.before)
        records = self.held_records()
        for scale in _SCALES:
            replaced = [value.roll(-1, 0) for value in records.values]
            replaced = [value * scale if value.is_floating_point() else value for value in replaced]
            memory = records.memory(range(len(replaced[0])), replaced)
            yield part.replay([*zip(self.batch, replaced, strict=False)], targets, memory)


@dataclass(frozen=True)
class Region:
    """Values of a tensor from before a step.

    Attributes:
        tensor: The tensor.
        rows: Which of its rows (n,); None for all values. A vector is one row.
        transposed: Whether the rows are along its last dimension.
    """

    tensor: Tensor
    rows: Tensor | None = None
    transposed: bool = False

    def change(self, memory: Tensor, factor: float, shift: float) -> None:
        """Multiply the values in the memory of the tensor, as bytes, by a factor, and add a summand."""
        tensor = self.tensor
        values = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if self.rows is None:
            values.copy_(values * factor + shift)
            return
        table = values.t() if self.transposed else values
        table = table[None] if len(self.rows) == 1 and len(table) != 1 else table
        rows = self.rows.to(table.device)
        table[rows] = table[rows] * factor + shift


class Origin(Protocol):
    """Finds the values from before a step that have one source."""

    def regions(self, step: TracedStep, tensor: Tensor) -> Iterable[Region]:
        """The values of a tensor of real numbers from before the step that come from there."""


def dependencies(step: TracedStep, targets: Sequence[Tensor], origins: Mapping[str, Origin]) -> dict[str, list[Region]]:
    """By the name of their origin, the values from before the step that move its targets.

    It is empty if a replay with the same values does not give the targets again.
    """
    read = {name: regions for name, origin in origins.items() if (regions := regions_of(step, origin))}
    if read and moves(step.trace, targets, [], [_SAME]):
        return {}
    moving = {}
    for name, regions in read.items():
        if moves(step.trace, targets, regions):
            single = [region for region in regions[:_MOST] if moves(step.trace, targets, [region])]
            moving[name] = single or regions  # several together may move targets that each alone leaves
    return moving


def regions_of(step: TracedStep, origin: Origin) -> list[Region]:
    """The values from before the step that come from an origin."""
    unknown = (tensor for tensor in step.unknown if tensor.is_floating_point() and tensor.numel())
    return [region for tensor in unknown for region in origin.regions(step, tensor)]


def moves(
    trace: StepTrace,
    targets: Sequence[Tensor],
    regions: Sequence[Region],
    changes: Sequence[tuple[float, float]] = _OTHER_VALUES,
) -> bool:
    """Whether the targets of a step move if values from before it, all in these regions, change.

    changes: factors and summands of the values. A replay that another number of Python would change shows nothing.
    """
    for factor, shift in changes:
        try:
            moved = replay_with(trace, targets, regions, factor, shift)
        except AbstainError:
            return False
        except (IndexError, RuntimeError):  # as of an index from another table
            return True
        pairs = zip(moved, targets, strict=True)
        if not all(float((new - old).norm()) <= ROWS_ROUNDING * float(old.norm()) for new, old in pairs):
            return True
    return False


@torch.no_grad()
def replay_with(
    trace: StepTrace, targets: Sequence[Tensor], regions: Sequence[Region], factor: float, shift: float
) -> list[Tensor]:
    """The targets of a step if values from before it are multiplied by a factor, and grow by a summand."""
    memory: dict[int, Tensor] = {}
    for region in regions:
        address = address_of(region.tensor)
        if address not in memory:
            memory[address] = trace.memory_before(region.tensor)
        region.change(memory[address], factor, shift)
    return trace.replay([], targets, memory)
