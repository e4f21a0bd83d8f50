"""Opacus' optimizer during a step: its clipped sums, its noise, its divisor and its update.

The recorder wraps some of its methods on the instance, and adds hooks to the inner optimizer of torch. An update
without a preceding call of ``add_noise`` counts as noise-free.
"""

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from dpspec.errors import UnobservableError
from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.fingerprints import Tally, TensorSnapshot
from dpspec_recording.folder.probe_facts import ScaledFacts
from dpspec_recording.folder.step_record import UNSEEN
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.ranks.rank_watch import RankWatch
from dpspec_recording.ranks.shards import local
from dpspec_recording.step_replay.watch import ReplayedSteps
from dpspec_recording.sums.centering import is_centered_row
from dpspec_recording.sums.clip_limits import ClipLimits, clip_limit
from dpspec_recording.sums.clipped_sums import Contributions, SummedGradients, summed_gradients
from dpspec_recording.sums.ghost_sums import GhostSums, ShardedGhostSums
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.noise_watch import NoiseWatch
from dpspec_recording.watching.optimizer_state import adds_in_place
from dpspec_recording.watching.step_hooks import attach_step_hooks, put_method

#: Steps that are read together, and numbers of gradients that are kept for it.
_STEPS, _NUMBERS = 32, 2**19

#: Relative rounding of a gradient that is divided by the declared number, and a relative factor beyond rounding.
_DIVIDED, _FACTOR = 2.0**-18, 1e-4

#: The places of a map of the gradients.
_BEFORE, _WITHIN = "before the update", "in the update"

#: Coordinates that are compared in double precision at one time.
_CHUNK = 2**20

#: Norms are kept at the first audited steps, and later at one of this number.
_NORMS = 10

#: An observation of the recorder.
Moment = Callable[[], None]

#: Adds gradient canaries to the sum of a step, given its clip norm, before noise; returns the norm of each, (k,).
Entering = Callable[[float], Tensor]

#: Whether a map explains gradients: of a place in the step, from values, to gradients, which may be unchanged.
Explaining = Callable[[str, Sequence[Tensor], Sequence[Tensor], bool], bool]


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


