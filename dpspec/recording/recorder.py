"""``dpspec.record``: a training is watched from inside its own script, and what it does is written down."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.recording.folder.members import Indices
from dpspec.recording.folder.run_folder import RunWriter
from dpspec.recording.folder.step_record import UNSEEN
from dpspec.recording.parts import Parts, checked_declaration
from dpspec.recording.planting.planted import Planted
from dpspec.recording.planting.scoring import Loss, scores_of, table
from dpspec.recording.watching.gradients_got import GradientsGot
from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.optimizer_watch import OpacusWatch
from dpspec.recording.watching.parameter_watch import ParameterWatch
from dpspec.recording.watching.pending_step import PendingStep
from dpspec.recording.watching.repeated_noise import RepeatedNoise
from dpspec.recording.watching.sampler_watch import SamplerWatch


def record(
    folder: str | PathLike[str],
    *,
    model: nn.Module,
    optimizer: Any = None,
    loader: Any = None,
    engine: Any = None,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    rate: float | None = None,
    records: int | None = None,
    planted: Planted | None = None,
) -> Recorder:
    """A recorder of one training, for ``with``: it watches while the block runs, and changes nothing of it.

    folder: where the run is written; new or empty. model: the module that is trained, as ``make_private`` returned it.
    optimizer: the one that the loop steps: Opacus' ``DPOptimizer`` (flat, per-layer, adaptive or ghost clipping, around
    any optimizer of torch), or, for a loop of one's own, one of torch or None. loader: the one that the loop iterates,
    or that ``BatchMemoryManager`` wraps. engine: Opacus' ``PrivacyEngine``, or an accountant with a ``history``.

    A loop of one's own says at each step what it did, by :meth:`Recorder.sampled`, :meth:`Recorder.clipped`,
    :meth:`Recorder.summed`, :meth:`Recorder.noised` and :meth:`Recorder.stepped`, and here, or later by
    :meth:`Recorder.declare`, what it means to do: noise_multiplier, the deviation of the noise on a sum in clip norms,
    >= 0; clip_norm, > 0; rate, in (0, 1], with which Poisson sampling draws each of ``records`` records. By
    :meth:`Recorder.summed` the noise that it tells of is found in the gradients that ``optimizer`` gets; without it no
    claim about a loop of one's own is proved. Opacus' own optimizer and loader say all of it themselves.

    planted: what :func:`dpspec.plant` returned, for a loop without a loader; a loader over it says so itself. Once the
    block is over :meth:`Recorder.score` scores its canaries. Those of kind ``gradients`` are the one thing that the
    recorder adds to a training, to the sums of clipped gradients, as whoever plants them asks for.

    Raises ``UsageError`` for a folder that holds anything, and for what the recorder does not know, by name: wrappers
    that spread a step over processes, optimizers that are derived from Opacus'.

        with dpspec.record("run", model=model, optimizer=optimizer, loader=loader, engine=engine):
            train(model, optimizer, loader)
    """
    given = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": records}
    return Recorder(Path(folder), model, optimizer, loader, engine, planted, given)


class Recorder:
    """Watches one training; made by :func:`record`.

    A fault while looking on is told of by a warning and ends the recording, never the training. Nothing here draws a
    random number of the training's, and none of its tensors is written to, but for gradient canaries that were planted.
    """

    def __init__(
        self,
        folder: Path,
        model: Any,
        optimizer: Any,
        loader: Any,
        engine: Any,
        planted: Planted | None,
        given: dict[str, Any],
    ) -> None:
        """As for :func:`record`; nothing is written before the block begins."""
        self.folder = folder
        self._parts = Parts(model, optimizer, loader, engine, planted, given)
        self._declared = self._parts.declared
        self._writer: RunWriter | None = None
        self._ended: RunWriter | None = None
        self._begun = self._scored = False

    def __enter__(self) -> Self:
        """Begin: write the header, and watch."""
        if self._begun:
            raise UsageError("a recorder records once: call dpspec.record again, with another folder")
        parts = self._parts
        self._samples, notes = self._watch_sampler()
        header = parts.header(notes)
        try:
            self._gradients = parts.gradient_canaries()
            if self._gradients is not None and self._samples is None:
                raise UsageError("gradient canaries cannot enter this training: its sampler cannot be watched")
            self._writer = RunWriter(self.folder, header)
        except BaseException:
            if self._samples is not None:
                self._samples.detach()
            raise
        self._begun, self._pid, self._started = True, os.getpid(), time.monotonic()
        self._layers = header.layers
        self._sizes = [size for _, size in header.layers]
        self._sketch = NoiseSketch(self._sizes)
        self._trained = parts.trained_parameters()
        self._watch = ParameterWatch(self._trained)
        self._untrained = parts.untrained(self._trained)
        self._resumed = parts.optimizer is not None and bool(parts.optimizer.state)
        self._own = PendingStep()
        self._got = GradientsGot(parts.noisy_parameters(), self._sizes)
        self._repeated = RepeatedNoise(self._sizes)
        self._opacus, self._handles = self._watch_optimizer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End: stop watching, and write what is known now."""
        if self._opacus is not None:
            self._opacus.detach()
        for handle in self._handles:
            handle.remove()
        if self._samples is not None:
            self._samples.detach()
        self._guarded(lambda: self._end(kind))
        self._writer = None

    # What a loop of one's own says.

    def sampled(self, indices: Tensor | Sequence[int]) -> None:
        """Records that were drawn for this step, by number; several calls before :meth:`stepped` add up.

        Of a planted data set the places that were drawn, with or without those of canaries that are left out.
        """
        pending = self._telling("sampled")
        drawn = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(list(indices))
        drawn, planted = drawn.reshape(-1).astype(np.int64), self._parts.planted
        pending.members.append(drawn if planted is None else np.asarray(planted.present(drawn), dtype=np.int64))

    def clipped(self, norms: Tensor | Sequence[float]) -> None:
        """The l2 norms (b,) of what was added up for each record, after clipping; several calls add up."""
        pending = self._telling("clipped")
        given = norms.detach() if isinstance(norms, Tensor) else torch.tensor(list(norms))
        pending.norms.append(given.reshape(-1).double())
        pending.add_rows(given.numel())

    def noised(self, noise: Tensor | Iterable[Tensor]) -> None:
        """The noise that was added to the sum of clipped gradients, before it was divided by anything.

        One tensor of all coordinates in the order of ``model.parameters()``, or one for each of its trained tensors.
        """
        pending = self._telling("noised")
        if pending.noised:
            raise UsageError(
                "noised was called twice in one step: call it once, and run.stepped() at the end of each step"
            )
        pending.sketch, pending.noised = self._sketched("noise", noise, self._repeated.look), True

    def summed(self, total: Tensor | Iterable[Tensor]) -> None:
        """The sum of what was clipped, before noise is added to it and before it is divided by anything.

        As for :meth:`noised`. What the optimizer that was given steps with must be this and the noise, over a divisor:
        whatever else there is, or is missing, is seen to the last digit.
        """
        pending = self._telling("summed")
        if pending.summed is not None:
            raise UsageError(
                "summed was called twice in one step: call it once, and run.stepped() at the end of each step"
            )
        pending.summed = self._sketched("the sum", total)

    def _sketched(
        self, what: str, given: Tensor | Iterable[Tensor], look: Callable[[Tensor], None] | None = None
    ) -> Tensor:
        """A tensor of all coordinates, or one of each parameter, in a few numbers; ``look`` sees all of it."""
        parts = [given] if isinstance(given, Tensor) else list(given)
        flat = torch.cat([part.detach().reshape(-1) for part in parts]) if parts else torch.zeros(0)
        if len(flat) != sum(self._sizes):
            apart = [(name, size, part.numel()) for (name, size), part in zip(self._layers, parts, strict=False)]
            first = next((one for one in apart if one[1] != one[2]), None) if len(parts) > 1 else None
            where = f": {first[0]} has {first[1]}, and {first[2]} were given for it" if first else ""
            raise UsageError(
                f"{what} must have {sum(self._sizes)} numbers, one for each parameter, got {len(flat)}{where}"
            )
        if look is not None:
            look(flat)
        self._sketch.clear()
        for part in torch.split(flat, self._sizes):
            self._sketch.add(part)
        return self._sketch.results()

    def stepped(self) -> None:
        """The parameters were moved: the step is over, and is written."""
        self._telling("stepped")
        self._guarded(self._own_step)

    def declare(
        self,
        *,
        noise_multiplier: float | None = None,
        clip_norm: float | None = None,
        rate: float | None = None,
    ) -> None:
        """What the loop means to do from now on, where that changes; as for :func:`record`."""
        self._telling("declare")
        given = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": None}
        self._declared |= {key: value for key, value in checked_declaration(given).items() if value is not None}

    def _telling(self, what: str) -> PendingStep:
        if self._parts.clipping is not None:
            raise UsageError(
                f"run.{what} is for loops of one's own; Opacus' optimizer is watched, nothing is to be said"
            )
        if not self._begun:
            raise UsageError(f"run.{what} was called outside of the recorder's with block")
        return self._own

    # Once the block is over.

    def score(self, model: nn.Module | None = None, loss: Loss | None = None, *, batch_size: int = 256) -> None:
        """Score all canaries of the planted data set, those that are in and those that are left out, and write it down.

        model: the one that was trained. loss: ``loss(model, batch)`` gives the loss of each record of a batch, (b,), as
        the loader puts batches together; what is low for canaries that were trained on. It is asked about all canaries
        by one rule, ``batch_size`` at a time, in their order, the model in its mode for evaluation and without
        gradients, and is not told which of them are in. Coins and scores go to ``canaries.npz`` in the folder, which
        speaks of records and is not for publication. ``dpspec check`` shows what they prove.

        Of canaries of kind ``gradients`` neither model nor loss is asked for: the score is how far all gradients that
        the optimizer stepped with went along the canary's direction.

        Canaries are scored once: whoever scores again, and takes what shows most, has no bound.

        Raises ``UsageError`` where nothing was planted, before the end of the block, for a second time, where ``loss``
        does not give a number for each record, without a model and a loss of records, and with one of gradients.
        """
        planted, writer = self._parts.planted, self._ended
        if planted is None:
            raise UsageError("nothing was planted: give the loader, or planted=, what dpspec.plant returned")
        if self._scored:
            raise UsageError("canaries are scored once: to score by another rule, train again with other coins")
        if writer is None:
            why = "the recording came to no end" if self._begun and self._writer is None else "the block is not over"
            raise UsageError(f"run.score is for after the block: {why}")
        if self._gradients is not None:
            if model is not None or loss is not None:
                raise UsageError("canaries of kind 'gradients' are scored by no model and no loss: write run.score()")
            values, final = self._gradients.scores(), True
        elif model is None or loss is None:
            raise UsageError("canaries that are records are scored by a model and a loss: run.score(model, loss)")
        else:
            collate = getattr(self._parts.loader, "collate_fn", None) or planted.collate or default_collate
            values, final = scores_of(model, loss, planted.canaries, collate, batch_size), self._is_final(model)
        content = table(planted.coins, values, planted.source)
        self._scored = True
        writer.scored(content, canaries=planted.count, final=final)

    def _is_final(self, model: nn.Module) -> bool:
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
            entering = None if self._gradients is None else self._enter_canaries
            watch = OpacusWatch(parts.optimizer, parts.clipping, parts.model, self._sketch, entering)
            watch.attach(self._before, self._after, self._guarded)
            return watch, []
        if parts.optimizer is None:
            return None, []
        before = parts.optimizer.register_step_pre_hook(lambda *_: self._guarded(self._before_own))
        after = parts.optimizer.register_step_post_hook(lambda *_: self._guarded(self._after_own))
        return None, [before, after]

    # What happens.

    def _before(self) -> None:
        assert self._opacus is not None
        self._opacus.step.outside = self._watch.moved()
        self._opacus.look_before_update()
        if self._gradients is not None:
            self._gradients.look()

    def _enter_canaries(self, clip_norm: float) -> Tensor:
        """Those of the batch that was drawn for this step."""
        assert self._gradients is not None
        assert self._samples is not None
        return self._gradients.enter(self._samples.latest(), clip_norm)

    def _after(self) -> None:
        assert self._opacus is not None
        self._opacus.look_after_update()
        step, self._opacus.step = self._opacus.step, PendingStep()
        step.updates = 1
        if not step.noised:
            step.noise_multiplier = float(self._parts.optimizer.noise_multiplier)
            step.clip_norm = float(self._parts.optimizer.max_grad_norm)
            step.deviation = step.noise_multiplier * step.clip_norm
        sampler = self._parts.sampler
        if sampler is not None and sampler.rate is not None:
            step.rate = float(getattr(sampler.batches, "sample_rate", sampler.rate))
        drawn = None if self._samples is None else self._samples.take(None if step.rows == UNSEEN else step.rows)
        self._write(step, drawn)

    def _before_own(self) -> None:
        self._own.moved_outside(self._watch.moved())
        self._got.look()

    def _after_own(self) -> None:
        self._got.stepped()
        self._own.updates += 1
        self._own.update = self._watch.moved()
        self._watch.keep()

    def _own_step(self) -> None:
        step, self._own = self._own, PendingStep()
        step.silent = not step.noised
        for name in ("noise_multiplier", "clip_norm", "rate"):
            if self._declared[name] is not None:
                setattr(step, name, float(self._declared[name]))
        step.deviation = step.noise_multiplier * step.clip_norm
        self._got.compare(step)
        drawn: tuple[Indices, int] | None = None
        if step.members:
            drawn = np.concatenate(step.members), 1
        elif self._samples is not None:
            drawn = self._samples.take(None if step.rows == UNSEEN else step.rows)
        if self._parts.optimizer is None:
            step.updates = 1
        else:
            step.moved_outside(self._watch.moved())
        self._write(step, drawn)

    def _write(self, step: PendingStep, drawn: tuple[Indices, int] | None) -> None:
        assert self._writer is not None
        accountant = self._parts.accountant
        told = accountant.told() if accountant is not None else None
        update = self._watch.moved() if step.update is None else step.update
        self._watch.keep()
        now = time.monotonic() - self._started
        number, rate = self._writer.steps + 1, self._parts.learning_rate()
        self._writer.write(*step.finish(number, now, len(self._sizes), drawn, rate, told, update))

    def _end(self, kind: type[BaseException] | None) -> None:
        assert self._writer is not None
        untold = bool(self._own.updates or self._own.members or self._own.norms or self._own.noised)
        if untold and self._parts.clipping is None:
            self._own_step()
        accountant = self._parts.accountant
        left = self._opacus.step if self._opacus is not None else PendingStep()
        self._writer.end(
            {
                "outside": float(self._watch.moved()),
                "buffers": self._changed(),
                "meddled": self._opacus.meddled if self._opacus is not None else None,
                "resumed": self._resumed,
                "gradients": self._got.sums(),
                "repeated": self._repeated.found(),
                "changed": self._opacus.changed if self._opacus is not None else None,
                "norm_type": self._opacus.norm_type if self._opacus is not None else "",
                "sum_type": self._opacus.sum_type if self._opacus is not None else "",
                "error": kind.__name__[:100] if kind is not None else "",
                "untold": untold,
                "left_over_rows": 0 if left.rows == PendingStep().rows else left.rows,
                "noised_without_update": left.noised,
                "drawn_batches": self._samples.drawn if self._samples is not None else None,
                "passed_over": self._samples.passed_over if self._samples is not None else None,
                "unused_batches": self._samples.unused if self._samples is not None else None,
                "history": accountant.history() if accountant is not None else None,
                "seconds": time.monotonic() - self._started,
            }
        )
        self._writer, self._ended = None, self._writer

    def _changed(self) -> list[str]:
        """Names of what else the model holds that is not what it was, is new or is gone; a few where they are many."""
        now, before = self._parts.untrained(self._trained), self._untrained
        return sorted(name[:100] for name in now.keys() | before.keys() if now.get(name) != before.get(name))[:20]

    def _guarded(self, look: Callable[[], None]) -> None:
        """Look on; what goes wrong ends the recording with a warning, and the training goes on."""
        if self._writer is None or os.getpid() != self._pid:
            return
        try:
            look()
        except Exception as error:
            writer, self._writer = self._writer, None
            warnings.warn(
                f"dpspec.record: the recording into {self.folder} ends at step {writer.steps}, the training goes on: "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            writer.close()


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters by their names in the module that Opacus wraps."""
    return [(name.removeprefix("_module."), p) for name, p in model.named_parameters()]
