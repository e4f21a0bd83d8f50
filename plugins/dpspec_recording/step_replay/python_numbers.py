"""Numbers of Python in the operations of a step, as functions of numbers that the script read of its batch.

A loop that clips by a number of Python reads the norm of each record, and multiplies by a number that follows from it::

    norm = torch.cat([part.flatten() for part in gradient]).norm().item()
    total += gradient * min(1.0, clip_norm / norm)

A replay with another record reads another norm, and may not multiply by the executed factor. What follows each read
shows how the factor depends on it, over the records of a step and over steps. A number in one place is a constant if it
is the same where the read numbers differ. It is a function of a read number if it, or its reciprocal, is linear in it,
up to a bound. Then a replay continues with the function of the number that it reads. After any other number, and after
other operations than followed the same read of other batches, a step is not replayed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.gradient_map import overwritten_by
from dpspec_recording.step_replay.trace import (
    READ_ADVICE,
    TO_PYTHON,
    FollowedNumbers,
    NumberUse,
    Operation,
    Replay,
    ScriptLine,
    StepTrace,
    address_of,
    tensors_in,
    written_by,
)

#: The number of samples of a place in earlier steps that are kept.
_SAMPLES = 64

#: Relative difference up to which numbers are equal: Python computes in double precision, a read is in single.
_ROUNDING = 1e-6

#: The fewest samples that show a linear function, since two always lie on a line.
_FEWEST_ON_LINE = 3

#: Powers of the ratio of two batch sizes by which a number of a mean over the batch may differ.
_POWERS = (-1.0, -0.5, 0.5, 1.0)

#: The largest tensor whose values are compared, in numbers. Larger ones count as different.
_MOST_VALUES = 2**24

#: Why the script may branch on a number.
_OTHER_OPERATIONS = "other operations follow it at some steps or records"


#: The line of reads, and whether they are combined to a Euclidean norm.
_Combination: TypeAlias = tuple[Hashable, bool]


@dataclass(frozen=True)
class _Read:
    """Values of the batch that the script read.

    Attributes:
        line: The line of the script; None if a library reads it.
        value: The number; of a whole tensor, its shape and a digest of its values.
        operation: The operation that returned the number; None for values that were copied without one.
    """

    line: ScriptLine | None
    value: Any
    operation: Operation | None = None

    @property
    def named(self) -> str:
        """The line in a sentence."""
        return str(self.line or "a library")


@dataclass
class _Segment:
    """The operations from one read to the next.

    Attributes:
        read: The read; None for the operations before the first one.
        site: The line of the read, its number among the reads of a record or batch, and the truth value of a condition.
        record: The number of the record, if the script reads at this line equally often for each; else None.
        operations: The operations.
        branch: The functions that follow the read, without those after the last record.
    """

    read: _Read | None
    site: Hashable = None
    record: int | None = None
    branch: tuple[object, ...] = ()
    operations: list[Operation] = field(default_factory=list)

    @property
    def functions(self) -> tuple[object, ...]:
        return tuple(operation.function for operation in self.operations)


@dataclass(frozen=True)
class _Sample:
    """A number in a place of a step.

    Attributes:
        number: Its value.
        reads: The numbers that were read before, by their line and the way in which they are combined.
        records: The batch size of the step.
    """

    number: Any
    reads: Mapping[_Combination, Any]
    records: int


@dataclass(frozen=True)
class _Argument:
    """A number in a traced step: the argument of an operation, with the reads that it may follow from.

    record: the number of the record that was read last, from 0; None if the script reads numbers of several.
    """

    sample: _Sample
    record: int | None
    operation: Operation
    leaf: int
    operations_of: Mapping[_Combination, tuple[Operation, ...]]


@dataclass(frozen=True)
class _Linear:
    """A number, or its reciprocal, that is linear in a combination of read numbers, between two bounds."""

    intercept: float
    slope: float
    is_reciprocal: bool
    is_norm: bool
    lowest: float = -math.inf
    highest: float = math.inf

    def __call__(self, reads: Sequence[float]) -> float:
        return min(max(self.unbounded(math.hypot(*reads) if self.is_norm else reads[0]), self.lowest), self.highest)

    def unbounded(self, read: float) -> float:
        value = self.intercept + self.slope * read
        return value if not self.is_reciprocal else 1.0 / value if value else math.inf


class PythonNumbers:
    """Follows the numbers of traced steps.

    Attributes:
        varying: The number of steps with another number than earlier ones, for another reason than the batch size or a
            number that the script read.
        testing: The number of steps with a condition on the batch, as of ``if``: it may have skipped the batch.
        followed: The number of steps that read numbers of the batch before the sum, and whose later numbers are
            constants, or known functions of these.
        tested_at, read_at: The lines of the script with these conditions, and those that read these numbers.
    """

    def __init__(self) -> None:
        self.varying = self.testing = self.followed = 0
        self.tested_at: dict[str, None] = {}
        self.read_at: dict[str, None] = {}
        self._samples: dict[Hashable, deque[_Sample]] = defaultdict(lambda: deque(maxlen=_SAMPLES))
        #: By site, the operations that follow its read, and the smallest and largest number before each.
        self._branches: dict[Hashable, dict[tuple[object, ...], tuple[float, float]]] = defaultdict(dict)
        #: By site, the operations that follow the last read of a step. The first step adds to no earlier gradients.
        self._ends: dict[Hashable, set[tuple[object, ...]]] = defaultdict(set)
        self._is_first, self._is_changed = True, False
        self._observed: dict[Hashable, tuple[float, float]] = {}  # by site, the smallest and largest number of a record

    @property
    def may_branch(self) -> bool:
        """Whether steps that read numbers of the batch have other operations or unknown numbers after them.

        The script may have chosen these by the numbers that it read, also at followed steps.
        """
        return self._is_changed or any(len(ends) > 1 for ends in self._ends.values())

    def note(self, step: TracedStep, parameters: Sequence[Tensor] = ()) -> FollowedNumbers:
        """Compare a step with earlier ones, and its records with each other.

        Args:
            step: The step up to its sum, with its batch.
            parameters: The trained parameters.

        Returns:
            The numbers that follow from read ones.
        """
        records = len(step.batch[0])
        reads = _reads(step)
        tested = {read.named: None for _, read in reads if isinstance(read.value, bool)}
        self.testing += bool(tested)
        self.tested_at |= tested
        segments = _segments(step.trace, reads, records)
        unknown = self._note_branches(segments)
        self._is_changed |= self.followed > 0 and bool(unknown)
        arguments = self._arguments(segments, step, parameters)
        if self.may_branch:
            unknown = unknown or _unknown(segments, _OTHER_OPERATIONS)
        uses, varies = list[NumberUse](), False
        constant_after = set[Hashable]()  # the lines after whose reads a real number is always the same
        for key, of_key in arguments.items():
            samples = [*self._samples[key], *(argument.sample for argument in of_key)]
            self._samples[key].extend(samples[-len(of_key) :])
            is_constant = _is_constant(samples) or _are_indices(of_key, step)
            if is_constant:
                if _are_reads_different(samples):
                    if type(samples[0].number) is float:
                        constant_after |= {line for line, _ in of_key[0].operations_of}
                    continue
                reason = "no other batch or record shows what follows from it"
            elif (fitted := _function(samples)) is not None:
                combination, function = fitted
                uses += [NumberUse(p.operation, p.leaf, p.operations_of[combination], function) for p in of_key]
                continue
            else:
                varies |= isinstance(samples[-1].number, float)
                reason = "a later number may follow from it"
            if of_key[0].sample.reads:
                unknown = unknown or _unknown(segments, reason)
                self._is_changed |= self.followed > 0 and not is_constant
        self.varying += varies
        self._is_first = False
        if len(reads) > sum(isinstance(read.value, bool) for _, read in reads) and not unknown:
            self.followed += 1
            self.read_at |= {read.named: None for _, read in reads if not isinstance(read.value, bool)}
        limits = () if unknown else tuple(self._limits(segments))
        of_records = frozenset(id(s.read.operation) for s in segments if s.read is not None and s.record is not None)
        ranges = self._ranges(segments, constant_after)
        return FollowedNumbers(uses=tuple(uses), limits=limits, of_records=of_records, ranges=ranges, unknown=unknown)

    def _ranges(
        self, segments: Sequence[_Segment], constant_after: Collection[Hashable]
    ) -> dict[int, tuple[float, float]]:
        """By the ``id`` of its operation, the smallest and the largest number of a line that reads each record."""
        ranges = {}
        for segment in segments:
            number = _number(segment.read)
            if segment.read is None or segment.record is None or number is None:
                continue
            site = segment.site
            low, high = self._observed.get(site, (number, number))
            self._observed[site] = min(low, number), max(high, number)
        for segment in segments:
            read = segment.read
            if read is not None and segment.site in self._observed and read.line in constant_after:
                ranges[id(read.operation)] = self._observed[segment.site]
        return ranges

    def _note_branches(self, segments: Sequence[_Segment]) -> str:
        """Note the operations after each read; returns why they may depend on it, or an empty text."""
        unknown = ""
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            number = _number(segment.read)
            if following is None or segment.read is None or number is None:
                continue  # other operations follow the last record of a step
            if self._is_first and segment.record is None:
                continue
            branches, functions = self._branches[segment.site], segment.functions
            low, high = branches.get(functions, (number, number))
            branches[functions] = min(low, number), max(high, number)
            if len(branches) > 1 and (segment.record is None or not _are_apart([*branches.values()])):
                unknown = _unknown([segment], _OTHER_OPERATIONS)
        return unknown

    def _limits(self, segments: Sequence[_Segment]) -> Iterator[tuple[Operation, float, float]]:
        """The reads after which the script took one of several branches, and the numbers between which it takes it."""
        for segment in segments:
            branches = self._branches.get(segment.site, {})
            interval = branches.get(segment.branch)
            if len(branches) < 2 or interval is None or segment.read is None or segment.read.operation is None:
                continue
            is_lowest, is_highest = (
                interval[end] == choose(b[end] for b in branches.values()) for end, choose in _ENDS
            )
            yield (
                segment.read.operation,
                -math.inf if is_lowest else interval[0],
                math.inf if is_highest else interval[1],
            )

    def _arguments(
        self, segments: Sequence[_Segment], step: TracedStep, parameters: Sequence[Tensor]
    ) -> dict[Hashable, list[_Argument]]:
        """The numbers of a step by their place: the last read, and the number of operations since then."""
        arguments: dict[Hashable, list[_Argument]] = defaultdict(list)
        outside = _outside(step, parameters) if len(segments) > 1 else {}
        latest: dict[Hashable, list[_Read]] = defaultdict(list)
        for segment, is_last in zip(segments, [*[False] * (len(segments) - 1), True], strict=True):
            if segment.read is not None:
                latest[segment.read.line].append(segment.read)
            reads, operations_of = _combined(latest, len(parameters))
            shared = self._note_branch(segment, is_last=is_last and segment.read is not None)
            site, end = (segment.site, hash(segment.branch)), hash(segment.functions[shared:])
            for offset, operation in enumerate(segment.operations):
                for leaf, number in _leaves(operation, None if segment.read is None else outside):
                    key = (*site, offset, leaf) if offset < shared else (end, offset - shared, leaf)
                    sample = _Sample(number, reads, len(step.batch[0]))
                    arguments[key].append(_Argument(sample, segment.record, operation, leaf, operations_of))
        return arguments

    def _note_branch(self, segment: _Segment, *, is_last: bool) -> int:
        """Note the branch that the script took after a read; returns the number of its operations in the segment.

        Other operations than the next record's follow the last record of a step: they are compared with other steps.
        """
        segment.branch = functions = segment.functions
        if not is_last:
            return len(functions)
        shared = {branch: _shared(branch, functions) for branch in self._branches.get(segment.site, {}) if branch}
        segment.branch = max(shared, key=lambda branch: shared[branch], default=())
        end = shared.get(segment.branch, 0)
        if not self._is_first:
            self._ends[segment.site].add(functions[end:])
        return end


#: The ends of an interval, and the function that finds the outermost.
_ENDS: tuple[tuple[int, Callable[[Iterable[float]], float]], ...] = ((0, min), (1, max))


def _reads(step: TracedStep) -> list[tuple[int, _Read]]:
    """The reads of a step with the number of operations before each.

    Only values that follow from the batch count as read: a temperature may be a parameter.
    """
    trace = step.trace
    if not trace.copied and not any(operation.function in TO_PYTHON for operation in trace.operations):
        return []
    of_batch = {address_of(tensor) for tensor in (*step.batch, *step.held_records().tensors)} - {0}
    reads, copied = list[tuple[int, _Read]](), deque(trace.copied)
    for number, operation in enumerate(trace.operations):
        while copied and copied[0].operations <= number:
            reads += _copied(copied.popleft(), of_batch)
        if of_batch.isdisjoint(map(address_of, tensors_in((operation.args, dict(operation.kwargs))))):
            continue
        written = written_by(operation.function, operation.args, operation.kwargs)
        of_batch |= {*operation.addresses, *map(address_of, written)} - {0}
        if operation.function in TO_PYTHON:
            reads.append((number + 1, _Read(operation.line, operation.results, operation)))
    for copy in copied:
        reads += _copied(copy, of_batch)
    return reads


def _copied(copy: Any, of_batch: Collection[int]) -> Iterator[tuple[int, _Read]]:
    """The values that the script copied, if they follow from the batch."""
    if address_of(copy.tensor) in of_batch:
        yield copy.operations, _Read(copy.line, _content(copy.tensor))


def _segments(trace: StepTrace, reads: Sequence[tuple[int, _Read]], records: int) -> list[_Segment]:
    """The operations of a step between its reads."""
    counts = Counter(read.line for _, read in reads)
    numbers: Counter[ScriptLine | None] = Counter()
    segments = [_Segment(None)]
    starts = [0, *(start for start, _ in reads), len(trace.operations)]
    for _, read in reads:
        # a loop over the layers of each record reads at one line several times for each record
        of_record, remainder = divmod(counts[read.line], records)
        record, position = (None, numbers[read.line]) if remainder else divmod(numbers[read.line], of_record)
        numbers[read.line] += 1
        truth = read.value if isinstance(read.value, bool) else None
        segments.append(_Segment(read, (read.line, position, truth), record))
    for segment, start, end in zip(segments, starts[:-1], starts[1:], strict=True):
        segment.operations = trace.operations[start:end]
    return segments


def _number(read: _Read | None) -> float | None:
    """The number that was read; None for another value. A truth value is a part of the site."""
    if read is None:
        return None
    return 0.0 if isinstance(read.value, bool) or type(read.value) not in (int, float) else float(read.value)


def _are_apart(intervals: Sequence[tuple[float, float]]) -> bool:
    ordered = sorted(intervals)
    return all(high < low for (_, high), (low, _) in itertools.pairwise(ordered))


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """The number of equal first operations."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _combined(
    latest: Mapping[Hashable, Sequence[_Read]], layers: int
) -> tuple[dict[_Combination, Any], dict[_Combination, tuple[Operation, ...]]]:
    """The latest read of each line, and the Euclidean norm of its latest ones, if each layer may have one."""
    reads, operations_of = dict[_Combination, Any](), dict[_Combination, tuple[Operation, ...]]()
    for line, of_line in latest.items():
        reads[line, False] = of_line[-1].value
        combined = {(line, False): of_line[-1:]}
        of_layers = of_line[-layers:]
        if len(of_layers) == layers > 1 and all(type(read.value) is float for read in of_layers):
            reads[line, True] = math.hypot(*(read.value for read in of_layers))
            combined[line, True] = of_layers
        for key, several in combined.items():
            operations_of[key] = tuple(read.operation for read in several if read.operation is not None)
    return reads, operations_of


