"""One recorded training, from the header of its folder to the end record."""

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from dpspec.errors import UnobservableError, UsageError
from dpspec_recording.adapters.choice import adapter_of
from dpspec_recording.audited_steps import SHARE, AuditedSteps
from dpspec_recording.folder.events import Header
from dpspec_recording.folder.facts import Facts, noted_facts
from dpspec_recording.folder.recording import earlier_part, next_part, part_of
from dpspec_recording.folder.weights import TensorDigest
from dpspec_recording.folder.writer import RunWriter
from dpspec_recording.notices import notice
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.observer import Events, Training
from dpspec_recording.parts import Parts
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.ranks.group import Group, meet
from dpspec_recording.ranks.rank_watch import RankWatch
from dpspec_recording.received_weights import LoadedTensors, ReceivedWeights
from dpspec_recording.recognized import inner_module, refuse_processes, uncompiled
from dpspec_recording.released_model import digests_of_state
from dpspec_recording.spent_privacy import SpentPrivacy
from dpspec_recording.state_watch import StateWatch
from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.parameter_watch import ParameterWatch
from dpspec_recording.watching.sampler_watch import SamplerWatch

#: Whether this torch can train in several processes.
_DISTRIBUTED = torch.distributed.is_available()

#: The number of this process, without a call of the system at each observation.
_PROCESS = [os.getpid()]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _PROCESS.__setitem__(0, os.getpid()))

#: Seconds after which steps are written although few wait.
_SECONDS = 2.0


