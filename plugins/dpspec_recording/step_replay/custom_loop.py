"""Replays of some steps of a custom loop, from the end of the step before to its reported sum."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.step_replay.calls import Pauses, is_script_mode_active
from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.facts import RADIUS, ReplayFacts
from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.loop_batch import LoopBatch
from dpspec_recording.step_replay.loop_measure import LoopReplays
from dpspec_recording.step_replay.projected_sums import projected_sum
from dpspec_recording.step_replay.replayer import SHARE, Replayer
from dpspec_recording.step_replay.timeline import NOISE, OVER, SUM, UPDATE, Timeline
from dpspec_recording.step_replay.trace import AbstainError, BeyondError, StepTrace, address_of

#: Seconds that replays of other optimizers may take, however short the training is.
_SECONDS_OF_OTHERS = 2.0

#: Why no step is replayed, if none was tried.
_NO_SUM = "the loop reported no sum of two records or more: call run.summed with the sum of each step"

#: The moments of the quantities that a loop reports as tensors, and the place of the map between them and the update.
_MOMENTS, _STAGE = {"the sum": SUM, "noise": NOISE}, "before the update"


class ReplayedLoop(Replayer):
    """Traces some steps of a custom loop, and replays them when it reports their sums."""

    def __init__(
        self,
        model_tensors: Sequence[Tensor],
        optimizer: torch.optim.Optimizer | None,
        audits: AuditedSteps,
        pauses: Pauses,
    ) -> None:
        """model_tensors: the parameters and buffers of the model. optimizer: torch's, if the loop has one."""
        super().__init__(model_tensors, optimizer, audits, pauses)
        self._timeline: Timeline | None = None
        self._projected = 0  # the number of steps whose sum is clipped again as a whole
        self._records = 0  # of the last reported sum
        #: Of the traced step: the operations that draw its batch or noise, and the random numbers of other optimizers.
        self._private_draws: set[int] = set()
        self._other_draws: list[tuple[torch.optim.Optimizer, set[int]]] = []
        self._seconds_of_others = 0.0
        self._shapes: tuple[list[torch.Size], list[torch.Size]] | None = None  # of the map's tensors
        self._earlier: list[weakref.ref[Tensor]] = []  # the reported sum of the step before

    @property
    def facts(self) -> ReplayFacts:
        """The findings of the replays. No step is replayed at another batch size."""
        return self._log.facts(self.origins, _NO_SUM, projected=self._projected)

    def begin(self) -> None:
        """A step begins: trace it if it is chosen, unless a mode of the script would see its replay."""
        self._log.steps += 1
        traced = self._log.calls.are_new or self._log.is_chosen(self._log.steps)
        traced |= self.others.choose_step()
        traced &= not is_script_mode_active()
        if not traced:
            self.origins.between.stop()
        if not (traced or self._audits.audited) or is_script_mode_active():
            return
        self._log.calls.start()
        if traced:
            self._timeline = Timeline(StepTrace(self.pauses))
            self._timeline.trace.defers_indices = True
            self._timeline.trace.start()

    def end(self) -> None:
        """The step is over."""
        timeline, self._timeline = self._timeline, None
        if timeline is not None:
            timeline.trace.stop()
            self.origins.between.follow(timeline.since(SUM))
            if OVER in timeline and timeline.step is not None:
                self.own_updates.replay(timeline.step, timeline.moments[UPDATE], timeline.moments[OVER].operations)
        self._private_draws, self._other_draws = set(), []
        self._log.calls.stop()

    def note(self, quantity: str, tensors: Sequence[Tensor]) -> None:
        """Keep the tensors of a reported quantity, and their values."""
        if self._timeline is not None and not self._timeline.trace.failure:
            self._timeline.note(_MOMENTS[quantity], tensors, keeps=True)
            if _MOMENTS[quantity] == NOISE:
                self._note_private(self._timeline.trace, tensors)

    def generators_of(self, tensors: Sequence[Tensor]) -> list[torch.Generator]:
        """The generators from which tensors of this step follow; none if it is not traced."""
        return [] if self._timeline is None else self._timeline.trace.generators_of(tensors)

    def update_begins(self, gradients: Sequence[Tensor]) -> None:
        """The optimizer begins its step with these gradients."""
        if self._timeline is not None and not self._timeline.trace.failure:
            self._timeline.note(UPDATE, gradients, keeps=True)

    def update_ends(self) -> None:
        """The optimizer has moved the parameters."""
        if self._timeline is not None and UPDATE in self._timeline:
            self._timeline.note(OVER)

    def before_other_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Another optimizer steps, as of a generator: between the sum of a step and the batch of the next, or before.

        The loop has not reported the batch of the present step before its sum. Records that the gradients read are then
        other tensors of the script, and the number of records is the one of the step before.
        """
        self.others.note(optimizer)
        timeline, most = self._timeline, max(_SECONDS_OF_OTHERS, SHARE * self._log.training_time)
        if timeline is None or not self._records or self._seconds_of_others > most:
            return
        timeline.trace.stop()
        start = time.monotonic()
        gradient_map = self.others.replay(
            timeline.trace, optimizer, timeline.step, records=self._records, is_over=SUM not in timeline
        )
        if gradient_map is not None:
            self._other_draws.append((optimizer, gradient_map.draws))
            self._compare_draws()
        self._seconds_of_others += time.monotonic() - start
        if not timeline.trace.failure:
            timeline.trace.start()

    def _note_private(self, trace: StepTrace, tensors: Sequence[Tensor]) -> None:
        """Note the random numbers of the reported noise, or of the drawn records."""
        if self.others.replays and not trace.failure:
            self._private_draws |= GradientMap(trace, (), tensors, end=len(trace.operations)).draws
            self._compare_draws()

    def _compare_draws(self) -> None:
        """Look for the noise, which gives the sum away, and the drawn records in the gradients of other optimizers."""
        for optimizer, draws in self._other_draws:
            if draws & self._private_draws:
                self.others.doubt(optimizer, "it reads random numbers of the private batch or noise")

    def explain_rows(self, _: str, values: Sequence[Tensor], gradients: Sequence[Tensor], __: bool) -> bool:
        """:meth:`explain` for one row of sums, one of noise, and one of gradients."""
        return self.explain(*values, *gradients)

    def explain(self, sums: Tensor, noise: Tensor, gradients: Tensor) -> bool:
        """Whether gradients other than sum and noise over a divisor come from a map of their total that reads no more.

        Args:
            sums: The reported sum, all coordinates in a row.
            noise: The reported noise, likewise.
            gradients: Of the optimizer, likewise.
        """
        timeline = self._timeline
        if timeline is not None and {SUM, NOISE, UPDATE} <= timeline.moments.keys():
            timeline.trace.stop()
            with contextlib.suppress(Exception):  # operations that cannot be repeated
                self._find_map(timeline)
        if not self._shapes:
            return False
        of_sums, of_gradients = self._shapes
        values = [*_split(sums, of_sums), *_split(noise, of_sums)]
        return self.maps.explain(_STAGE, values, _split(gradients, of_gradients))

    def _find_map(self, timeline: Timeline) -> None:
        sums, noise, update = (timeline.moments[name] for name in (SUM, NOISE, UPDATE))
        if [total.shape for total in sums.values] != [part.shape for part in noise.values] or timeline.trace.failure:
            return
        end = update.operations
        gradient_map = GradientMap(  # parameters have moved when the loop reports the step: they are not recomputed
            timeline.trace,
            [*sums.tensors, *noise.tensors],
            update.tensors,
            end=end,
            sources_end=min(end, max(sums.operations, noise.operations)),
        )
        values = [*sums.values, *noise.values]
        if not gradient_map.gives(values, update.values):
            return
        is_moved = gradient_map.depends_on_parts(sums.values, noise.values)
        if not is_moved and gradient_map.inputs:
            if timeline.step is None:
                raise AbstainError("the records of the step are not known")
            is_moved = gradient_map.moves(values, timeline.step)
        self.maps.add(_STAGE, gradient_map, is_moved=is_moved)
        self._shapes = [value.shape for value in sums.values], [value.shape for value in update.values]

    def summed(
        self,
        sums: Sequence[Tensor],
        drawn: Sequence[Tensor],
        records: int,
        clip_norm: float,
        *,
        dataset_records: int | None = None,
    ) -> None:
        """Replay the step up to its sum.

        Args:
            sums: The reported sum, in one tensor or several.
            drawn: The tensors of indices that the loop reported, if it has.
            records: The number of drawn records; negative if it is not known.
            clip_norm: The declared maximum norm of a contribution.
            dataset_records: The number of records of the dataset, if it is known.
        """
        self._records = max(records, 0)
        timeline, earlier = self._timeline, [tensor for ref in self._earlier if (tensor := ref()) is not None]
        self._earlier = [weakref.ref(total) for total in sums]
        self._log.calls.stop()
        if timeline is None or not records:
            self._log.end_step()
            self.end()
            return
        trace = timeline.trace
        trace.stop()
        trace.defers_indices = False
        for reason, indices in trace.read_indices:
            if not trace.failure and not any(_are_equal(indices, reported) for reported in drawn):
                trace.give_up(reason)
        self._note_private(trace, drawn)
        self._log.tried += 1
        with self._log.timed():
            try:
                self._measure(timeline, sums, drawn, records, clip_norm, earlier, dataset_records)
            except AbstainError as error:
                self._log.failure = str(error)
                self._log.beyond = str(error) if isinstance(error, BeyondError) else self._log.beyond
            except Exception as error:
                self._log.failure = f"{type(error).__name__}: {error}"[:200]
        self._log.end_step()
        self.note("the sum", sums)
        if not trace.failure and not is_script_mode_active():
            trace.limits_copies = True
            trace.start()

    def _measure(
        self,
        timeline: Timeline,
        sums: Sequence[Tensor],
        drawn: Sequence[Tensor],
        records: int,
        clip_norm: float,
        earlier: Sequence[Tensor],
        dataset_records: int | None,
    ) -> None:
        trace = timeline.trace
        if trace.failure:
            raise AbstainError(trace.failure)
        if records < 0:
            raise AbstainError("the loop reports the sum before its records and norms")
        if records < 2:
            raise AbstainError("its batch has fewer than two records")
        if not clip_norm > 0.0:
            raise AbstainError("the loop declares no clip norm")
        trace.confirm(sums, trace.replay([], sums))
        batch = LoopBatch(trace, records, drawn, dataset_records, self._known, self._trained)
        of_batch = [*batch.tensors, *drawn]  # the loop may read the same records again after its sum
        skipped = self._trained | {*map(id, of_batch)}
        timeline.step = step = TracedStep(trace, batch.tensors, skipped, self._trained, batch.drawn)
        self.origins.note_numbers(step, self._parameters)
        if trace.followed is not None and trace.followed.unknown:
            raise AbstainError(trace.followed.unknown)
        self.origins.note(step, sums, dataset_records)
        self.origins.between.begin(trace, of_batch, sums)
        dataset = set(map(address_of, trace.tensors_before()))
        self.origins.between.of_batch.forget([tensor for tensor in of_batch if address_of(tensor) in dataset])
        projection = projected_sum(trace, sums, clip_norm)
        replays = LoopReplays(step, sums, clip_norm, projection, self._log.note)
        replays.compare_earlier(earlier)
        replays.replace_records()
        replays.replace_halves()
        replays.replace_with_boundless()
        if trace.branches:  # on a number of several records: a replay does not know the other branch
            raise AbstainError(trace.reads)
        replays.equal_records(batch.sources, self._parameters)
        self._log.add(batch.tensors, replays.replacements)
        if projection is not None:
            self._projected += 1
            self.origins.steps[RADIUS] += projection.reads_tensors


def _split(row: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The tensors of these shapes in a row of all their coordinates."""
    rows = torch.split(row, [shape.numel() for shape in shapes])
    return [values.view(shape) for values, shape in zip(rows, shapes, strict=True)]


def _are_equal(indices: Tensor, reported: Tensor) -> bool:
    return torch.equal(indices.cpu(), reported.detach().reshape(-1).long().cpu())