class SteppedGradients:
    """Whether the optimizer steps with the noisy sum over the declared divisor, at audited steps.

    Centered gradients count as the noisy sum, whether centered before the step or in it, and so do those that a map
    of it explains.

    Attributes:
        changed: The number of updates with other gradients.
        compared: The number of compared updates.
    """

    def __init__(
        self,
        optimizer: Any,
        explain: Explaining = lambda *_: False,
        finds_maps: Callable[[], bool] = lambda: False,
    ) -> None:
        """Observe the gradients of an optimizer.

        Args:
            optimizer: Opacus' optimizer.
            explain: Returns whether the gradients of a place in the step come from a map of the ones before.
            finds_maps: Returns whether ``explain`` would find an unknown map in this step.
        """
        self._optimizer, self._parameters, self._explain = optimizer, list(optimizer.params), explain
        self._finds_maps = finds_maps
        self._noisy: Tensor | None = None
        self._divided: Tensor | None = None
        self._left = TensorSnapshot()
        self.changed = Tally()
        self.compared = 0
        self._scaled = self._explained = 0
        self._mapped: set[str] = set()  # the places in the step with a map

    @property
    def scaled(self) -> ScaledFacts:
        """The updates with one factor beyond the divisor."""
        return ScaledFacts(scaled=self._scaled, explained=self._explained)

    def _row(self) -> Tensor | None:
        """(coordinates,), a copy of all gradients; None if a parameter has none."""
        gradients = [None if p.grad is None else local(p.grad).detach().reshape(-1) for p in self._parameters]
        device = self._parameters[0].device
        whole = [gradient.to(device) for gradient in gradients if gradient is not None]
        return torch.cat(whole) if whole and len(whole) == len(gradients) else None

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the noisy sum, before its division."""
        self._noisy = self._row()

    def divide(self, step: PendingStep) -> None:
        """Compare the divided gradients with the kept noisy sum, and measure the divisor."""
        noisy, self._noisy = self._noisy, None
        if noisy is not None:
            self.compared += 1
            self._compare_divided(step, noisy)

    @torch.no_grad()
    def _compare_divided(self, step: PendingStep, noisy: Tensor) -> None:
        divided = self._row()
        if divided is None or divided.shape != noisy.shape:
            self.changed.add(True)
            return
        pairs = [*zip(torch.split(divided, _CHUNK), torch.split(noisy, _CHUNK), strict=True)]
        product, square, residual = divided.new_zeros(3, dtype=torch.float64).unbind()
        for got, expected in pairs:
            doubles = got.double()
            product += doubles @ expected.double()
            square += doubles @ doubles
        fitted = product / square
        measured = torch.nan_to_num(fitted, nan=1.0, posinf=1.0)
        for got, expected in pairs:
            difference = got.double().mul_(measured).sub_(expected)
            residual += difference @ difference
        tolerance = max(_DIVIDED, *(8.0 * torch.finfo(kind).eps for kind in {p.grad.dtype for p in self._parameters}))
        differs = residual > (tolerance * measured).square() * square
        step.divided = torch.where(differs, torch.nan, fitted), 1.0
        if bool(differs) and self._is_centered(noisy, divided * measured):
            differs, step.divided = torch.zeros_like(differs), (fitted, 1.0)
        if bool(differs) and self._is_mapped(_BEFORE, noisy):
            differs = torch.zeros_like(differs)
        elif not bool(differs):
            is_scaled = abs(float(fitted) / step.divisor - 1.0) > max(_FACTOR, tolerance / 4.0)
            is_asked = is_scaled or _BEFORE in self._mapped or self._finds_maps()
            is_mapped = is_asked and self._is_mapped(_BEFORE, noisy, is_changed=is_scaled)
            if is_scaled or self._scaled:  # the map of the other steps gives the factor 1, too
                self._scaled += 1
                self._explained += is_mapped
        self.changed.add(differs)
        self._divided = divided
        self.keep_divided()

    def _is_centered(self, noisy: Tensor, got: Tensor) -> bool:
        return is_centered_row(noisy, got, [local(p).shape for p in self._parameters])

    def _is_explained(self, divided: Tensor, stepped: Tensor, *, is_changed: bool) -> bool:
        if is_changed and self._is_centered(divided, stepped):
            return True
        return self._is_mapped(_WITHIN, divided, is_changed=is_changed)

    def _is_mapped(self, stage: str, values: Tensor, *, is_changed: bool = True) -> bool:
        """Whether the gradients come from a map of a row of all values.

        Where a map was found, it is also asked about steps without a change: it may be none, as clipping of short ones.
        """
        shapes = [local(p).shape for p in self._parameters]
        rows = torch.split(values, [shape.numel() for shape in shapes])
        values_of = [row.view(shape) for row, shape in zip(rows, shapes, strict=True)]
        is_mapped = self._explain(stage, values_of, [local(p.grad) for p in self._parameters], is_changed)
        self._mapped |= {stage} if is_mapped else set()
        return is_mapped

    def keep_divided(self) -> None:
        self._left.keep(p.grad for p in self._parameters)

    def compare(self) -> None:
        """Compare the gradients with those that were kept after the division."""
        if self._left.exists:
            self.changed.add(self._left.differ(p.grad for p in self._parameters))

    def end(self) -> bool:
        """The step is over: compare the gradients unless the optimizer adds to them; whether they were compared."""
        self._noisy, divided, self._divided = None, self._divided, None
        compared = self._left.exists and not adds_in_place(self._optimizer.original_optimizer)
        if compared := compared and all(p.grad is not None for p in self._parameters):
            differs = self._left.differ(p.grad for p in self._parameters)
            changed = bool(differs)
            is_asked = divided is not None and (changed or _WITHIN in self._mapped or self._finds_maps())
            stepped = self._row() if is_asked else None
            if stepped is None or divided is None or not self._is_explained(divided, stepped, is_changed=changed):
                self.changed.add(differs)
        self._left.forget()
        return compared


class OpacusWatch:
    def __init__(
        self,
        optimizer: Any,
        clipping: str,
        model: Any,
        sketch: NoiseSketch,
        noise: NoiseWatch,
        audits: AuditedSteps,
        entering: Entering | None = None,
        rank: RankWatch | None = None,
    ) -> None:
        self._rank, self._audits = rank, audits
        self.replays: ReplayedSteps | None = None
        self._entering, self._noise = entering, noise
        self._optimizer, self._clipping, self._model, self._sketch = optimizer, clipping, model, sketch
        self._parameters: list[Any] = list(optimizer.params)
        self.gradients = SteppedGradients(
            optimizer, self._explain, lambda: self.replays is not None and self.replays.finds_maps
        )
        self.step = PendingStep()
        self._sharded = rank is not None and rank.sharded
        self.ghost = GhostSums(model, optimizer, audits) if clipping == "ghost" else None
        if rank is not None and rank.sharded:
            self.ghost = ShardedGhostSums(model, optimizer, audits, rank)
        self.sums, self.limits = SummedGradients(optimizer), ClipLimits()
        self._contributions = None if clipping == "ghost" else Contributions(optimizer, clipping)
        self.rows = StepRows([] if rank is not None else self._parameters)

    @property
    def precision(self) -> Any:
        """The observer with ``norm_type`` and ``sum_type``, the half precisions of norms and sums, or ""."""
        return self._contributions if self.ghost is None else self.ghost

    def attach(self, before: Moment, after: Moment, guarded: Callable[[Moment], None], undo: ExitStack) -> None:
        """Begin to observe, until ``undo`` ends it."""
        optimizer, self._guarded, self._undo = self._optimizer, guarded, undo
        if (ghost := self.ghost) is not None:
            ghost.attach(guarded, undo)
            self._wrap(optimizer, "accumulate", partial(self._begin_ghost, ghost), partial(self._after_ghost, ghost))
            if callable(getattr(self._model, "get_clipping_coef", None)):
                self._wrap(self._model, "get_clipping_coef", self._note_limit, ghost.after_coefficients)
        elif (contributions := self._contributions) is not None:
            before_sum = partial(self._begin_sum, contributions)
            self._wrap(optimizer, "clip_and_accumulate", before_sum, self._after_sum, if_audited=True)
        self._wrap(optimizer, "add_noise", self._before_noise, self._after_noise)
        if self._clipping == "adaptive":  # it reads its noisy count in Python
            self._wrap(optimizer, "update_max_grad_norm", self._begin_count, self._end_count)
        if self._rank is not None and not self._sharded:
            self._wrap(optimizer, "reduce_gradients", self._before_reduction, self._after_reduction)
        attach_step_hooks(optimizer.original_optimizer, partial(guarded, before), partial(guarded, after), undo)

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

    def _note_limit(self) -> None:
        self.limits.clip(clip_limit(self._optimizer, self._clipping, self._model))

    def _begin_sum(self, contributions: Contributions) -> None:
        self._require_same_parameters()
        self._note_limit()
        first, rows, audits = self.step.rows == UNSEEN, contributions.count(), self._audits
        self.sums.compare(first=audits.audited and first)
        self.step.add_rows(rows)
        if audits.audited and (audits.count < _NORMS or audits.count % _NORMS == 0):
            self.step.norms.append(contributions.clipped_norms())

    def _after_sum(self, _: Any) -> None:
        self.sums.keep(audited=True)

    def _explain(self, stage: str, values: Sequence[Tensor], gradients: Sequence[Tensor], is_changed: bool) -> bool:
        return self.replays is not None and self.replays.explain(stage, values, gradients, is_changed=is_changed)

    def _begin_count(self) -> None:
        if self.replays is not None:
            self.replays.exclude_from_map(begins=True)

    def _end_count(self, _: Any) -> None:
        if self.replays is not None:
            self.replays.exclude_from_map(begins=False)

    def begin_update(self) -> None:
        """The inner optimizer begins its step: compare the gradients that it gets."""
        self.gradients.compare()
        self.gradients.divide(self.step)
        if self.replays is not None:
            self.replays.update_begins([p.grad for p in self._parameters])

    def _begin_ghost(self, ghost: GhostSums) -> None:
        self._require_same_parameters()
        self.sums.compare(first=self._audits.audited and self.step.rows == UNSEEN)
        ghost.before_accumulate()

    def _after_ghost(self, ghost: GhostSums, _: Any) -> None:
        self.sums.keep(audited=self._audits.audited)
        clipped = ghost.after_accumulate()
        if clipped is not None:
            rows, norms = clipped
            self.step.add_rows(rows)
            self.step.norms += [] if norms is None else [norms]

    def _before_noise(self) -> None:
        self.sums.compare()
        self.sums.forget()
        if self.replays is not None:
            self.replays.before_noise(partial(summed_gradients, self._optimizer, self._parameters))
        if self._entering is not None:
            norms = self._entering(float(self._optimizer.max_grad_norm))
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
        self.limits.add_noise(step.clip_norm)
        step.noised, step.divisor = True, 1.0
        if optimizer.loss_reduction == "mean":
            step.divisor = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
        if self._audits.audited:
            self.gradients.keep()
            if self.replays is not None:
                self.replays.after_noise([p.grad for p in parameters])
        if len(self.rows.steps) >= self.rows.count:
            self.read()
        gradients, sums = [p.grad for p in parameters], summed_gradients(optimizer, parameters)
        if not self.rows.keep(step, gradients, sums):
            self._read_noise(step)

    def _read_noise(self, step: PendingStep) -> None:
        optimizer, rank, sharded = self._optimizer, self._rank, self._sharded
        gradients = [local(p.grad).detach().reshape(1, -1) for p in self._parameters]
        sums = [
            total.detach().reshape(1, -1)
            for total in summed_gradients(optimizer, self._parameters)
            if total is not None
        ]
        # FSDP2 divides the sum by the number of ranks, and Opacus the noise
        divided = sharded and rank is not None and optimizer.loss_reduction == "mean"
        scale = rank.group.world if divided and rank is not None else 1.0
        starts = rank.starts if sharded and rank is not None else repeat(0)
        measured = self._sketch.measure(gradients, sums, starts=starts, scale=scale, noisy=True)
        step.sketch, step.sum_norm = measured.sketches[0], measured.lengths[0]
        noisy = rank is None or bool(step.sketch.any())  # one rank adds the noise
        if rank is not None and (sharded or noisy):
            rank.after_noise(measured, step.deviation)
        if noisy:
            self._noise.add(measured, [step.deviation])

    @torch.no_grad()
    def read(self) -> None:
        """Read the noise of the last steps that :meth:`_after_noise` put off."""
        if not self.rows.steps:
            return
        steps, gradients, sums = self.rows.take()
        layers = (torch.split(row, self.rows.sizes, dim=1) for row in (gradients, sums))
        measured = self._sketch.measure(*layers, noisy=True)
        self._noise.add(measured, [step.deviation for step in steps])
        lengths, sketches = measured.lengths.tolist(), measured.sketches.numpy()
        for step, sketch, length in zip(steps, sketches, lengths, strict=True):
            step.sketch, step.sum_norm = sketch, length

    def _before_reduction(self) -> None:
        assert self._rank is not None
        self.gradients.divide(self.step)
        self._rank.reduction(over=False)

    def _after_reduction(self, _: Any) -> None:
        assert self._rank is not None
        self._rank.reduction(over=True)
        if self._audits.audited:
            self.gradients.keep_divided()


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
