"""Canary scores for an adversary who sees only the final model, by interpolating the path of the models.

The models between the first, theta_0, and the last, theta_T, are assumed to be on a straight line. For plain descent,
momentum and schedules, the total movement is a known constant times the sum of all noisy sums:

    (theta_0 - theta_T) / scale - (expected contribution of real records) = sum_i b_i c_i e_i + noise + sampling.

b_i is the inclusion bit of canary i, c_i its number of copies, and e_i the sum over steps of q g_i(theta_t), with its
clipped gradient g_i on the line. Each canary is scored by its log-likelihood ratio, with the others as Gaussian with
their posterior mean and variance. The response of real records to the noise is unknown, so their contribution is
uncertain. Tests depend only on the inclusion bits: a wrong model loses power.
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

#: Maximum number of points on the line at which gradients are computed.
_POINTS = 8

#: Rounds of scoring, each with the posterior of the previous one.
_ROUNDS = 4

#: Relative standard deviation of the expected contribution of real records.
_UNSURE = 0.1

#: Ridge relative to the mean diagonal.
_JITTER = 1e-6


class PathScores(RecordScores):
    """Scores of input canaries from the first and the last model only."""

    def __init__(self, job: TrainingJob, canaries: Records, copies: np.ndarray[Any, Any], planted: int) -> None:
        super().__init__(job, canaries, copies, planted)
        self._job = job

    def __call__(self, first: Tensor, last: Tensor) -> Tensor:
        """Log-likelihood ratios (m,), float64, from two models (P,); zeros if one diverged."""
        first, last = first.to(self.x.device), last.to(self.x.device)
        scores = torch.zeros(len(self._copies), dtype=torch.float64, device=first.device)
        if not bool((first.isfinite() & last.isfinite()).all()):
            return scores
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
        for _ in range(_ROUNDS):
            believed = torch.sigmoid(scores)
            mean, variance = believed * self._copies, believed * (1.0 - believed) * self._copies**2
            whole = covariance + (gram * variance) @ gram
            diagonal = whole.diagonal()
            diagonal += _JITTER * diagonal.mean() + 1e-12
            signal = torch.linalg.solve(whole, gram)
            strength = (gram * signal).sum(0)
            alone = (1.0 - variance * strength).clamp_min(1e-9)
            shift = (signal.T @ (seen - gram @ mean) + strength * mean) / alone
            scores = self._copies * shift - 0.5 * self._copies**2 * strength / alone
        return scores

    def _scale(self, steps: int) -> float:
        """Movement of the model over all steps per unit of every step's sum."""
        update = update_of(self._job.options, self._job.expected_batch_size, steps)
        state = torch.zeros(1, dtype=torch.float64)
        for _ in range(steps):
            state = update(state, torch.ones(1, dtype=torch.float64))
        return -float(state) / steps
