"""The operations of a step, and their replay with other values of some tensors.

A ``TorchDispatchMode`` sees each operation of torch below automatic differentiation: the forward pass, the backward
pass, per-sample gradients and their sum. A replay calls the same operations again with the same random numbers. It
also repeats operations that do not depend on the changed tensors, so that writes into views reach the tensors that
share their memory.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from dpspec.training.gradients.memory import free_bytes
from dpspec_recording.step_replay.calls import Pauses, WholeFunctions, enter, leave, needs_gradient

#: Maximum number of operations of a step.
MOST_OPERATIONS = 20_000

#: Results of this size in bytes are kept on every machine.
MOST_BYTES = 2**28

#: Larger ones, if they take one part in eight of the free memory: a replay makes them again, and its comparisons once
#: more. A convolutional network's step on 120 images of CIFAR-10 takes 400 MiB, so a fixed limit would replay no step
#: of usual trainings.
_PARTS_OF_FREE = 8

_ATEN = torch.ops.aten

#: Operations that return a number of Python, on which the script's control flow may depend.
TO_PYTHON = (_ATEN._local_scalar_dense.default, _ATEN.is_nonzero.default, _ATEN.equal.default)

#: Operations that return different values, whose number depends on them.
_UNIQUE = (_ATEN.unique_dim.default, _ATEN._unique2.default)

#: Methods that copy values of a tensor to Python or NumPy without an operation of torch.
_UNSEEN_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)

#: Functions whose backward pass torch computes by another algorithm under a dispatch mode.
_OTHER_GRADIENTS = (torch.prod, Tensor.prod)

#: The namespaces of operations that exchange values with other processes; the first one returns new tensors.
_FUNCTIONAL = "_c10d_functional"
_COLLECTIVES = ("c10d", _FUNCTIONAL)

#: The smallest integer that is followed: smaller ones are usual constants.
_FEWEST_INTEGER = 3

#: What to do about a number of Python on which a sum may depend in an unknown way.
READ_ADVICE = "read numbers for logs after the step"

#: All numbers.
_ALL = (-math.inf, math.inf)

#: Packages whose lines are not the script's.
_LIBRARIES = frozenset({"dpspec", "dpspec_recording", "opacus", "torch"})


#: Types of arguments without parts.
_LEAVES = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


class AbstainError(Exception):
    """The step cannot be replayed; the message is the reason, and may follow "the step was not replayed:"."""


class OtherCountError(AbstainError):
    """The number of different values depends on the record."""


class BeyondError(AbstainError):
    """A record moves the sum too far if the script does nothing else with numbers beyond all that it read."""


@dataclass(frozen=True)
class ScriptLine:
    """A line of the script: its file, its number, and the columns of the call, if Python knows them."""

    file: str
    number: int
    columns: tuple[int | None, int | None]

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    @classmethod
    def present(cls) -> ScriptLine | None:
        """The line of the innermost function outside of libraries that runs now; None without one."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
            frame = frame.f_back
        if frame is None:
            return None
        # the offset of one call changes when Python adapts its bytecode, and the columns do not
        *_, first, last = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        return cls(Path(frame.f_code.co_filename).name, frame.f_lineno, (first, last))


@dataclass(frozen=True)
class CopiedValues:
    """A tensor whose values the script copied without an operation.

    Attributes:
        operations: The number of operations before.
        tensor: The tensor.
        line: The line of the script.
    """

    operations: int
    tensor: Tensor
    line: ScriptLine | None


