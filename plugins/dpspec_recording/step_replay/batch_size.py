"""The effect of the batch size on a step: its operations are replayed with the sizes of another step.

A step with b records and an earlier one with a records call the same operations of torch with other sizes. The replay
calls them with the sizes of the earlier step, on the records of the current one: its first a records, or each record
and some twice. Let g be the gradient of the loss at the outputs of a record, in the current step, and f g in the
replay. The loss is a mean over the batch if f = b / a, and a sum if f = 1. The clipped sum may move by one clip norm
for each record that the replay omits or repeats.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from dpspec_recording.step_replay.facts import SizeFacts
from dpspec_recording.step_replay.timeline import Pass
from dpspec_recording.step_replay.trace import AbstainError, Operation, Replay, StepTrace, tensors_in

#: Relative difference of gradients at outputs from a multiple of others that rounding explains.
_ROUNDING = 1e-4

#: Relative difference of numbers of Python that are equal.
_EQUAL = 1e-6

#: The largest number of steps in a row that are replayed for a comparison, and of a fact.
_MOST_STEPS, _LARGEST = 6, 1e9

#: Arguments that two steps must have in common; others, such as generators, come from the current step.
_PLAIN = (bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class _Slot:
    """A tensor of a step: a result of an operation by number, or from before the step if ``operation`` is -1.

    number: the value of a single number from before the step.
    """

    operation: int
    result: int
    shape: torch.Size
    number: float | None = None


@dataclass(frozen=True)
class SizedStep:
    """The operations of a step, or of a physical batch, without its tensors.

    Attributes:
        records: The number of rows of its batch.
        start: The number of operations of the step before the first one of the batch.
    """

    records: int
    start: int
    _calls: tuple[tuple[Any, list[Any], TreeSpec], ...]
    _gradients: tuple[_Slot, ...]
    _sums: tuple[_Slot, ...]


@dataclass(frozen=True)
class SizeEffect:
    """The effect of the batch size.

    Attributes:
        power: x if gradients at outputs change with the batch size b as b^x: -1 for a mean, 0 for a sum.
        sum_moved: The move of the clipped sum in clip norms, for each omitted or repeated record.
    """

    power: float
    sum_moved: float


def sized_step(
    trace: StepTrace, records: int, gradients: Sequence[Tensor], sums: Sequence[Tensor] = (), start: int = 0
) -> SizedStep:
    """The operations of a step, or of a physical batch up to its gradients, for the replay of another one.

    Args:
        trace: The stopped trace.
        records: The number of rows of its batch.
        gradients: The gradients at the outputs of the model, each (records, ...).
        sums: The clipped sum, one tensor for each parameter; none for a physical batch.
        start: The number of operations before the first one of a physical batch.

    Raises:
        AbstainError: The step cannot be replayed at another size.
    """
    if trace.failure or trace.reads or not gradients:
        raise AbstainError(trace.failure or trace.reads or "no gradient at an output of the model was observed")
    slots: dict[int, _Slot] = {}
    calls = []
    for count, operation in enumerate(trace.operations[start:]):
        leaves, spec = tree_flatten((operation.args, dict(operation.kwargs)))
        if any(isinstance(leaf, torch.UntypedStorage) for leaf in leaves):
            raise AbstainError("it copies memory without shapes")
        arguments = [slots.get(id(leaf)) or _outside(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        calls.append((operation.function, arguments, spec))
        for result, (tensor, shape) in enumerate(zip(tensors_in(operation.results), operation.shapes, strict=True)):
            slots[id(tensor)] = _Slot(count, result, shape)
    targets = [slots.get(id(tensor)) for tensor in (*gradients, *sums)]
    target_slots = [slot for slot in targets if slot is not None]
    if len(target_slots) < len(targets):
        raise AbstainError("a gradient at an output is not a result of the operations that the replay saw")
    last = max(slot.operation for slot in target_slots)
    return SizedStep(
        records,
        start,
        tuple(calls[: last + 1]),
        tuple(target_slots[: len(gradients)]),
        tuple(target_slots[len(gradients) :]),
    )


def _outside(tensor: Tensor) -> _Slot:
    return _Slot(-1, 0, tensor.shape, None if tensor.dim() or tensor.is_complex() else float(tensor))


@torch.no_grad()
def size_effect(
    earlier: SizedStep, current: SizedStep, trace: StepTrace, gradients: Sequence[Tensor], clip_norm: float
) -> SizeEffect:
    """Replay the current step at the size of the earlier one.

    Args:
        earlier: The earlier step, or another physical batch.
        current: The current step, of ``trace``.
        trace: The trace of the current step, whose replay gives the executed sum if ``current`` has one.
        gradients: The gradients at the outputs of the current step.
        clip_norm: The maximum norm of a contribution.

    Raises:
        AbstainError: The steps have equal sizes or other operations, or gradients change by more than a factor.
    """
    if earlier.records == current.records:
        raise AbstainError("no two replayed steps have batches of different sizes")
    if [call[0] for call in earlier._calls] != [call[0] for call in current._calls]:
        raise AbstainError("two steps call different operations")
    sizes = _Sizes(earlier, current, trace)
    for call, operation in zip(earlier._calls, trace.operations[current.start :], strict=False):
        sizes.repeat(call, operation)
    if not all(torch.equal(sizes.executed(s), g) for s, g in zip(current._gradients, gradients, strict=True)):
        raise AbstainError("the replay gives other gradients at the outputs: it did not see the whole step")
    product = square = residual = 0.0
    for first, second in zip(earlier._gradients, current._gradients, strict=True):
        resized, executed = sizes.pair(first, second)
        product += float((resized * executed).sum())
        square += float(executed.square().sum())
    factor = product / square if square > 0.0 else 0.0
    for first, second in zip(earlier._gradients, current._gradients, strict=True):
        resized, executed = sizes.pair(first, second)
        residual += float((resized - factor * executed).square().sum())
    log_ratio = math.log(earlier.records / current.records)
    error = math.sqrt(residual / square) / factor if factor > 0.0 else math.inf
    if not error <= min(_ROUNDING, abs(log_ratio) / 100.0):
        raise AbstainError("the batch size changes gradients by more than a factor")
    pairs = [sizes.values(first, second) for first, second in zip(earlier._sums, current._sums, strict=True)]
    moved = math.sqrt(sum(float((first.double() - second.double()).square().sum()) for first, second in pairs))
    records = abs(earlier.records - current.records)
    return SizeEffect(math.log(factor) / log_ratio, moved / clip_norm / records)


class _Sizes:
    """The replays of the current step as executed, and at the size of the earlier one, operation by operation."""

    def __init__(self, earlier: SizedStep, current: SizedStep, trace: StepTrace) -> None:
        self._sizes = earlier.records, current.records
        self._executed, self._before = Replay(trace, []), Replay(trace, [])
        self._results: list[tuple[list[Tensor], list[Tensor]]] = []
        self._resized: dict[int, Tensor] = {}

    def executed(self, slot: _Slot) -> Tensor:
        return self._results[slot.operation][1][slot.result]

    def values(self, first: _Slot, second: _Slot) -> tuple[Tensor, Tensor]:
        return self._results[first.operation][0][first.result], self.executed(second)

    def pair(self, first: _Slot, second: _Slot) -> tuple[Tensor, Tensor]:
        """Gradients at outputs in both replays, of the same records."""
        resized, executed = self.values(first, second)
        return resized.double(), self._rows(executed, resized.shape).double()

    def repeat(self, call: tuple[Any, list[Any], TreeSpec], operation: Operation) -> None:
        function, leaves, spec = call
        current, same = tree_flatten((operation.args, dict(operation.kwargs)))
        if same != spec:
            raise AbstainError(f"{function} gets other arguments")
        numbers = _numbers(operation)
        resized_arguments = [self._argument(*pair) for pair in zip(leaves, current, numbers, strict=True)]
        args, kwargs = tree_unflatten(resized_arguments, spec)
        executed = self._executed.repeat(operation)
        saved = [(generator, generator.get_state()) for generator, _ in operation.states]
        for generator, state in operation.states:
            generator.set_state(state)
        try:
            results = tensors_in(function(*args, **kwargs))
        except Exception as error:
            raise AbstainError(f"{function} at another size: {type(error).__name__}") from None
        finally:
            for generator, state in saved:
                generator.set_state(state)
        if operation.states:  # the same random numbers for the same records
            for resized, drawn in zip(results, executed, strict=True):
                resized.copy_(self._rows(drawn, resized.shape))
        self._results.append((results, executed))

    def _argument(self, first: Any, second: Any, number: bool) -> Any:
        if isinstance(first, _Slot) and isinstance(second, Tensor):
            if first.operation >= 0:
                return self._results[first.operation][0][first.result]
            return self._from_before(first, second)
        if isinstance(first, _Slot) or isinstance(second, Tensor) or type(first) is not type(second):
            raise AbstainError("two steps call operations with different arguments")
        if isinstance(first, int | float) and not isinstance(first, bool):
            return self._number(first, second) if number else first
        if isinstance(first, _PLAIN) and first != second:
            raise AbstainError("two steps call operations with different arguments")
        return second

    def _number(self, first: Any, second: Any) -> Any:
        """The number of the earlier step if it is proportional to the batch size or its inverse, else the current."""
        ratio = self._sizes[0] / self._sizes[1]
        follows = any(math.isclose(first, second * factor, rel_tol=_EQUAL) for factor in (ratio, 1.0 / ratio))
        return first if follows else second

    def _from_before(self, first: _Slot, second: Tensor) -> Tensor:
        if id(second) not in self._resized:
            value = self._before.value(second)
            if first.number is not None and not value.dim():
                value = torch.full_like(value, self._number(first.number, float(value)))
            self._resized[id(second)] = self._rows(value, first.shape)
        return self._resized[id(second)]

    def _rows(self, value: Tensor, shape: torch.Size) -> Tensor:
        """The records of the replay, if ``value`` has a row for each record of the current step."""
        first, second = self._sizes
        if value.shape == shape:
            return value
        if value.dim() and len(value) == second and shape == (first, *value.shape[1:]):
            return value[torch.arange(first, device=value.device) % second]
        raise AbstainError("a tensor has no row for each record")


def _numbers(operation: Operation) -> list[bool]:
    """For each leaf of the arguments, whether a number in its place is a factor or a summand instead of a size."""
    schema = operation.function._schema.arguments
    kinds = {argument.name: str(argument.type) for argument in schema}
    named = [(kinds[argument.name], value) for argument, value in zip(schema, operation.args, strict=False)]
    named += [(kinds[name], value) for name, value in operation.kwargs.items()]
    factors = [any(word in kind for word in ("number", "float", "Tensor")) for kind, _ in named]
    return [factor for factor, (_, value) in zip(factors, named, strict=True) for _ in tree_leaves(value)]


class BatchSizes:
    """Replays steps at the batch size of an earlier one, or the last physical batch of a step at the size of its first.

    Attributes:
        needs_step: Whether a further step is to be replayed: until two had different sizes, and a few at most.
    """

    def __init__(self) -> None:
        self._earlier: SizedStep | None = None
        self._powers, self._removed = list[float](), 0.0
        self._left = _MOST_STEPS

    @property
    def needs_step(self) -> bool:
        return self._left > 0

    def begin_again(self) -> None:
        """The training does something else: a changed loss may be another reduction."""
        self._left = _MOST_STEPS

    def note(self, trace: StepTrace, passes: Sequence[Pass], sums: Sequence[Tensor], clip_norm: float) -> None:
        """Compare a traced step. passes: of its physical batches; sums: none if no replay gave them."""
        self._left -= self.needs_step
        with contextlib.suppress(Exception):  # the step is not compared
            first, *_, last = (passes[0], *passes)
            current = sized_step(trace, last.records, last.gradients, sums if first is last else (), last.operations)
            if first is last:
                earlier, self._earlier = self._earlier, current
            else:
                earlier = sized_step(trace, first.records, first.gradients, (), first.operations)
            if earlier is None:
                return
            effect = size_effect(earlier, current, trace, last.gradients, clip_norm)
            self._powers.append(min(max(effect.power, -_LARGEST), _LARGEST))
            self._removed = max(self._removed, min(effect.sum_moved, _LARGEST))
            self._left = 0

    @property
    def facts(self) -> SizeFacts | None:
        """None before the first step that was replayed at another batch size."""
        powers = self._powers
        if not powers:
            return None
        return SizeFacts(steps=len(powers), lowest=min(powers), highest=max(powers), removed=self._removed)
