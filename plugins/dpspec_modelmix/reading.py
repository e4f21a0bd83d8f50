"""The white-box adversary: scores every canary by the exact likelihood ratio of what each step shows of it.

From the released models follow both ends that were mixed, so the middle m and the gap of every coordinate. With the
expected update of the real records taken away,

    o = ((m - w_k) B / eta - q sum of clipped gradients) / sigma     is N + U of width gap B / (eta sigma),

shifted by v = clip_norm / (sqrt(width) sigma) where the canary was drawn. A step adds ln(1 - q + q prod_j p_v / p_0).
Under a shared weight the uniform lies along one line, which is projected out; what is left is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.expected import population
from dpspec.training.native import tensors
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Phase, Schedule
from dpspec_modelmix.canaries import Owned
from dpspec_modelmix.density import NARROW
from dpspec_modelmix.mixing import Rules


class Reader(Observer):
    """scores: (m,) float64, the log-likelihood ratios of planted against not, summed over the steps seen so far."""

    def __init__(self, job: TrainingJob, rules: Rules, owned: Owned) -> None:
        """``job`` declares the run; its canaries play no part here, and the coins are not known."""
        self._rules = rules
        self._owned = owned
        self._model = FlatModel(job.model, device=job.device)
        self._x, self._y = tensors(job.x, job.y, job.device)
        self._phases: Iterator[Phase] = iter(Schedule.of(job.phases, len(job.x)))
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
        known = population(self._model, previous.to(state.dtype), self._x, self._y, phase.clip)
        seen = (noisy - known.mean(phase.sampler).double()) / phase.deviation
        width = ends.gap * scale / phase.deviation
        if rules.shared:
            line = ends.first - ends.second
            square = float(line.square().sum())
            seen = seen - line * (float(line @ seen) / square if square > 0.0 else 0.0)
            width = torch.zeros_like(width)
        self._add(seen[self._owned.coordinates], width[self._owned.coordinates], phase)

    def _add(self, seen: Tensor, width: Tensor, phase: Phase) -> None:
        """One step's outputs and widths of the uniform, (m, coordinates of each) both."""
        shift = phase.clip_norm / math.sqrt(self._owned.width) / phase.deviation
        signed = seen * self._owned.signs
        ratio = (log_density(signed - shift, width) - log_density(signed, width)).sum(1)
        rate = phase.sampler.inclusion
        if rate < 1.0:
            ratio = torch.logaddexp(torch.full_like(ratio, math.log1p(-rate)), ratio + math.log(rate))
        self.scores += torch.nan_to_num(ratio, nan=0.0, posinf=1e6, neginf=-1e6)


def log_density(o: Tensor, width: Tensor) -> Tensor:
    """ln of the density of N(0, 1) + U of each ``width``, as :func:`dpspec_modelmix.density.log_density`."""
    a, wide = o.abs(), width.clamp_min(NARROW)
    upper, lower = torch.special.log_ndtr(0.5 * wide - a), torch.special.log_ndtr(-0.5 * wide - a)
    mixed = upper + torch.log(-torch.expm1(lower - upper)) - wide.log()
    return torch.where(width < NARROW, -0.5 * o.square() - 0.5 * math.log(2.0 * math.pi), mixed)
