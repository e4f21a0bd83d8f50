"""One recorded training, from the header of its folder to the end record."""

import contextlib
import math
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec.errors import UnobservableError, UsageError
from dpspec_recording.adaptive_count import AdaptiveCount
from dpspec_recording.audited_steps import SHARE, AuditedSteps
from dpspec_recording.early_warnings import warn_at_first_step
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.header import Header
from dpspec_recording.folder.probe_facts import ScaledFacts
from dpspec_recording.folder.resumed_folder import earlier_part, next_part, part_of
from dpspec_recording.folder.run_folder import RunWriter
from dpspec_recording.folder.step_record import UNSEEN, Indices, InternalStep, PublicStep
from dpspec_recording.folder.weights import TensorDigest
from dpspec_recording.notices import notice
from dpspec_recording.parts import Parts
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.ranks.group import Group, meet
from dpspec_recording.ranks.rank_watch import RankWatch
from dpspec_recording.ranks.shards import local
from dpspec_recording.recognized import inner_module, refuse_processes, uncompiled
from dpspec_recording.released_model import digests_of_state
from dpspec_recording.rules.memory_rows import drawn_rows
from dpspec_recording.rules.observed import ObservedRules, installed
from dpspec_recording.spent_privacy import SpentPrivacy
from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.step_replay.custom_loop import ReplayedLoop
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.record_tables import MOST_RECORDS
from dpspec_recording.step_replay.watch import ReplayedSteps
from dpspec_recording.sums.ghost_sums import ShardedGhostSums
from dpspec_recording.sums.reported_gradients import ReportedGradients
from dpspec_recording.watching.arrays import ReportedUpdates
from dpspec_recording.watching.loaded_weights import LoadedWeights
from dpspec_recording.watching.model_state import ModelState
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.noise_watch import NoiseWatch
from dpspec_recording.watching.optimizer_state import AuditedUpdates, adds_in_place, is_fresh
from dpspec_recording.watching.optimizer_watch import Entering, OpacusWatch
from dpspec_recording.watching.options import UNKNOWN, OptionWatch
from dpspec_recording.watching.other_engines import OtherEngines
from dpspec_recording.watching.parameter_watch import GradientParameters, ParameterWatch
from dpspec_recording.watching.sampler_watch import SamplerWatch, SeedWatch
from dpspec_recording.watching.state_watch import StateWatch
from dpspec_recording.watching.step_hooks import ScalerWatch, attach_step_hooks

#: Whether this torch can train in several processes.
_DISTRIBUTED = torch.distributed.is_available()

#: The number of this process, without a call of the system at each observation.
_PROCESS = [os.getpid()]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _PROCESS.__setitem__(0, os.getpid()))

#: Seconds after which steps are written although few wait.
_SECONDS = 2.0


