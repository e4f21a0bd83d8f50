"""The moments of a traced step: when its passes, its sum, its noise and its update had their values.

A trace begins with the batch that a loader returns (``loaded``), or with the first forward pass. It continues to the
clipped ``SUM``, the ``NOISE``, the ``UPDATE`` and its end (``OVER``), and after it until the next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.loaded_batch import row_order
from dpspec_recording.step_replay.trace import Operation, StepTrace, tensors_in

#: The names of the moments.
LOSS, SUM, NOISE, UPDATE, OVER = "loss", "sum", "noise", "update", "over"


@dataclass(frozen=True)
class Moment:
    """A moment of a step.

    Attributes:
        operations: The number of operations before it.
        tensors: What had its values then.
        values: Copies of these values; none if they are not kept.
    """

    operations: int
    tensors: Sequence[Tensor] = ()
    values: Sequence[Tensor] = ()


class Timeline:
    """The trace of a step, and its moments.

    Attributes:
        trace: The trace.
        moments: By name, those that have passed.
        step: The step with its batch, once it is known.
    """

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        self.moments: dict[str, Moment] = {}
        self.step: TracedStep | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.moments

    def note(self, name: str, tensors: Sequence[Tensor] = (), *, keeps: bool = False) -> None:
        """A moment passes. keeps: whether the values of the tensors are kept."""
        values = [tensor.detach().clone() for tensor in tensors] if keeps else ()
        self.moments[name] = Moment(len(self.trace.operations), [*tensors], values)

    def since(self, name: str) -> list[Operation]:
        """The operations since a moment; none if it has not passed."""
        moment = self.moments.get(name)
        return [] if moment is None else self.trace.operations[moment.operations :]


@dataclass(frozen=True)
class Pass:
    """A forward pass of the private model: of a step, or of a physical batch.

    Attributes:
        operations: The number of operations before it.
        records: The number of rows of its inputs.
        gradients: The gradients at its outputs.
    """

    operations: int
    records: int
    gradients: list[Tensor] = field(default_factory=list)


class PassTimeline(Timeline):
    """The timeline of a step with forward passes of a private model.

    Attributes:
        loaded: The tensors of the batch that the loader returned, if the trace begins with it.
        reads: A value that the script read in Python before the first pass.
        inputs: The tensors of the first pass with a row for each record.
        outputs: The outputs at these records.
        gradients: The gradients at these outputs.
        passes: The passes.
    """

    def __init__(self, trace: StepTrace, pauses: Pauses, loaded: Sequence[Tensor] = ()) -> None:
        super().__init__(trace)
        trace.ignores_reads = True
        self.loaded, self.reads, self._pauses = loaded, "", pauses
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.passes: list[Pass] = []
        self._hooks: list[Any] = []

    @property
    def is_in_pass(self) -> bool:
        """Whether passes of the model are of this step, and not of public records or of a generator."""
        return NOISE not in self and OVER not in self

    @property
    def is_noisy(self) -> bool:
        """Whether the trace continues from the noise to the update."""
        return NOISE in self and OVER not in self

    @property
    def of_batch(self) -> list[Tensor]:
        """The tensors that the loader returned or the first pass got."""
        return [*self.loaded, *self.inputs]

    def begin_pass(self, inputs: Sequence[Tensor]) -> None:
        """The model gets these inputs."""
        if not self.passes:
            self.reads, self.trace.reads = self.trace.reads, ""
            self.inputs = [tensor for tensor in inputs if len(tensor) == len(inputs[0])]
        self.passes.append(Pass(len(self.trace.operations), len(inputs[0]) if inputs else 0))

    def note_outputs(self, output: Any) -> None:
        """The model returns outputs: their gradients are kept."""
        for tensor in tensors_in(output):
            if not tensor.requires_grad or not tensor.dim():
                continue
            if len(tensor) == len(self.inputs[0]):
                self.outputs.append(tensor)
                self._observe(tensor, self.gradients)
            if len(tensor) == self.passes[-1].records:
                self._observe(tensor, self.passes[-1].gradients)

    def _observe(self, tensor: Tensor, gradients: list[Tensor]) -> None:
        self._hooks.append(tensor.register_hook(partial(self._note_gradient, gradients)))  # type: ignore[no-untyped-call]

    def _note_gradient(self, gradients: list[Tensor], gradient: Tensor) -> None:
        if not self._pauses.depth:
            gradients.append(gradient)
            if LOSS not in self:
                self.note(LOSS)

    def release(self) -> None:
        """Observe no further gradient."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def labels(self, model_ids: Collection[int]) -> list[Tensor]:
        """Integers from before the step with a row for each record of the first pass, such as labels.

        The loss reads them before the first gradient. Later operations may read other tensors of the same length: the
        labels of another physical batch, or records that are loaded for it. Labels that the step sorts, as the records
        were before, count in their new order. model_ids: the numbers (``id``) of the model's tensors.
        """
        size, produced = len(self.inputs[0]), {*map(id, self.inputs), *model_ids}
        labels: list[Tensor] = []
        start = self.passes[0].operations if self.passes else 0
        end = self.moments[LOSS].operations if LOSS in self else None
        for operation in self.trace.operations[start:end]:
            tensors = tensors_in((operation.args, dict(operation.kwargs)))
            if order := row_order(operation, size):
                sorts_labels = id(operation.args[0]) not in produced  # and not the model's inputs
                produced |= {id(tensor) for tensor in (*tensors, *order)}
                tensors = tensors_in(operation.results) if sorts_labels else []
            for tensor in tensors:
                integers = not tensor.is_floating_point() and not tensor.is_complex()
                if id(tensor) not in produced and integers and tensor.dim() in (1, 2) and len(tensor) == size:
                    labels.append(tensor)
                produced.add(id(tensor))
            produced |= {id(tensor) for tensor in tensors_in(operation.results)}
        return labels
