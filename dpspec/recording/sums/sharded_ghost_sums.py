"""Ghost clipping of a model that FSDP2 shards.

Each backward pass gathers the parameters on all ranks, so the ranks recompute the same batches, with the same number of
passes, after each has written to the store that it takes part. The gradients of whole parameters are projected on the
common directions one parameter at a time: a rank never holds a whole gradient.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import Bits, Tally
from dpspec.recording.ranks.rank_watch import RankWatch
from dpspec.recording.ranks.shards import local
from dpspec.recording.sums.ghost_sums import FIRST, RECORDS, GhostSums, length_of, room_of

#: Observes the gradient of a whole parameter, given the parameter's number.
Observer = Callable[[int, Tensor], None]


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    FSDP2 gathers the parameters of a module for its forward pass; autograd differentiates by the gathered ones.

    Attributes:
        other: The number of gathered parameters whose rows of this rank are not the rank's own.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], starts: Sequence[int]) -> None:
        """starts: the place of the first coordinate of this rank in each parameter."""
        self._model, self._parameters, self._starts = model, list(parameters), list(starts)
        self.other = Tally()
        self._gathered: dict[int, Tensor] = {}
        self._handles: list[Any] = []
        self._observer: Observer | None = None
        self._discarding = False

    def attach(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        self._guarded = guarded
        numbers = {id(p): number for number, p in enumerate(self._parameters)}
        for module in self._model.modules():
            own = {name: numbers[id(p)] for name, p in module._parameters.items() if id(p) in numbers}
            if own:
                self._handles.append(module.register_forward_pre_hook(partial(self._gather, own)))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def observe(self, observer: Observer | None) -> None:
        """Give the gradients of the training's passes to an observer from now on; None ends it."""
        self._observer = observer

    def differentiate(self, value: Tensor, observer: Observer) -> None:
        """Give the gradients of a value to an observer, one parameter at a time, and keep none.

        The pass gathers parameters, so all ranks must make it at the same time.
        """
        before, self._observer, self._discarding = self._observer, observer, True
        try:
            torch.autograd.grad(value, list(self._gathered.values()), retain_graph=True, allow_unused=True)
        finally:
            self._observer, self._discarding = before, False

    def _gather(self, own: dict[str, int], module: nn.Module, _: Any) -> None:
        for name, number in own.items():
            p: Any = module._parameters[name]
            if p is None or local(p) is not p:
                continue
            if p is not self._gathered.get(number) and p.requires_grad:
                self._gathered[number] = p
                self._handles.append(p.register_hook(partial(self._differentiated, number)))
            if torch.is_grad_enabled() and module.training:
                self._guarded(partial(self._compare, number, p))

    def _compare(self, number: int, gathered: Tensor) -> None:
        rows, start, bits = local(self._parameters[number]).detach(), self._starts[number], Bits()
        same = gathered.detach().reshape(-1)[start : start + rows.numel()].view(rows.shape)
        bits.keep([rows])
        self.other.add(bits.differ([same]))

    def _differentiated(self, number: int, gradient: Tensor) -> Tensor | None:
        if self._observer is not None:
            self._observer(number, gradient.detach())
        return gradient.new_zeros(()).expand_as(gradient) if self._discarding else None


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
