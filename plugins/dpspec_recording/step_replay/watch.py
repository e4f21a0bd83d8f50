"""Replays of some steps of a recorded training with Opacus' optimizer."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.model_hook import ModelHook
from dpspec_recording.step_replay.batch_size import SizedStep, size_effect, sized_step
from dpspec_recording.step_replay.calls import Pauses, StepCalls, is_script_mode_active
from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.facts import (
    DATASET,
    NUMBER,
    PROCESSES,
    ROWS,
    ReplacedTensors,
    ReplayFacts,
    SizeFacts,
)
from dpspec_recording.step_replay.gradient_map import GradientMap, GradientMaps
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.loaded_batch import comes_from, note_batches, row_order, rows_of
from dpspec_recording.step_replay.measure import StepReplay, measure
from dpspec_recording.step_replay.origins import SumOrigins
from dpspec_recording.step_replay.other_optimizers import OtherOptimizers
from dpspec_recording.step_replay.own_updates import OwnUpdates
from dpspec_recording.step_replay.python_numbers import PythonNumbers
from dpspec_recording.step_replay.timeline import Moment
from dpspec_recording.step_replay.trace import StepTrace, address_of, tensors_in

if TYPE_CHECKING:
    from dpspec_recording.public_data import PublicData
    from dpspec_recording.watching.trained_weights import TrainedWeights

#: Step n with records is replayed with probability min(1, _FIRST / n), while all replays after the first
#: ALWAYS took less than SHARE of the training's time. At most _SIZED first steps, and as many after a new call, are
#: replayed until two had different batch sizes.
_FIRST, ALWAYS, SHARE, _SIZED = 2.0, 2, 0.05, 6

#: Most numbers of per-sample gradients that replays compare.
_MOST_NUMBERS = 2**22

#: Why a step is not replayed.
_INTERRUPTED = (
    "another optimizer steps between its forward pass and its sum: let it step after the step of the private optimizer"
)
_COMPILED = "the model is compiled: record a run without torch.compile"
_NO_PASS = (
    "the script computes gradients without a forward pass of the private model in training mode: call the model that "
    "make_private returned, with grad_sample_mode hooks, functorch, ew or ghost"
)
_ONE_RECORD = "no batch had two records or more"


class ReplayedSteps:
    """Traces some steps from their batch to the clipped sum, and replays them before the noise.

    A trace begins when the loader returns the batch, if it loads in this process and the model reads this batch; else
    with the model's forward pass. The first step begins with the forward pass: it shows whether its function is
    compiled, which a trace would prevent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        audits: AuditedSteps,
        pauses: Pauses | None = None,
        *,
        ghost: bool,
        drawn: Callable[[], DrawnRecords | None] = lambda: None,
        public: PublicData | None = None,
        earlier: Sequence[TrainedWeights] = (),
        dataset: Sequence[Tensor] = (),
        is_rank: bool = False,
    ) -> None:
        """Make a replayer.

        Args:
            model: The private model.
            optimizer: Opacus' optimizer.
            audits: The audited steps.
            pauses: Of the recorder's own operations.
            ghost: Whether the optimizer clips by ghost clipping.
            drawn: Returns the records of the current batch.
            public: The declared public data.
            earlier: The weights that the script trained before.
            dataset: The tensors in memory that hold the records.
            is_rank: Whether other processes add their sums after the noise: a trace ends before it.
        """
        self._drawn, self._public, self._is_rank = drawn, public, is_rank
        self._known_batches: list[tuple[Tensor, int]] = []  # public ones, with the number of operations before
        self._model, self._optimizer, self._audits, self._ghost = model, optimizer, audits, ghost
        self.pauses = pauses or Pauses()
        #: What the sums of traced steps depend on.
        self.origins = SumOrigins(list(model.parameters()), self.pauses, dataset, earlier)
        self._between, self._of_dataset = self.origins.between, self.origins.between.of_dataset
        self._calls = StepCalls(self.pauses)
        self._calls.observe = self._of_dataset.follow_call
        #: Whether the first dimension of the model's inputs and outputs is the batch, not time.
        self._batch_first = bool(getattr(model, "batch_first", True))
        self._known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._random = random.SystemRandom()
        self._started, self._seconds = time.monotonic(), 0.0
        self._trace: StepTrace | None = None
        self._inputs: list[Tensor] = []
        self._loaded: list[Tensor] = []  # of the loader, if the trace begins with it
        self._loaded_reads = ""  # a value that the script read in Python before the forward pass
        self._outputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._labels_end = 0  # operations up to the first gradient at an output
        #: Of each forward pass the number of earlier operations, the rows and the gradients at its outputs.
        self._segments: list[tuple[int, int, list[Tensor]]] = []
        self._hooks: list[Any] = []
        self._steps = self._tried = self._tried_before = self._replayed = self._replacements = 0
        self._replayed_before = 0
        self._is_passed = False  # whether the model had a forward pass since the last step
        self._replaced = ReplacedTensors()
        self._moved = [0.0, 0.0, 0.0]
        self._earlier: SizedStep | None = None
        self._sizes = 0
        self._unsized = 0  # replays since the last that could not be compared; -1 if one was
        self._powers, self._removed = [0.0, 0.0], 0.0
        self._chosen: bool | None = None
        self._searches = False  # whether this step is traced for values that the script computed before alone
        self._given_up = self._compiles = False
        self.abstained = ""
        #: Of the noisy gradient between its noise and the update.
        self.maps = GradientMaps()
        self.numbers = PythonNumbers()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.own_updates = OwnUpdates(getattr(optimizer, "original_optimizer", None), parameters)
        #: The steps of other optimizers, whose gradients may read records.
        self.others = OtherOptimizers(
            [p for p in model.parameters() if p.requires_grad], [*model.parameters(), *model.buffers()], public
        )
        self._is_interrupted = self._is_dropped = False  # by another optimizer; whether it ended the trace of this step
        self._sees_loads = False  # whether batches are noted when the loader loads them
        self._updated = 0  # operations up to the update, if the trace continues after it; else 0
        self._step_before: TracedStep | None = None  # that was updated
        self._is_noised = False  # whether the trace continues from the noise to the update
        self._sources = Moment(0)  # of the noisy gradients, or of the gradients when the update begins
        self._noised = 0  # operations up to the noise

    @property
    def facts(self) -> ReplayFacts:
        """Changes of other records' outputs, and of gradients at them, are relative."""
        moved, outputs, gradients = (min(move, 1e9) for move in self._moved)
        return ReplayFacts(
            tried=self._tried,
            replayed=self._replayed,
            replacements=self._replacements,
            moved=moved,
            outputs=outputs,
            gradients=gradients,
            failure=self.abstained,
            origins={**+self.origins.steps},
            varying=self.numbers.varying,
            testing=self.numbers.testing,
            sizes=self._size_facts(),
            replaced=self._replaced.names,
            unreplayed=self._unreplayed,
        )

    @property
    def _unreplayed(self) -> tuple[str, ...]:
        if not self._replayed:
            return (self.abstained or _ONE_RECORD,)
        has_ended = self._given_up or self._compiles
        return (*self._calls.unreplayed, *((f"steps after the last replay: {self.abstained}",) if has_ended else ()))

    def _size_facts(self) -> SizeFacts | None:
        """None before the first step that was replayed at another batch size."""
        if not self._sizes:
            return None
        lowest, highest = (min(max(power, -1e9), 1e9) for power in self._powers)
        return SizeFacts(steps=self._sizes, lowest=lowest, highest=highest, removed=min(self._removed, 1e9))

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack, loader: Any = None) -> None:
        """Observe batches of the loader and forward passes until ``undo`` ends it."""

        if any(getattr(module, "_compiled_call_impl", None) is not None for module in self._model.modules()):
            self.abstained = _COMPILED
            self._of_dataset.end()
            return

        def start() -> None:
            if self._notes_calls():
                self._calls.start()
            if self._trace is not None and not self._trace.active:
                self._trace.start()

        def loaded(batch: Any, records: int) -> None:
            self._sees_loads = True
            if not self._segments or self._is_noised or self._updated:
                guarded(lambda: self._try(lambda: self._load(batch, records)))
            if self._steps and not self._segments and not self._compiles:
                start()

        def before(_: Any, args: Any, kwargs: Any) -> None:
            if self._is_noised or self._updated:  # of public records, or of a generator's
                return
            if torch.compiler.is_compiling():  # of a function around the model: its operations are not traced
                self._compiles, self.abstained = True, _COMPILED
                self._of_dataset.end()
                return
            self._is_passed |= torch.is_grad_enabled() and self._model.training
            if self._trace is not None or self._chosen is not False:
                guarded(lambda: self._try(lambda: self._begin((args, kwargs))))
            start()

        def after(_: Any, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._of_dataset.follow_call(None, args, {}, output)
            is_private = bool(self._segments) and not self._is_noised and not self._updated
            if is_private and not torch.compiler.is_compiling():
                guarded(lambda: self._try(lambda: self._note(output)))

        def before_other(optimizer: Any, *_: Any) -> None:
            guarded(lambda: self._try(lambda: self._before_any_step(optimizer)))

        hooks = (
            self._model.register_forward_pre_hook(ModelHook(before), with_kwargs=True),
            self._model.register_forward_hook(ModelHook(after)),
            register_optimizer_step_pre_hook(ModelHook(before_other)),
        )
        for hook in hooks:
            undo.callback(hook.remove)
        note_batches(loader, loaded, undo)
        for public_loader in () if self._public is None else self._public.loaders:
            note_batches(public_loader, lambda batch, _: guarded(lambda: self._note_public(batch)), undo)
        undo.callback(self.stop)
        undo.callback(self._between.stop)

    def _before_any_step(self, optimizer: Any) -> None:
        """Another optimizer steps, as of a generator.

        A generator's loss passes through the private model after its step. If the trace does not go on until then, the
        trace of the next step begins with this pass. That trace is dropped, and another one begins with the next batch
        or forward pass.
        """
        private = self._optimizer, getattr(self._optimizer, "original_optimizer", None)
        if any(optimizer is part for part in private):
            return
        if not self._is_rank:
            self.others.note(optimizer)
        if self._trace is None:
            return
        if self._is_noised:
            self._trace.give_up(_INTERRUPTED)
        elif self._updated or self._loaded or not all(gradients for *_, gradients in self._segments):
            self._trace.limits_copies = True
            self._pause(lambda trace: self._replay_other(trace, optimizer))
            self._is_interrupted |= bool(self._updated)
            if self._updated and not self._sees_loads:  # the next forward pass may begin the next step
                self.stop()
                self._between.start()
        else:
            self.stop()
            self._is_interrupted = self._is_dropped = True

    def _replay_other(self, trace: StepTrace, optimizer: Any) -> None:
        step = self._step_before or self._step(trace, self._traced_batch(trace))
        self.others.replay(
            trace,
            optimizer,
            step,
            records=len(step.batch[0]),
            is_over=self._step_before is not None,
            public_ends=self._public_ends,
        )

    def _traced_batch(self, trace: StepTrace) -> list[Tensor]:
        """The tensors of the step with a row for each record."""
        return self._loaded or [*self._inputs, *self._labels(trace)]

    def _note_public(self, batch: Any) -> None:
        assert self._public is not None
        operations = 0 if self._trace is None else len(self._trace.operations)
        self._known_batches += [(tensor, operations) for tensor in self._public.note(tensors_in(batch))]

    @property
    def _public_ends(self) -> dict[int, int]:
        """The memory of the public batches that were loaded during the trace."""
        return {address_of(tensor): operations for tensor, operations in self._known_batches}

    def _try(self, observe: Callable[[], None]) -> None:
        """Give up replays after an error, which must not end the recording."""
        try:
            observe()
        except Exception as error:
            self.stop()
            self._given_up, self.abstained = True, f"{type(error).__name__}: {error}"[:200]
            self._of_dataset.end()

    def _notes_calls(self) -> bool:
        """Whether to note the calls of this step from now on."""
        if self._calls.active or self._given_up or not (self._trace is not None or self._audits.audited):
            return False
        return torch.is_grad_enabled() and self._model.training and not is_script_mode_active()

    def _load(self, batch: Any, records: int) -> None:
        """The loader returns a batch: another one of the step if a forward pass began, else the first."""
        self._between.stop(keep=True)
        self._of_dataset.add(tensors_in(batch))
        if self._given_up or self._compiles or not self._steps:
            return
        self.stop()
        if records < 2:
            return
        self._chosen = self._choose() if self._chosen is None else self._chosen
        if self._chosen and not is_script_mode_active() and (tensors := rows_of(batch, records)):
            self._trace, self._loaded = StepTrace(self.pauses), tensors
            self._trace.ignores_reads = True

    def _begin(self, arguments: Any) -> None:
        inputs = [tensor for tensor in tensors_in(arguments) if tensor.dim() and id(tensor) not in self._known]
        trains = torch.is_grad_enabled() and self._model.training
        # a pass without gradients, between steps, may compute values that the next step reads
        if trains or not self._of_dataset.is_followed:
            self._between.stop(keep=True)
        if self._trace is not None and not self._segments:
            is_read = not self._trace.failure and comes_from(self._trace, inputs, self._loaded)
            if self.others.replays and trains and not is_read and not self._trace.failure:
                return  # of a generator's loss, before the records are read
            if not (trains and is_read) or self._has_earlier_gradients():
                self.stop()
        if self._trace is not None:
            if self._segments:
                self._segments.append((len(self._trace.operations), len(inputs[0]) if inputs else 0, []))
            else:
                self._loaded_reads, self._trace.reads = self._trace.reads, ""
                self._inputs = [tensor for tensor in inputs if len(tensor) == len(inputs[0])]
                self._segments = [(len(self._trace.operations), len(inputs[0]), [])]
        if self._trace is not None or self._given_up or self._chosen is False or not trains:
            return
        if self._has_earlier_gradients():
            return
        self._chosen = self._choose() if self._chosen is None else self._chosen
        if not self._chosen:
            return
        if not self._batch_first:
            self.abstained = "the step was not observed from its loaded batch, and batch_first is False"
            return
        if is_script_mode_active():
            self.abstained = "a mode of torch is active in the forward pass"
            return
        if not inputs or len(inputs[0]) < 2:
            return
        self._trace = StepTrace(self.pauses)
        self._trace.ignores_reads = True
        self._inputs = [tensor for tensor in inputs if len(tensor) == len(inputs[0])]
        self._segments = [(0, len(inputs[0]), [])]

    def _has_earlier_gradients(self) -> bool:
        """Whether gradients from before another optimizer's step join the sum: replays would miss their records."""
        held = (getattr(p, name, None) for p in self._model.parameters() for name in ("grad_sample", "summed_grad"))
        return self._is_interrupted and any(gradient is not None for gradient in held)

    def _choose(self) -> bool:
        is_asked, self._searches = self.origins.choose_step(self._steps + 1), False
        if self._calls.are_new:  # a changed loss may be another reduction
            self._unsized = 0
            return True
        if self.others.choose_step() or (not self._ghost and 0 <= self._unsized < _SIZED):
            return True
        if chosen(self._random, self._tried, self._steps + 1, self._seconds, time.monotonic() - self._started):
            return True
        self._searches = is_asked
        return is_asked

    def _note(self, output: Any) -> None:
        assert self._trace is not None
        self._trace.ignores_reads = True
        _, records, gradients = self._segments[-1]
        for tensor in tensors_in(output):
            if not tensor.requires_grad or not tensor.dim() or not self._batch_first:
                continue
            if len(tensor) == len(self._inputs[0]):
                self._outputs.append(tensor)
                self._hooks.append(tensor.register_hook(partial(self._note_gradient, self._gradients)))  # type: ignore[no-untyped-call]
            if len(tensor) == records:
                self._hooks.append(tensor.register_hook(partial(self._note_gradient, gradients)))  # type: ignore[no-untyped-call]

    def _note_gradient(self, gradients: list[Tensor], gradient: Tensor) -> None:
        if not self.pauses.depth:
            gradients.append(gradient)
            if self._trace is not None and not self._labels_end:
                self._labels_end = len(self._trace.operations)

    def before_noise(self, sums: Callable[[], Sequence[Tensor | None]]) -> None:
        """The clipped sum of the step is complete. The noted operations are those that autocast called."""
        if self._updated or not self._segments:  # the model read no batch that was seen to be loaded since
            self.stop()
        if self._trace is None:
            if self._is_dropped:
                self._tried += 1
                self.abstained = _INTERRUPTED
            elif not self._is_passed and not self._compiles:
                self.abstained = _NO_PASS
            self._calls.stop()
            self._between.stop()
            return
        complete = [total for total in sums() if total is not None]
        with torch.autocast(complete[0].device.type if complete else "cpu", enabled=False):
            self._try(lambda: self._measure(complete))

    def _measure(self, sums: Sequence[Tensor]) -> None:
        trace = self._trace
        assert trace is not None
        self.stop(keep=True)
        step = self._step(trace, self._inputs)
        # a trace costs about a step, and a replay tens of steps
        if self._searches and (trace.failure or not self.origins.read(step, DATASET)):
            self._forget()
            return
        self._tried += 1
        start = time.monotonic()
        limits = self._optimizer.max_grad_norm  # one for each layer, or of the whole
        clip_norm = math.hypot(*limits) if isinstance(limits, list) else float(limits)
        measured = partial(
            measure,
            sums=list(sums),
            clip_norm=clip_norm,
            outputs=self._outputs,
            gradients=self._gradients,
            per_sample=self._per_sample(trace),
            skips_counts=self._ghost,
            drawn=step.drawn,
            trained=[parameter for parameter in self._model.parameters() if parameter.requires_grad],
        )
        replay = None
        # a number from before the forward pass may carry the record into the loss, also if the replay begins after it
        trace.reads = self._loaded_reads or trace.reads
        batch = self._loaded
        if batch:
            replay = measured(trace, batch, may_sort=True)
        if replay is None or (replay.abstained and self._batch_first):
            batch = [*self._inputs, *self._labels(trace)]
            replay = measured(trace, batch)
        self._add(replay, batch)
        if trace.exchanged:
            self.origins.steps[PROCESSES] += 1
            trace.give_up(trace.exchanged)
        if not trace.failure:
            self.origins.steps[NUMBER] += self.numbers.note(trace.operations, [*self._loaded, *self._inputs])
            self.origins.constants.note(step)
            # rows of other physical batches are outside of this one
            self.origins.note(step, sums, () if len(self._segments) == 1 else (ROWS,))
            self._between.begin(trace, [*self._loaded, *self._inputs])
        if not self._ghost and self._unsized >= 0:
            self._unsized += 1
        if not self._ghost and self._batch_first:
            with contextlib.suppress(Exception):  # the step is not compared
                self._resize(trace, () if replay.abstained else sums, clip_norm)
        self._seconds += time.monotonic() - start if self._tried > ALWAYS else 0.0
        if trace.failure:
            self._forget()

    def after_noise(self, gradients: Sequence[Tensor]) -> None:
        """Trace the operations on the noisy gradients, in a step that was traced up to its noise."""
        if self._trace is not None and not self._is_rank and not is_script_mode_active():
            self._sources = Moment(len(self._trace.operations), list(gradients))
            self._is_noised, self._noised = True, self._sources.operations
            self._trace.limits_copies = True
            self._trace.start()

    @property
    def finds_maps(self) -> bool:
        """Whether the operations on the noisy gradients of this step are traced."""
        return self._trace is not None and self._is_noised

    def exclude_from_map(self, *, begins: bool) -> None:
        """Operations of the library begin, or end, that do not change the noisy gradients."""
        if self.finds_maps:
            assert self._trace is not None
            (self._trace.stop if begins else self._trace.start)()

    def explain(
        self, stage: str, values: Sequence[Tensor], gradients: Sequence[Tensor], *, is_changed: bool = True
    ) -> bool:
        """Whether gradients come from a map that reads the noisy ones alone.

        Args:
            stage: Of the map in the step.
            values: The values of the gradients with which it begins.
            gradients: Those with which it ends.
            is_changed: Whether they are other than the noisy ones. A map that changes other steps only, as a clipping
                of long gradients does, shows in its operations.
        """
        if self.finds_maps:
            self._pause(lambda trace: self._find_map(trace, stage, values, gradients, is_changed=is_changed))
        return self.maps.explain(stage, values, gradients)

    def update_begins(self, gradients: Sequence[Tensor]) -> None:
        """The inner optimizer gets these gradients, and may change them."""
        if self._trace is not None and self._is_noised:
            keep = Moment.of if self.own_updates.needs_replay else Moment
            self._sources = keep(len(self._trace.operations), gradients)

    def update_ends(self) -> None:
        """The inner optimizer has moved the parameters."""
        if self.finds_maps and self.own_updates.needs_replay:
            self._pause(self._replay_update)

    def _replay_update(self, trace: StepTrace) -> None:
        step = self._step(trace, self._traced_batch(trace))
        self.own_updates.replay(step, self._sources, len(trace.operations))

    def _pause(self, observe: Callable[[StepTrace], None]) -> None:
        trace = self._trace
        assert trace is not None
        trace.stop()
        start = time.monotonic()
        with contextlib.suppress(Exception):  # operations that cannot be repeated
            if not trace.failure:
                observe(trace)
        self._seconds += time.monotonic() - start if self._tried > ALWAYS else 0.0
        trace.start()

    def _find_map(
        self,
        trace: StepTrace,
        stage: str,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        *,
        is_changed: bool,
    ) -> None:
        parameters = {address_of(parameter) for parameter in self._model.parameters() if parameter.requires_grad}
        end = len(trace.operations)
        gradient_map = GradientMap(
            trace,
            self._sources.tensors,
            gradients,
            # gradients of public rows may be computed before the noise
            start=self._sources.operations if self._public is None else 0,
            end=end,
            sources_end=self._sources.operations,
            parameters=parameters,
            public_ends=self._public_ends,
        )
        if not is_changed and gradient_map.is_division:
            return
        if gradient_map.gives(values, gradients):
            is_carried = any(tensor in self._between.before for tensor in gradient_map.inputs)
            is_moved = is_carried or gradient_map.moves(values, self._step(trace, self._traced_batch(trace)))
            reads_public = bool(gradient_map.inputs) or gradient_map.reads_known
            is_public = self._public is not None and reads_public and not self._public.others(gradient_map.inputs)
            self.maps.add(stage, gradient_map, is_moved=is_moved, is_changed=is_changed, is_public=is_public)

    def _step(self, trace: StepTrace, batch: Sequence[Tensor]) -> TracedStep:
        trained = {id(parameter) for parameter in self._model.parameters() if parameter.requires_grad}
        known = trained | {id(tensor) for tensor in (*self._loaded, *self._inputs)}
        return TracedStep(trace, batch, known, trained, self._drawn())

    def _per_sample(self, trace: StepTrace) -> list[Tensor]:
        """The per-sample gradients of the first physical batch, of small parameters if they need much memory."""
        if self._ghost or len(self._segments) != 1:
            return []
        shape = [*self._loaded, *self._inputs][0].shape[:1]
        rows = (getattr(parameter, "grad_sample", None) for parameter in self._model.parameters())
        tensors = [tensor for tensor in rows if isinstance(tensor, Tensor) and tensor.shape[:1] == shape]
        smallest_first = sorted(filter(trace.produces, tensors), key=Tensor.numel)
        sizes = accumulate(map(Tensor.numel, smallest_first))
        return [tensor for tensor, size in zip(smallest_first, sizes, strict=True) if size <= _MOST_NUMBERS]

    def _resize(self, trace: StepTrace, sums: Sequence[Tensor], clip_norm: float) -> None:
        """Replay the step at the batch size of an earlier one, or its last physical batch at the size of the first."""
        if len(self._segments) > 1:
            (start, records, gradients), *_, (last, fewer, last_gradients) = self._segments
            first, sums = sized_step(trace, records, gradients, start=start), ()
            current, gradients = sized_step(trace, fewer, last_gradients, start=last), last_gradients
            earlier: SizedStep | None = first
        else:
            start, records, gradients = self._segments[0]
            current = sized_step(trace, records, gradients, sums, start)
            earlier, self._earlier = self._earlier, current
        if earlier is None:
            return
        effect = size_effect(earlier, current, trace, gradients, clip_norm)
        low, high = self._powers if self._sizes else (effect.power, effect.power)
        self._powers = [min(low, effect.power), max(high, effect.power)]
        self._removed = max(self._removed, effect.sum_moved)
        self._sizes += 1
        self._unsized = -1

    def after_step(self) -> None:
        """The next step begins."""
        self._steps += 1
        self._chosen, self._is_interrupted, self._is_dropped = None, False, False
        trace = self._trace
        if trace is not None and self._is_noised:
            self._between.follow(trace.operations[self._noised :])
        continues = trace is not None and not trace.failure and bool(self.others.replays)
        self.stop(keep=continues)
        is_measured = self._replayed > self._replayed_before
        is_tried = self._tried > self._tried_before or not self._is_passed
        self._calls.end_step(replayed=is_tried, abstained="" if is_measured else self.abstained)
        self._tried_before, self._replayed_before, self._is_passed = self._tried, self._replayed, False
        if trace is None or not continues:
            self._between.start()
            return
        self._step_before, self._updated = self._step(trace, self._traced_batch(trace)), len(trace.operations)
        trace.limits_copies = True
        trace.start()

    def stop(self, *, keep: bool = False) -> None:
        """End the trace, and unless ``keep`` discard it."""
        self._is_noised, self._sources = False, Moment(0)
        self._calls.stop()
        if self._trace is None:
            return
        self._trace.stop()
        if self._updated:
            self._between.follow(self._trace.operations[self._updated :])
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if not keep:
            self._forget()

    def _forget(self) -> None:
        self._trace, self._inputs, self._outputs, self._gradients, self._segments = None, [], [], [], []
        self._loaded, self._loaded_reads, self._labels_end = [], "", 0
        self._step_before, self._updated, self._known_batches = None, 0, []

    def _labels(self, trace: StepTrace) -> list[Tensor]:
        """Integers from before the step with a row for each record of the first pass, such as labels.

        The loss reads them before the first gradient. Later operations may read other tensors of the same length: the
        labels of another physical batch, or records that are loaded for it. Labels that the step sorts, as the records
        were before, count in their new order.
        """
        size, produced = len(self._inputs[0]), {id(tensor) for tensor in self._inputs} | self._known
        labels: list[Tensor] = []
        start = self._segments[0][0] if self._segments else 0
        for operation in trace.operations[start : self._labels_end or len(trace.operations)]:
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

    def _add(self, replay: StepReplay, batch: Sequence[Tensor]) -> None:
        if replay.abstained:
            self.abstained = replay.abstained
            return
        self._replaced.note(batch)
        self._replayed += 1
        self._replacements += replay.replacements
        moves = (replay.sum_moved, replay.outputs_moved, replay.gradients_moved)
        self._moved = [max(pair) for pair in zip(self._moved, moves, strict=True)]


def chosen(source: random.Random, tried: int, step: int, seconds: float, training: float) -> bool:
    """Whether to replay a step, by number: ``tried`` replays took ``seconds`` of the training's."""
    return tried < ALWAYS or (seconds < SHARE * training and source.random() * step < _FIRST)
