"""Opacus' optimizer during a step: its clipped sums, its noise, its divisor and its update.

The recorder wraps some of its methods on the instance, and adds hooks to the inner optimizer of torch. An update
without a preceding call of ``add_noise`` counts as noise-free.
"""

import math
import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor

from dpspec.errors import UnobservableError
from dpspec.recording.fingerprints import Bits, Chances, Tally, require_plain
from dpspec.recording.folder.step_record import UNSEEN
from dpspec.recording.pending_step import PendingStep
from dpspec.recording.ranks.rank_watch import RankWatch
from dpspec.recording.ranks.shards import local
from dpspec.recording.step_replay.watch import ReplayedSteps
from dpspec.recording.sums.clipped_sums import (
    Contributions,
    RecomputedSums,
    SizeScaling,
    SummedGradients,
    product_type,
    summed_gradients,
)
from dpspec.recording.sums.ghost_sums import GhostSums, ShardedGhostSums
from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.noise_watch import NoiseWatch
from dpspec.recording.watching.optimizer_state import adds_in_place
from dpspec.recording.watching.step_hooks import ReplacedMethods, StepHooks, is_of, put_method

#: Steps that are read together, and numbers of gradients that are kept for it.
_STEPS, _NUMBERS = 32, 2**19

#: Opacus' own code calls the observed methods of a step one after another, with none of the script between them. The
#: options and gradients that one left are then compared before the next with this probability, and always otherwise.
_AGAIN = 0.25

#: Attributes of the classes of parameters.
_OF_TENSORS, _OF_PARAMETERS = vars(Tensor), vars(torch.nn.Parameter)

#: An observation of the recorder.
Moment = Callable[[], None]

#: Adds gradient canaries to the sum of a step, given its clip norm, before noise; returns the norm of each, (k,).
Entering = Callable[[float], Tensor]

#: Gets the first row of a physical batch in its step, the number of its rows and its per-sample gradients, None for
#: ghost clipping.
Probing = Callable[[int, int, Sequence[Tensor] | None], None]


