"""Replays of some steps of a recorded training with Opacus' optimizer."""

from __future__ import annotations

import math
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
from dpspec_recording.step_replay.batch_size import BatchSizes
from dpspec_recording.step_replay.calls import Pauses, is_script_mode_active
from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.facts import DATASET, PROCESSES, ROWS, ReplayFacts
from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.loaded_batch import comes_from, note_batches, rows_of
from dpspec_recording.step_replay.measure import measure
from dpspec_recording.step_replay.replayer import Replayer
from dpspec_recording.step_replay.timeline import NOISE, OVER, UPDATE, PassTimeline
from dpspec_recording.step_replay.trace import StepTrace, address_of, tensors_in

if TYPE_CHECKING:
    from dpspec_recording.public_data import PublicData
    from dpspec_recording.watching.trained_weights import TrainedWeights

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

#: Why a step is traced: for its replay, or for values that the script computed from the dataset alone.
_REPLAY, _SEARCH, _NOT = "replay", "search", ""

#: What happened since the last step: a forward pass, a step of another optimizer, and one that ended the trace.
_PASSED, _OTHER_STEPPED, _DROPPED = "passed", "stepped", "dropped"


class ReplayedSteps(Replayer):
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
        super().__init__(
            [*model.parameters(), *model.buffers()],
            getattr(optimizer, "original_optimizer", None),
            audits,
            pauses or Pauses(),
            dataset=dataset,
            earlier=earlier,
            public=public,
        )
        self._log.calls.observe = self.origins.between.of_dataset.follow_call
        self._model, self._optimizer, self._ghost = model, optimizer, ghost
        self._drawn, self._public, self._is_rank = drawn, public, is_rank
        self._sizes = BatchSizes()
        self._timeline: PassTimeline | None = None
        self._choice: str | None = None  # why this step is traced; None if this is not decided
        self._seen: set[str] = set()
        self._sees_loads = False  # whether batches are noted when the loader loads them
        self._public_batches: list[tuple[Tensor, int]] = []  # with the number of operations before

    @property
    def facts(self) -> ReplayFacts:
        """The findings of the replays."""
        return self._log.facts(self.origins, _ONE_RECORD, self._sizes.facts)

    @property
    def _is_batch_first(self) -> bool:
        """Whether the first dimension of the model's inputs and outputs is the batch, not time."""
        return bool(getattr(self._model, "batch_first", True))

    @property
    def _trains(self) -> bool:
        return torch.is_grad_enabled() and self._model.training

    @property
    def _is_in_pass(self) -> bool:
        """Whether passes of the model are of a private step, and not of public records or of a generator."""
        return self._timeline is None or self._timeline.is_in_pass

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack, loader: Any = None) -> None:
        """Observe batches of the loader and forward passes until ``undo`` ends it."""
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in self._model.modules()):
            self._log.failure = _COMPILED
            self.origins.between.of_dataset.end()
            return

        def observe(event: Callable[..., None], *args: Any) -> None:
            guarded(partial(self._try, partial(event, *args)))

        def loaded(batch: Any, records: int) -> None:
            self._sees_loads = True
            if self._timeline is None or not self._timeline.passes or not self._is_in_pass:
                observe(self._load, batch, records)
            if self._log.steps and not (self._timeline is not None and self._timeline.passes):
                self._start()

        def before(_: Any, args: Any, kwargs: Any) -> None:
            if not self._is_in_pass:
                return
            if torch.compiler.is_compiling():  # of a function around the model: its operations are not traced
                self._end(_COMPILED)
                return
            self._seen |= {_PASSED} if self._trains else set()
            if self._timeline is not None or self._choice != _NOT:
                observe(self._begin, (args, kwargs))
            self._start()

        def after(_: Any, args: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self.origins.between.of_dataset.follow_call(None, args, {}, output)
            if self._timeline is not None and self._timeline.passes and self._is_in_pass:
                observe(self._note, output)

        def before_other(optimizer: Any, *_: Any) -> None:
            observe(self._before_any_step, optimizer)

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
        undo.callback(self.origins.between.stop)

    def _start(self) -> None:
        """Note calls and operations of this step from now on, unless they are noted."""
        is_noted = (self._timeline is not None or self._audits.audited) and not self._log.has_ended
        if is_noted and self._trains and not self._log.calls.active and not is_script_mode_active():
            self._log.calls.start()
        if self._timeline is not None and not self._timeline.trace.active:
            self._timeline.trace.start()

    def _try(self, observe: Callable[[], None]) -> None:
        """Give up replays after an error, which must not end the recording."""
        try:
            observe()
        except Exception as error:
            self.stop()
            self._end(f"{type(error).__name__}: {error}"[:200])

    def _end(self, reason: str) -> None:
        """Replay no further step."""
        self._log.end(reason)
        self.origins.between.of_dataset.end()

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
        timeline = self._timeline
        if timeline is None:
            return
        if timeline.is_noisy:
            timeline.trace.give_up(_INTERRUPTED)
        elif OVER in timeline or timeline.loaded or not all(each_pass.gradients for each_pass in timeline.passes):
            timeline.trace.limits_copies = True
            self._paused(timeline.trace, lambda: self._replay_other(timeline, optimizer))
            if OVER in timeline:
                self._seen.add(_OTHER_STEPPED)
                if not self._sees_loads:  # the next forward pass may begin the next step
                    self.stop()
                    self.origins.between.start()
        else:
            self.stop()
            self._seen |= {_OTHER_STEPPED, _DROPPED}

    def _replay_other(self, timeline: PassTimeline, optimizer: Any) -> None:
        step = timeline.step or self._step(timeline)
        self.others.replay(
            timeline.trace,
            optimizer,
            step,
            records=len(step.batch[0]),
            is_over=OVER in timeline,
            public_ends=self._public_ends,
        )

    def _step(self, timeline: PassTimeline, batch: Sequence[Tensor] | None = None) -> TracedStep:
        """The step of a timeline. batch: its tensors with a row for each record; None for all that are known."""
        if batch is None:
            batch = timeline.loaded or [*timeline.inputs, *timeline.labels(self._known)]
        skipped = self._trained | {*map(id, timeline.of_batch)}
        return TracedStep(timeline.trace, batch, skipped, self._trained, self._drawn())

    def _note_public(self, batch: Any) -> None:
        assert self._public is not None
        operations = 0 if self._timeline is None else len(self._timeline.trace.operations)
        self._public_batches += [(tensor, operations) for tensor in self._public.note(tensors_in(batch))]

    @property
    def _public_ends(self) -> dict[int, int]:
        """The memory of the public batches that were loaded during the trace."""
        return {address_of(tensor): operations for tensor, operations in self._public_batches}

    def _load(self, batch: Any, records: int) -> None:
        """The loader returns a batch: another one of the step if a forward pass began, else the first."""
        self.origins.between.stop(keep=True)
        self.origins.between.load(tensors_in(batch))
        if self._log.has_ended or not self._log.steps:
            return
        self.stop()
        if records >= 2 and self._choose() and not is_script_mode_active() and (tensors := rows_of(batch, records)):
            self._timeline = PassTimeline(StepTrace(self.pauses), self.pauses, tensors)

    def _begin(self, arguments: Any) -> None:
        """A forward pass begins."""
        inputs = [tensor for tensor in tensors_in(arguments) if tensor.dim() and id(tensor) not in self._known]
        # a pass without gradients, between steps, may compute values that the next step reads
        if self._trains or not self.origins.between.of_dataset.is_followed:
            self.origins.between.stop(keep=True)
        timeline = self._timeline
        if timeline is not None and not timeline.passes:
            is_read = not timeline.trace.failure and comes_from(timeline.trace, inputs, timeline.loaded)
            if self.others.replays and self._trains and not is_read and not timeline.trace.failure:
                return  # of a generator's loss, before the records are read
            if not (self._trains and is_read) or self._has_earlier_gradients():
                self.stop()
        if self._timeline is None and self._begins_trace(inputs):
            self._timeline = PassTimeline(StepTrace(self.pauses), self.pauses)
        if self._timeline is not None:
            self._timeline.begin_pass(inputs)

    def _begins_trace(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a trace begins with the forward pass of these inputs."""
        if self._log.has_ended or not self._trains or self._has_earlier_gradients() or not self._choose():
            return False
        if not self._is_batch_first:
            self._log.failure = "the step was not observed from its loaded batch, and batch_first is False"
            return False
        if is_script_mode_active():
            self._log.failure = "a mode of torch is active in the forward pass"
            return False
        return bool(inputs) and len(inputs[0]) >= 2

    def _has_earlier_gradients(self) -> bool:
        """Whether gradients from before another optimizer's step join the sum: replays would miss their records."""
        gradients = (
            getattr(p, name, None) for p in self._model.parameters() for name in ("grad_sample", "summed_grad")
        )
        return _OTHER_STEPPED in self._seen and any(gradient is not None for gradient in gradients)

    def _choose(self) -> bool:
        """Whether to trace the step, which is decided once."""
        if self._choice is None:
            step = self._log.steps + 1
            is_searched, is_new = self.origins.choose_step(step), self._log.calls.are_new
            if is_new:
                self._sizes.begin_again()
            is_chosen = is_new or self.others.choose_step() or (not self._ghost and self._sizes.needs_step)
            is_chosen = is_chosen or self._log.is_chosen(step)
            self._choice = _REPLAY if is_chosen else _SEARCH if is_searched else _NOT
        return self._choice != _NOT

    def _note(self, output: Any) -> None:
        assert self._timeline is not None
        if self._is_batch_first:
            self._timeline.note_outputs(output)

    def before_noise(self, sums: Callable[[], Sequence[Tensor | None]]) -> None:
        """The clipped sum of the step is complete. The noted operations are those that autocast called."""
        if self._timeline is not None and (OVER in self._timeline or not self._timeline.passes):
            self.stop()  # the model read no batch that was seen to be loaded since
        timeline = self._timeline
        if timeline is None:
            if _DROPPED in self._seen:
                self._log.tried += 1
                self._log.failure = _INTERRUPTED
            elif _PASSED not in self._seen and not self._log.has_ended:
                self._log.failure = _NO_PASS
            self._log.calls.stop()
            self.origins.between.stop()
            return
        complete = [total for total in sums() if total is not None]
        with torch.autocast(complete[0].device.type if complete else "cpu", enabled=False):
            self._try(lambda: self._measure(timeline, complete))

    def _measure(self, timeline: PassTimeline, sums: Sequence[Tensor]) -> None:
        trace = timeline.trace
        self.stop(keep=True)
        step = self._step(timeline, timeline.of_batch)
        # a trace costs about a step, and a replay tens of steps
        if self._choice == _SEARCH and (trace.failure or not self.origins.read(step, DATASET)):
            self._discard()
            return
        self._log.tried += 1
        with self._log.timed():
            if not trace.failure:
                self.origins.note_numbers(self._step(timeline), self._parameters)
            is_replayed = self._replay(timeline, step, sums)
            if trace.exchanged:
                self.origins.steps[PROCESSES] += 1
                trace.give_up(trace.exchanged)
            if not trace.failure:
                # rows of other physical batches are outside of this one
                self.origins.note(step, sums, omitted=() if len(timeline.passes) == 1 else (ROWS,))
                self.origins.between.begin(trace, timeline.of_batch)
            if trace.follows_reads:
                trace.reads = ""
            if not self._ghost:
                passes = timeline.passes if self._is_batch_first else ()
                self._sizes.note(trace, passes, sums if is_replayed else (), self._clip_norm)
        if trace.failure:
            self._discard()

    @property
    def _clip_norm(self) -> float:
        limits = self._optimizer.max_grad_norm  # one for each layer, or of the whole
        return math.hypot(*limits) if isinstance(limits, list) else float(limits)

    def _replay(self, timeline: PassTimeline, step: TracedStep, sums: Sequence[Tensor]) -> bool:
        """Replay the step with other records, from its loaded batch, else from the inputs of the model."""
        measured = partial(
            measure,
            timeline.trace,
            sums=list(sums),
            clip_norm=self._clip_norm,
            outputs=timeline.outputs,
            gradients=timeline.gradients,
            per_sample=self._per_sample(timeline),
            skips_counts=self._ghost,
            drawn=step.drawn,
            trained=self._parameters,
        )
        # a number from before the forward pass may carry the record into the loss, also if the replay begins after it
        timeline.trace.reads = timeline.reads or timeline.trace.reads
        batch = timeline.loaded
        replay = measured(batch, may_sort=True) if batch else None
        if replay is None or (replay.abstained and self._is_batch_first):
            batch = [*timeline.inputs, *timeline.labels(self._known)]
            replay = measured(batch)
        if replay.abstained:
            self._log.failure = replay.abstained
            return False
        self._log.add(batch, replay.replacements)
        self._log.note(moved=replay.sum_moved, outputs=replay.outputs_moved, gradients=replay.gradients_moved)
        return True

    def _per_sample(self, timeline: PassTimeline) -> list[Tensor]:
        """The per-sample gradients of the first physical batch, of small parameters if they need much memory."""
        if self._ghost or len(timeline.passes) != 1:
            return []
        shape = timeline.of_batch[0].shape[:1]
        rows = (getattr(parameter, "grad_sample", None) for parameter in self._model.parameters())
        tensors = [tensor for tensor in rows if isinstance(tensor, Tensor) and tensor.shape[:1] == shape]
        smallest_first = sorted(filter(timeline.trace.produces, tensors), key=Tensor.numel)
        sizes = accumulate(map(Tensor.numel, smallest_first))
        return [tensor for tensor, size in zip(smallest_first, sizes, strict=True) if size <= _MOST_NUMBERS]

    def after_noise(self, gradients: Sequence[Tensor]) -> None:
        """Trace the operations on the noisy gradients, in a step that was traced up to its noise."""
        if self._timeline is not None and not self._is_rank and not is_script_mode_active():
            self._timeline.note(NOISE, gradients)
            self._timeline.trace.limits_copies = True
            self._timeline.trace.start()

    @property
    def finds_maps(self) -> bool:
        """Whether the operations on the noisy gradients of this step are traced."""
        return self._timeline is not None and self._timeline.is_noisy

    def exclude_from_map(self, *, begins: bool) -> None:
        """Operations of the library begin, or end, that do not change the noisy gradients."""
        if self._timeline is not None and self._timeline.is_noisy:
            (self._timeline.trace.stop if begins else self._timeline.trace.start)()

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
        timeline = self._timeline
        if timeline is not None and timeline.is_noisy:
            find = partial(self._find_map, timeline, stage, values, gradients, is_changed=is_changed)
            self._paused(timeline.trace, find)
        return self.maps.explain(stage, values, gradients)

    def _find_map(
        self,
        timeline: PassTimeline,
        stage: str,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        *,
        is_changed: bool,
    ) -> None:
        begin = timeline.moments.get(UPDATE, timeline.moments[NOISE])
        gradient_map = GradientMap(
            timeline.trace,
            begin.tensors,
            gradients,
            # gradients of public rows may be computed before the noise
            start=begin.operations if self._public is None else 0,
            end=len(timeline.trace.operations),
            sources_end=begin.operations,
            parameters=set(map(address_of, self._parameters)),
            public_ends=self._public_ends,
        )
        if not is_changed and gradient_map.is_division:
            return
        if gradient_map.gives(values, gradients):
            is_carried = any(tensor in self.origins.between.before for tensor in gradient_map.inputs)
            is_moved = is_carried or gradient_map.moves(values, self._step(timeline))
            reads_public = bool(gradient_map.inputs) or gradient_map.reads_known
            is_public = self._public is not None and reads_public and not self._public.others(gradient_map.inputs)
            self.maps.add(stage, gradient_map, is_moved=is_moved, is_changed=is_changed, is_public=is_public)

    def update_begins(self, gradients: Sequence[Tensor]) -> None:
        """The inner optimizer gets these gradients, and may change them."""
        if self._timeline is not None and self._timeline.is_noisy:
            self._timeline.note(UPDATE, gradients, keeps=self.own_updates.needs_replay)

    def update_ends(self) -> None:
        """The inner optimizer has moved the parameters."""
        timeline = self._timeline
        if timeline is not None and timeline.is_noisy and self.own_updates.needs_replay:
            begin, trace = timeline.moments.get(UPDATE, timeline.moments[NOISE]), timeline.trace
            replay = self.own_updates.replay
            self._paused(trace, lambda: replay(self._step(timeline), begin, len(trace.operations)))

    def after_step(self) -> None:
        """The next step begins."""
        self._log.steps += 1
        timeline = self._timeline
        if timeline is not None and timeline.is_noisy:
            self.origins.between.follow(timeline.since(NOISE))
        continues = timeline is not None and not timeline.trace.failure and bool(self.others.replays)
        self.stop(keep=continues)
        self._log.end_step(is_passed=_PASSED in self._seen)
        self._choice, self._seen = None, set()
        if timeline is None or not continues:
            self.origins.between.start()
            return
        timeline.step = self._step(timeline)
        timeline.note(OVER)
        timeline.trace.limits_copies = True
        timeline.trace.start()

    def stop(self, *, keep: bool = False) -> None:
        """End the trace, and unless ``keep`` discard it."""
        self._log.calls.stop()
        timeline = self._timeline
        if timeline is None:
            return
        timeline.trace.stop()
        self.origins.between.follow(timeline.since(OVER))
        timeline.release()
        if not keep:
            self._discard()

    def _discard(self) -> None:
        self._timeline, self._public_batches = None, []