def _outside(step: TracedStep, parameters: Sequence[Tensor]) -> dict[int, Hashable]:
    """By their ``id``, the tensors from before the step, and their values; one-element tensors are numbers.

    The script may have made these of numbers that it read. Tensors of records and parameters do not count.
    """
    trace = step.trace
    omitted = {*map(address_of, (*step.batch, *step.held_records().tensors, *parameters)), 0}
    replay = Replay(trace, [])
    values: dict[int, Hashable] = {}
    for tensor in _read_before(trace, omitted):
        value = replay.value(tensor)
        is_number = value.numel() == 1 and not value.is_complex()
        values[id(tensor)] = value.item() if is_number else _content(value)
    return values


def _leaves(operation: Operation, outside: Mapping[int, Hashable] | None) -> Iterator[tuple[int, Hashable]]:
    """The numbers among the arguments of an operation, and the tensors from outside of the step.

    outside: None before the first read: then only real numbers may vary, with a schedule or a loss of before.
    """
    for position, leaf in enumerate(tree_leaves((operation.args, dict(operation.kwargs)))):
        if type(leaf) is float or (outside is not None and type(leaf) in (int, bool)):
            yield position, leaf
        elif outside is not None and isinstance(leaf, Tensor) and id(leaf) in outside:
            yield position, outside[id(leaf)]


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