@dataclass(frozen=True)
class Operation:
    """One call of an operation of torch.

    Attributes:
        function: The operation.
        args: Its positional arguments.
        kwargs: Its named arguments.
        results: Its results.
        shapes: The shapes of its results, which later operations may change in place.
        addresses: The addresses of their memory, likewise.
        states: The states of the generators from which it draws, before the call.
        ignores_reads: Whether a replay continues if the operation returns another number of Python.
        line: The line of the script that reads the number that the operation returns; None for other operations.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Any
    shapes: tuple[torch.Size, ...]
    addresses: tuple[int, ...]
    states: tuple[tuple[torch.Generator, Tensor], ...]
    ignores_reads: bool = False
    line: ScriptLine | None = None


@dataclass(frozen=True)
class NumberUse:
    """A number of Python in an operation, as a function of numbers that the script read.

    Attributes:
        operation: The operation.
        leaf: The position of the number among the leaves of the operation's arguments.
        reads: The operations that returned the read numbers.
        function: Returns the number for these.
    """

    operation: Operation
    leaf: int
    reads: tuple[Operation, ...]
    function: Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class FollowedNumbers:
    """What follows from the numbers of its batch that a step read in Python.

    Attributes:
        uses: The numbers of its operations that follow from read ones. Others are constants.
        limits: The reads after which the script took one of several branches, with the smallest and the largest number
            with which it takes it.
        of_records: The numbers (``id``) of the reads of one record each.
        ranges: By the number (``id``) of such a read after which a real number was always the same: the smallest and
            the largest read number. The script may clip by it beyond, as ``min(1, C / norm)`` is 1 for all small norms.
        unknown: Why other numbers or operations may follow from the read ones; empty if none may.
    """

    uses: tuple[NumberUse, ...] = ()
    limits: tuple[tuple[Operation, float, float], ...] = ()
    of_records: frozenset[int] = frozenset()
    ranges: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    unknown: str = ""


class _UnseenReads(WholeFunctions):
    """Reports reads that bypass the dispatcher: a replay would repeat the executed values in place of new ones.

    Attributes:
        checks: Whether torch reads numbers to check its arguments alone: ``one_hot`` compares labels with the classes.
    """

    def __init__(self, trace: StepTrace) -> None:
        super().__init__(trace)
        self._trace, self.checks = trace, False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _UNSEEN_READS:
            reason = f"the step reads values of a tensor in Python, by .{func.__name__}(): {READ_ADVICE}"
            self._trace.note_copy(reason, args[0])
        elif func in _OTHER_GRADIENTS and needs_gradient((args, kwargs)):
            self._trace.give_up(f"a trace would change the last bits of the gradient of {func.__name__}()")
        classes = (kwargs or {}).get("num_classes", args[1] if len(args) > 1 else -1)
        self.checks = func is one_hot and classes != -1
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self.checks = False


class StepTrace(TorchDispatchMode):
    """Notes all operations of the current thread while it is active. It changes no value and draws no number.

    Attributes:
        operations: The operations in order.
        failure: The reason why the trace is incomplete; empty if it is complete.
        active: Whether it sees operations.
        ignores_reads: Whether replays continue with the executed numbers where the script reads values in Python.
        limits_copies: Whether copies of overwritten memory count in :data:`MOST_BYTES`: an update overwrites all
            parameters and the optimizer's state.
        defers_indices: Whether a copy of integers to Python, such as the drawn indices, leaves the trace complete: then
            :attr:`read_indices` has the reason and the values, which the reported indices confirm.
        reads: The first such read, of a value that may depend on a record; else empty.
        branches: Whether a condition on several records, as of ``if``, had another result in a replay.
        followed: What follows from the numbers that the step read, once it is known.
        beyond: The line that read a number of a record beyond all others in the last replay; empty without.
        exchanged: The operation that exchanged values with other processes, if a replay without it gives another sum.
        copied: The tensors whose values the script copied without an operation.
    """

    def __init__(self, pauses: Pauses | None = None) -> None:
        """pauses: operations during a pause are the recorder's own, and ignored."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._pauses = pauses or Pauses()
        self.operations: list[Operation] = []
        self.failure = ""
        self._bytes, self._limit = 0, MOST_BYTES
        self._produced: set[int] = set()  # addresses of the memory of results
        # kept, since set_, as of copy.deepcopy, releases a result's memory: a later result would get its address
        self._storages: list[torch.UntypedStorage] = []
        #: By address, the content of memory from before the step into which the step writes.
        self.before: dict[int, Tensor] = {}
        self.active = self.ignores_reads = self.limits_copies = self.defers_indices = self.branches = False
        self.read_indices: list[tuple[str, Tensor]] = []
        self.reads = self.exchanged = self._collective = ""
        self.copied: list[CopiedValues] = []
        self.followed: FollowedNumbers | None = None
        self.beyond = ""
        self._reads = _UnseenReads(self)

    def start(self) -> None:
        """Begin to note operations, unless the trace was given up."""
        if self.failure:
            return
        enter(self._reads)
        self.__enter__()  # type: ignore[no-untyped-call]
        self.active = True

    def stop(self) -> None:
        """End; a second call does nothing."""
        if self.active:
            self.active = False
            # A backward pass restores the modes from before it, for example after a reentrant checkpoint.
            if not self._leave() and not self.failure:
                self.give_up("the step began inside another call, such as a checkpoint")
            leave(self._reads)

    def _leave(self) -> bool:
        """Leave the dispatch mode if it is the present one."""
        is_present = _get_current_dispatch_mode() is self
        if is_present:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return is_present

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if self.failure or self._pauses.depth:
            return func(*args, **named)
        if func.namespace in _COLLECTIVES:  # a replay must not wait for other processes
            # torch's DistributedDataParallel averages gradients within the backward pass, which Opacus ignores
            is_of_backward = torch._C._current_graph_task_id() >= 0
            self._collective = self._collective or ("" if is_of_backward else str(func))
            if func.namespace == _FUNCTIONAL:  # a replay would take its results as constants
                self.give_up(f"{func} exchanged values with other processes")
            return func(*args, **named)
        if self._reads.checks and func in TO_PYTHON:
            return func(*args, **named)
        try:
            states = _generator_states(func, args, named)
            self._note_writes(func, args, named)
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
            return func(*args, **named)
        results = func(*args, **named)
        try:
            tensors = tensors_in(results)
            shapes, addresses = tuple(t.shape for t in tensors), tuple(address_of(t) for t in tensors)
            line = ScriptLine.present() if func in TO_PYTHON else None
            called = Operation(func, args, named, results, shapes, addresses, states, self.ignores_reads, line)
            self.operations.append(called)
            # memory that a storage argument names is from before, even if a result is in it, as is a view of it
            argument_addresses = {address_of(tensor) for tensor in tensors_in((args, dict(named)))}
            self._note_results(
                results, argument_addresses, new=not any(isinstance(item, torch.UntypedStorage) for item in args)
            )
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
        return results

    def _note_writes(self, func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Keep the content of memory from before the step that ``func`` is about to overwrite."""
        for tensor in written_by(func, args, named):
            address = address_of(tensor)
            if address and address not in self._produced and address not in self.before:
                self._bytes += tensor.untyped_storage().nbytes() if self.limits_copies else 0
                if self._is_too_large(tensor):
                    raise MemoryError(f"it overwrites more than {self._limit >> 20} MiB")
                self.before[address] = _whole(tensor).clone()
                self._storages.append(tensor.untyped_storage())

    def _note_results(self, results: Any, argument_addresses: set[int], *, new: bool) -> None:
        for tensor in tensors_in(results):
            address = address_of(tensor)
            if (
                new
                and address not in argument_addresses
                and address not in self.before
                and address not in self._produced
            ):
                self._produced.add(address)
                self._storages.append(tensor.untyped_storage())
                self._bytes += tensor.untyped_storage().nbytes()
                if self._is_too_large(tensor):
                    self.give_up(f"its operations need more than {self._limit >> 20} MiB, an eighth of the free memory")
                    return
        if len(self.operations) > MOST_OPERATIONS:
            self.give_up(f"it has more than {MOST_OPERATIONS} operations")

    def _is_too_large(self, tensor: Tensor) -> bool:
        """Whether the kept memory exceeds the limit, which depends on the free memory of the tensor's device."""
        if self._bytes > self._limit == MOST_BYTES:
            self._limit = max(MOST_BYTES, free_bytes(tensor.device) // _PARTS_OF_FREE)
        return self._bytes > self._limit

    def note_copy(self, reason: str, tensor: Tensor) -> None:
        """The script copies the values of a tensor to Python."""
        if self._pauses.depth or self.failure:
            return
        self.copied.append(CopiedValues(len(self.operations), tensor, ScriptLine.present()))
        if self.defers_indices and tensor.dtype is torch.int64 and tensor.dim() == 1:
            self.read_indices.append((reason, tensor.detach()))
        elif self.ignores_reads:
            self.reads = self.reads or reason
        else:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Abstain from the replay of this step."""
        self.failure = reason[:200]
        self._leave()
        self.operations, self.before, self.copied, self._storages = [], {}, [], []

    def part(self, operations: Sequence[Operation], before: Mapping[int, Tensor]) -> StepTrace:
        """Return a trace of some of the operations, for replays. before: as the attribute."""
        part = StepTrace(self._pauses)
        part.failure, part.operations, part.before = self.failure, [*operations], {**before}
        part.followed = self.followed
        return part

    def confirm(self, sums: Sequence[Tensor], repeated: Sequence[Tensor]) -> None:
        """Raise ``AbstainError`` unless the replay with the records of the step, ``repeated``, gave its sums again."""
        if not all(self.produces(tensor) for tensor in sums):
            raise AbstainError("the sum is not a result of the operations that the replay saw")
        is_equal = all(torch.equal(again, total.detach()) for again, total in zip(repeated, sums, strict=True))
        if not is_equal:
            self.exchanged = self._collective
            cause = f"{self.exchanged} exchanged values with other processes" if self.exchanged else ""
            reason = cause or "it did not see the whole step"
            raise AbstainError(f"without another record, the replay gives another sum: {reason}")

    @property
    def follows_reads(self) -> bool:
        """Whether replays know what follows from the numbers that the script read."""
        return self.followed is not None and not self.followed.unknown and not self.branches

    def produces(self, tensor: Tensor) -> bool:
        """Return whether a noted operation returns ``tensor``, or writes into its memory."""
        results = (result for operation in self.operations for result in tensors_in(operation.results))
        return address_of(tensor) in self.before or any(result is tensor for result in results)

    def generators_of(self, tensors: Sequence[Tensor]) -> list[torch.Generator]:
        """Return the generators from which the values of these tensors follow, also through other operations.

        Each call of torch makes another object for one generator, so one of each device and seed is returned.
        """
        sources: dict[int, dict[tuple[str, int], torch.Generator]] = {}  # by the address of memory
        for operation in self.operations:
            read = tensors_in((operation.args, dict(operation.kwargs)))
            generators = {
                (str(generator.device), generator.initial_seed()): generator for generator, _ in operation.states
            }
            for tensor in read:
                generators |= sources.get(address_of(tensor), {})
            if generators:
                written = map(address_of, written_by(operation.function, operation.args, operation.kwargs))
                for address in {*operation.addresses, *written} - {0}:
                    sources[address] = {**sources.get(address, {}), **generators}
        of_tensors: dict[tuple[str, int], torch.Generator] = {}
        for tensor in tensors:
            of_tensors |= sources.get(address_of(tensor), {})
        return list(of_tensors.values())

    def value_before(self, tensor: Tensor) -> Tensor:
        """Return the value of a tensor of the step before the step writes into it."""
        return Replay(self, []).value(tensor).detach()

    def tensors_before(self) -> list[Tensor]:
        """Return the tensors from before the step that its operations read or write, each once."""
        tensors: dict[int, Tensor] = {}
        produced: set[int] = set()
        for operation in self.operations:
            for tensor in tensors_in((operation.args, dict(operation.kwargs))):
                if id(tensor) not in produced:
                    tensors.setdefault(id(tensor), tensor)
            produced |= {id(tensor) for tensor in tensors_in(operation.results)}
        return list(tensors.values())

    def memory_before(self, tensor: Tensor) -> Tensor:
        """Return a copy of the memory of a tensor from before the step, as bytes."""
        address = address_of(tensor)
        return (self.before[address] if address in self.before else _whole(tensor)).clone()

    def replay(
        self,
        changed: Sequence[tuple[Tensor, Tensor]],
        targets: Sequence[Tensor],
        memory: Mapping[int, Tensor] | None = None,
    ) -> list[Tensor]:
        """Repeat the operations with other values of some tensors.

        Args:
            changed: Pairs of a tensor of the step and its other value, of the same shape.
            targets: Tensors of the step.
            memory: By address, other content of memory from before the step, as of :meth:`memory_before`.

        Returns:
            Copies of the values of ``targets`` in the replay.

        Raises:
            AbstainError: The step cannot be replayed, or another number of Python or shape results.
            OtherCountError: ``torch.unique`` returns another number of values.
        """
        if self.failure:
            raise AbstainError(self.failure)
        with torch.no_grad():
            replay = Replay(self, changed, memory)
            try:
                for operation in self.operations:
                    replay.repeat(operation)
            finally:
                self.reads, self.branches = self.reads or replay.reads, self.branches or replay.branches
                self.beyond = replay.beyond
            return [replay.value(tensor).detach().clone() for tensor in targets]


class Replay:
    """One replay of a trace, operation by operation."""

    def __init__(
        self, trace: StepTrace, changed: Sequence[tuple[Tensor, Tensor]], memory: Mapping[int, Tensor] | None = None
    ) -> None:
        """memory: by address, other content of memory from before the step."""
        self._values: dict[int, Tensor] = {}
        self._changed = {id(tensor): value for tensor, value in changed}
        self._changed_addresses = {address_of(tensor) for tensor, _ in changed}
        contents = {**trace.before, **(memory or {})}
        self._memory = {address: content.clone() for address, content in contents.items()}
        self._storages: dict[int, torch.UntypedStorage] = {}  # by address in the executed step
        self._numbers: dict[float, float] = {}  # by a number that the script read, the number in the replay
        self._integers: dict[int, int] = {}  # the same for integers
        self._followed = trace.followed
        self._read: dict[int, Any] = {}  # by the ``id`` of the operation, the number that it returns in the replay
        self._uses: dict[int, list[NumberUse]] = defaultdict(list)
        for use in () if self._followed is None else self._followed.uses:
            self._uses[id(use.operation)].append(use)
        limits = () if self._followed is None else self._followed.limits
        self._limits = {id(operation): (low, high) for operation, low, high in limits}
        self.reads, self.branches, self.beyond = "", False, ""

    def value(self, tensor: Tensor) -> Tensor:
        """Return the value of a tensor of the step after the operations that were repeated."""
        key = id(tensor)
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._changed[key] if key in self._changed else self._from_before(tensor)
        return value

    def _from_before(self, tensor: Tensor) -> Tensor:
        """The value of a tensor from before the step: its own memory, or a copy if the step writes into it."""
        memory = self._memory.get(address_of(tensor))
        if memory is None:
            return tensor.detach()
        return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def repeat(self, operation: Operation) -> list[Tensor]:
        """Repeat the next operation, and return its results."""
        args = mapped(self._look_up, operation.args)
        kwargs = mapped(self._look_up, dict(operation.kwargs)) if operation.kwargs else {}
        if id(operation) in self._uses:
            args, kwargs = self._with_functions(operation, args, kwargs)
        if self._integers:
            arguments = operation.function._schema.arguments
            args = tuple(map(self._integer, arguments, args))
            kwargs.update({a.name: self._integer(a, kwargs[a.name]) for a in arguments if a.name in kwargs})
        saved = [(generator, generator.get_state()) for generator, _ in operation.states]
        for generator, state in operation.states:
            generator.set_state(state)
        try:
            results = operation.function(*args, **kwargs)
        finally:
            for generator, state in saved:
                generator.set_state(state)
        if operation.function in TO_PYTHON:
            self._read[id(operation)] = results
            if not _same(results, operation.results):
                self._note_read(operation, results)
        executed, repeated = tensors_in(operation.results), tensors_in(results)
        if len(executed) != len(repeated):
            raise AbstainError(f"{operation.function} returns another number of tensors")
        for old, new, shape, address in zip(executed, repeated, operation.shapes, operation.addresses, strict=True):
            if new.shape != shape:
                error = OtherCountError if operation.function in _UNIQUE else AbstainError
                raise error(f"the shape of a result of {operation.function} depends on the record")
            key = id(old)
            self._values[key] = self._changed.get(key, new)
            if address:
                self._storages[address] = new.untyped_storage()
        return repeated

    def _with_functions(self, operation: Operation, args: Any, kwargs: Any) -> Any:
        """The arguments with the numbers that follow from the reads of the replay."""
        leaves, structure = tree_flatten((args, kwargs))
        for use in self._uses[id(operation)]:
            read = [self._read.get(id(source), source.results) for source in use.reads]
            if read == [source.results for source in use.reads]:
                continue  # the executed number has no rounding of the function
            old, number = leaves[use.leaf], use.function(read)
            if isinstance(old, Tensor):
                leaves[use.leaf] = torch.full_like(old, number)
            else:
                leaves[use.leaf] = round(number) if isinstance(old, int) and math.isfinite(number) else number
        return tree_unflatten(leaves, structure)

    def _note_read(self, operation: Operation, number: Any) -> None:
        """The script would read another number here.

        Raises:
            AbstainError: The next operations of the script are then not known.
        """
        line, followed = "" if operation.line is None else f"{operation.line}: ", self._followed
        self.reads = f"{line}a number of Python depends on the record, for example by .item(): {READ_ADVICE}"
        is_known = followed is not None and not followed.unknown
        lowest, highest = _ALL if followed is None else followed.ranges.get(id(operation), _ALL)
        if not isinstance(number, bool) and not lowest <= number <= highest:
            self.beyond = self.beyond or str(operation.line or "a library")
        low, high = self._limits.get(id(operation), _ALL)
        is_other_branch = isinstance(number, bool) or (is_known and not low <= number <= high)
        is_of_record = followed is not None and id(operation) in followed.of_records
        self.branches |= is_other_branch and not is_of_record
        ends = is_other_branch and (is_of_record or not operation.ignores_reads)
        if ends or not (is_known or operation.ignores_reads):
            raise AbstainError(self.reads)
        if not is_known:
            self._note_number(operation.results, number)

    def _note_number(self, executed: Any, repeated: Any) -> None:
        """Note a number that the script read, and its integers: the limit of a mask, the divisor of a sum."""
        if type(executed) not in (int, float) or not (math.isfinite(executed) and math.isfinite(repeated)):
            return
        if isinstance(executed, float) and round(executed, 6) != executed:  # no usual constant
            self._numbers[executed] = repeated
        for integer in (math.floor, math.ceil, round):
            if abs(integer(executed)) >= _FEWEST_INTEGER:
                self._integers.setdefault(integer(executed), integer(repeated))

    def _integer(self, argument: Any, value: Any) -> Any:
        """The integer of the replay in the place of a number. Sizes, dimensions and indices stay."""
        is_number = type(value) is int and str(argument.type) in ("number", "Optional[number]")
        return self._integers.get(value, value) if is_number else value

    def _look_up(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            return self.value(item)
        if isinstance(item, float):
            return self._numbers.get(item, item)
        return self._storage(item) if isinstance(item, torch.UntypedStorage) else item

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The memory behind tensors, which for example copy.deepcopy() copies without their shapes."""
        address = storage.data_ptr()
        if address in self._changed_addresses:
            raise AbstainError("it copies the memory of a batch, for example by copy.deepcopy()")
        if address in self._memory:
            return self._memory[address].untyped_storage()
        return self._storages.get(address, storage) if address else storage


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):  # as are the results of most operations
        return [value]
    return [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor)]


