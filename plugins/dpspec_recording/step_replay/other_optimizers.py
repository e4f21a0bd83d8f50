"""Replays of the steps of other optimizers, such as the optimizer of a generator.

A generator that sees records only through the parameters of the private model is a post-processing. The trace of a
private step therefore continues until the next batch. If another optimizer steps meanwhile, the operations that compute
its gradients show their sources:

* the parameters of the private model, which are noisy, the optimizer's own tensors, and random numbers alone: the
  gradients are a function of these;
* other tensors: no replay shows that these depend on no record;
* records: the parameters stay as executed, other records are in the batch, and the gradients move.

The shapes of the operations must not follow the batch size either: the accounting keeps the number of drawn records
secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, address_of, tensors_in

if TYPE_CHECKING:
    from dpspec_recording.public_data import PublicData

#: The number of optimizers that are observed, and of private steps that are traced for replays in batches of
#: two sizes.
_MOST_OPTIMIZERS, _MOST_TRACES = 20, 20

#: Values of a tensor of one repeated number, as a factor or the labels of all fakes, which depend on no record.
_CONSTANTS = (-1.0, 0.0, 1.0)


@dataclass
class OtherReplays:
    """The replayed steps of an optimizer.

    Attributes:
        optimizer: The optimizer, which is kept so that its id stays unique.
        replayed: The number of steps whose operations give the executed gradients.
        moved: Of these, the number of those whose gradients move with other records in the batch.
        public: The number of steps whose gradients read declared public data.
        unknown: The shapes of further tensors that the gradients of a step read; empty without.
        reads: Whether the script read a number in Python, which may have decided that the optimizer steps.
        varying: Whether numbers of Python in the operations differ between the steps at one place in a private step.
        failure: Why the last step that was traced and not replayed was not.
    """

    optimizer: Any
    replayed: int = 0
    moved: int = 0
    unknown: str = ""
    public: int = 0
    reads: bool = False
    varying: bool = False
    failure: str = ""
    #: The shapes by the number of records, for each of its steps in a private step.
    _shapes: dict[tuple[bool, int], dict[int, Any]] = field(default_factory=dict)
    #: The numbers of Python in the operations of the first step at each place.
    _numbers: dict[tuple[bool, int], str] = field(default_factory=dict)
    #: The last trace, whether the private step was over, and the number of its steps in this part.
    _traced: tuple[StepTrace, bool, int] | None = None

    @property
    def sizes(self) -> int:
        """The smallest number of different batch sizes, over its steps in a private step."""
        return min(map(len, self._shapes.values()), default=0)

    @property
    def follows_size(self) -> bool:
        """Whether operations or shapes differ between batches of different sizes."""
        return any(len(set(shapes.values())) > 1 for shapes in self._shapes.values())

    def position(self, trace: StepTrace, *, is_over: bool) -> tuple[bool, int]:
        """The step in the private step: whether it follows the update, and its number before or after it."""
        before = self._traced
        continues = before is not None and before[0] is trace and before[1] == is_over
        number = before[2] + 1 if before is not None and continues else 1
        self._traced = trace, is_over, number
        return is_over, number

    def add(
        self,
        gradient_map: GradientMap,
        position: tuple[bool, int],
        records: int,
        public: PublicData | None,
        *,
        moves: bool,
    ) -> None:
        """Note a replayed step."""
        self.replayed += 1
        self.moved += moves
        unknown = [tensor for tensor in gradient_map.operands if not _is_constant(tensor)]
        if public is not None:
            declared, unknown = bool(unknown), public.others(unknown)
            self.public += not unknown and not moves and (declared or gradient_map.reads_known)
        if unknown and not moves:
            gradient_map.inputs = unknown
            self.unknown = self.unknown or gradient_map.shapes
        self.reads |= gradient_map.has_reads
        numbers = str(gradient_map.numbers)  # NaN equals itself
        self.varying |= self._numbers.setdefault(position, numbers) != numbers
        self._shapes.setdefault(position, {}).setdefault(records, gradient_map.shapes_of_results)


class OtherOptimizers:
    """Observes the gradients of other optimizers in traces.

    Attributes:
        replays: By the id of the optimizer.
    """

    def __init__(self, private: Sequence[Tensor], model: Sequence[Tensor], public: PublicData | None = None) -> None:
        """Begin to observe.

        Args:
            private: The trained parameters of the model.
            model: All its parameters and buffers.
            public: The declared public data.
        """
        self._private, self._model, self._public = list(private), list(model), public
        self.replays: dict[int, OtherReplays] = {}
        self._chosen = 0

    def doubt(self, optimizer: Any, reason: str) -> None:
        """Note why a step of an optimizer does not count as replayed."""
        self.replays[id(optimizer)].failure = reason

    def choose_step(self) -> bool:
        """Whether to trace a private step although it was not chosen by chance."""
        # as many belong to clients, whose clipped changes are the contributions of a federated training
        is_few = len(self.replays) < _MOST_OPTIMIZERS
        is_chosen = (
            is_few and self._chosen < _MOST_TRACES and any(replays.sizes < 2 for replays in self.replays.values())
        )
        self._chosen += is_chosen
        return is_chosen

    def note(self, optimizer: Any) -> None:
        """Note that an optimizer steps."""
        if len(self.replays) < _MOST_OPTIMIZERS:
            self.replays.setdefault(id(optimizer), OtherReplays(optimizer))

    def replay(
        self,
        trace: StepTrace,
        optimizer: Any,
        step: TracedStep | None,
        *,
        records: int,
        is_over: bool,
        public_ends: Mapping[int, int] | None = None,
    ) -> GradientMap | None:
        """Replay the gradients with which an optimizer steps next, and return their map if it was replayed.

        Args:
            trace: The stopped trace.
            optimizer: The optimizer.
            step: The private step; None if its batch is not known yet.
            records: The number of its records, or of the records of the private step before.
            is_over: Whether the private step is over.
            public_ends: Addresses of public batches, with the number of operations when they had their values.
        """
        replays = self.replays.get(id(optimizer))
        if replays is None:
            return None
        position = replays.position(trace, is_over=is_over)
        try:
            gradient_map, gradients, values = self._map(trace, optimizer, public_ends)
            if not gradient_map.gives(values, gradients):
                raise AbstainError("the replay gives other gradients: it did not see the whole step")
            # numbers that the script reads for its logs move with the records, too
            moves = step is not None and gradient_map.effects(values, step)[0]
            replays.add(gradient_map, position, records, self._public, moves=moves)
            return gradient_map
        except Exception as error:
            stated = isinstance(error, AbstainError)
            replays.failure = (str(error) if stated else f"{type(error).__name__}: {error}")[:200]
            return None

    def _map(
        self, trace: StepTrace, optimizer: Any, public_ends: Mapping[int, int] | None
    ) -> tuple[GradientMap, list[Tensor], list[Tensor]]:
        """The map from the present parameters, the executed gradients, and the values of the parameters."""
        if trace.failure:
            raise AbstainError(trace.failure)
        optimizers = [replays.optimizer for replays in self.replays.values()]
        trained = [p for stepping in optimizers for group in stepping.param_groups for p in group["params"]]
        stepped = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        gradients = [p.grad for p in stepped.values() if p.grad is not None]
        if not gradients:
            raise AbstainError("its tensors have no gradients")
        sources = list({id(p): p for p in (*self._private, *trained)}.values())
        end = len(trace.operations)
        parameters = {address_of(tensor) for tensor in self._model}
        results = _results(trace, gradients)
        gradient_map = GradientMap(
            trace, sources, results, end=end, sources_end=end, parameters=parameters, public_ends=public_ends
        )
        return gradient_map, gradients, [p.detach().clone() for p in sources]


def _results(trace: StepTrace, gradients: Sequence[Tensor]) -> list[Tensor]:
    """The results of operations that are the gradients: torch keeps another tensor of the same memory.

    Raises:
        AbstainError: No operation returned a gradient.
    """
    results: dict[Any, Tensor] = {}
    for operation in trace.operations:
        for tensor, address in zip(tensors_in(operation.results), operation.addresses, strict=True):
            if address:
                results[address, tensor.shape, tensor.stride(), tensor.storage_offset()] = tensor
    try:
        return [results[address_of(g), g.shape, g.stride(), g.storage_offset()] for g in gradients]
    except KeyError:
        raise AbstainError("its gradients are not results of the operations that the replay saw") from None


def _is_constant(tensor: Tensor) -> bool:
    values: Collection[float] = tensor.detach().reshape(-1).unique().tolist() if tensor.numel() else ()  # type: ignore[no-untyped-call]
    return len(values) == 1 and next(iter(values)) in _CONSTANTS
