"""Ghost clipping of a model that FSDP2 shards.

Each backward pass gathers the parameters on all ranks, so the ranks recompute the same batches, with the same number of
passes, after each has written to the store that it takes part. The gradients of whole parameters are projected on the
common directions one parameter at a time: a rank never holds a whole gradient.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpspec.recording.ranks.rank_watch import RankWatch
from dpspec.recording.ranks.whole_gradients import WholeGradients
from dpspec.recording.sums.ghost_sums import FIRST, RECORDS, GhostSums, length_of, room_of


class ShardedGhostSums(GhostSums):
    def __init__(self, model: Any, optimizer: Any, rank: RankWatch) -> None:
        super().__init__(model, optimizer)
        self._rank, self._whole = rank, WholeGradients(model, optimizer.params, rank.starts)
        self._chosen = random.Random(int.from_bytes(rank.group.digest(b"batches"), "little"))
        self._batch, self._agreeing = 0, True
        self._along: list[Tensor] = []

    def attach(self, guarded: Callable[[Callable[[], None]], None]) -> Callable[[], None]:
        undo, self._guarded = super().attach(guarded), guarded
        self._whole.attach(guarded)

        def detach() -> None:
            self._whole.detach()
            undo()

        return detach

    @property
    def other_parameters(self) -> int:
        return int(self._whole.other)

    def after_coefficients(self, coefficients: Tensor) -> None:
        super().after_coefficients(coefficients)
        self._along = []
        self._whole.observe(lambda _, gradient: self._guarded(lambda: self._along.append(self._rank.along(gradient))))

    def _passes(self, records: int | None) -> int | None:
        self._batch += 1
        if not self._agreeing or self._chosen.random() * self._batch >= FIRST:
            return None
        given = self._rank.group.agree(f"batch {self._batch}", -1 if records is None else records)
        self._agreeing = given is not None
        return None if given is None or min(given) < 0 else min(RECORDS, max(given))

    def _gradient(self, value: Tensor) -> tuple[list[Tensor], float]:
        """The gradient of a value along the common directions, and its length."""
        along: list[Tensor] = []
        squares: list[float] = []

        def observe(_: int, gradient: Tensor) -> None:
            along.append(self._rank.along(gradient))
            squares.append(float(gradient.double().square().sum()))

        self._whole.differentiate(value, observe)
        return [torch.stack(along).sum(0)], math.sqrt(sum(squares))

    def _end(self) -> None:
        self._whole.observe(None)
        coefficients, expected, self._expected = self._coefficients, self._expected, None
        super()._end()
        if not self._along:
            return
        own, self._along = torch.stack(self._along).sum(0), []
        self._rank.add(own)
        if expected is not None:
            (along,), length, consistent = expected
            room = room_of(0 if coefficients is None else len(coefficients), self._unit, length)
            self._recomputed += 1
            self._different += not (consistent and length_of([own - along]) <= room)
            long = length_of([along])
            self._limit = max(self._limit, room / long) if long > 0.0 else self._limit