class WatchedTraining:
    """A session: its adapter turns the training into events, its observers observe them, and its writer keeps them.

    Attributes:
        adapter: Of this kind of training.
        writer: None once the recording is over.
        ended: The folder, for scores, if the recording is complete.
    """

    def __init__(
        self,
        folder: Path,
        training_parts: Parts,
        *,
        resume: bool = False,
        audit: float = SHARE,
        received: ReceivedWeights | LoadedTensors | None = None,
    ) -> None:
        """Write the header and attach the observers.

        Raises ``UsageError`` unless the folder is new or empty, or to ``resume`` holds earlier parts of this training.
        """
        self.audits = AuditedSteps(audit)
        self.writer: RunWriter | None = None
        self._failed: RunWriter | None = None  # by the last observation, which was of the recorder's own fault
        self.ended: RunWriter | None = None
        part, rank = next_part(folder) if resume else 1, ""
        group = meet(part) if training_parts.distributed else None
        if group is not None:
            part, rank = group.part, group.folder
        self._parts, self._received = training_parts, received
        self._folder = part_of(folder, part) / rank
        self._undo, self._pauses = contextlib.ExitStack(), Pauses()
        self.samples, notes = self._watch_sampler()
        header = training_parts.header(notes, group, part if resume else 0)
        secret = secrets.token_hex(32)
        try:
            if part > 1:
                training_parts.require_resumable()
            if (first := earlier_part(folder, rank, part)) is not None:
                if difference := first.header.differs(header):
                    raise UsageError(f"{folder}: the first part has another {difference}: record into a new folder")
                secret = next((state.secret for state in first.states()), secret)
            self.gradients = training_parts.gradient_canaries()
            if self.gradients is not None and self.samples is None:
                raise UsageError("gradient canaries cannot enter this training: its sampler cannot be watched")
            self.writer = RunWriter(self._folder, header)
        except BaseException:
            self.detach()
            raise
        self._pid, self._started = _PROCESS[0], time.monotonic()
        self._waiting: list[PendingStep] = []
        self._written, self._resumes = 0.0, resume
        self._header = header
        self.adapter = adapter_of(training_parts, header, self._pauses, self.gradients)
        self.spent = SpentPrivacy(
            bounded=header.has_rates and part == 1 and group is None and header.clipping != "adaptive"
        )
        self.guarded(lambda: self._attach(header, group, part, secret))

    @property
    def steps(self) -> int:
        """The number of recorded steps, those that wait for the folder included."""
        writer = self.writer or self.ended or self._failed
        return 0 if writer is None else writer.steps + len(self._waiting)

    def _attach(self, header: Header, group: Group | None, part: int, secret: str) -> None:
        """Attach the observers."""
        training_parts = self._parts
        trained, rank = training_parts.trained_parameters(), None
        sketch = NoiseSketch([size for _, size in header.layers], seed=int(secret, 16))
        if group is not None:
            rank = RankWatch(
                group, training_parts.optimizer, trained, training_parts.rank_sampler(), training_parts.shards
            )
            if training_parts.shards:  # the directions of all ranks, so that their noise can be added
                seed = int.from_bytes(group.digest(b"noise"), "little")
                sketch = NoiseSketch([whole for _, whole in training_parts.shards], seed=seed)
        self._observers = [observer() for observer in OBSERVERS if observer.is_shown(header)]
        self._events = Events(self._observers)
        self._training = training = Training(
            script_parts=training_parts,
            optimizer=training_parts.inner_optimizer,
            private_optimizer=training_parts.private_optimizer,
            trained=trained,
            parameters=ParameterWatch(trained),
            rank=rank,
            audits=self.audits,
            guarded=self.guarded,
            undo=self._undo,
            pauses=self._pauses,
            samples=self.samples,
            sketch=sketch,
            is_recording=lambda: self.writer is not None,
            begin_update=self._begin_update,
            private_options=self.adapter.options,
            accumulates=self.adapter.accumulates,
            header=header,
            write=self._write,
            step=PendingStep(),
            part=part,
        )
        self.adapter.attach(training, self._events)
        for observer in self._observers:
            observer.start(training)
        self._saved = None if group is None else group.saved
        self._states = StateWatch(training_parts, trained, training.frozen_digest, secret)
        self._start(part)

    def _start(self, part: int) -> None:
        if self.writer is None:
            return
        model, received = self._parts.model, self._received
        is_received = received is not None and isinstance(model, nn.Module) and received.are_in(model)
        start = self._states.state(0, self._training.options.current(), start=part > 1)
        self.writer.save(msgspec.structs.replace(start, received=is_received))
        self._states.attach(partial(self.guarded, partial(self._save, send=True)), self._undo)

    def _save(self, *, send: bool = False) -> None:
        """Note the state between two steps. Parameters that moved since the last one belong to none."""
        writer = self.writer
        self.audits.include()
        if writer is None or bool(self._training.parameters.moved()):
            return
        self._write_waiting()
        if send and self._saved is not None:
            self._saved.send()
        step, options = writer.steps, self._training.options.current()
        self._states.note(
            step, options, lambda: writer.save(self._states.state(step, options, self._facts().written()))
        )

    def detach(self) -> None:
        try:
            self._undo.close()
        except Exception as error:
            message = f"dpspec.record: an observer was not removed: {type(error).__name__}: {error}"
            notice(message, stacklevel=3)

    def guarded(self, observe: Callable[[], None]) -> None:
        if self.writer is None or _PROCESS[0] != self._pid:
            self._failed = None  # the training continues
            return
        pauses = self._pauses
        pauses.depth += 1
        try:
            if pauses.calls is None:
                observe()
            else:
                with torch._C.DisableTorchFunction():
                    observe()
        except Exception as error:
            with contextlib.suppress(Exception):
                self._write_waiting()
            if (writer := self._stop()) is None:  # an observer inside this one failed
                return
            message = f"ends at step {writer.steps}, the training continues: {type(error).__name__}: {error}"
            notice(f"dpspec.record: the recording into {self._folder} {message}", stacklevel=3)
            # another message may hold values of the training
            stated = isinstance(error, UnobservableError)
            with contextlib.suppress(Exception):
                writer.fail(str(error) if stated else f"an error of the recorder, {type(error).__name__}")
                self._failed = None if stated else writer
        finally:
            pauses.depth -= 1

    def blame_training(self, kind: type[BaseException]) -> None:
        """An exception ends the block. If an observation failed right before it, both have one cause, in the script."""
        if self._failed is not None and _PROCESS[0] == self._pid:
            with contextlib.suppress(Exception):
                self._failed.fail_again(
                    f"{kind.__name__[:100]} ended the block in step {self._failed.steps + 1}, and the recorder met its "
                    "cause first"
                )

    def _stop(self) -> RunWriter | None:
        writer, self.writer = self.writer, None
        return writer

    def end(self, kind: type[BaseException] | None) -> None:
        assert self.writer is not None
        self.adapter.end()
        self._write_waiting()
        self.writer.save(self._states.state(self.writer.steps, self._training.options.current()))
        self._states.end()
        rank = self._training.rank
        whole = not self._parts.shards and (rank is None or rank.group.rank == 0)
        facts = replace(self._facts(), error=kind.__name__[:100] if kind is not None else "")
        incomplete = self.writer.end(facts.written(), self._weights() if whole else "")
        self.ended, self.writer = self.writer, None
        if incomplete:
            message = f"dpspec.record: the recording in {self._folder} is incomplete: {incomplete}"
            notice(message, stacklevel=4)

    def _weights(self) -> Mapping[str, TensorDigest] | str:
        try:
            return digests_of_state(inner_module(self._parts.model))
        except Exception as error:  # tensors of other libraries
            return f"the model's tensors could not be read: {type(error).__name__}"

    def _facts(self) -> Facts:
        observed: dict[str, Any] = {stated.name: None for stated in noted_facts(OBSERVERS)}
        observed |= {observer.name: observer.facts() for observer in self._observers if observer.name in observed}
        return Facts(audits=self.audits.facts, seconds=time.monotonic() - self._started, observed=observed)

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of all recorded steps, those that wait for the folder included."""
        self.guarded(self._write_waiting)
        return math.inf if self.adapter.is_rounded else self.spent.epsilon(delta)

    def affords(self, limit: float, delta: float) -> bool:
        """Whether a step with the present noise multiplier and rate keeps the certified epsilon at or below a limit."""
        noise, rate = (math.nan if value is None else float(value) for value in self.adapter.present())
        self.guarded(self._write_waiting)
        if self.adapter.is_rounded or not self.spent.bounded or not (0.0 < noise < math.inf and 0.0 < rate <= 1.0):
            raise UsageError(
                f"run.affords cannot bound the steps of this training (rate {rate:g}, noise multiplier {noise:g}): the "
                "batches must be Poisson samples of one process, each step with noise"
            )
        return self.spent.affords(limit, delta, (noise, rate))

    def cautions(self, delta: float) -> tuple[str, ...]:
        """The names of the rules that fire on the facts of the steps until now."""
        steps = int(self.spent.last["steps"])
        return tuple(name for observer in self._observers for name in observer.cautions(steps, delta))

    def is_final(self, model: nn.Module) -> bool:
        scored_parameters = _named(model)
        for name, p in _named(self._parts.model).items():
            q = scored_parameters.get(name)
            if q is not p and (q is None or q.dtype != p.dtype or not torch.equal(q.cpu(), p.cpu())):
                return False
        return not self._training.parameters.moved()

    def _watch_sampler(self) -> tuple[SamplerWatch | None, list[str]]:
        sampler = self._parts.sampler
        if sampler is None:
            return None, []
        notes = [sampler.note] if sampler.note else []
        if sampler.batches is None:
            return None, notes
        planted = self._parts.planted
        there = None if planted is None else planted.present
        # the trace of a custom loop also shows the generator of its batches
        pause = contextlib.nullcontext if self._parts.is_custom_loop else self._pauses.pause
        watch = SamplerWatch(
            sampler.batches, ahead=self._parts.ahead, present=there, unusual=self.audits.include, pause=pause
        )
        if not watch.attach():
            return None, [*notes, f"sampler {sampler.kind} cannot be watched: the drawn records are not observed"]
        self._undo.callback(watch.detach)
        return watch, notes

    def _begin_update(self) -> bool | Tensor:
        training = self._training
        training.moved = training.parameters.moved()
        if self.audits.audited and training.rank is None and _DISTRIBUTED and torch.distributed.is_initialized():
            refuse_processes(self._parts.optimizer, None)
        self._events.emit("before_update")
        return training.moved

    def _write(self, step: PendingStep) -> None:
        assert self.writer is not None
        samples, rank = self.samples, self._training.rank
        step.number = self.writer.steps + len(self._waiting) + 1
        step.rank = None if rank is None else rank.step(step.drawn, None if samples is None else samples.epoch)
        self._training.parameters.advance()
        now = time.monotonic() - self._started
        self.audits.end_step()
        self._events.emit("after_step", step)
        self._waiting.append(step)
        # A later part may continue a killed one, whose steps all count.
        together = 1 if self._resumes else self.adapter.waits
        if step.number == 1 or len(self._waiting) >= together or now - self._written > _SECONDS:
            self._write_waiting()
        if self._saved is not None and self._saved.received():
            self._save()

    def _write_waiting(self) -> None:
        """Write the steps that are complete; a killed process loses the last steps."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic() - self._started
        self.adapter.read()
        if waiting and self.writer is not None:
            finished = [step.finish(len(self._header.layers)) for step in waiting]
            self.writer.write(*finished)
            for public, _ in finished:
                self.spent.add(public)


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    named = uncompiled(model).named_parameters()
    return {name.removeprefix("_module.").replace("_orig_mod.", ""): p for name, p in named}
