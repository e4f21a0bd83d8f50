"""One training that is watched from the header of its folder to the end: what is seen, put together step by step."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.recording.folder.members import Indices
from dpspec.recording.folder.run_folder import RunWriter
from dpspec.recording.folder.step_record import UNSEEN
from dpspec.recording.parts import Parts
from dpspec.recording.side_state.model_state import ModelState
from dpspec.recording.side_state.options import OptionWatch
from dpspec.recording.step_hooks import StepHooks
from dpspec.recording.watching.gradients.gradient_parameters import GradientParameters
from dpspec.recording.watching.gradients.gradients_got import GradientsGot
from dpspec.recording.watching.gradients.sensitivity_probe import SensitivityProbe
from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.noise_watch import NoiseWatch
from dpspec.recording.watching.optimizer_state import OptimizerState, other_entries, untouched
from dpspec.recording.watching.optimizer_watch import OpacusWatch, Probing
from dpspec.recording.watching.parameter_watch import ParameterWatch
from dpspec.recording.watching.pending_step import PendingStep
from dpspec.recording.watching.recomputed_updates import RecomputedUpdates
from dpspec.recording.watching.sampler_watch import SamplerWatch


class WatchedTraining:
    """What a recorder knows between the beginning of its block and the end.

    own: the step that a loop of one's own tells of, not yet over. declared: what such a loop means to do from now on.
    writer: None once the recording is over. ended: the folder, to be scored, where the recording came to its end.
    """

    def __init__(self, folder: Path, parts: Parts) -> None:
        """Begin: write the header, and watch. Raises ``UsageError`` for a folder that holds anything."""
        self.own = PendingStep()
        self.declared = parts.declared
        self.writer: RunWriter | None = None
        self.ended: RunWriter | None = None
        self._folder, self._parts = folder, parts
        self.samples, notes = self._watch_sampler()
        header = parts.header(notes)
        try:
            self.gradients = parts.gradient_canaries()
            if self.gradients is not None and self.samples is None:
                raise UsageError("gradient canaries cannot enter this training: its sampler cannot be watched")
            self.writer = RunWriter(folder, header)
        except BaseException:
            if self.samples is not None:
                self.samples.detach()
            raise
        self._pid, self._started = os.getpid(), time.monotonic()
        self._layers = header.layers
        self._sizes = [size for _, size in header.layers]
        self._sketch = NoiseSketch(self._sizes)
        self._trained = parts.trained_parameters()
        self._watch = ParameterWatch(self._trained)
        self._held = ModelState(parts.model, self._trained)
        self._resumed = parts.optimizer is not None and not untouched(_inner(parts.optimizer))
        self._got = GradientsGot(parts.noisy_parameters(), self._sketch)
        self._noise = NoiseWatch(parts.noisy_parameters())
        self._given: dict[str, Tensor] = {}
        self._state = None if parts.optimizer is None else OptimizerState(_inner(parts.optimizer))
        self._updates = None if parts.optimizer is None else RecomputedUpdates(_inner(parts.optimizer), self._trained)
        self._entries = {} if parts.optimizer is None else other_entries(_inner(parts.optimizer))
        self._probe: SensitivityProbe | None = None
        self._opacus, self._handles = self._watch_optimizer()
        self._passes = None if parts.optimizer is None else GradientParameters(self._watch, parts.noisy_parameters())
        if self._passes is not None:
            self._passes.attach(parts.model, self.guarded)
        inner = None if parts.optimizer is None else _inner(parts.optimizer)
        self._options = OptionWatch(inner, self._private_options, self.guarded)

    def detach(self) -> None:
        """Stop watching."""
        self._options.remove()
        if self._opacus is not None:
            self._opacus.detach()
        for handle in self._handles:
            handle.remove()
        if self._passes is not None:
            self._passes.detach()
        if self.samples is not None:
            self.samples.detach()

    def guarded(self, look: Callable[[], None]) -> None:
        """Look on; what goes wrong ends the recording with a warning, and the training goes on."""
        if self.writer is None or os.getpid() != self._pid:
            return
        try:
            look()
        except Exception as error:
            writer, self.writer = self.writer, None
            warnings.warn(
                f"dpspec.record: the recording into {self._folder} ends at step {writer.steps}, the training goes on: "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            writer.close()

    def end(self, kind: type[BaseException] | None) -> None:
        """Write what is known now. kind: of the error that ended the block, if one did."""
        assert self.writer is not None
        untold = bool(self.own.updates or self.own.members or self.own.norms or self.own.noised)
        if untold and self._parts.clipping is None:
            self.own_step()
        accountant = self._parts.accountant
        left = self._opacus.step if self._opacus is not None else PendingStep()
        self.writer.end(
            {
                "outside": float(self._watch.moved()),
                **self._changed(),
                "meddled": self._opacus.meddled if self._opacus is not None else None,
                "resumed": self._resumed,
                "sums": self._opacus.sums.found if self._opacus is not None else None,
                "recomputed": self._opacus.recomputed.found if self._opacus and self._opacus.recomputed else None,
                "scaling": self._opacus.scaling.found if self._opacus is not None else None,
                "probe": self._probe.found if self._probe is not None else None,
                "probe_failure": self._probe.failure if self._probe is not None else "",
                "replaced": self._opacus.replaced.found if self._opacus is not None else None,
                "passes": self._passes.found if self._passes is not None else None,
                "gradients": self._got.sums(),
                "noise": self._noise.found(),
                "changed": self._opacus.changed if self._opacus is not None else None,
                "restated": self._state.restated if self._state is not None else None,
                "updates": self._updates.found if self._updates is not None else None,
                "optimizer": self._state.kind if self._state is not None else "",
                "norm_type": self._opacus.norm_type if self._opacus is not None else "",
                "sum_type": self._opacus.sum_type if self._opacus is not None else "",
                "error": kind.__name__[:100] if kind is not None else "",
                "untold": untold,
                "left_over_rows": 0 if left.rows == PendingStep().rows else left.rows,
                "noised_without_update": left.noised,
                "drawn_batches": self.samples.drawn if self.samples is not None else None,
                "passed_over": self.samples.passed_over if self.samples is not None else None,
                "unused_batches": self.samples.unused if self.samples is not None else None,
                "history": accountant.history() if accountant is not None else None,
                "seconds": time.monotonic() - self._started,
            }
        )
        self.writer, self.ended = None, self.writer

    def _changed(self) -> dict[str, list[str]]:
        """Names of what else changed, of the model and of the optimizer."""
        found = self._held.changed()
        optimizer = self._parts.optimizer
        if optimizer is not None:
            now = other_entries(_inner(optimizer))
            found["attributes"] += sorted(name[:100] for name in now if now[name] != self._entries.get(name))[:20]
        return found

    def tell_noise(self, noise: Tensor | Iterable[Tensor]) -> None:
        """Noise that a loop of one's own added in this step."""
        self.own.sketch, self.own.noised = self._sketched("noise", noise), True

    def tell_sum(self, total: Tensor | Iterable[Tensor]) -> None:
        """The sum that such a loop added noise to."""
        self.own.summed = self._sketched("the sum", total)

    def _sketched(self, what: str, given: Tensor | Iterable[Tensor]) -> Tensor:
        """A tensor of all coordinates, or one of each parameter, in a few numbers."""
        parts = [given] if isinstance(given, Tensor) else list(given)
        flat = torch.cat([part.detach().reshape(-1) for part in parts]) if parts else torch.zeros(0)
        if len(flat) != sum(self._sizes):
            apart = [(name, size, part.numel()) for (name, size), part in zip(self._layers, parts, strict=False)]
            first = next((one for one in apart if one[1] != one[2]), None) if len(parts) > 1 else None
            where = f": {first[0]} has {first[1]}, and {first[2]} were given for it" if first else ""
            raise UsageError(
                f"{what} must have {sum(self._sizes)} numbers, one for each parameter, got {len(flat)}{where}"
            )
        self._given[what] = flat
        self._sketch.clear()
        for part in torch.split(flat, self._sizes):
            self._sketch.add(part)
        return self._sketch.results()

    def own_step(self) -> None:
        """The step that a loop of one's own told of is over, and is written."""
        step, self.own = self.own, PendingStep()
        step.silent = not step.noised
        for name in ("noise_multiplier", "clip_norm", "rate"):
            if self.declared[name] is not None:
                setattr(step, name, float(self.declared[name]))
        step.deviation = step.noise_multiplier * step.clip_norm
        self._options.look()
        given, self._given = self._given, {}
        if "noise" in given:
            total = [given["the sum"]] if "the sum" in given else None
            self._noise.add([given["noise"]], total, step.deviation)
        self._got.compare(step, given.get("noise"), given.get("the sum"))
        drawn: tuple[Indices, int] | None = None
        if step.members:
            drawn = np.concatenate(step.members), 1
        elif self.samples is not None:
            drawn = self.samples.take(None if step.rows == UNSEEN else step.rows)
        if self._parts.optimizer is None:
            step.updates = 1
        else:
            step.moved_outside(self._watch.moved())
        self._write(step, drawn)

    def is_final(self, model: nn.Module) -> bool:
        """Whether a model has the parameters of the recorded one, which are those that its last step left."""
        given = dict(_named(model))
        pairs = [(given.get(name), p) for name, p in _named(self._parts.model)]
        same = all(q is p or (q is not None and q.dtype == p.dtype and torch.equal(q.cpu(), p.cpu())) for q, p in pairs)
        return same and float(self._watch.moved()) == 0.0

    # Who is watched.

    def _watch_sampler(self) -> tuple[SamplerWatch | None, list[str]]:
        """Who draws batches, and what cannot be known of them."""
        sampler = self._parts.sampler
        if sampler is None:
            return None, ["no loader was given: who was drawn is not seen"]
        notes = [sampler.note] if sampler.note else []
        if sampler.batches is None:
            return None, notes
        planted = self._parts.planted
        there = list if planted is None else planted.present
        watch = SamplerWatch(sampler.batches, ahead=self._parts.workers > 0, present=there)
        if not watch.attach():
            return None, [*notes, f"sampler {sampler.kind} cannot be watched: who was drawn is not seen"]
        return watch, notes

    def _watch_optimizer(self) -> tuple[OpacusWatch | None, list[Any]]:
        parts = self._parts
        if parts.clipping is not None:
            entering = None if self.gradients is None else self._enter_canaries
            watch = OpacusWatch(
                parts.optimizer, parts.clipping, parts.model, self._sketch, self._noise, entering, self._probing()
            )
            watch.attach(self._before, self._after, lambda: self._options.look(private=True), self.guarded)
            return watch, []
        if parts.optimizer is None:
            return None, []
        before, after = (lambda: self.guarded(self._before_own)), (lambda: self.guarded(self._after_own))
        return None, [StepHooks(parts.optimizer, before, after)]

    def _probing(self) -> Probing | None:
        """Hands each call the records of its physical batch, as the sampler drew them."""
        parts, samples = self._parts, self.samples
        if parts.loss is None or samples is None:
            return None
        self._probe = SensitivityProbe(parts.model, parts.optimizer, str(parts.clipping), parts.loss, parts.loader)

        def look(start: int, size: int, gradients: Sequence[Tensor] | None) -> None:
            assert self._probe is not None
            self._probe.look(samples.current()[start : start + size], gradients)

        return look

    # What happens.

    def _before(self) -> None:
        assert self._opacus is not None
        self._opacus.step.outside = self._watch.moved()
        self._opacus.look_before_update()
        self._look_at_state()
        if self.gradients is not None:
            self.gradients.look()

    def _enter_canaries(self, clip_norm: float) -> Tensor:
        """Those of the batch that was drawn for this step."""
        assert self.gradients is not None
        assert self.samples is not None
        return self.gradients.enter(self.samples.latest(), clip_norm)

    def _after(self) -> None:
        assert self._opacus is not None
        self._opacus.look_after_update()
        self._keep_state()
        step, self._opacus.step = self._opacus.step, PendingStep()
        step.updates = 1
        if not step.noised:
            step.noise_multiplier = float(self._parts.optimizer.noise_multiplier)
            step.clip_norm = float(self._parts.optimizer.max_grad_norm)
            step.deviation = step.noise_multiplier * step.clip_norm
        if self._passes is not None:
            self._passes.stepped()
        sampler = self._parts.sampler
        if sampler is not None and sampler.rate is not None:
            step.rate = float(getattr(sampler.batches, "sample_rate", sampler.rate))
        drawn = None if self.samples is None else self.samples.take(None if step.rows == UNSEEN else step.rows)
        self._write(step, drawn)

    def _before_own(self) -> None:
        self.own.moved_outside(self._watch.moved())
        self._got.look()
        self._look_at_state()

    def _after_own(self) -> None:
        self._keep_state()
        self._got.stepped(ordered=self._handles[0].ordered)
        self.own.updates += 1
        self.own.update = self._watch.advance()
        if self._passes is not None:
            self._passes.stepped()

    def _private_options(self) -> dict[str, Any]:
        declared = {name: value for name, value in self.declared.items() if name != "records"}
        return self._parts.private_options() if self._parts.clipping is not None else declared

    def _look_at_state(self) -> None:
        self._options.look()
        self._held.look()
        if self._state is not None:
            self._state.look_before()
        if self._updates is not None:
            self._updates.copy()

    def _keep_state(self) -> None:
        if self._updates is not None:
            self._updates.compare()
        if self._state is not None:
            self._state.look_after()

    def _write(self, step: PendingStep, drawn: tuple[Indices, int] | None) -> None:
        assert self.writer is not None
        accountant = self._parts.accountant
        told = accountant.told() if accountant is not None else None
        moved = self._watch.advance()
        update = moved if step.update is None else step.update
        now = time.monotonic() - self._started
        number, rate = self.writer.steps + 1, self._parts.learning_rate()
        public, internal = step.finish(
            number, now, len(self._sizes), drawn, rate, told, update, self._options.written()
        )
        self.writer.write(public, internal)


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """The one that steps, inside Opacus' or not."""
    inner: torch.optim.Optimizer = getattr(optimizer, "original_optimizer", optimizer)
    return inner


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters by their names in the module that Opacus wraps."""
    return [(name.removeprefix("_module."), p) for name, p in model.named_parameters()]
