"""Maps of the noisy gradient between its noise and the optimizer's step.

A map that reads no record is a post-processing, which costs no privacy: a mask, a projection, a filter along an axis, a
factor of a layer. The operations of a traced step show the sources of the optimizer's gradients:

* The noisy gradient, parameters and constants alone: the same operations must give the gradients of later steps;
* also other tensors of the script (a mask, a matrix, a public batch), or numbers that it read from them: no replay
  shows that these are public, so the claim is open (assumption ``gradient-map``);
* records: the noisy gradient stays as executed, other records are in the batch, and the gradients move.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.facts import MapFacts
from dpspec_recording.step_replay.trace import (
    TO_PYTHON,
    AbstainError,
    Operation,
    StepTrace,
    address_of,
    tensors_in,
    written_by,
)
from dpspec_recording.watching.generators import own_normals

#: Roundings of a recomputed gradient, in units of the resolution of its largest coordinate.
_ROUNDINGS = 16.0

#: The operations that divide a tensor in place.
_DIVISIONS = {torch.ops.aten.div_.Tensor, torch.ops.aten.div_.Scalar}

#: Largest change of a function of sum and noise if both change by opposite values, relative to the change by the noise
#: alone: of a tensor, and of a coordinate, which may be tiny. The numbers of random values and of roundings.
_OPPOSITE, _OF_COORDINATE, _DIRECTIONS, _OPPOSITE_ROUNDINGS = 2.0**-14, 0.1, 3, 64.0

#: Lengths of other sums, relative to the executed one.
_LENGTHS = (0.0, -1.0, 0.1, 0.5, 2.0, 10.0)

#: The number of shapes in a text.
_MOST_SHAPES = 3


class GradientMap:
    """The operations that compute some tensors of a step from others.

    Attributes:
        inputs: The tensors that they read except for the sources and parameters, and those whose numbers the script
            read in Python after the sources, or read before and uses without change.
        operands: Of these, the tensors that the operations read, or whose numbers they use without change.
        shapes_of_results: The operations, except for views, with the shapes of their results.
        reads_known: Whether the operations read public batches of the trace.
        numbers: The real numbers of Python in the operations, in order.
        draws: The identities of the operations that draw random numbers for the map.
        has_reads: Whether the script read a number other than an integer in Python before the targets had their values.
        is_division: Whether they leave the sources or only divide them, as Opacus does; others may read them, as
            torch's SGD copies the first gradient into its momentum.
    """

    def __init__(
        self,
        trace: StepTrace,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
        *,
        start: int = 0,
        end: int,
        sources_end: int = 0,
        parameters: Collection[int] = (),
        public_ends: Mapping[int, int] | None = None,
        options: Collection[float] = (1.0,),
        inputs_end: int | None = None,
    ) -> None:
        """Find the operations.

        Args:
            trace: The stopped trace of the step.
            sources: The tensors that the map begins with.
            targets: Its results.
            start: The number of operations before the map.
            end: The number of operations of the step when the targets had their values.
            sources_end: The number of operations when the sources had their values: earlier writes to a source make it.
            parameters: Addresses of the memory of parameters.
            public_ends: Addresses of public batches, with the number of operations when they had their values.
            options: Positive numbers. Operations use a number that the script read also by its product with one of
                them, or as divisor of one, as of a learning rate.
            inputs_end: The number of operations when the inputs had their values, if later ones overwrite them, as an
                update does its state.
        """
        self._inputs_end = end if inputs_end is None else inputs_end
        self._trace, self._sources, self._targets = trace, list(sources), list(targets)
        operations, source_addresses = trace.operations[:end], {address_of(tensor) for tensor in sources} - {0}
        written = list(map(_writes, operations))
        ends = {**(public_ends or {}), **dict.fromkeys(source_addresses, min(sources_end, end))}
        last = {address: n for n in range(end) for address in written[n] if n < ends.get(address, 0)}

        def find(tensors_at: Mapping[int, Sequence[Tensor]]) -> tuple[list[Operation], list[Tensor]]:
            """The operations that compute tensors, by the number of operations before, and what else they read."""
            needed, steps = {*source_addresses}, list[Operation]()
            for number in range(max(tensors_at, default=0) - 1, start - 1, -1):
                needed |= {address_of(tensor) for tensor in tensors_at.get(number + 1, ())} - {0}
                if _takes_storage(operations[number]):  # as of a batch that a worker loaded: its source is not known
                    continue
                touched = written[number] | {*operations[number].addresses}
                if {address for address in touched if number > last.get(address, -1)} & needed:
                    steps.append(operations[number])
                    needed -= overwritten_by(operations[number])
                    needed |= {address_of(tensor) for tensor in _arguments(operations[number])} - {0}
                needed -= {address for address in touched if number == last.get(address)}
            steps.reverse()
            ids, addresses = {id(tensor) for tensor in sources}, {*ends, *parameters, 0}
            inputs = list[Tensor]()
            for operation in steps:
                inputs += [t for t in _arguments(operation) if address_of(t) not in addresses and id(t) not in ids]
                addresses |= {*operation.addresses}
            results = (tensor for tensors in tensors_at.values() for tensor in tensors)
            return steps, [*inputs, *(tensor for tensor in results if address_of(tensor) not in addresses)]

        steps_of_map, inputs = find({end: targets})
        self.is_division = all(address_of(tensor) in source_addresses for tensor in targets) and all(
            operation.function in _DIVISIONS or source_addresses.isdisjoint(_writes(operation))
            for operation in steps_of_map
        )
        # one search for all reads: their own searches would contain one another, and their number double with each read
        reads = [*_reads_in_python(trace, end)]
        later: dict[int, list[Tensor]] = {}
        for number, tensors, _ in reads:
            if number >= max(start, sources_end):
                later.setdefault(number, []).extend(tensors)
        steps_of_reads, read_tensors = find(later)
        factors = {abs(leaf) for operation in (*steps_of_map, *steps_of_reads) for leaf in _numbers(operation)}
        used = [
            tensor
            for number, tensors, read in reads
            if not read.is_integer()
            and number <= self._inputs_end
            and any(math.isclose(abs(read) * c, f) or math.isclose(c, abs(read) * f) for f in factors for c in options)
            for tensor in tensors
        ]
        read_tensors += used
        self.numbers = [leaf for operation in steps_of_map for leaf in _numbers(operation)]
        self.draws = {id(operation) for operation in (*steps_of_map, *steps_of_reads) if operation.states}
        self.has_reads = any(not read.is_integer() for _, _, read in reads)
        self.reads_known = any(
            address_of(tensor) in (public_ends or {}) for operation in steps_of_map for tensor in _arguments(operation)
        )
        self._read = {*map(id, read_tensors)}
        self.operands = list({id(tensor): tensor for tensor in (*inputs, *used)}.values())
        self.shapes_of_results = tuple(
            (operation.function, operation.shapes) for operation in steps_of_map if _writes(operation)
        )
        self.inputs: list[Tensor] = list({id(tensor): tensor for tensor in (*inputs, *read_tensors)}.values())
        # of parameters, too, that the update has moved since a hook of the optimizer read them
        self._part = trace.part(steps_of_map, trace.before)

    def apply(self, values: Sequence[Tensor], inputs: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the results for other values of the sources and inputs, and the present parameters.

        Raises:
            AbstainError: The operations cannot be repeated with these values.
        """
        changed = [*zip(self._sources, values, strict=True), *zip(self.inputs, inputs, strict=False)]
        if any(tensor.shape != value.shape for tensor, value in changed):
            raise AbstainError("the gradients have other shapes")
        return self._part.replay([(t, value.to(t.dtype, copy=True)) for t, value in changed], self._targets)

    def gives(self, values: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
        """Whether the map of some values has these results, up to rounding."""
        try:
            mapped = self.apply(values)
        except Exception:  # operations that cannot be repeated with these values
            return False
        return len(mapped) == len(results) and all(map(_is_rounding, mapped, results))

    def moves(self, values: Sequence[Tensor], step: TracedStep) -> bool:
        """Whether other records move the results, or numbers that the script read, with the sources as executed.

        Args:
            values: The executed values of the sources.
            step: The step, with its records.

        Raises:
            AbstainError: The step cannot be replayed with other records.
        """
        return any(self.effects(values, step))

    def effects(self, values: Sequence[Tensor], step: TracedStep) -> tuple[bool, bool]:
        """Whether other records move the results, and the numbers that the script read; as :meth:`moves`."""
        are_results = are_reads = False
        if not self.inputs:
            return are_results, are_reads
        same = self.apply(values)
        executed = self._trace.part(self._trace.operations[: self._inputs_end], self._trace.before).replay(
            [], self.inputs
        )
        for inputs in step.with_other_records(self.inputs, self._inputs_end):
            are_results = not all(map(torch.equal, self.apply(values, inputs), same))
            moved = zip(self.inputs, map(torch.equal, inputs, executed), strict=True)
            are_reads |= any(id(tensor) in self._read and not is_equal for tensor, is_equal in moved)
            if are_results:
                break
        return are_results, are_reads

    def depends_on_parts(self, sums: Sequence[Tensor], noise: Sequence[Tensor]) -> bool:
        """Whether the results depend on more than the total of sum and noise, the sources in this order.

        A function of S + n has the same value at S + d and n - d up to rounding: for random d, for d = n, and for sums
        c S of other lengths, which meet conditions on the length of S that the executed sum does not.

        Raises:
            AbstainError: The operations cannot be repeated.
        """
        spread = max([float(value.std()) for value in noise if value.numel() > 1], default=1.0)
        longest = max([float(value.abs().max()) for value in (*sums, *noise) if value.numel()], default=0.0)
        same = self.apply([*sums, *noise])
        changes, rests = ([torch.zeros_like(result) for result in same] for _ in range(2))
        random_shifts = [[spread * own_normals(value) for value in noise] for _ in range(_DIRECTIONS)]
        for shifts in random_shifts:
            noisier = self.apply([*sums, *(n + d for n, d in zip(noise, shifts, strict=True))])
            changes = [torch.maximum(c, (new - old).abs()) for c, new, old in zip(changes, noisier, same, strict=True)]
        of_lengths = [[(c - 1.0) * total for total in sums] for c in _LENGTHS]
        for shifts in (*random_shifts, *of_lengths, [*noise]):
            opposite = [n - d for n, d in zip(noise, shifts, strict=True)]
            exchanged = self.apply([*(total + d for total, d in zip(sums, shifts, strict=True)), *opposite])
            rests = [torch.maximum(r, (new - old).abs()) for r, new, old in zip(rests, exchanged, same, strict=True)]
        for change, remainder in zip(changes, rests, strict=True):
            if not remainder.numel():
                continue
            relative = 8.0 + max(_LENGTHS) * longest / max(spread, 1e-30)
            rounding = _OPPOSITE_ROUNDINGS * torch.finfo(remainder.dtype).eps * relative
            is_small = float(remainder.max()) <= max(_OPPOSITE, rounding) * float(change.max())
            if not is_small or bool((remainder > _OF_COORDINATE * change).any()):
                return True
        return False

    @property
    def shapes(self) -> str:
        """The shapes of the inputs in words, such as ``32 x 20``."""
        shapes = dict.fromkeys(" x ".join(map(str, tensor.shape)) or "1" for tensor in self.inputs)
        suffix = f" and {len(shapes) - _MOST_SHAPES} more" if len(shapes) > _MOST_SHAPES else ""
        return f"{', '.join([*shapes][:_MOST_SHAPES])}{suffix}"


class GradientMaps:
    """The maps of a training's steps.

    Attributes:
        replayed: The number of steps whose map was replayed with other records.
        moved: The number of replayed maps that other records move.
        public: The number of replayed maps that read public data, and no other tensors.
        shapes: The shapes of further tensors that a map reads; empty without.
    """

    def __init__(self) -> None:
        self.replayed = self.moved = self.public = 0
        self.shapes = ""
        self._maps: dict[str, GradientMap] = {}
        self._explained: dict[str, int] = {}

    def explain(self, stage: str, values: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
        """Whether the known map of a place in the step, such as ``"before the update"``, has these results."""
        gradient_map = self._maps.get(stage)
        is_explained = gradient_map is not None and gradient_map.gives(values, results)
        if is_explained:
            self._explained[stage] = self._explained.get(stage, 0) + 1
        return is_explained

    @property
    def facts(self) -> MapFacts:
        """The steps with the gradients of a known map, and the replays of others.

        A map of some steps only may have been chosen by a record, as by the loss of a batch.
        """
        most, least = (choose(self._explained.values(), default=0) for choose in (max, min))
        counts = {
            "explained": most,
            "by_all": least,
            "replayed": self.replayed,
            "moved": self.moved,
            "public": self.public,
        }
        return MapFacts(**counts, inputs=self.shapes)

    def add(
        self, stage: str, gradient_map: GradientMap, *, is_moved: bool, is_changed: bool = True, is_public: bool = False
    ) -> None:
        """Note a map that was replayed.

        Args:
            stage: The place in the step.
            gradient_map: The map.
            is_moved: Whether other records move its results.
            is_changed: Whether it changed the gradients of its step.
            is_public: Whether all further tensors that it reads are declared public.
        """
        self.replayed += is_changed or is_moved
        self.moved += is_moved
        self.public += is_changed and is_public and not is_moved
        if gradient_map.inputs or gradient_map.reads_known:
            self.shapes = self.shapes or gradient_map.shapes
        elif not is_moved:
            self._maps[stage] = gradient_map


def _is_rounding(mapped: Tensor, result: Tensor) -> bool:
    if mapped.shape != result.shape:
        return False
    if torch.equal(mapped, result) or not mapped.numel():
        return True
    if not (mapped.is_floating_point() and bool(mapped.isfinite().all())):
        return False
    unit = torch.finfo(mapped.dtype).eps
    return float((mapped - result).abs().max()) <= _ROUNDINGS * unit * float(mapped.abs().max())


def _takes_storage(operation: Operation) -> bool:
    return any(isinstance(argument, torch.UntypedStorage) for argument in operation.args)


def _numbers(operation: Operation) -> list[float]:
    return [leaf for leaf in tree_leaves((operation.args, dict(operation.kwargs))) if type(leaf) is float]


def _reads_in_python(trace: StepTrace, end: int) -> Iterator[tuple[int, list[Tensor], float]]:
    """Where the script may learn values: the number of operations before, the tensors, and the number that it read.

    The number is NaN if the script reads several, or a shape that depends on the values, as of a mask's selection.
    """
    for number, operation in enumerate(trace.operations[:end]):
        if operation.function in TO_PYTHON:
            yield number, _arguments(operation), float(operation.results)
        elif torch.Tag.dynamic_output_shape in operation.function.tags and _selects_by_values(operation):
            yield number, _arguments(operation), math.nan
    for copy in trace.copied:
        if copy.operations <= end:
            yield copy.operations, [copy.tensor], float(copy.tensor) if copy.tensor.numel() == 1 else math.nan


def _selects_by_values(operation: Operation) -> bool:
    """Whether the shape of the result depends on values: an index of integers gives its own shape."""
    if operation.function is not torch.ops.aten.index.Tensor:
        return True
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _arguments(operation)[1:])


#: Operations that write a tensor without reading it.
_OVERWRITING = {
    *(torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default),
    *(torch.ops.aten.fill_.Scalar, torch.ops.aten.copy_.default),
}

#: The arguments of a batch normalization that it only updates in training, and the arguments that say so.
_RUNNING, _IS_TRAINING = ("running_mean", "running_var"), ("training", "train")


def _arguments(operation: Operation) -> list[Tensor]:
    """The tensors whose values an operation reads."""
    named = _named_arguments(operation)
    if any(named.get(name) is True for name in _IS_TRAINING):
        named = {name: value for name, value in named.items() if name not in _RUNNING}
    if overwritten_by(operation):
        del named["self"]
    return tensors_in(list(named.values()))


def overwritten_by(operation: Operation) -> set[int]:
    """The addresses of the memory that an operation writes as a whole without reading it, as it zeroes gradients."""
    if operation.function not in _OVERWRITING:
        return set()
    tensors = tensors_in(_named_arguments(operation)["self"])
    are_whole = all(t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)
    return {*map(address_of, tensors)} if are_whole else set()


def _named_arguments(operation: Operation) -> dict[str, Any]:
    names = (argument.name for argument in operation.function._schema.arguments)
    return {**dict(zip(names, operation.args, strict=False)), **operation.kwargs}


def _writes(operation: Operation) -> set[int]:
    """The addresses of the memory that an operation writes, or allocates for its results; views have none."""
    written = {*map(address_of, written_by(operation.function, operation.args, operation.kwargs))}
    arguments = tensors_in((operation.args, dict(operation.kwargs)))
    return written | ({*operation.addresses} - {address_of(tensor) for tensor in arguments})
