"""Numbers of Python in the operations of a step up to its sum, which may carry values of records.

The mistake: the loss of a record uses a number that the script read from the whole batch::

    loss = cross_entropy(logits / (0.1 + float(logits.std())), y)

A replay repeats the number as executed. Steps with the same operations show it: the read numbers differ, and so does
the used one. If it, or its reciprocal, is the same linear function of a read number at three steps, it follows from it.
If all numbers of the operations, and all tensors that the script made between them, are the same although each read
number differs, the script only logs them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.gradient_map import overwritten_by
from dpspec_recording.step_replay.trace import TO_PYTHON, Replay, StepTrace, address_of, tensors_in, written_by

#: The number of steps that are compared, and the largest numbers of reads and of used numbers.
_STEPS, _MOST_READS, _MOST_USED = 4, 64, 256

#: Relative difference up to which numbers are equal: Python computes in double precision, a read is in single.
_ROUNDING = 1e-6

#: Powers of the ratio of two batch sizes by which a number of a mean over the batch may differ.
_POWERS = (-1.0, -0.5, 0.5, 1.0)

#: The largest tensor whose values are compared, in numbers. Larger ones count as different.
_MOST_VALUES = 2**24


@dataclass(frozen=True)
class _Step:
    """The numbers of a step.

    Attributes:
        records: The batch size.
        reads: The numbers that the script read of the batch, in order; other values for a whole tensor.
        used: The real numbers that operations use, with the number of earlier reads.
        sizes: The integers and truth values that they use.
        tensors: The values of the tensors from before the step, except for the batch and parameters: the script may
            have made them of numbers that it read.
        is_tested: Whether the script tested a condition on the batch.
    """

    records: int
    reads: tuple[Any, ...]
    used: tuple[tuple[int, float], ...]
    sizes: tuple[int, ...]
    tensors: tuple[Hashable, ...]
    is_tested: bool


class PythonNumbers:
    """Compares the numbers of steps with the same operations.

    Attributes:
        varying: The number of steps with another number than an earlier one, for another reason than the batch size.
        testing: The number of steps with a condition on the batch, as of ``if``: it may have skipped the batch.
        logging: The number of steps that read numbers of the batch before the sum, and whose operations use none.
    """

    def __init__(self) -> None:
        self.varying = self.testing = self.logging = 0
        self._earlier: dict[Hashable, list[_Step]] = {}
        self._kinds: list[Hashable] = []  # the operations of the steps that read numbers
        self._differs = False  # whether such steps use other numbers

    @property
    def may_be_used(self) -> bool:
        """Whether steps that read numbers have other operations, or other numbers in them, than each other.

        A script may choose these by the read numbers. The first step has others, as it adds to no earlier gradients.
        """
        return self._differs or len({*self._kinds[1:]}) > 1

    def note(self, trace: StepTrace, batch: Sequence[Tensor], parameters: Sequence[Tensor] = ()) -> tuple[bool, bool]:
        """Compare a step with earlier ones.

        Args:
            trace: Of the step up to its sum.
            batch: Its tensors of one row a record.
            parameters: The trained parameters.

        Returns:
            Whether a number follows from one that the script read before, and whether it only logs the read numbers.
        """
        step, functions = _numbers(trace, batch, parameters)
        self.testing += step.is_tested
        if len(step.reads) > _MOST_READS or len(step.used) > _MOST_USED:
            return False, False
        kind = (*functions, len(step.used))
        earlier = self._earlier.setdefault(kind, [])
        steps = [*earlier, step][-_STEPS:]
        earlier[:] = steps
        columns = [column for column in range(len(step.used)) if len(steps) > 1 and _varies(steps, column)]
        self.varying += bool(columns)
        if step.reads:
            self._kinds.append(hash(kind))
            self._differs |= not all(_is_same(before, step) for before in steps[:-1])
        is_logged = bool(step.reads) and not self.may_be_used and _are_unused(steps)
        self.logging += is_logged
        return any(_follows(steps, column) for column in columns), is_logged


def _numbers(
    trace: StepTrace, batch: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[_Step, tuple[object, ...]]:
    """The numbers of a step, and its operations.

    Only numbers of tensors that follow from the batch count as read: a temperature may be a parameter.
    """
    of_batch = {address_of(tensor) for tensor in batch} - {0}
    reads, used, sizes = list[Any](), list[tuple[int, float]](), list[int]()
    copied, is_tested = [*trace.copied], False
    for number, operation in enumerate(trace.operations):
        while copied and copied[0][0] <= number:
            reads += _values(copied.pop(0)[1], of_batch)
        leaves = tree_leaves((operation.args, dict(operation.kwargs)))
        used += [(len(reads), leaf) for leaf in leaves if type(leaf) is float and math.isfinite(leaf)]
        sizes += [leaf for leaf in leaves if type(leaf) in (int, bool)]
        if of_batch.isdisjoint(map(address_of, tensors_in((operation.args, dict(operation.kwargs))))):
            continue
        written = written_by(operation.function, operation.args, operation.kwargs)
        of_batch |= {*operation.addresses, *map(address_of, written)} - {0}
        if operation.function in TO_PYTHON:
            is_tested |= isinstance(operation.results, bool)
            reads += [] if isinstance(operation.results, bool) else [operation.results]
    for _, tensor in copied:
        reads += _values(tensor, of_batch)
    replay = Replay(trace, [])
    unknown = _read_before(trace, {*map(address_of, (*batch, *parameters)), 0}) if reads else []
    tensors = tuple(_content(replay.value(tensor)) for tensor in unknown)
    functions = tuple(operation.function for operation in trace.operations)
    return _Step(len(batch[0]), tuple(reads), tuple(used), tuple(sizes), tensors, is_tested), functions


def _read_before(trace: StepTrace, omitted: set[int]) -> list[Tensor]:
    """The tensors from before the step whose values its operations read, except for memory at some addresses.

    A backward pass reads results of operations by other tensors of the same memory.
    """
    read: dict[int, Tensor] = {}
    produced = {*omitted}
    for operation in trace.operations:
        tensors = tensors_in((operation.args, dict(operation.kwargs)))
        produced |= overwritten_by(operation)
        read |= {id(tensor): tensor for tensor in tensors if address_of(tensor) not in produced}
        produced |= {*operation.addresses} - {*map(address_of, tensors)}
    return list(read.values())


def _values(tensor: Tensor, of_batch: Collection[int]) -> Iterator[Any]:
    """The values of a tensor that the script copied, if they follow from the batch."""
    if address_of(tensor) in of_batch:
        yield float(tensor) if tensor.numel() == 1 and not tensor.is_complex() else _content(tensor)


def _content(tensor: Tensor) -> Hashable:
    """The shape and a digest of the values."""
    if tensor.numel() > _MOST_VALUES or tensor.layout != torch.strided:
        return object()
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tuple(tensor.shape), sha256(values.numpy().data).digest()


def _are_unused(steps: Sequence[_Step]) -> bool:
    """Whether the operations of the last step use no number that it read: they are the same where the reads differ."""
    *earlier, last = steps
    return bool(earlier) and all(any(step.reads[n] != read for step in earlier) for n, read in enumerate(last.reads))


def _is_same(first: _Step, last: _Step) -> bool:
    """Whether two steps use the same numbers and tensors, except for the batch size."""
    if first.tensors != last.tensors:
        return False
    if (len(first.sizes), len(first.reads)) != (len(last.sizes), len(last.reads)):
        return False
    sizes = zip(first.sizes, last.sizes, strict=True)
    are_sizes = all(a == b or a * last.records == b * first.records for a, b in sizes)
    return are_sizes and not any(_varies((first, last), column) for column in range(len(last.used)))


def _varies(steps: Sequence[_Step], column: int) -> bool:
    """Whether the last two steps have other numbers in a place, and not by a power of the batch size."""
    (first, last), (a, b) = steps[-2:], (step.used[column][1] for step in steps[-2:])
    if math.isclose(a, b, rel_tol=_ROUNDING):
        return False
    size = max(last.records, 1) / max(first.records, 1)
    return not any(math.isclose(b, a * size**power, rel_tol=_ROUNDING) for power in _POWERS)


def _follows(steps: Sequence[_Step], column: int) -> bool:
    """Whether the numbers in a place, or their reciprocals, are a linear function of the same read in three steps."""
    before = min(step.used[column][0] for step in steps)
    numbers = [step.used[column][1] for step in steps]
    candidates = [numbers, [1.0 / number for number in numbers]] if all(numbers) else [numbers]
    reads = ([step.reads[index] for step in steps] for index in range(before))
    real = [read for read in reads if all(isinstance(number, float) for number in read)]
    return any(_is_linear(read, values) for read, values in itertools.product(real, candidates))


def _is_linear(read: Sequence[float], values: Sequence[float]) -> bool:
    if len({*read}) < 3 or not all(map(math.isfinite, read)):
        return False
    low, high = (end(range(len(read)), key=read.__getitem__) for end in (min, max))
    slope = (values[high] - values[low]) / (read[high] - read[low])
    residuals = (abs(value - values[low] - slope * (x - read[low])) for x, value in zip(read, values, strict=True))
    return slope != 0.0 and max(residuals) <= _ROUNDING * abs(values[high] - values[low])
