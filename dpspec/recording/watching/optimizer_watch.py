"""Opacus' optimizer while it steps: what it clips and adds up, which noise it adds, by what it divides, what it moves.

Three of its methods are replaced on the instance by ones that call them and look at what they left behind; the inner
optimizer of torch tells before and after each of its steps. An update without a call of ``add_noise`` before it is one
that got no noise, whoever made it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from dpspec.recording.fingerprints import Fingerprint, Tally, differs, fingerprint
from dpspec.recording.folder.step_record import UNSEEN
from dpspec.recording.step_hooks import StepHooks
from dpspec.recording.watching.gradients.contributions import Contributions
from dpspec.recording.watching.gradients.recomputed_sums import RecomputedSums
from dpspec.recording.watching.gradients.replaced_methods import ReplacedMethods
from dpspec.recording.watching.gradients.size_scaling import SizeScaling
from dpspec.recording.watching.gradients.summed_gradients import SummedGradients
from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.noise_watch import NoiseWatch
from dpspec.recording.watching.pending_step import PendingStep

#: What is called when the inner optimizer is about to step, and when it has stepped.
Moment = Callable[[], None]

#: Adds gradient canaries to the sums of a step before noise is, by its clip norm; gives the norm of each, (k,).
Entering = Callable[[float], Tensor]

#: Gets the first row of a physical batch in its step, the number of its rows and its per-sample gradients, None for
#: ghost clipping.
Probing = Callable[[int, int, Sequence[Tensor] | None], None]


class OpacusWatch:
    """Fills in the pending step of a recorder."""

    def __init__(
        self,
        optimizer: Any,
        clipping: str,
        model: Any,
        sketch: NoiseSketch,
        noise: NoiseWatch,
        entering: Entering | None = None,
        probing: Probing | None = None,
    ) -> None:
        self._entering, self._noise, self._probing = entering, noise, probing
        self._coefficients = 0
        self._optimizer, self._clipping, self._model, self._sketch = optimizer, clipping, model, sketch
        self._undo: list[Callable[[], None]] = []
        self._scaled: Fingerprint | None = None
        self._meddled, self._changed = Tally(), Tally()
        self._stepped_with: Fingerprint | None = None
        self.step = PendingStep()
        #: In which half precision norms were computed, and sums made; "" for neither.
        self.norm_type, self.sum_type = "", ""
        self.sums, self.replaced = SummedGradients(optimizer.params), ReplacedMethods(optimizer)
        self.recomputed = None if clipping == "ghost" else RecomputedSums(optimizer, clipping)
        self.scaling = SizeScaling()
        self._put: dict[str, Any] = {}

    @property
    def meddled(self) -> int:
        """How many updates were made with other gradients than the noisy, scaled sum."""
        return int(self._meddled)

    @property
    def changed(self) -> int:
        """The number of updates whose gradients nobody knows: they changed during it, or another hook followed."""
        return int(self._changed) + self._hooks.disordered

    def attach(self, before: Moment, after: Moment, use: Moment, guarded: Callable[[Moment], None]) -> None:
        """Begin to watch. ``guarded`` runs what looks on, so that a fault of it never reaches the training.

        ``use`` is called when options of clipping or noise are about to be used.
        """
        optimizer, self._guarded, self._use = self._optimizer, guarded, use
        self._ids = [id(p) for p in optimizer.params]
        if self._clipping == "ghost":
            self._replace(optimizer, "accumulate", self._around_accumulate)
            if callable(getattr(self._model, "get_clipping_coef", None)):
                self._replace(self._model, "get_clipping_coef", self._around_coefficients)
        else:
            self._replace(optimizer, "clip_and_accumulate", self._around_clipping)
        self._replace(optimizer, "add_noise", self._around_noise)
        self._replace(optimizer, "scale_grad", self._around_scaling)
        self._hooks = StepHooks(optimizer.original_optimizer, lambda: guarded(before), lambda: guarded(after))
        self._undo.append(self._hooks.remove)
        guarded(lambda: self.replaced.look(self._put))

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _replace(self, thing: Any, name: str, around: Callable[[Callable[[], Any]], Any]) -> None:
        """Put ``around`` in the place of a method without arguments, on this instance alone."""
        own, original = vars(thing).get(name), getattr(thing, name)

        def replaced(this: Any) -> Any:
            return around(original)

        put = MethodType(replaced, thing)
        object.__setattr__(thing, name, put)
        if thing is self._optimizer:
            self._put[name] = put

        def undo() -> None:
            if vars(thing).get(name) is not put:
                return  # somebody else has replaced it meanwhile: theirs calls this one, which only looks on
            if own is None:
                object.__delattr__(thing, name)
            else:
                object.__setattr__(thing, name, own)

        self._undo.append(undo)

    def _around_clipping(self, original: Callable[[], Any]) -> Any:
        self._guarded(self._use)
        assert self.recomputed is not None
        self._guarded(self.sums.compare)
        self._guarded(self.recomputed.expect)

        def probe() -> None:
            if self._probing is not None:
                gradients = self._optimizer.grad_samples
                start = 0 if self.step.rows == UNSEEN else self.step.rows
                self._probing(start, len(gradients[0]), gradients)

        self._guarded(probe)
        with contextlib.ExitStack() as stack:
            seen: list[Contributions] = []
            self._guarded(lambda: seen.append(stack.enter_context(Contributions(self._optimizer.params))))
            result = original()

        def look() -> None:
            parameters = self._optimizer.params
            if seen:
                self.norm_type = seen[0].norm_type or self.norm_type
                self.sum_type = seen[0].sum_type or self.sum_type
            norms = seen[0].norms() if seen and seen[0].summed == len(parameters) else None
            if norms is not None:
                contributed, lengths = norms
                self.step.add_rows(len(contributed))
                self.step.norms.append(contributed)
                self.scaling.add(lengths)
            else:
                self.step.add_rows(len(self._optimizer.grad_samples[0]))
            self.sums.keep()

        self._guarded(look)
        self._guarded(self.recomputed.compare)
        return result

    def _around_accumulate(self, original: Callable[[], Any]) -> Any:
        self._guarded(self.sums.compare)

        def probe() -> None:
            size, self._coefficients = self._coefficients, 0
            if self._probing is not None and size:
                self._probing(self.step.rows - size, size, None)

        self._guarded(probe)
        result = original()

        def look() -> None:
            self.sums.keep()
            self.step.virtual = 1 if self.step.virtual == UNSEEN else self.step.virtual + 1

        self._guarded(look)
        return result

    def _around_coefficients(self, original: Callable[[], Any]) -> Any:
        self._guarded(self._use)
        result = original()

        def look() -> None:
            rows = self._coefficients = len(result)
            self.step.rows = rows if self.step.rows == UNSEEN else self.step.rows + rows

        self._guarded(look)
        return result

    def _around_noise(self, original: Callable[[], Any]) -> Any:
        def compare() -> None:
            self.sums.compare()
            self.sums.forget()

        self._guarded(self._hooks.put_last)
        self._guarded(self._use)
        self._guarded(compare)
        self._guarded(self._enter)
        result = original()

        def look() -> None:
            step, optimizer, parameters = self.step, self._optimizer, self._optimizer.params
            if [id(p) for p in parameters] != self._ids:
                raise RuntimeError("other parameters are trained than at the beginning; record each part apart")
            step.noise_multiplier = float(optimizer.noise_multiplier)
            step.clip_norm = float(optimizer.max_grad_norm)
            step.deviation = expected_multiplier(optimizer, self._clipping) * step.clip_norm
            self._sketch.clear()
            sums = [p.summed_grad.detach().reshape(-1) for p in parameters]
            noise = [p.grad.detach().reshape(-1) - s for p, s in zip(parameters, sums, strict=True)]
            for part in noise:
                self._sketch.add(part)
            self._noise.add(noise, sums, step.deviation)
            step.sketch, step.noised = self._sketch.results(), True
            norms = [torch.linalg.vector_norm(summed).to(sums[0].device) for summed in sums]
            step.sum_norm = torch.linalg.vector_norm(torch.stack(norms).double())

        self._guarded(look)
        return result

    def _enter(self) -> None:
        """Gradient canaries are contributions of this step as any."""
        if self._entering is None:
            return
        norms = self._entering(float(self._optimizer.max_grad_norm))
        self.step.rows += len(norms)
        if self.step.norms:
            self.step.norms.append(norms)

    def look_before_update(self) -> None:
        """The inner optimizer is about to step: count it where gradients are not what the noisy, scaled sum was."""
        self.replaced.look(self._put)
        scaled, self._scaled = self._scaled, None
        if scaled is not None:
            self._stepped_with = self._fingerprint()
            self._meddled.add(differs(self._stepped_with, scaled))

    def look_after_update(self) -> None:
        """It has stepped: count it where gradients are others now, so that nobody knows which it stepped with."""
        before, self._stepped_with = self._stepped_with, None
        if before is not None and all(p.grad is not None for p in self._optimizer.params):
            self._changed.add(differs(self._fingerprint(), before))

    def _fingerprint(self) -> Fingerprint:
        """The fingerprint of all gradients."""
        return fingerprint(p.grad for p in self._optimizer.params)

    def _around_scaling(self, original: Callable[[], Any]) -> Any:
        norms: list[Tensor] = []

        def look() -> None:
            norms.append(torch.linalg.vector_norm(self._optimizer.params[0].grad.detach()))

        self._guarded(look)
        result = original()
        self._guarded(look)
        if len(norms) == 2:
            self.step.divided = (norms[0], norms[1])

        def divisor() -> None:
            self.step.divisor = 1.0
            if self._optimizer.loss_reduction == "mean":
                times = int(self._optimizer.accumulated_iterations)
                self.step.divisor = float(self._optimizer.expected_batch_size) * times

        self._guarded(divisor)

        def remember() -> None:
            self._scaled = self._fingerprint()

        self._guarded(remember)
        return result


def expected_multiplier(optimizer: Any, clipping: str) -> float:
    """The multiplier of the noise on gradients that the optimizer's options ask for.

    Adaptive clipping spends some of its noise multiplier s on a count with noise of deviation u, and adds noise of
    (s^-2 - (2 u)^-2)^(-1/2) to gradients (Andrew et al. 2021, Theorem 1).
    """
    multiplier = float(optimizer.noise_multiplier)
    if clipping == "adaptive" and multiplier > 0.0:
        rest = multiplier**-2 - (2.0 * float(optimizer.unclipped_num_std)) ** -2
        return rest**-0.5 if rest > 0.0 else math.inf
    return float(getattr(optimizer, "_adjusted_noise_multiplier", multiplier))