def _content(tensor: Tensor) -> Hashable:
    """The shape and a digest of the values."""
    if tensor.numel() > _MOST_VALUES or tensor.layout != torch.strided:
        return object()
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tuple(tensor.shape), sha256(values.numpy().data).digest()


def _unknown(segments: Sequence[_Segment], reason: str) -> str:
    """Why a step that reads a number is not replayed; empty for a step that reads none."""
    lines = dict.fromkeys(segment.read.named for segment in segments if segment.read is not None)
    named = ", ".join(list(lines)[:3])
    return f"{named} reads a number of the batch, and {reason}: {READ_ADVICE}" if lines else ""


def _are_indices(arguments: Sequence[_Argument], step: TracedStep) -> bool:
    """Whether integers of a step count its records, or are their indices: of the record of a read, or the next one."""
    numbers, of_reads = [argument.sample.number for argument in arguments], [argument.record for argument in arguments]
    if not all(type(number) is int and record is not None for number, record in zip(numbers, of_reads, strict=True)):
        return False
    drawn = [] if step.drawn is None else step.drawn.indices.tolist()
    orders = ([*range(len(step.batch[0]))], drawn)
    return any(
        [[number] for number in numbers] == [order[record + k : record + k + 1] for record in of_reads]
        for order, k in itertools.product(orders, (0, 1))
    )


