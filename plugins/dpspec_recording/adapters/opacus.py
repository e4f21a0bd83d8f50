"""A training with Opacus' optimizer: its clipped sums, its noise and its updates, as events of observers.

The recorder wraps some of its methods on the instance, and adds hooks to the inner optimizer of torch. An update
without a preceding call of ``add_noise`` counts as noise-free.
"""

import contextlib
import math
import operator
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec.errors import UnobservableError
from dpspec_recording.adapters.adapter import Adapter
from dpspec_recording.folder.events import UNSEEN
from dpspec_recording.notices import notice
from dpspec_recording.observers.observer import Events, Training
from dpspec_recording.parts import Parts
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.planting.planted import GradientCanaries
from dpspec_recording.shards import local
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.origins import MOST_RECORDS
from dpspec_recording.step_replay.watch import ReplayedSteps
from dpspec_recording.sums.clipped_sums import ClippedGradients, summed_gradients
from dpspec_recording.sums.ghost_sums import GhostSums
from dpspec_recording.watching.memory_rows import drawn_rows, tensors_in_memory
from dpspec_recording.watching.step_hooks import attach_step_hooks, put_method

#: Steps that are read together, and numbers of gradients that are kept for it.
_STEPS, _NUMBERS = 32, 2**19

#: Norms are kept at the first audited steps, and later at one of this number.
_NORMS = 10

#: An observation of the recorder.
Moment = Callable[[], None]


