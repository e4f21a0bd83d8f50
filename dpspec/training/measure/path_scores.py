"""How an adversary who sees the final model alone scores planted records, by where the model must have come through.

The first model theta_0 and the last one theta_T are known, and what lies between is taken to be the straight line. With
plain descent, momentum or a schedule, the movement is a known constant times the sum of all noisy sums, so that

    (theta_0 - theta_T) / scale - (what real records are expected to add) = sum_i b_i c_i e_i + noise + sampling,

b_i the coin of canary i, c_i its copies, and e_i = sum over steps of q g_i(theta_t), g_i its clipped gradient on the
line. That is one Gaussian observation of all coins: each canary is scored by its log-likelihood ratio, the others taken
as normal with the mean and variance that their coins leave them. A few rounds, each with what the one before said of
the others' coins, take their part away where they are given away. How real records answer to the noise is not known, so
that their expected part counts as uncertain by a share of itself. Neither the line nor the normal law need be right
for a test that rests on the coins alone; wrong ones only cost power.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.attacks import Records
from dpspec.contract.providers import TrainingJob
from dpspec.training.loop.optimizers import update_of
from dpspec.training.measure.observers import RecordScores
from dpspec.training.measure.population import population

#: Points on the line at which gradients are taken, at most.
_POINTS = 8

#: Rounds of scoring, each by the coins that the one before made likely.
_ROUNDS = 4

#: The share of what real records are expected to add that counts as its standard deviation.
_UNSURE = 0.1

#: Added to a covariance's diagonal, relative to its mean.
_JITTER = 1e-6


class PathScores(RecordScores):
    """Scores planted records from the first and the last model; no model between them is looked at."""

    def __init__(self, job: TrainingJob, canaries: Records, copies: np.ndarray[Any, Any], planted: int) -> None:
        """``job`` holds the real records alone; ``copies`` (m,) of each canary enter by a fair coin."""
        super().__init__(job, canaries, copies, planted)
        self._job = job

    def __call__(self, first: Tensor, last: Tensor) -> Tensor:
        """Log-likelihood ratios (m,) float64 of planted against not, from two models (P,); zeros where one diverged."""
        first, last = first.to(self.x.device), last.to(self.x.device)
        nothing = torch.zeros(len(self._copies), dtype=torch.float64, device=first.device)
        if not bool((first.isfinite() & last.isfinite()).all()):
            return nothing
        schedule = list(self.schedule)
        points = min(_POINTS, len(schedule))
        effect: Tensor | None = None
        residual = (first - last) / self._scale(len(schedule))
        noise, drifts, sampled = 0.0, [], []
        for k in range(points):
            steps = schedule[k * len(schedule) // points : (k + 1) * len(schedule) // points]
            phase, q, weight = steps[0], steps[0].sampler.inclusion, len(steps)
            state = torch.lerp(first, last, (k + 0.5) / points)
            rows = torch.cat(list(self._clipped(state, *self._canaries, phase))) * phase.clip_norm
            effect = weight * q * rows if effect is None else effect + weight * q * rows
            drift = weight * population(self.model, state, self.x, self.y, phase.clip).mean(phase.sampler)
            residual = residual - drift
            drifts.append(drift)
            noise += sum((step.noise_multiplier * step.clip_norm) ** 2 for step in steps)
            if q < 1.0:
                sampled.append((state, phase, weight))
        assert effect is not None
        gram = (effect @ effect.T).double()
        covariance = max(noise, 1e-6) * gram
        for state, phase, weight in sampled:
            covariance = covariance + weight * phase.clip_norm**2 * self._sampling(state, effect, phase)
        unsure = _UNSURE * (torch.stack(drifts) @ effect.T).double()
        covariance = covariance + unsure.T @ unsure
        seen = (effect @ residual).double()
        scores = nothing
        for _ in range(_ROUNDS):
            scores = self._round(scores, gram, covariance, seen)
        return scores

    def _round(self, scores: Tensor, gram: Tensor, others: Tensor, seen: Tensor) -> Tensor:
        """The scores by the coins that ``scores`` make likely; others: the covariance (m, m) of all but canaries."""
        believed = torch.sigmoid(scores)
        mean, variance = believed * self._copies, believed * (1.0 - believed) * self._copies**2
        covariance = others + (gram * variance) @ gram
        diagonal = covariance.diagonal()
        diagonal += _JITTER * diagonal.mean() + 1e-12
        signal = torch.linalg.solve(covariance, gram)
        strength = (gram * signal).sum(0)
        alone = (1.0 - variance * strength).clamp_min(1e-9)
        shift = (signal.T @ (seen - gram @ mean) + strength * mean) / alone
        scored: Tensor = self._copies * shift - 0.5 * self._copies**2 * strength / alone
        return scored

    def _scale(self, steps: int) -> float:
        """By how much the model moves, over all steps, for each unit of every step's sum."""
        update = update_of(self._job.options, self._job.expected_batch_size, steps)
        state = torch.zeros(1, dtype=torch.float64)
        for _ in range(steps):
            state = update(state, torch.ones(1, dtype=torch.float64))
        return -float(state) / steps
