"""Faults of the batches: each stands where dpspec's own loop has its sampler."""

from __future__ import annotations

from dataclasses import replace

import torch

from dpspec.training.sampling import Sampler, Shuffled
from dpspec.training.schedule import Schedule


class LastBatchDropped:
    """The declared batch in random order, cut into pieces of sixteen for the memory's sake, full pieces only."""

    piece = 16

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def records(self) -> int:
        """How many records there are to draw from."""
        return self._sampler.records

    @property
    def inclusion(self) -> float:
        """What the loop believes."""
        return self._sampler.inclusion

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """The indices (b,) that are used, ascending."""
        drawn = self._sampler.draw(generator)
        order = torch.randperm(len(drawn), generator=generator)
        return drawn[order[: len(drawn) // self.piece * self.piece]].sort().values


def shuffled(schedule: Schedule) -> Schedule:
    """Pieces of a shuffled epoch, as long as the declared batches are on average."""
    return _with(schedule, lambda s: Shuffled(s.records, max(1, round(s.records * s.inclusion))))


def last_batch_dropped(schedule: Schedule) -> Schedule:
    """Every batch without its last partial piece."""
    return _with(schedule, LastBatchDropped)


def _with(schedule: Schedule, broken) -> Schedule:
    return Schedule(tuple(replace(phase, sampler=broken(phase.sampler)) for phase in schedule.phases))