def _is_constant(samples: Sequence[_Sample]) -> bool:
    """Whether numbers in a place are one constant, or follow from the batch size."""
    first, numbers = samples[0], [sample.number for sample in samples]
    if all(number == first.number for number in numbers):
        return True
    if not {*map(type, numbers)} <= {int, float} or not all(map(math.isfinite, numbers)):
        return False
    powers = (0.0, 1.0) if {*map(type, numbers)} == {int} else (0.0, *_POWERS)
    scaled = ([s.number * (first.records / max(s.records, 1)) ** power for s in samples] for power in powers)
    return any(all(math.isclose(n, first.number, rel_tol=_ROUNDING) for n in of_power) for of_power in scaled)


def _are_reads_different(samples: Sequence[_Sample]) -> bool:
    """Whether each number that was read before the last sample had another value before another one."""
    reads = samples[-1].reads
    return all(
        any(sample.reads.get(key, value) != value for sample in samples)
        for key, value in reads.items()
        if not isinstance(value, bool)
    )


def _function(samples: Sequence[_Sample]) -> tuple[_Combination, _Linear] | None:
    """The combination of reads that gives the numbers of a place, and the function."""
    numbers = [sample.number for sample in samples]
    if not {*map(type, numbers)} <= {int, float} or not all(map(math.isfinite, numbers)):
        return None
    for key in samples[-1].reads:
        reads = [sample.reads.get(key, math.nan) for sample in samples]
        if not all(type(read) in (int, float) and math.isfinite(read) for read in reads):
            continue
        for is_reciprocal in (False, True):
            function = _linear(list(zip(reads, numbers, strict=True)), is_reciprocal=is_reciprocal, is_norm=key[1])
            if function is not None:
                return key, function
    return None


def _linear(points: Sequence[tuple[Any, float]], *, is_reciprocal: bool, is_norm: bool) -> _Linear | None:
    """The function through all points. Some points may lie on one bound."""
    low, high = (choose(number for _, number in points) for choose in (min, max))
    for lowest, highest in ((-math.inf, math.inf), (-math.inf, high), (low, math.inf)):
        free = sorted({(read, number) for read, number in points if lowest < number < highest})
        if len({read for read, _ in free}) < _FEWEST_ON_LINE or (is_reciprocal and not all(n for _, n in free)):
            continue
        (x, y), (far_x, far_y) = ((r, 1.0 / n if is_reciprocal else n) for r, n in (free[0], free[-1]))
        slope = (far_y - y) / (far_x - x)
        function = _Linear(y - slope * x, slope, is_reciprocal, is_norm, lowest, highest)
        scale = max(abs(low), abs(high))
        bounded = (min(max(function.unbounded(read), lowest), highest) for read, _ in points)
        errors = (abs(value - number) for value, (_, number) in zip(bounded, points, strict=True))
        if slope and max(errors) <= _ROUNDING * scale:
            return function
    return None
