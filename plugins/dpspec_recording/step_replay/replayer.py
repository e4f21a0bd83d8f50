"""The common part of the replays of each kind of training: the chosen steps, the findings, and their facts."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.step_replay.calls import Pauses, StepCalls
from dpspec_recording.step_replay.facts import ReplacedTensors, ReplayFacts, SizeFacts
from dpspec_recording.step_replay.gradient_map import GradientMaps
from dpspec_recording.step_replay.origins import SumOrigins
from dpspec_recording.step_replay.other_optimizers import OtherOptimizers
from dpspec_recording.step_replay.own_updates import OwnUpdates
from dpspec_recording.step_replay.trace import READ_ADVICE, StepTrace

if TYPE_CHECKING:
    from dpspec_recording.public_data import PublicData
    from dpspec_recording.watching.trained_weights import TrainedWeights

#: Step n with records is replayed with probability min(1, _FIRST / n), while all replays after the first
#: _ALWAYS took less than SHARE of the training's time.
_FIRST, _ALWAYS, SHARE = 2.0, 2, 0.05

#: The number of first steps that are tried until one is replayed: with one number a step, five show a linear function
#: with a bound.
_TRIED = 8

#: Why steps whose script may branch on the numbers that it read of their batch are not replayed.
_BRANCHES = f"steps that read numbers of the batch in Python call other operations than each other: {READ_ADVICE}"

#: The largest number of lines of the script that a fact names.
_MOST_LINES = 8

#: The largest number of a fact.
_LARGEST = 1e9


class ReplayLog:
    """The replayed steps, and their findings.

    Attributes:
        steps: The number of steps that are over.
        calls: The kinds of calls of torch in each step.
        tried: The number of chosen steps.
        replayed: The number of replayed ones.
        failure: Why the last chosen step that was not replayed was not; empty if all were.
        beyond: Why a step was not replayed, although others were, and the claim is open; empty without such a step.
        has_ended: Whether no further step is replayed.
    """

    def __init__(self, calls: StepCalls) -> None:
        self.steps = self.tried = self.replayed = 0
        self.failure, self.beyond, self.has_ended = "", "", False
        self.calls, self._replacements = calls, 0
        self._largest: dict[str, float] = {}
        self._replaced = ReplacedTensors()
        self._random, self._started, self._seconds = random.SystemRandom(), time.monotonic(), 0.0
        self._before = 0, 0  # the tried and the replayed steps before this one

    @property
    def training_time(self) -> float:
        """The seconds since the beginning of the training."""
        return time.monotonic() - self._started

    def is_chosen(self, step: int) -> bool:
        """Whether to replay a step, by its number."""
        is_fast = self._seconds < SHARE * self.training_time
        is_first = self.tried < (_ALWAYS if self.replayed else _TRIED)
        return is_first or (is_fast and self._random.random() * step < _FIRST)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time that a replay takes, after the first ones."""
        start = time.monotonic()
        yield
        self._seconds += time.monotonic() - start if self.tried > _ALWAYS else 0.0

    def add(self, batch: Sequence[Tensor], replacements: int) -> None:
        """A step was replayed with other records in its batch."""
        self.replayed += 1
        self._replacements += replacements
        self._replaced.note(batch)

    def note(self, **moves: float) -> None:
        """Keep the largest moves, by the names of the facts."""
        for name, move in moves.items():
            self._largest[name] = max(self._largest.get(name, 0.0), min(move, _LARGEST))

    def end_step(self, *, is_passed: bool = True) -> None:
        """A step is over. is_passed: whether records passed in it."""
        tried, replayed = self._before
        is_tried = self.tried > tried or not is_passed
        self.calls.end_step(replayed=is_tried, abstained="" if self.replayed > replayed else self.failure)
        self._before = self.tried, self.replayed

    def end(self, reason: str) -> None:
        """Replay no further step."""
        self.failure, self.has_ended = reason, True

    def facts(
        self, origins: SumOrigins, none_tried: str, sizes: SizeFacts | None = None, projected: int = 0
    ) -> ReplayFacts:
        """The findings of the replays. none_tried: why no step was replayed, if none was tried."""
        unreplayed = self.calls.unreplayed if self.replayed else (self.failure or none_tried,)
        if origins.numbers.followed and origins.numbers.may_branch:
            unreplayed = (*unreplayed, _BRANCHES)
        if self.replayed and self.beyond:
            unreplayed = (*unreplayed, self.beyond)
        if self.replayed and self.has_ended:
            unreplayed = (*unreplayed, f"steps after the last replay: {self.failure}")
        return ReplayFacts(
            tried=self.tried,
            replayed=self.replayed,
            replacements=self._replacements,
            **{"moved": 0.0, **self._largest},
            failure=self.failure,
            origins={**+origins.steps},
            varying=origins.numbers.varying,
            testing=origins.numbers.testing,
            followed=origins.numbers.followed,
            tested_at=tuple(origins.numbers.tested_at)[:_MOST_LINES],
            read_at=tuple(origins.numbers.read_at)[:_MOST_LINES],
            projected=projected,
            sizes=sizes,
            replaced=self._replaced.names,
            unreplayed=unreplayed,
        )


class Replayer:
    """Traces and replays some steps of a training.

    Attributes:
        pauses: Of the recorder's own operations.
        origins: The values from before traced steps that move their sums.
        maps: Of the noisy gradient between its noise and the update.
        own_updates: The updates of the script's own class of optimizer.
        others: The steps of other optimizers, whose gradients may read records.
    """

    def __init__(
        self,
        model: Sequence[Tensor],
        optimizer: torch.optim.Optimizer | None,
        audits: AuditedSteps,
        pauses: Pauses,
        *,
        dataset: Sequence[Tensor] | None = None,
        earlier: Sequence[TrainedWeights] = (),
        public: PublicData | None = None,
    ) -> None:
        """Make a replayer.

        Args:
            model: The parameters and buffers of the model.
            optimizer: Of torch; None if the training has none.
            audits: The audited steps.
            pauses: Of the recorder's own operations.
            dataset: The tensors in memory that hold the records; None if values computed from them are not followed.
            earlier: The weights that the script trained before.
            public: The declared public data.
        """
        self.pauses, self._audits, self._model_tensors = pauses, audits, list(model)
        self._log = ReplayLog(StepCalls(pauses))
        of_model = [tensor for tensor in model if isinstance(tensor, torch.nn.Parameter)]
        self.origins = SumOrigins(of_model, pauses, dataset, earlier)
        self.maps = GradientMaps()
        self.own_updates = OwnUpdates(optimizer, self._parameters)
        self.others = OtherOptimizers(self._parameters, model, public)

    @property
    def _known(self) -> set[int]:
        """The numbers (``id``) of the parameters and buffers of the model."""
        return {id(tensor) for tensor in self._model_tensors}

    @property
    def _parameters(self) -> list[Tensor]:
        """The trained parameters."""
        return [tensor for tensor in self._model_tensors if tensor.requires_grad]

    @property
    def _trained(self) -> set[int]:
        """The numbers (``id``) of the trained parameters."""
        return {id(parameter) for parameter in self._parameters}

    def _paused(self, trace: StepTrace, observe: Callable[[], None]) -> None:
        """Observe a trace, which continues afterwards unless it failed."""
        trace.stop()
        with self._log.timed(), contextlib.suppress(Exception):  # operations that cannot be repeated
            if not trace.failure:
                observe()
        trace.start()