class StepRows:
    """Copies of the noisy gradients and the sums of a few steps of a small model, which are read together.

    Reading one step takes longer than its training: 30 calls of torch for each layer.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.sizes = [p.numel() for p in parameters]
        plain = bool(parameters) and all(p.is_cpu and p.dtype == torch.float32 for p in parameters)
        #: 1 for a large model, on another device or in other precision, which is not copied.
        self.count = max(1, min(_STEPS, _NUMBERS // max(1, sum(self.sizes)))) if plain else 1
        self._bytes = [4 * size for size in self.sizes]
        self._steps: list[PendingStep] = []
        self._copies: list[list[Sequence[bytearray]]] = [[], [], []]

    def keep(self, step: PendingStep, gradients: Sequence[bytearray], sums: Sequence[bytearray]) -> bool:
        """Keep the copies of a step; False if they are of other types or shapes than the parameters."""
        if self.count == 1 or not list(map(len, gradients)) == self._bytes == list(map(len, sums)):
            return False
        self._steps.append(step)
        for copies, given in zip(self._copies, (gradients, sums, gradients[:1]), strict=True):
            copies.append(given)
        return True

    @property
    def full(self) -> bool:
        return len(self._steps) >= self.count

    def hold(self, step: PendingStep) -> bool:
        """Whether this step is the last one that is kept."""
        return bool(self._steps) and self._steps[-1] is step

    def divided(self, gradients: Sequence[bytearray]) -> None:
        """Keep the first gradient of the last step after its division."""
        self._copies[2][-1] = gradients[:1]

    def take(self) -> tuple[list[PendingStep], list[Tensor]]:
        """The steps, and (k, coordinates) their gradients, sums and divided first gradients."""
        steps, copies = self._steps, self._copies
        self._steps, self._copies = [], [[], [], []]
        rows = [bytearray().join(one for given in every for one in given) for every in copies if steps]
        return steps, [torch.frombuffer(row, dtype=torch.float32).view(len(steps), -1) for row in rows]


class OpacusWatch:
    def __init__(
        self,
        optimizer: Any,
        clipping: str,
        model: Any,
        sketch: NoiseSketch,
        noise: NoiseWatch,
        entering: Entering | None = None,
        probing: Probing | None = None,
        rank: RankWatch | None = None,
    ) -> None:
        self._rank = rank
        self.replays: ReplayedSteps | None = None
        self._entering, self._noise, self._probing = entering, noise, probing
        self._optimizer, self._clipping, self._model, self._sketch = optimizer, clipping, model, sketch
        self._parameters: list[Any] = list(optimizer.params)
        self._coefficients = 0
        self._wrappers: dict[str, Any] = {}
        self._contributions: Contributions | None = None
        self._unscaled: Tensor | None = None
        self._gradients, self._stepping = Bits(), False
        method: Any = getattr(type(optimizer), "pre_step", None)
        self._pre_step = method.__code__ if is_of(method, ("opacus",)) else None
        # The call of ``pre_step`` that made the last observed call, and whether it makes this one, too.
        self._caller: FrameType | None = None
        self._follows = False
        self._random = Chances()
        self.meddled, self._changed = Tally(), Tally()
        self.step = PendingStep()
        self.norm_type, self.sum_type = "", ""
        self._sharded = rank is not None and rank.sharded
        self.sums, self.replaced = SummedGradients(optimizer), ReplacedMethods(optimizer, model)
        self.ghost = GhostSums(model, optimizer) if clipping == "ghost" else None
        if rank is not None and rank.sharded:
            self.ghost = ShardedGhostSums(model, optimizer, rank)
        self.recomputed = None if clipping == "ghost" else RecomputedSums(optimizer, clipping)
        self.scaling = SizeScaling()
        self.rows = StepRows([] if rank is not None else self._parameters)

    @property
    def changed(self) -> int:
        """The number of updates with unknown gradients: they changed during it, or another hook followed."""
        return int(self._changed) + self.hooks.disordered

    @property
    def recomputed_sums(self) -> list[float] | None:
        if self.ghost is not None:
            return self.ghost.recomputed
        return None if self.recomputed is None else self.recomputed.found

    def attach(
        self, before: Moment, after: Moment, use: Moment, guarded: Callable[[Moment], None], undo: ExitStack
    ) -> None:
        """Begin to observe, until ``undo`` ends it."""
        optimizer, self._guarded, self._undo, self._read_options = self._optimizer, guarded, undo, use
        guarded(lambda: self.replaced.check({}))  # the wrappers below hide methods that the script replaced before
        if (ghost := self.ghost) is not None:
            ghost.attach(guarded, undo)
            self._wrap(optimizer, "accumulate", partial(self._begin_ghost, ghost), partial(self._after_ghost, ghost))
            if callable(getattr(self._model, "get_clipping_coef", None)):
                self._wrap(self._model, "get_clipping_coef", self._use, partial(self._after_coefficients, ghost))
        elif (sums := self.recomputed) is not None:
            self._wrap(optimizer, "clip_and_accumulate", partial(self._begin_sum, sums), partial(self._after_sum, sums))
        self.hooks = StepHooks(optimizer.original_optimizer, partial(guarded, before), partial(guarded, after))
        self._wrap(optimizer, "add_noise", self._before_noise, self._after_noise)
        self._wrap(optimizer, "scale_grad", self._before_scaling, self._after_scaling)
        if self._rank is not None and not self._sharded:
            self._wrap(optimizer, "reduce_gradients", self._before_reduction, self._after_reduction)
        undo.callback(self.hooks.remove)
        guarded(lambda: self.replaced.check(self._wrappers))

    def _use(self) -> None:
        """Opacus' code runs next."""
        self.replaced.check(self._wrappers)
        self._read_options()

    def _wrap(self, thing: Any, name: str, before: Moment, after: Callable[[Any], None]) -> None:
        original, guarded = getattr(thing, name), self._guarded

        def replaced(this: Any, *given: Any, **named: Any) -> Any:
            caller = sys._getframe(1)
            self._follows = caller is self._caller and self._random.random() > _AGAIN
            guarded(before)
            try:
                result = original(*given, **named)
            finally:
                if self._contributions is not None:
                    self._contributions.close()
            guarded(partial(after, result))
            skipped = vars(self._optimizer).get("_step_skip_queue")
            own = caller.f_code is self._pre_step and not self.replaced.found
            self._caller = caller if own and type(skipped) is list and not skipped else None
            return result

        put = MethodType(replaced, thing)
        self._undo.callback(put_method(thing, name, put))
        if thing is self._optimizer:
            self._wrappers[name] = put

    def _require_same_parameters(self) -> None:
        params, parameters = self._optimizer.params, self._parameters
        if len(params) == len(parameters) and all(map(operator.is_, params, parameters)):
            return
        frozen, added = len(set(parameters) - {*params}), len({*params} - set(parameters))
        raise UnobservableError(
            "the optimizer trains other parameters than at the beginning of the block "
            f"({frozen} tensors frozen, {added} added): freeze or unfreeze layers before make_private"
        )

    def _begin_sum(self, recomputed: RecomputedSums) -> None:
        self._require_same_parameters()
        self._use()
        self._require_plain()
        self.sums.compare()
        kept = recomputed.expect()
        self.sum_type = product_type() or self.sum_type
        if self._probing is not None:
            gradients = self._optimizer.grad_samples
            self._probing(0 if self.step.rows == UNSEEN else self.step.rows, len(gradients[0]), gradients)
        self._contributions = Contributions(kept)

    def _after_sum(self, recomputed: RecomputedSums, _: Any) -> None:
        seen, self._contributions = self._contributions, None
        assert seen is not None
        records = seen.records(len(self._parameters))
        self.norm_type = seen.norm_type or self.norm_type
        self.sum_type = seen.sum_type or self.sum_type
        self.step.add_rows(len(self._optimizer.grad_samples[0]) if records is None else records)
        if records is not None:
            self.step.norms.append(seen)
        recomputed.compare()
        self.sums.keep()

    def _require_plain(self) -> None:
        """Raise ``TypeError`` if reading a parameter or an option inside Opacus would run code of the script."""
        require_plain(self._parameters)
        for name in ("grad_sample", "summed_grad"):
            if name in _OF_PARAMETERS or name in _OF_TENSORS:
                raise TypeError(f"a class of tensors has the attribute {name}, which Opacus sets on parameters")
        attributes: list[tuple[str, type]] = [("secure_mode", bool), ("loss_reduction", str)]
        if self._rank is not None:
            attributes += [("rank", int), ("world_size", int)]
        found = [(name, getattr(self._optimizer, name), kind) for name, kind in attributes]
        if self._sharded:
            state = self._optimizer.grad_state
            found += [("grad_state", one, dict) for one in (state, *dict.values(state))]
        for name, value, kind in found:
            if type(value) is not kind:
                raise TypeError(f"{name} of the optimizer is of class {type(value).__name__}")

    def _begin_ghost(self, ghost: GhostSums) -> None:
        self._require_same_parameters()
        self._use()
        self._require_plain()
        self.sums.compare()
        size, self._coefficients = self._coefficients, 0
        if self._probing is not None and size:
            self._probing(0 if self.step.rows == UNSEEN else self.step.rows, size, None)
        ghost.before_accumulate()

    def _after_ghost(self, ghost: GhostSums, _: Any) -> None:
        self.sums.keep()
        clipped = ghost.after_accumulate()
        self.norm_type, self.sum_type = ghost.norm_type, ghost.sum_type
        self.step.virtual = 1 if self.step.virtual == UNSEEN else self.step.virtual + 1
        if clipped is not None:
            rows, norms = clipped
            self.scaling.add(self._model.per_sample_gradient_norms.detach(), self.step.virtual == 1)
            self.step.rows = rows if self.step.rows == UNSEEN else self.step.rows + rows
            self.step.norms += [] if norms is None else [norms]

    def _after_coefficients(self, ghost: GhostSums, coefficients: Any) -> None:
        self._coefficients = len(coefficients)
        ghost.after_coefficients(coefficients)

    def _before_noise(self) -> None:
        self._require_same_parameters()
        if self.replays is not None:
            sums = summed_gradients(self._optimizer, self._parameters)
            self.replays.before_noise([total for total in sums if total is not None])
        if not self._follows:
            self._require_plain()
            self._use()
        if self._entering is not None:
            self.sums.compare()
            norms = self._entering(float(self._optimizer.max_grad_norm))
            self.step.rows += len(norms)
            if self.step.norms:
                self.step.norms.append(norms)
            self.sums.keep()
        if self._rank is not None:
            self._rank.before_noise()

    def _after_noise(self, _: Any) -> None:
        step, optimizer, parameters = self.step, self._optimizer, self._parameters
        gradients, sums = [p.grad for p in parameters], summed_gradients(optimizer, parameters)
        require_plain((*parameters, *gradients, *sums))
        self.sums.compare(sums)
        multiplier = expected_multiplier(optimizer, self._clipping)
        step.noise_multiplier = min(float(optimizer.noise_multiplier), multiplier)
        step.clip_norm = float(optimizer.max_grad_norm)
        step.deviation = multiplier * step.clip_norm
        step.noised = True
        self._gradients.keep(gradients)
        if self.rows.full:
            self._read_rows()
        if not self.rows.keep(step, self._gradients.copies, self.sums.take()):
            self._read_noise(step)

    def _read_noise(self, step: PendingStep) -> None:
        optimizer, rank, sharded = self._optimizer, self._rank, self._sharded
        gradients = [local(p.grad).detach().reshape(1, -1) for p in self._parameters]
        sums = [one.detach().reshape(1, -1) for one in summed_gradients(optimizer, self._parameters) if one is not None]
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

    def read(self, steps: Sequence[PendingStep]) -> None:
        """Compute the values of these last steps that :meth:`_after_noise` put off."""
        self._read_rows()
        for step in steps:
            for place, seen in enumerate(step.norms):
                if isinstance(seen, Contributions):
                    step.norms[place], lengths = seen.norms()
                    self.scaling.add(lengths, place == 0)

    @torch.no_grad()
    def _read_rows(self) -> None:
        steps, rows = self.rows.take()
        if not steps:
            return
        gradients, sums, scaled = rows
        first = torch.linalg.vector_norm(gradients[:, : scaled.shape[1]], dim=1).tolist()
        divided = zip(first, torch.linalg.vector_norm(scaled, dim=1).tolist(), strict=True)
        layers = (torch.split(row, self.rows.sizes, dim=1) for row in (gradients, sums))
        measured = self._sketch.measure(*layers, noisy=True)
        self._noise.add(measured, [step.deviation for step in steps])
        lengths, sketches = measured.lengths.tolist(), measured.sketches.numpy()
        for step, sketch, norms, length in zip(steps, sketches, divided, lengths, strict=True):
            step.sketch, step.sum_norm = sketch, length
            if step.divided is not None and step.divided[0] is None:
                step.divided = norms

    def _first_norm(self) -> Tensor:
        own = (local(p.grad) for p in self._parameters)
        norm: Tensor = torch.linalg.vector_norm(next((one for one in own if one.numel()), torch.zeros(1)).detach())
        return norm

    def _before_scaling(self) -> None:
        meddled = False if self._follows else self._compare()
        self._unscaled = None if meddled is False and self.rows.hold(self.step) else self._first_norm()

    def _after_scaling(self, _: Any) -> None:
        optimizer, step = self._optimizer, self.step
        self._gradients.keep([p.grad for p in self._parameters])
        if self._unscaled is None:
            self.rows.divided(self._gradients.copies)
        step.divided = self._unscaled, math.nan if self._unscaled is None else self._first_norm()
        step.divisor = 1.0
        if optimizer.loss_reduction == "mean":
            step.divisor = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)

    def _compare(self) -> bool | Tensor:
        """Compare the gradients with those that the last method left."""
        gradients = [p.grad for p in self._parameters]
        require_plain(gradients)
        differ = self._gradients.differ(gradients)
        self.meddled.add(differ)
        if differ is True:
            self._gradients.keep(gradients)
        return differ

    def _before_reduction(self) -> None:
        assert self._rank is not None
        self._require_plain()
        self._compare()
        self._rank.reduction(over=False)

    def _after_reduction(self, _: Any) -> None:
        assert self._rank is not None
        self._rank.reduction(over=True)
        self._gradients.keep(p.grad for p in self._parameters)

    def before_update(self) -> None:
        self.replaced.check(self._wrappers)
        self._stepping = self._gradients.known or self.step.noised
        if self._stepping:
            self._compare()
        else:
            require_plain(p.grad for p in self._parameters)

    def after_update(self) -> None:
        gradients = [p.grad for p in self._parameters]
        known = self._stepping and all(one is not None for one in gradients)
        if known and not adds_in_place(self._optimizer.original_optimizer):
            self._changed.add(self._gradients.differ(gradients))
        self._gradients.forget()
        self._caller = None


def expected_multiplier(optimizer: Any, clipping: str) -> float:
    """The noise multiplier on gradients that follows from the optimizer's options.

    With ghost clipping Opacus prefers another attribute to the multiplier that its accountant counts. Adaptive
    clipping spends some of its noise multiplier s on a count with noise of standard deviation u, and adds noise of
    (s^-2 - (2 u)^-2)^(-1/2) to gradients (Andrew et al. 2021, Theorem 1).
    """
    multiplier = float(optimizer.noise_multiplier)
    if clipping == "adaptive" and multiplier > 0.0:
        rest = multiplier**-2 - (2.0 * float(optimizer.unclipped_num_std)) ** -2
        return rest**-0.5 if rest > 0.0 else math.inf
    return float(getattr(optimizer, "_adjusted_noise_multiplier", multiplier)) if clipping == "ghost" else multiplier