class StepRows:
    """Copies of the noisy gradients and the sums of a few steps of a small model, which are read together.

    Reading one step takes longer than its training: 30 calls of torch for each layer.

    Attributes:
        steps: Those that wait.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.sizes = [p.numel() for p in parameters]
        plain = bool(parameters) and all(p.is_cpu and p.dtype == torch.float32 for p in parameters)
        #: 1 for a large model, on another device or in other precision, which is not copied.
        self.count = max(1, min(_STEPS, _NUMBERS // max(1, sum(self.sizes)))) if plain else 1
        self.steps: list[PendingStep] = []
        rows = self.count if self.count > 1 else 0
        self._gradients, self._sums = torch.empty(2, rows, sum(self.sizes)).unbind()

    def keep(self, step: PendingStep, gradients: Sequence[Any], sums: Sequence[Any]) -> bool:
        """Keep the copies of a step; False if they are of other types or sizes than the parameters."""
        tensors = (*gradients, *sums)
        if self.count == 1 or any(tensor is None or tensor.dtype != torch.float32 for tensor in tensors):
            return False
        if not [tensor.numel() for tensor in gradients] == self.sizes == [tensor.numel() for tensor in sums]:
            return False
        row = len(self.steps)
        self.steps.append(step)
        torch.cat([tensor.reshape(-1) for tensor in gradients], out=self._gradients[row])
        torch.cat([tensor.reshape(-1) for tensor in sums], out=self._sums[row])
        return True

    def take(self) -> tuple[list[PendingStep], Tensor, Tensor]:
        """The steps, and (k, coordinates) their noisy gradients and sums, until the next step is kept."""
        steps, self.steps = self.steps, []
        return steps, self._gradients[: len(steps)], self._sums[: len(steps)]


class OpacusTraining(Adapter):
    """The adapter of a training with Opacus' optimizer, whose methods it wraps."""

    def __init__(self, training_parts: Parts, canaries: GradientCanaries | None) -> None:
        """canaries: those that enter the sums of this training."""
        self._parts, self._canaries, self._optimizer = training_parts, canaries, training_parts.optimizer
        self._rows = StepRows([])
        self._clipped: ClippedGradients | GhostSums | None = None

    def attach(self, training: Training, events: Events) -> None:
        """Observe until ``training.undo`` ends it."""
        optimizer, clipping = self._optimizer, self._parts.clipping or ""
        self._training, self._events, self._rank = training, events, training.rank
        self._guarded, self._undo, self._audits = training.guarded, training.undo, training.audits
        self._clipping, self._model, self._sketch = clipping, self._parts.hooks or self._parts.model, training.sketch
        self._parameters: list[Any] = list(optimizer.params)
        self._sharding = self._parts.sharding
        self._rows = StepRows([] if training.rank is not None else self._parameters)
        self.waits = self._rows.count
        self._replays: ReplayedSteps | None = None
        if self._clipping == "ghost":
            self._clipped = self._attach_ghost()
        else:
            self._clipped = contributions = ClippedGradients(optimizer, self._clipping)
            before_sum = partial(self._begin_sum, contributions)
            self._wrap(optimizer, "clip_and_accumulate", before_sum, self._after_sum, if_audited=True)
        training.clipped = self._clipped
        self._wrap(optimizer, "add_noise", self._before_noise, self._after_noise)
        if self._clipping == "adaptive":  # it reads its noisy count in Python
            self._wrap(optimizer, "update_max_grad_norm", self._begin_count, self._end_count)
        if self._rank is not None and self._sharding is None:
            self._wrap(optimizer, "reduce_gradients", self._before_reduction, self._after_reduction)
        before, after = partial(training.guarded, self._before_update), partial(training.guarded, self._after_update)
        attach_step_hooks(optimizer.original_optimizer, before, after, training.undo)
        if not self._parts.replay_obstacle:
            self._replays = training.replayer = ReplayedSteps(
                self._parts.model,
                optimizer,
                training.audits,
                training.pauses,
                ghost=self._clipping == "ghost",
                drawn=self._drawn_records,
                public=self._parts.public,
                earlier=self._parts.earlier,
                dataset=tensors_in_memory(self._parts.loader),
                is_rank=self._rank is not None,
            )
            self._replays.attach(training.guarded, training.undo, self._parts.loader)
            training.explain = partial(_explain, self._replays)

    def _attach_ghost(self) -> GhostSums:
        optimizer, training = self._optimizer, self._training
        if self._sharding is not None and self._rank is not None:
            ghost: GhostSums = self._sharding.ghost_sums(
                self._model, self._audits, self._rank, passing=lambda: training.observe_backward()
            )
        else:
            ghost = GhostSums(self._model, optimizer, self._audits)
        ghost.attach(self._guarded, self._undo)
        self._wrap(optimizer, "accumulate", partial(self._begin_ghost, ghost), partial(self._after_ghost, ghost))
        if callable(getattr(self._model, "get_clipping_coef", None)):
            clips = partial(self._events.emit, "before_clip")
            self._wrap(self._model, "get_clipping_coef", clips, ghost.after_coefficients)
        return ghost

    @property
    def is_rounded(self) -> bool:
        """Whether the norms of contributions are rounded to half precision."""
        return self._clipped is not None and self._clipped.norm_type != ""

    def options(self) -> dict[str, Any]:
        """The options of the private sum now."""
        return self._parts.private_options()

    def accumulates(self) -> bool:
        """Whether the optimizer has got a physical batch of a step that is not complete."""
        return self.step.rows != UNSEEN

    def present(self) -> tuple[float | None, float | None]:
        """The noise multiplier and the rate of a step that would come now."""
        sampler = self._parts.sampler
        rate = None if sampler is None else getattr(sampler.batches, "sample_rate", sampler.rate)
        return self._optimizer.noise_multiplier, rate

    def _drawn_records(self) -> DrawnRecords | None:
        """The records of the latest batch in their dataset, if it is in memory."""
        samples = self._training.samples
        if samples is None:
            return None
        with contextlib.suppress(Exception):  # a dataset of another kind
            drawn = drawn_rows(self._parts.loader, samples.latest())
            return None if drawn is None else DrawnRecords(*drawn, sample=self._sampled_records)
        return None

    def _sampled_records(self) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """Random records of the dataset, and their indices."""
        records = len(self._parts.loader.dataset)
        indices = random.SystemRandom().sample(range(records), min(MOST_RECORDS, records))
        drawn = drawn_rows(self._parts.loader, np.array(indices))
        return None if drawn is None else drawn[:2]

    def _before_update(self) -> None:
        self.step.outside = self._training.begin_update()
        if self._replays is not None:
            self._replays.update_begins([p.grad for p in self._parameters])
        if self._canaries is not None:
            self._canaries.before_step()

    def _after_update(self) -> None:
        training = self._training
        if self._replays is not None:
            self._replays.update_ends()
        self._events.emit("after_update")
        step, training.step = training.step, PendingStep()
        step.updates = 1
        if self._replays is not None:
            self._replays.after_step()
        if not step.noised:
            step.noise_multiplier = float(self._optimizer.noise_multiplier)
            step.clip_norm = float(self._optimizer.max_grad_norm)
            step.deviation = step.noise_multiplier * step.clip_norm
        samples, sampler = training.samples, self._parts.sampler
        if samples is not None:
            step.drawn, step.batches = samples.take(None if step.rows == UNSEEN else step.rows)
        if sampler is not None and sampler.rate is not None:
            drawn_at = [] if samples is None else samples.rates
            rates = [*drawn_at, getattr(sampler.batches, "sample_rate", None)]
            if not {float, int, type(None)}.issuperset(map(type, rates)):
                raise UnobservableError(
                    "sample_rate of the sampler is not a number: records may enter at different rates"
                )
            step.rate = max([float(rate) for rate in rates if rate is not None], default=sampler.rate)
        training.write(step)
        if step.number == 1 and samples is not None and not samples.drawn:
            notice(
                "dpspec.record: the first step used no batch of the loader, so no claim will be proved: give "
                "dpspec.record the loader that the training loop iterates, as make_private returned it",
                UserWarning,
            )

    def _wrap(
        self, holder: Any, name: str, before: Moment, after: Callable[[Any], None], *, if_audited: bool = False
    ) -> None:
        """Observe a method before and after its calls. if_audited: after calls in audited steps only."""
        original, guarded = getattr(holder, name), self._guarded

        def replaced(_: Any, *args: Any, **named: Any) -> Any:
            guarded(before)
            result = original(*args, **named)
            if self._audits.audited or not if_audited:
                guarded(partial(after, result))
            return result

        self._undo.callback(put_method(holder, name, MethodType(replaced, holder)))

    def _require_same_parameters(self) -> None:
        params, parameters = self._optimizer.params, self._parameters
        if len(params) == len(parameters) and all(map(operator.is_, params, parameters)):
            return
        frozen, added = len(set(parameters) - {*params}), len({*params} - set(parameters))
        raise UnobservableError(
            "the optimizer trains other parameters than at the beginning of the block "
            f"({frozen} tensors frozen, {added} added): freeze or unfreeze layers before make_private"
        )

    def _begin_sum(self, contributions: ClippedGradients) -> None:
        self._require_same_parameters()
        self._events.emit("before_clip")
        rows, audits = contributions.count(), self._audits
        self._events.emit("before_sum")
        self.step.add_rows(rows)
        if audits.audited and (audits.count < _NORMS or audits.count % _NORMS == 0):
            self.step.norms.append(contributions.clipped_norms())

    def _after_sum(self, _: Any) -> None:
        self._events.emit("after_sum")

    @property
    def step(self) -> PendingStep:
        """The step that is not over."""
        return self._training.step

    def _begin_count(self) -> None:
        if self._replays is not None:
            self._replays.exclude_from_map(begins=True)

    def _end_count(self, _: Any) -> None:
        if self._replays is not None:
            self._replays.exclude_from_map(begins=False)

    def _begin_ghost(self, ghost: GhostSums) -> None:
        self._require_same_parameters()
        self._events.emit("before_sum")
        ghost.before_accumulate()

    def _after_ghost(self, ghost: GhostSums, _: Any) -> None:
        if self._audits.audited:
            self._events.emit("after_sum")
        clipped = ghost.after_accumulate()
        if clipped is not None:
            rows, norms = clipped
            self.step.add_rows(rows)
            self.step.norms += [] if norms is None else [norms]

    def _before_noise(self) -> None:
        self._events.emit("before_noise")
        if self._replays is not None:
            self._replays.before_noise(partial(summed_gradients, self._optimizer, self._parameters))
        if self._canaries is not None and self._training.samples is not None:
            norms = self._canaries.enter(self._training.samples.latest(), float(self._optimizer.max_grad_norm))
            self.step.rows += len(norms)
            if self.step.norms:
                self.step.norms.append(norms)
        if self._rank is not None:
            self._rank.before_noise()

    def _after_noise(self, _: Any) -> None:
        step, optimizer, parameters = self.step, self._optimizer, self._parameters
        multiplier = expected_multiplier(optimizer, self._clipping)
        step.noise_multiplier = min(float(optimizer.noise_multiplier), multiplier)
        step.clip_norm = float(optimizer.max_grad_norm)
        step.deviation = multiplier * step.clip_norm
        step.noised, step.divisor = True, 1.0
        if optimizer.loss_reduction == "mean":
            step.divisor = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
        self._events.emit("after_noise")
        if self._audits.audited and self._replays is not None:
            self._replays.after_noise([p.grad for p in parameters])
        if len(self._rows.steps) >= self._rows.count:
            self.read()
        gradients, sums = [p.grad for p in parameters], summed_gradients(optimizer, parameters)
        if not self._rows.keep(step, gradients, sums):
            self._read_noise(step)

    def _read_noise(self, step: PendingStep) -> None:
        optimizer, rank, sharding = self._optimizer, self._rank, self._sharding
        gradients = [local(p.grad).detach().reshape(1, -1) for p in self._parameters]
        sums = [
            total.detach().reshape(1, -1)
            for total in summed_gradients(optimizer, self._parameters)
            if total is not None
        ]
        scale = 1.0 if sharding is None or rank is None else sharding.divisor(rank)
        starts = rank.starts if rank is not None and rank.sharded else repeat(0)
        measured = self._sketch.measure(gradients, sums, starts=starts, scale=scale, noisy=True)
        step.sketch, step.sum_norm = measured.sketches[0], measured.lengths[0]
        noisy = rank is None or bool(step.sketch.any())  # one rank adds the noise
        if rank is not None and (rank.sharded or noisy):
            rank.after_noise(measured, step.deviation)
        if noisy:
            self._events.emit("noise_measured", measured, [step.deviation])

    @torch.no_grad()
    def read(self) -> None:
        """Read the noise of the last steps that :meth:`_after_noise` put off."""
        if not self._rows.steps:
            return
        steps, gradients, sums = self._rows.take()
        layers = (torch.split(row, self._rows.sizes, dim=1) for row in (gradients, sums))
        measured = self._sketch.measure(*layers, noisy=True)
        self._events.emit("noise_measured", measured, [step.deviation for step in steps])
        lengths, sketches = measured.lengths.tolist(), measured.sketches.numpy()
        for step, sketch, length in zip(steps, sketches, lengths, strict=True):
            step.sketch, step.sum_norm = sketch, length

    def _before_reduction(self) -> None:
        assert self._rank is not None
        self._events.emit("before_reduction")
        self._rank.reduction(over=False)

    def _after_reduction(self, _: Any) -> None:
        assert self._rank is not None
        self._rank.reduction(over=True)
        self._events.emit("after_reduction")


def _explain(
    replays: ReplayedSteps, stage: str, values: Sequence[Tensor], gradients: Sequence[Tensor], is_changed: bool
) -> bool:
    return replays.explain(stage, values, gradients, is_changed=is_changed)


def expected_multiplier(optimizer: Any, clipping: str) -> float:
    """The noise multiplier on gradients that follows from the optimizer's options.

    With ghost clipping Opacus prefers another attribute to the multiplier that its accountant counts. Adaptive
    clipping spends some of its noise multiplier s on a count with noise of standard deviation u, and adds noise of
    (s^-2 - (2 u)^-2)^(-1/2) to gradients (Andrew et al. 2021, Theorem 1).
    """
    multiplier = float(optimizer.noise_multiplier)
    if clipping == "adaptive" and multiplier > 0.0:
        inverse_variance = multiplier**-2 - (2.0 * float(optimizer.unclipped_num_std)) ** -2
        return inverse_variance**-0.5 if inverse_variance > 0.0 else math.inf
    return float(getattr(optimizer, "_adjusted_noise_multiplier", multiplier)) if clipping == "ghost" else multiplier