class WatchedTraining:
    """The observers of a training, and the writer of its folder.

    own: the pending step of a custom loop. declared: the intentions of such a loop from now on. writer: None once the
    recording is over. ended: the folder, for scores, if the recording is complete.
    """

    def __init__(self, folder: Path, training_parts: Parts, *, resume: bool = False, audit: float = SHARE) -> None:
        """Write the header and attach the observers.

        Raises ``UsageError`` unless the folder is new or empty, or to ``resume`` holds earlier parts of this training.
        """
        self.own, self.audits = PendingStep(), AuditedSteps(audit)
        self.declared = training_parts.declared
        self.writer: RunWriter | None = None
        self._failed: RunWriter | None = None  # by the last observation, which was of the recorder's own fault
        self.ended: RunWriter | None = None
        part, rank = next_part(folder) if resume else 1, ""
        group = meet(part) if training_parts.distributed else None
        if group is not None:
            part, rank = group.part, group.folder
        self._parts = training_parts
        self._folder = part_of(folder, part) / rank
        self._undo = contextlib.ExitStack()
        self.samples, notes = self._watch_sampler()
        header = training_parts.header(notes, group, part if resume else 0)
        secret = secrets.token_hex(32)
        try:
            if part > 1 and isinstance(training_parts.optimizer, ReportedUpdates):
                raise UsageError(
                    "a loop over arrays cannot be resumed: the recorder does not see its optimizer's state"
                )
            if part > 1 and training_parts.shards:
                raise UsageError("a training whose parameters FSDP2 shards cannot be resumed: record it in one part")
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
        self._waiting: list[tuple[PendingStep, Callable[[], tuple[PublicStep, InternalStep]]]] = []
        self._written, self._resumes = 0.0, resume
        self._header, self._layers = header, header.layers
        self._sizes = [size for _, size in header.layers]
        self._given: dict[str, Tensor] = {}
        self._rank: RankWatch | None = None
        self._opacus: OpacusWatch | None = None
        self._adaptive: AdaptiveCount | None = None
        self._replays: ReplayedSteps | ReplayedLoop | None = None
        self._pauses = Pauses()
        self.loop: ReplayedLoop | None = None
        inner: torch.optim.Optimizer | None = getattr(
            training_parts.optimizer, "original_optimizer", training_parts.optimizer
        )
        self._inner = inner
        poisson = header.is_poisson or (header.scheme == "none" and training_parts.clipping is None)
        self.spent = SpentPrivacy(bounded=poisson and part == 1 and group is None and header.clipping != "adaptive")
        self.guarded(lambda: self._attach(header, group, part, secret))

    @property
    def steps(self) -> int:
        """The number of recorded steps, those that wait for the folder included."""
        writer = self.writer or self.ended or self._failed
        return 0 if writer is None else writer.steps + len(self._waiting)

    def _attach(self, header: Header, group: Group | None, part: int, secret: str) -> None:
        """Attach the observers."""
        training_parts, inner = self._parts, self._inner
        self._sketch = NoiseSketch(self._sizes, seed=int(secret, 16))
        trained, noisy = training_parts.trained_parameters(), training_parts.noisy_parameters()
        if group is not None:
            self._rank = RankWatch(
                group, training_parts.optimizer, trained, training_parts.rank_sampler(), training_parts.shards
            )
            if training_parts.shards:  # the directions of all ranks, so that their noise can be added
                seed = int.from_bytes(group.digest(b"noise"), "little")
                self._sketch = NoiseSketch([whole for _, whole in training_parts.shards], seed=seed)
        self._watch = ParameterWatch(trained)
        self._loaded = LoadedWeights(self._watch, None if part > 1 else self._watch.advance)
        self._loaded.attach(inner_module(training_parts.model), self.guarded, self._undo)
        self._others = OtherEngines([training_parts.optimizer, inner], self._undo)
        self._model_state = ModelState(training_parts.model, trained)
        self._reported = ReportedGradients(noisy)
        self._noise = NoiseWatch([local(p) for p in noisy])
        self._resumed = inner is not None and not is_fresh(inner)
        self._updates: AuditedUpdates | ReportedUpdates | None = None
        self._scaler: ScalerWatch | None = None
        if inner is not None:
            self._updates = inner if isinstance(inner, ReportedUpdates) else AuditedUpdates(inner, trained)
            self._scaler = ScalerWatch([training_parts.optimizer, inner], self._undo)
        self._seeds: SeedWatch | None = None
        self._not_replayed = self._replay_obstacle(group)
        if training_parts.clipping is not None:
            sampler = training_parts.sampler
            is_drawing = sampler is not None and sampler.rate is not None
            self._seeds = SeedWatch(training_parts.optimizer, sampler.batches if sampler and is_drawing else None)
            self._opacus = opacus = OpacusWatch(
                training_parts.optimizer,
                training_parts.clipping,
                training_parts.hooks or training_parts.model,
                self._sketch,
                self._noise,
                self.audits,
                self._entering(),
                self._rank,
            )
            before, after = partial(self._before, opacus), partial(self._after, opacus)
            opacus.attach(before, after, self.guarded, self._undo)
            if training_parts.clipping == "adaptive":
                self._adaptive = AdaptiveCount(training_parts.optimizer)
                self._adaptive.attach(self.guarded, self._undo)
            if not self._not_replayed:
                ghost = training_parts.clipping == "ghost"
                opacus.replays = ReplayedSteps(
                    training_parts.model,
                    training_parts.optimizer,
                    self.audits,
                    self._pauses,
                    ghost=ghost,
                    drawn=self._drawn_records,
                )
                opacus.replays.attach(self.guarded, self._undo, training_parts.loader)
                self._replays = opacus.replays
        elif inner is not None:
            before, after = partial(self.guarded, self._before_own), partial(self.guarded, self._after_own)
            attach_step_hooks(inner, before, after, self._undo)
        if training_parts.clipping is None and not self._not_replayed:
            self._replays = self.loop = ReplayedLoop(
                [*training_parts.model.parameters(), *training_parts.model.buffers()], self.audits, self._pauses
            )
            self._undo.callback(self.loop.end)
        self._passes = None if inner is None else GradientParameters(self._watch, noisy, self.audits)
        if self._passes is not None:
            self._passes.attach(training_parts.model, self.guarded, self._undo, training_parts.compiled)
            if self._opacus is not None and isinstance(self._opacus.ghost, ShardedGhostSums):
                self._opacus.ghost.whole.passing = partial(self._passes.observe, "backward", self.guarded)
        private = self._declared_options if training_parts.clipping is None else training_parts.private_options
        self._options = OptionWatch(inner, private, self.guarded, self._accumulates)
        self._undo.callback(self._options.remove)
        self._saved = None if group is None else group.saved
        self._rules = ObservedRules(installed())
        self._rules.start(
            RuleSetup(
                model=training_parts.model,
                optimizer=inner,
                private_optimizer=None if training_parts.clipping is None else training_parts.optimizer,
                loader=training_parts.loader,
                resumes=part > 1,
                compiled=training_parts.compiled is not None,
            )
        )
        self._undo.callback(self._rules.stop)
        self._states = StateWatch(training_parts, inner, trained, self._model_state, secret)
        self._start(part)

    def _replay_obstacle(self, group: Group | None) -> str:
        """Why no step of this training can be replayed; empty if steps can be."""
        if group is not None:
            return "several processes train"
        if self._parts.compiled is not None:
            return "the model is compiled"
        if not isinstance(self._parts.model, nn.Module):
            return "the loop trains arrays"
        return "sums contain gradient canaries" if self.gradients is not None else ""

    def _accumulates(self) -> bool:
        """Whether Opacus' optimizer has got a physical batch of a step that is not complete."""
        return self._opacus is not None and self._opacus.step.rows != UNSEEN

    def _drawn_records(self) -> DrawnRecords | None:
        """The records of the latest batch in their dataset, if it is in memory."""
        if self.samples is None:
            return None
        with contextlib.suppress(Exception):  # a dataset of another kind
            drawn = drawn_rows(self._parts.loader, self.samples.latest())
            return None if drawn is None else DrawnRecords(*drawn, sample=self._sampled_records)
        return None

    def _sampled_records(self) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """Random records of the dataset, and their indices."""
        records = len(self._parts.loader.dataset)
        indices = random.SystemRandom().sample(range(records), min(MOST_RECORDS, records))
        drawn = drawn_rows(self._parts.loader, np.array(indices))
        return None if drawn is None else drawn[:2]

    def _declared_options(self) -> dict[str, Any]:
        """The options of a custom loop's private sum."""
        declared = {name: option for name, option in self.declared.items() if name != "records"}
        return {**declared, **self._parts.loader_options()}

    def _start(self, part: int) -> None:
        if self.writer is None:
            return
        if part > 1:  # a later part continues the options
            self._options.read()
            self._options.changes()
        self.writer.save(self._states.state(0, self._options.current(), start=part > 1))
        self._states.attach(partial(self.guarded, partial(self._save, send=True)), self._undo)

    def _save(self, *, send: bool = False) -> None:
        """Note the state between two steps. Parameters that moved since the last one belong to none."""
        writer = self.writer
        self.audits.include()
        if writer is None or bool(self._watch.moved()):
            return
        self._write_waiting()
        if send and self._saved is not None:
            self._saved.send()
        step, options = writer.steps, self._options.current()
        self._states.note(step, options, lambda: writer.save(self._states.state(step, options, asdict(self._facts()))))

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
        unreported = bool(self.own.updates or self.own.members or self.own.norms or self.own.noised)
        if unreported and self._parts.clipping is None:
            self.own_step()
        self._write_waiting()
        self.writer.save(self._states.state(self.writer.steps, self._options.current()))
        self._states.end()
        self._rules.stop()
        whole = not self._parts.shards and (self._rank is None or self._rank.group.rank == 0)
        facts = replace(self._facts(), error=kind.__name__[:100] if kind is not None else "")
        incomplete = self.writer.end(asdict(facts), self._weights() if whole else None)
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
        opacus, samples, accountant, replays = self._opacus, self.samples, self._parts.accountant, self._replays
        ghost = None if opacus is None else opacus.ghost
        state = {name: tuple(names) for name, names in self._model_state.changed().items()}
        maps, gradients = None if replays is None else replays.maps, self._reported.facts
        compared = opacus.gradients.compared if opacus is not None else 0 if gradients is None else gradients.summed
        passes = None if self._passes is None else self._passes.facts
        if passes is not None and self._rank is not None:
            passes = replace(passes, moved=passes.moved + int(self._rank.other))
        return Facts(
            outside=float(self._watch.moved()),
            loaded=self._loaded.count + self._loaded.is_pending,
            returned=self._loaded.returned + self._loaded.is_returned,
            other_steps=self._others.steps,
            buffers=state["buffers"],
            state=state["state"],
            attributes=state["attributes"],
            rounded=state["rounded"],
            coarse=state["coarse"],
            audits=self.audits.facts,
            meddled=int(opacus.gradients.changed) if opacus is not None else None,
            scaled=ScaledFacts(scaled=0, explained=0) if opacus is None else opacus.gradients.scaled,
            maps=maps.facts(compared) if maps is not None else None,
            map_inputs=maps.shapes if maps is not None else "",
            resumed=self._resumed,
            sums=opacus.sums.facts if opacus is not None else None,
            clip_limits=opacus.limits.facts if opacus is not None else None,
            ghost=None if ghost is None else ghost.facts,
            unverified_norms=() if ghost is None else tuple(ghost.unverified),
            adaptive=None if self._adaptive is None else self._adaptive.facts,
            replays=None if replays is None else replays.facts,
            sizes=None if replays is None else replays.sizes,
            carrying=replays.carrying if isinstance(replays, ReplayedSteps) else 0,
            tables=replays.tables if isinstance(replays, ReplayedSteps) else 0,
            replay_failure=self._not_replayed if replays is None else replays.abstained,
            passes=passes,
            gradients=gradients,
            seeds=None if self._seeds is None else self._seeds.facts,
            noise=self._noise.found(),
            rules=self._rules.facts(),
            restated=None if self._updates is None else self._updates.restated,
            loss_scaler=self._scaler is not None and self._scaler.used,
            updates=None if self._updates is None else self._updates.facts,
            optimizer="" if self._updates is None else self._updates.kind,
            step_hooks=tuple(self._updates.hooks) if isinstance(self._updates, AuditedUpdates) else (),
            norm_type="" if opacus is None else opacus.precision.norm_type,
            sum_type="" if opacus is None else opacus.precision.sum_type,
            drawn_batches=None if samples is None else samples.drawn,
            passed_over=None if samples is None else samples.passed_over,
            history=None if accountant is None else tuple((s, q, int(n)) for s, q, n in accountant.history()),
            seconds=time.monotonic() - self._started,
        )

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of all recorded steps, those that wait for the folder included."""
        self.guarded(self._write_waiting)
        rounded = self._opacus is not None and self._opacus.precision.norm_type != ""
        return math.inf if rounded else self.spent.epsilon(delta)

    def affords(self, limit: float, delta: float) -> bool:
        """Whether a step with the present noise multiplier and rate keeps the certified epsilon at or below a limit."""
        optimizer, sampler = self._parts.optimizer, self._parts.sampler
        if self._opacus is not None:
            rate = None if sampler is None else getattr(sampler.batches, "sample_rate", sampler.rate)
            present = (optimizer.noise_multiplier, rate)
        else:
            present = (self.declared["noise_multiplier"], self.declared["rate"])
        noise, rate = (math.nan if value is None else float(value) for value in present)
        self.guarded(self._write_waiting)
        rounded = self._opacus is not None and self._opacus.precision.norm_type != ""
        if rounded or not self.spent.bounded or not (0.0 < noise < math.inf and 0.0 < rate <= 1.0):
            raise UsageError(
                f"run.affords cannot bound the steps of this training (rate {rate:g}, noise multiplier {noise:g}): the "
                "batches must be Poisson samples of one process, each step with noise"
            )
        return self.spent.affords(limit, delta, (noise, rate))

    def cautions(self, delta: float) -> tuple[str, ...]:
        """The names of the rules that fire on the facts of the steps until now."""
        steps, header = int(self.spent.last["steps"]), self._header
        run = RuleRun(own_loop=header.source == "own-loop", steps=steps, delta=delta, records=header.records)
        return self._rules.fired(run)

    def report(self, quantity: str, reported: Tensor | Iterable[Tensor]) -> None:
        """Keep the noise or the sum that a custom loop reports."""
        tensors = [reported] if isinstance(reported, Tensor) else list(reported)
        if quantity == "the sum" and self.loop is not None:
            clip_norm, pending = self.declared["clip_norm"], self.own
            records = (
                pending.rows if pending.rows != UNSEEN else sum(map(len, pending.members)) if pending.members else -1
            )
            self.loop.summed(
                tensors,
                pending.indices,
                records,
                math.nan if clip_norm is None else clip_norm,
                dataset_records=self._header.records,
            )
        elif self.loop is not None:
            self.loop.note(quantity, tensors)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
        if flat.is_complex():
            raise UsageError(f"{quantity} must have real numbers")
        if len(flat) != sum(self._sizes):
            layer_sizes = [
                (name, size, tensor.numel()) for (name, size), tensor in zip(self._layers, tensors, strict=False)
            ]
            first = next((sizes for sizes in layer_sizes if sizes[1] != sizes[2]), None) if len(tensors) > 1 else None
            where = f": {first[0]} has {first[1]}, and {first[2]} were given for it" if first else ""
            raise UsageError(
                f"{quantity} must have {sum(self._sizes)} numbers, one for each parameter, got {len(flat)}{where}"
            )
        self._given[quantity] = flat

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        """A context for calls of the recorder's methods, which belong to no step."""
        self._pauses.depth += 1
        try:
            yield
        finally:
            self._pauses.depth -= 1

    def begin_step(self) -> None:
        """A step of a custom loop begins."""
        if self.loop is not None:
            self.loop.end()
            if self.writer is not None:
                self.loop.begin()

    def reported_step(self, parameters: Iterable[Any] | None, gradients: Iterable[Any] | None) -> None:
        """Move the copies of a model's arrays to those that the loop reports, as a step of its optimizer."""
        inner = self._inner
        if self.writer is None:  # the recording ended, and the training continues
            self.own = PendingStep()
        if isinstance(inner, ReportedUpdates) is (parameters is None):
            raise UsageError(
                "stepped needs parameters=, the arrays after the step, if dpspec.record got arrays for model, and "
                "takes none otherwise"
            )
        if isinstance(inner, ReportedUpdates) and parameters is not None:
            inner.report(parameters, gradients)
            inner.step()

    def own_step(self) -> None:
        step, self.own = self.own, PendingStep()
        step.silent = not step.noised
        for name in ("noise_multiplier", "clip_norm", "rate"):
            if self.declared[name] is not None:
                setattr(step, name, float(self.declared[name]))
        step.deviation = step.noise_multiplier * step.clip_norm
        self._options.read()
        reported, self._given = self._given, {}
        noise, total = reported.get("noise"), reported.get("the sum")
        if noise is not None:
            layers = (() if row is None else torch.split(row[None], self._sizes, dim=1) for row in (noise, total))
            measured = self._sketch.measure(*layers)
            step.sketch, step.sum_norm = measured.sketches[0], None if total is None else measured.lengths[0]
            self._noise.add(measured, [step.deviation])
        self._reported.compare(step, noise, total, self._explain)
        drawn: tuple[Indices, int] | None = None
        if step.members:
            drawn = np.concatenate(step.members), 1
        elif self.samples is not None:
            drawn = self.samples.take(None if step.rows == UNSEEN else step.rows)
        if self._inner is None:
            step.updates = 1
        else:
            step.moved_outside(self._watch.moved())
        self._write(step, drawn, noise)

    def _explain(self, total: Tensor, noise: Tensor, gradients: Tensor) -> bool:
        return self.loop is not None and self.loop.explain(total, noise, gradients)

    def is_final(self, model: nn.Module) -> bool:
        scored_parameters = _named(model)
        for name, p in _named(self._parts.model).items():
            q = scored_parameters.get(name)
            if q is not p and (q is None or q.dtype != p.dtype or not torch.equal(q.cpu(), p.cpu())):
                return False
        return not self._watch.moved()

    def _watch_sampler(self) -> tuple[SamplerWatch | None, list[str]]:
        sampler = self._parts.sampler
        if sampler is None:
            return None, []
        notes = [sampler.note] if sampler.note else []
        if sampler.batches is None:
            return None, notes
        planted = self._parts.planted
        there = None if planted is None else planted.present
        watch = SamplerWatch(sampler.batches, ahead=self._parts.ahead, present=there, unusual=self.audits.include)
        if not watch.attach():
            return None, [*notes, f"sampler {sampler.kind} cannot be watched: the drawn records are not observed"]
        self._undo.callback(watch.detach)
        return watch, notes

    def _entering(self) -> Entering | None:
        canaries, samples = self.gradients, self.samples
        if canaries is None or samples is None:
            return None
        return lambda clip_norm: canaries.enter(samples.latest(), clip_norm)

    def _before(self, opacus: OpacusWatch) -> None:
        opacus.step.outside = self._watch.moved()
        self._loaded.before_step(opacus.step.outside)
        opacus.begin_update()
        self._before_update()
        if self.gradients is not None:
            self.gradients.before_step()

    def _after(self, opacus: OpacusWatch) -> None:
        self._after_update(compared=opacus.gradients.end())
        step, opacus.step = opacus.step, PendingStep()
        step.updates = 1
        if self._seeds is not None:
            self._seeds.step()
        if opacus.replays is not None:
            opacus.replays.after_step()
        if not step.noised:
            step.noise_multiplier = float(self._parts.optimizer.noise_multiplier)
            step.clip_norm = float(self._parts.optimizer.max_grad_norm)
            step.deviation = step.noise_multiplier * step.clip_norm
        if self._passes is not None:
            self._passes.stepped()
        drawn = None if self.samples is None else self.samples.take(None if step.rows == UNSEEN else step.rows)
        if (sampler := self._parts.sampler) is not None and sampler.rate is not None:
            drawn_at = [] if self.samples is None else self.samples.rates
            rates = [*drawn_at, getattr(sampler.batches, "sample_rate", None)]
            if not {float, int, type(None)}.issuperset(map(type, rates)):
                raise UnobservableError(
                    "sample_rate of the sampler is not a number: records may enter at different rates"
                )
            step.rate = max([float(rate) for rate in rates if rate is not None], default=sampler.rate)
        self._write(step, drawn)

    def _before_own(self) -> None:
        moved = self._watch.moved()
        self.own.moved_outside(moved)
        self._loaded.before_step(moved)
        self._reported.before_step()
        if self.loop is not None:
            self.loop.update_begins([p.grad for p in self._parts.noisy_parameters() if p.grad is not None])
        self._before_update()

    def _after_own(self) -> None:
        self._after_update()
        self._reported.after_step(added=adds_in_place(self._inner))
        self.own.updates += 1
        self._watch.advance()
        if self._passes is not None:
            self._passes.stepped()

    def _before_update(self) -> None:
        if self.audits.audited and self._rank is None and _DISTRIBUTED and torch.distributed.is_initialized():
            refuse_processes(self._parts.optimizer, None)
        self._options.read()
        self._model_state.compare(audited=self.audits.audited)
        if self._updates is not None:
            self._updates.before_step(audited=self.audits.audited)

    def _after_update(self, *, compared: bool = False) -> None:
        if isinstance(self._updates, AuditedUpdates):
            self._updates.after_step(compared=compared)
        elif self._updates is not None:
            self._updates.after_step()

    def _write(self, step: PendingStep, drawn: tuple[Indices, int] | None, noise: Tensor | None = None) -> None:
        assert self.writer is not None
        accountant = self._parts.accountant
        accounted = accountant.told() if accountant is not None else None
        samples, rank = self.samples, self._rank
        ranked = None if rank is None else rank.step(drawn and drawn[0], None if samples is None else samples.epoch)
        self._watch.advance()
        now, rate = time.monotonic() - self._started, self._parts.learning_rate()
        number = self.writer.steps + len(self._waiting) + 1
        if number == 1:
            warn_at_first_step(self._header, samples)
        norms, clip_norm = _norms(step), step.clip_norm
        rule_step = RuleStep(number=number, drawn=drawn and drawn[0], norms=norms, clip_norm=clip_norm, noise=noise)
        self._rules.after_step(rule_step)
        changes = self._options.changes()
        self.audits.end_step()
        if number > 1 and any(change.by == UNKNOWN for change in changes.values()):
            self.audits.include()
        finish = partial(step.finish, number, len(self._sizes), drawn, rate, accounted, changes, ranked)
        self._waiting.append((step, finish))
        # A later part may continue a killed one, whose steps all count.
        together = 1 if self._opacus is None or self._resumes else self._opacus.rows.count
        if number == 1 or len(self._waiting) >= together or now - self._written > _SECONDS:
            self._write_waiting()
        if self._saved is not None and self._saved.received():
            self._save()

    def _write_waiting(self) -> None:
        """Write the steps that are complete; a killed process loses the last steps."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic() - self._started
        if self._opacus is not None:
            self._opacus.read()
        if waiting and self.writer is not None:
            finished = [finish() for _, finish in waiting]
            self.writer.write(*finished)
            for public, _ in finished:
                self.spent.add(public)


def _norms(step: PendingStep) -> Any:
    """The norms that a custom loop reported, (b,); None for Opacus, whose norms are read later."""
    if not step.norms or not all(isinstance(norms, Tensor) for norms in step.norms):
        return None
    return torch.cat([norms.reshape(-1) for norms in step.norms]).double().cpu().numpy()


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    named = uncompiled(model).named_parameters()
    return {name.removeprefix("_module.").replace("_orig_mod.", ""): p for name, p in named}
