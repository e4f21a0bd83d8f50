"""The white-box adversary: scores every canary by the likelihood ratio of what each step shows of it.

From the released models follow both ends that were mixed, so the middle m and the gap of every coordinate. With the
expected update of the real records taken away,

    o = ((m - w_k) B / eta - q sum of clipped gradients) / sigma     is N + U of width gap B / (eta sigma),

shifted by what the canary adds where it was drawn: v = clip_norm / (sqrt(width) sigma), or, where noise is Laplace of
scale b, clip_norm / (width b). A step adds ln(1 - q + q prod_j p_v / p_0), which is exact. Under a shared weight the
uniform lies along one line, which is projected out; what is left is Gaussian. Noise within a subspace is taken to be
independent in a canary's coordinates, which it is not quite: the score is no exact ratio then, and no less valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.expected import population
from dpspec.training.memories import Memory, tensor, tensors
from dpspec.training.native import tensors as rows_on
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Phase, Schedule
from dpspec_modelmix.canaries import Owned, Planted
from dpspec_modelmix.clips import SOME, Absolute, RowClip, TwoParts, WrittenOut
from dpspec_modelmix.density import NARROW
from dpspec_modelmix.mixing import Rules


class Reader(Observer):
    """scores: (m,) float64, the log-likelihood ratios of planted against not, summed over the steps seen so far."""

    def __init__(
        self, job: TrainingJob, rules: Rules, owned: Owned, everyone: Planted, how: RowClip | None = None
    ) -> None:
        """``job`` declares the run; its canaries play no part here, and the coins are not known.

        everyone: all canaries as if planted; how: clipping for which gradients are written out.
        """
        self._rules = rules
        self._owned, self._everyone, self._how = owned, everyone, how
        self._model = FlatModel(job.model, device=job.device)
        self._x, self._y = rows_on(job.x, job.y, job.device)
        self._schedule = Schedule.of(job.phases, len(job.x))
        self._phases: Iterator[Phase] = iter(self._schedule)
        self._current: Tensor | None = None
        self._kept: Tensor | None = None
        self.steps = 0
        self.scores = torch.zeros(len(owned.coordinates), dtype=torch.float64, device=job.device)

    def released(self, step: int, state: Tensor) -> None:
        """Score the step that led to ``state`` (P,); raises ``ValueError`` where a step is missing."""
        if step != (0 if self._current is None else self.steps + 1):
            raise ValueError(f"models must be released step by step: step {step} came after step {self.steps}")
        previous, self._current = self._current, state.double().clone()
        if previous is None:
            return
        self.steps = step
        rules, phase = self._rules, next(self._phases)
        ends = rules.ends(step, previous, previous if self._kept is None else self._kept)
        self._kept = ends.first
        if phase.deviation == 0.0:
            return
        scale = rules.divisor / rules.rate(step)
        noisy = (0.5 * (ends.first + ends.second) - self._current) * scale - rules.decay * rules.divisor * previous
        seen = noisy - phase.sampler.inclusion * self._all_records(previous.to(state.dtype), phase).double()
        gap = ends.gap * scale
        if rules.shared:
            line = ends.first - ends.second
            square = float(line.square().sum())
            seen = seen - line * (float(line @ seen) / square if square > 0.0 else 0.0)
            gap = torch.zeros_like(gap)
        self._add(seen[self._owned.coordinates], gap[self._owned.coordinates], phase)

    def _all_records(self, state: Tensor, phase: Phase) -> Tensor:
        """The sum (P,) of all real records' clipped gradients; the clipping stands at ``state`` from here on."""
        if self._how is None:
            return population(self._model, state, self._x, self._y, phase.clip).sum
        everyone = torch.arange(len(self._x))
        return WrittenOut(self._model, self._x, self._y, self._how).clipped(state, everyone, phase.clip).sum

    def _add(self, seen: Tensor, gap: Tensor, phase: Phase) -> None:
        """One step's outputs and widths of the uniform, (m, coordinates of each) both, on the scale of the sum."""
        unit = self._unit(phase)
        shift, signed = self._shift(phase) / unit, seen * self._owned.signs / unit
        law = log_laplace_density if phase.noise == "laplace" else log_density
        ratio = (law(signed - shift, gap / unit) - law(signed, gap / unit)).sum(1)
        rate = phase.sampler.inclusion
        if rate < 1.0:
            ratio = torch.logaddexp(torch.full_like(ratio, math.log1p(-rate)), ratio + math.log(rate))
        self.scores += torch.nan_to_num(ratio, nan=0.0, posinf=1e6, neginf=-1e6)

    def _unit(self, phase: Phase) -> Tensor:
        """The scale of the noise in every canary's coordinates, (m, width) or one number."""
        if phase.noise == "laplace":
            return self.scores.new_tensor(phase.deviation / math.sqrt(2.0))
        if isinstance(self._how, TwoParts):
            within = self._how.basis.double().square().sum(1)[self._owned.coordinates]
            return (phase.deviation**2 + self._how.rule.deviation**2 * within).sqrt()
        return self.scores.new_tensor(phase.deviation)

    def _shift(self, phase: Phase) -> Tensor:
        """What a drawn canary adds to each of its coordinates, signs left out, (m, width) or one number."""
        clip_norm, width = phase.clip_norm, self._owned.width
        if isinstance(self._how, TwoParts):
            found = []
            for some in torch.split(torch.arange(self._everyone.count), SOME):
                rows, _ = self._how(self._everyone.gradients(some), phase.clip)
                found.append(rows.gather(1, self._owned.coordinates[some]))
            return torch.cat(found).double() * self._owned.signs
        return self.scores.new_tensor(clip_norm / (width if isinstance(self._how, Absolute) else math.sqrt(width)))

    def state(self) -> Memory:
        """Scores, both models and the step: all that later steps need."""
        return {
            **tensors(current=self._current, kept=self._kept, scores=self.scores),
            "steps": np.array(self.steps),
        }

    def restore(self, state: Memory) -> None:
        """Go on after the step that was seen last; an empty memory begins anew."""
        self.steps = int(state.get("steps", 0))
        self._phases = islice(iter(self._schedule), self.steps, None)
        current, kept, scores = (tensor(state, name) for name in ("current", "kept", "scores"))
        device = self.scores.device
        self._current = None if current is None else current.to(device)
        self._kept = None if kept is None else kept.to(device)
        self.scores = torch.zeros_like(self.scores) if scores is None else scores.to(device)


def log_density(o: Tensor, width: Tensor) -> Tensor:
    """ln of the density of N(0, 1) + U of each ``width``, as :func:`dpspec_modelmix.density.log_density`."""
    a, wide = o.abs(), width.clamp_min(NARROW)
    upper, lower = torch.special.log_ndtr(0.5 * wide - a), torch.special.log_ndtr(-0.5 * wide - a)
    mixed = upper + torch.log(-torch.expm1(lower - upper)) - wide.log()
    return torch.where(width < NARROW, -0.5 * o.square() - 0.5 * math.log(2.0 * math.pi), mixed)


def log_laplace_density(o: Tensor, width: Tensor) -> Tensor:
    """ln of the density of Laplace noise of scale 1 + U of each ``width``, around 0."""
    a, wide = o.abs(), width.clamp_min(NARROW)
    half = 0.5 * wide
    inside = torch.log(-torch.expm1(a - half) - torch.expm1(-a - half))
    outside = half - a + torch.log(-torch.expm1(-wide))
    mixed = torch.where(a < half, inside, outside) - (2.0 * wide).log()
    return torch.where(width < NARROW, -a - math.log(2.0), mixed)
