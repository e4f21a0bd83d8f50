"""Numbers of Python in the operations of a step up to its sum, which may carry values of records.

The mistake: the loss of a record uses a number that the script read from the whole batch::

    loss = cross_entropy(logits / (0.1 + float(logits.std())), y)

A replay repeats the number as executed. Three steps with the same operations show such a number: it, or its reciprocal,
is the same linear function of a number that the script read before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.trace import TO_PYTHON, Operation, address_of, tensors_in, written_by

#: The number of steps that are compared, and the largest numbers of reads and of used numbers.
_STEPS, _MOST_READS, _MOST_USED = 4, 64, 256

#: Relative difference up to which numbers are equal: Python computes in double precision, a read is in single.
_ROUNDING = 1e-6

#: Powers of the ratio of two batch sizes by which a number of a mean over the batch may differ.
_POWERS = (-1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class _Step:
    """The numbers of a step.

    Attributes:
        records: The batch size.
        reads: The numbers that the script read, in order.
        used: The numbers that operations use, with the number of earlier reads.
    """

    records: int
    reads: tuple[float, ...]
    used: tuple[tuple[int, float], ...]


class PythonNumbers:
    """Compares the numbers of steps with the same operations.

    Attributes:
        varying: The number of steps with another number than an earlier one, for another reason than the batch size.
        testing: The number of steps with a condition on the batch, as of ``if``: it may have skipped the batch.
    """

    def __init__(self) -> None:
        self.varying = self.testing = 0
        self._earlier: dict[Hashable, list[_Step]] = {}

    def note(self, operations: Sequence[Operation], batch: Sequence[Tensor]) -> bool:
        """Whether a number of a step follows from one that the script read before, compared with earlier steps.

        ``operations``: up to its sum; ``batch``: its tensors of one row a record.

        Only numbers of tensors that follow from the batch count as read: a temperature may be a parameter.
        """
        of_batch = {address_of(tensor) for tensor in batch} - {0}
        reads, used, functions = list[float](), list[tuple[int, float]](), list[object]()
        is_tested = False
        for operation in operations:
            functions.append(operation.function)
            used += [(len(reads), number) for number in _floats(operation)]
            arguments = tensors_in((operation.args, dict(operation.kwargs)))
            if of_batch.isdisjoint(map(address_of, arguments)):
                continue
            written = written_by(operation.function, operation.args, operation.kwargs)
            of_batch |= {*operation.addresses, *map(address_of, written)} - {0}
            if operation.function in TO_PYTHON and isinstance(operation.results, float):
                reads.append(operation.results)
            is_tested |= operation.function in TO_PYTHON and isinstance(operation.results, bool)
        self.testing += is_tested
        if not used or len(reads) > _MOST_READS or len(used) > _MOST_USED:
            return False
        earlier = self._earlier.setdefault((*functions, len(used)), [])
        steps = [*earlier, _Step(len(batch[0]), tuple(reads), tuple(used))][-_STEPS:]
        earlier[:] = steps
        varying = [column for column in range(len(used)) if len(steps) > 1 and _varies(steps, column)]
        self.varying += bool(varying)
        return any(_follows(steps, column) for column in varying)


def _floats(operation: Operation) -> Iterator[float]:
    leaves = tree_leaves((operation.args, dict(operation.kwargs)))
    return (leaf for leaf in leaves if type(leaf) is float and math.isfinite(leaf))


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
    return any(_is_linear(read, values) for read, values in itertools.product(reads, candidates))


def _is_linear(read: Sequence[float], values: Sequence[float]) -> bool:
    if len({*read}) < 3 or not all(map(math.isfinite, read)):
        return False
    low, high = (end(range(len(read)), key=read.__getitem__) for end in (min, max))
    slope = (values[high] - values[low]) / (read[high] - read[low])
    residuals = (abs(value - values[low] - slope * (x - read[low])) for x, value in zip(read, values, strict=True))
    return slope != 0.0 and max(residuals) <= _ROUNDING * abs(values[high] - values[low])
