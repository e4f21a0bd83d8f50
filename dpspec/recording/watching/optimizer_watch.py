"""Opacus' optimizer during a step: its clipped sums, its noise, its divisor and its update.

The recorder wraps some of its methods on the instance, and adds hooks to the inner optimizer of torch. An update
without a preceding call of ``add_noise`` counts as noise-free.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from dpspec.recording.fingerprints import Fingerprint, Tally, differs, fingerprint, require_plain
from dpspec.recording.folder.step_record import UNSEEN
from dpspec.recording.pending_step import PendingStep
from dpspec.recording.ranks.rank_watch import RankWatch
from dpspec.recording.ranks.shards import local
from dpspec.recording.sums.clipped_sums import (
    Contributions,
    RecomputedSums,
    SizeScaling,
    SummedGradients,
    summed_gradients,
)
from dpspec.recording.sums.ghost_sums import GhostSums
from dpspec.recording.sums.sharded_ghost_sums import ShardedGhostSums
from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.noise_watch import NoiseWatch
from dpspec.recording.watching.step_hooks import ReplacedMethods, StepHooks, is_of

#: Steps that are read together, and numbers of gradients that are kept for it.
_STEPS, _NUMBERS = 32, 2**19

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

    def __init__(self, shapes: Sequence[torch.Size], count: int) -> None:
        self.sizes, self.count = [shape.numel() for shape in shapes], count
        self._gradients, self._sums = (torch.empty(count, sum(self.sizes)) for _ in range(2))
        self._views = [
            [part.view(shape) for row in rows for part, shape in zip(torch.split(row, self.sizes), shapes, strict=True)]
            for rows in zip(self._gradients, self._sums, strict=True)
        ]
        self.steps: list[PendingStep] = []

    @classmethod
    def of(cls, parameters: Sequence[Tensor]) -> StepRows | None:
        """None for a large model, on another device or in other precision."""
        count = min(_STEPS, _NUMBERS // max(1, sum(p.numel() for p in parameters)))
        plain = all(p.is_cpu and p.dtype == torch.float32 for p in parameters)
        return cls([p.shape for p in parameters], count) if plain and count > 1 else None

    @property
    def full(self) -> bool:
        return len(self.steps) == self.count

    def keep(self, step: PendingStep, gradients: Sequence[Tensor], sums: Sequence[Tensor | None]) -> bool:
        """Copy the tensors of a step; False if they have another type or shape than the parameters."""
        every, views = [*gradients, *(one for one in sums if one is not None)], self._views[len(self.steps)]
        if len(every) != len(views) or any(
            one.dtype != torch.float32 or one.shape != view.shape for one, view in zip(every, views, strict=True)
        ):
            return False
        torch._foreach_copy_(views, every)
        self.steps.append(step)
        return True

    def take(self) -> tuple[list[PendingStep], Tensor, Tensor]:
        """The steps, and (k, coordinates) their gradients and sums, in memory that the next steps use again."""
        steps, self.steps = self.steps, []
        return steps, self._gradients[: len(steps)], self._sums[: len(steps)]


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
        self._entering, self._noise, self._probing = entering, noise, probing
        self._optimizer, self._clipping, self._model, self._sketch = optimizer, clipping, model, sketch
        self._parameters: list[Any] = list(optimizer.params)
        self._coefficients = 0
        self._undo: list[Callable[[], None]] = []
        self._wrappers: dict[str, Any] = {}
        self._during = contextlib.ExitStack()
        self._contributions: Contributions | None = None
        self._unscaled: Tensor | None = None
        self._scaled: Fingerprint | None = None
        self._inside = False
        self._stepped_with: Fingerprint | None = None
        self._meddled, self._changed = Tally(), Tally()
        self.step = PendingStep()
        self.norm_type, self.sum_type = "", ""
        self._sharded = rank is not None and rank.sharded
        self.sums, self.replaced = SummedGradients(optimizer), ReplacedMethods(optimizer, model)
        self.ghost = GhostSums(model, optimizer) if clipping == "ghost" else None
        if rank is not None and rank.sharded:
            self.ghost = ShardedGhostSums(model, optimizer, rank)
        self.recomputed = None if clipping == "ghost" else RecomputedSums(optimizer, clipping)
        self.scaling = SizeScaling()
        self._rows = None if rank is not None else StepRows.of(self._parameters)

    @property
    def together(self) -> int:
        """The number of steps that are best read together."""
        return 1 if self._rows is None else self._rows.count

    @property
    def meddled(self) -> int:
        return int(self._meddled)

    @property
    def changed(self) -> int:
        """The number of updates with unknown gradients: they changed during it, or another hook followed."""
        return int(self._changed) + self.hooks.disordered

    @property
    def other_parameters(self) -> int:
        """The number of gathered parameters that differ from the rows of this rank."""
        return self.ghost.other_parameters if isinstance(self.ghost, ShardedGhostSums) else 0

    @property
    def recomputed_sums(self) -> list[float] | None:
        if self.ghost is not None:
            return self.ghost.recomputed
        return None if self.recomputed is None else self.recomputed.found

    def attach(self, before: Moment, after: Moment, use: Moment, guarded: Callable[[Moment], None]) -> None:
        optimizer, self._guarded, sums = self._optimizer, guarded, self.sums
        guarded(lambda: self.replaced.check({}))  # the wrappers below hide methods that the script replaced before
        kind = type(optimizer)
        methods = [getattr(optimizer.pre_step, "__func__", None), kind._check_skip_next_step, kind.add_noise]
        self._genuine = all(is_of(method, ("opacus",)) for method in methods)
        if self.recomputed is None:
            ghost = self.ghost
            assert ghost is not None
            self._undo.append(ghost.attach(guarded))
            begin = [self._require_plain, sums.compare, self._probe_ghost, ghost.before_accumulate]
            self._wrap(optimizer, "accumulate", begin, self._after_ghost)
            if callable(getattr(self._model, "get_clipping_coef", None)):
                self._wrap(self._model, "get_clipping_coef", [use], self._after_coefficients)
        else:
            begin = [self._require_plain, use, sums.compare, self.recomputed.expect, self._probe, self._begin_sum]
            self._wrap(optimizer, "clip_and_accumulate", begin, self._after_sum)

        self.hooks = StepHooks(optimizer.original_optimizer, partial(guarded, before), partial(guarded, after))
        self._wrap(optimizer, "pre_step", [], None, self._pre_step)
        self._wrap(
            optimizer,
            "add_noise",
            [self._require_plain, use, sums.use, self._enter, self._before_noise],
            self._after_noise,
        )
        self._wrap(optimizer, "scale_grad", [self._before_scaling], self._after_scaling)
        if self._rank is not None and not self._sharded:
            self._wrap(optimizer, "reduce_gradients", [self._before_reduction], self._after_reduction)
        self._undo.append(self.hooks.remove)
        guarded(lambda: self.replaced.check(self._wrappers))

    def detach(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _wrap(
        self,
        thing: Any,
        name: str,
        before: Sequence[Moment],
        after: Callable[[Any], None] | None,
        around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        own, original = vars(thing).get(name), getattr(thing, name)

        def begin() -> None:
            for observe in before:
                observe()

        def replaced(this: Any, *given: Any, **named: Any) -> Any:
            self._guarded(begin)
            with around(), self._during:
                result = original(*given, **named)
            if after is not None:
                self._guarded(partial(after, result))
            return result

        put = MethodType(replaced, thing)
        object.__setattr__(thing, name, put)
        if thing is self._optimizer:
            self._wrappers[name] = put

        def undo() -> None:
            if vars(thing).get(name) is not put:
                return  # replaced again by other code, which calls this wrapper
            if own is None:
                object.__delattr__(thing, name)
            else:
                object.__setattr__(thing, name, own)

        self._undo.append(undo)

    @contextlib.contextmanager
    def _pre_step(self) -> Iterator[None]:
        """Opacus' own code calls add_noise and scale_grad: no other code runs between them."""
        self._inside = self._genuine
        try:
            yield
        finally:
            self._inside = False

    def _probe(self) -> None:
        if self._probing is not None:
            gradients = self._optimizer.grad_samples
            start = 0 if self.step.rows == UNSEEN else self.step.rows
            self._probing(start, len(gradients[0]), gradients)

    def _begin_sum(self) -> None:
        self._contributions = self._during.enter_context(Contributions(self._parameters))

    def _after_sum(self, _: Any) -> None:
        seen = self._contributions
        assert seen is not None
        assert self.recomputed is not None
        self.norm_type = seen.norm_type or self.norm_type
        self.sum_type = seen.sum_type or self.sum_type
        records = seen.records(len(self._parameters))
        self.step.add_rows(len(self._optimizer.grad_samples[0]) if records is None else records)
        if records is not None:
            self.step.norms.append(seen)
        self._contributions = None
        self.recomputed.compare()
        self.sums.keep()

    def _require_plain(self) -> None:
        """Raise ``TypeError`` if reading a parameter or an option inside Opacus would run code of the script."""
        require_plain(self._parameters)
        for kind in (Tensor, torch.nn.Parameter):
            if name := next((name for name in ("grad_sample", "summed_grad") if name in vars(kind)), None):
                raise TypeError(f"{kind.__name__} has the attribute {name}, which Opacus sets on parameters")
        for name, kinds in {"secure_mode": (bool,), "loss_reduction": (str,)}.items():
            if type(value := getattr(self._optimizer, name)) not in kinds:
                raise TypeError(f"{name} of the optimizer is of class {type(value).__name__}")

    def _probe_ghost(self) -> None:
        size, self._coefficients = self._coefficients, 0
        if self._probing is not None and size:
            self._probing(0 if self.step.rows == UNSEEN else self.step.rows, size, None)

    def _after_ghost(self, _: Any) -> None:
        self.sums.keep()
        assert self.ghost is not None
        clipped = self.ghost.after_accumulate()
        self.norm_type, self.sum_type = self.ghost.norm_type, self.ghost.sum_type
        self.step.virtual = 1 if self.step.virtual == UNSEEN else self.step.virtual + 1
        if clipped is not None:
            rows, norms = clipped
            self.step.rows = rows if self.step.rows == UNSEEN else self.step.rows + rows
            self.step.norms += [] if norms is None else [norms]

    def _after_coefficients(self, coefficients: Any) -> None:
        assert self.ghost is not None
        self._coefficients = len(coefficients)
        self.ghost.after_coefficients(coefficients)

    def _enter(self) -> None:
        if self._entering is None:
            return
        norms = self._entering(float(self._optimizer.max_grad_norm))
        self.step.rows += len(norms)
        if self.step.norms:
            self.step.norms.append(norms)

    def _before_noise(self) -> None:
        if self._rank is not None:
            self._rank.before_noise()

    def _after_noise(self, _: Any) -> None:
        step, optimizer, parameters = self.step, self._optimizer, self._parameters
        if len(found := optimizer.params) != len(parameters) or not all(map(operator.is_, found, parameters)):
            raise RuntimeError("other parameters are trained than at the beginning; record each part in its own run")
        gradients, sums = [p.grad for p in parameters], summed_gradients(optimizer, parameters)
        require_plain((*parameters, *gradients, *sums))
        multiplier = expected_multiplier(optimizer, self._clipping)
        step.noise_multiplier = min(float(optimizer.noise_multiplier), multiplier)
        step.clip_norm = float(optimizer.max_grad_norm)
        step.deviation = multiplier * step.clip_norm
        step.noised = True
        if self._rows is not None and self._rows.keep(step, gradients, sums):
            if self._rows.full:
                self._read_rows()
        else:
            self._read_noise(step)
        self._scaled = None if self._inside else self._fingerprint()

    def _read_noise(self, step: PendingStep) -> None:
        optimizer, parameters = self._optimizer, self._parameters
        sums = [one.detach().reshape(-1) for one in summed_gradients(optimizer, parameters) if one is not None]
        noise = [local(p.grad).detach().reshape(-1) - s for p, s in zip(parameters, sums, strict=True)]
        starts: Iterable[int] = repeat(0)
        if self._rank is not None and self._rank.sharded:
            if optimizer.loss_reduction == "mean":  # FSDP2 divides the sum by the number of ranks, and Opacus the noise
                sums, noise = ([self._rank.group.world * part for part in parts] for parts in (sums, noise))
            self._rank.after_noise(sums, noise)
            starts = self._rank.starts
        step.sketch = self._sketch.of(noise, starts)
        noisy = self._rank is None or bool(step.sketch.any())  # one rank adds the noise
        if self._rank is not None and not self._rank.sharded and noisy:
            self._rank.after_noise(sums, noise)
        if noisy:
            self._noise.add(noise, sums, step.deviation)
        norms = [torch.linalg.vector_norm(summed).to(sums[0].device) for summed in sums]
        step.sum_norm = torch.linalg.vector_norm(torch.stack(norms).double())

    def read(self, steps: Sequence[PendingStep]) -> None:
        """Compute the values of these last steps that :meth:`_after_noise` put off."""
        self._read_rows()
        for step in steps:
            for place, seen in enumerate(step.norms):
                if isinstance(seen, Contributions):
                    step.norms[place], lengths = seen.norms()
                    self.scaling.add(lengths)

    @torch.no_grad()
    def _read_rows(self) -> None:
        if self._rows is None or not self._rows.steps:
            return
        steps, gradients, sums = self._rows.take()
        first = next((size for size in self._rows.sizes if size), 0)
        unscaled = torch.linalg.vector_norm(gradients[:, :first], dim=1).tolist()
        lengths = torch.linalg.vector_norm(sums, dim=1, dtype=torch.float64).tolist()
        noise = gradients.sub_(sums)
        sketches = self._sketch.of_rows(noise, self._rows.sizes).double().numpy()
        self._noise.add_rows(noise, sums, [step.deviation for step in steps])
        for step, sketch, before, length in zip(steps, sketches, unscaled, lengths, strict=True):
            step.sketch, step.sum_norm = sketch, length
            if step.divided is not None and step.divided[0] is None:
                step.divided = before, step.divided[1]

    def _first_norm(self) -> Tensor:
        own = (local(p.grad) for p in self._parameters)
        norm: Tensor = torch.linalg.vector_norm(next((one for one in own if one.numel()), torch.zeros(1)).detach())
        return norm

    def _before_scaling(self) -> None:
        rows = self._rows.steps[-1:] if self._rows is not None and self._inside else []
        kept = any(step is self.step for step in rows)
        self._unscaled = None if kept else self._first_norm()
        if not self._inside:
            self._compare(self._scaled)

    def _after_scaling(self, _: Any) -> None:
        optimizer = self._optimizer
        self.step.divided = (self._unscaled, self._first_norm())
        self.step.divisor = 1.0
        if optimizer.loss_reduction == "mean":
            self.step.divisor = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
        self._scaled, self._inside = self._fingerprint(), False

    def _compare(self, left: Fingerprint | None) -> Fingerprint:
        now = self._fingerprint()
        self._meddled.add(left is None or differs(now, left))
        return now

    def _before_reduction(self) -> None:
        assert self._rank is not None
        require_plain(p.grad for p in self._parameters)
        scaled, self._scaled = self._scaled, None
        self._compare(scaled)
        self._rank.before_reduction()

    def _after_reduction(self, _: Any) -> None:
        assert self._rank is not None
        self._rank.after_reduction()
        self._scaled = self._fingerprint()

    def before_update(self) -> None:
        require_plain(p.grad for p in self._parameters)
        self.replaced.check(self._wrappers)
        scaled, self._scaled = self._scaled, None
        if scaled is not None or self.step.noised:
            self._stepped_with = self._compare(scaled)

    def after_update(self) -> None:
        before, self._stepped_with = self._stepped_with, None
        if before is not None and all(p.grad is not None for p in self._parameters):
            self._changed.add(differs(self._fingerprint(), before))

    def _fingerprint(self) -> Fingerprint:
        return fingerprint(p.grad for p in self._parameters)


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