def _leaves(value: Any) -> list[Any]:
    """Return what torch's ``tree_leaves`` returns, in a fraction of its time for arguments of operations."""
    kind = type(value)
    if kind in _LEAVES or isinstance(value, Tensor):
        return [value]
    if kind is tuple or kind is list:
        return [leaf for item in value for leaf in _leaves(item)]
    if kind is dict:
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return tree_leaves(value)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return what torch's ``tree_map`` returns, in a fraction of its time, as :func:`_leaves`."""
    kind = type(value)
    if kind in _LEAVES or isinstance(value, Tensor):
        return function(value)
    if kind is tuple:
        return tuple([mapped(function, item) for item in value])
    if kind is list:
        return [mapped(function, item) for item in value]
    if kind is dict:
        return {key: mapped(function, item) for key, item in value.items()}
    return tree_map(function, value)


def written_by(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors into which an operation writes."""
    if not function._schema.is_mutable:
        return []
    arguments = function._schema.arguments
    values = [*zip(arguments, args, strict=False)]
    values += [(argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs]
    return [
        tensor
        for argument, value in values
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_in(value)
    ]


def _same(first: Any, second: Any) -> bool:
    return bool(first == second) or (first != first and second != second)


def address_of(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor."""
    return tensor.untyped_storage().data_ptr()


def _whole(tensor: Tensor) -> Tensor:
    """Return the whole memory of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _generator_states(
    func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[torch.Generator, Tensor], ...]:
    """Return the generators that ``func`` may use, with their states."""
    passed_generators = [leaf for leaf in _leaves((args, named)) if isinstance(leaf, torch.Generator)]
    if not passed_generators and torch.Tag.nondeterministic_seeded not in func.tags:  # type: ignore[attr-defined]
        return ()
    generators = passed_generators or [torch.default_generator]
    if not passed_generators and any(tensor.is_cuda for tensor in tensors_in((args, named))):
        generators += [torch.cuda.default_generators[torch.cuda.current_device()]]
    return tuple((generator, generator.get_state()) for generator in generators)
