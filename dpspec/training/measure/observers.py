"""Per-step scores of canaries for an adversary who sees all iterates.

Gradient canaries are projected on their directions. For input canaries, let G (m, P) be their clipped gradients at the
previous model, in clip norms, and J_i the number of copies of canary i in the batch. The released sum minus the
expected contribution of the real records is r = sum_i J_i g_i + noise + (real records drawn - expected). z = G r has
mean K J with K = G G^T and covariance sigma^2 K + q (1 - q) C C^T, C = G (real gradients)^T. For each canary, the
others are modeled as Gaussian, given the posterior of their inclusion bits. The step's score is the log-likelihood
ratio of J_i ~ Binomial(copies, q) against J_i = 0. Tests depend only on the inclusion bits: a wrong model loses power.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract.attacks import Directions, Records
from dpspec.contract.providers import TrainingJob
from dpspec.training.device import tensors
from dpspec.training.gradients.clipping import clipper, squares_of
from dpspec.training.gradients.fetching import Array, SyncedAttribute
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.dpsgd import ScheduledPhase
from dpspec.training.loop.samplers import covariance
from dpspec.training.measure.population import Drawn, Estimated, Population, Sample
from dpspec.training.measure.residuals import Known, NoiseScale, Residuals


class ProjectionObserver(Residuals):
    """Project the residual of each update on the directions of gradient canaries.

    ``projections`` (steps, count) float32: the inner products, in clip norms.
    """

    directions: Directions
    projections: SyncedAttribute[Tensor] = SyncedAttribute()
    kept = (*Residuals.kept, "projections")

    def __init__(
        self,
        job: TrainingJob,
        directions: Directions,
        planted: int | None = None,
        looks: int | None = None,
        *,
        drawn: bool = False,
        sample: Sample | None = None,
    ) -> None:
        super().__init__(job, planted, looks, drawn=drawn, sample=sample)
        self.directions = directions
        self.projections = torch.zeros(self.schedule.total, directions.count, dtype=torch.float32)

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, known: Known) -> None:
        def keep(along: Array) -> None:
            self.projections[step - 1] = torch.from_numpy(along)

        self.transfers.add(keep, self.directions.project(residual))

    def noise_scale(self) -> NoiseScale:
        inside = self.projections.double().square().sum(1)
        return self._noise_scale(inside, self.directions.parameters - self.directions.count)


#: Ridge relative to the mean diagonal, for identical canaries.
_JITTER = 1e-6

#: Assumed minimum noise, in clip norms.
_LEAST_NOISE = 1e-3


class RecordScores(Residuals):
    """Sum the log-likelihood ratios of insertion, ``scores`` (m,) float64, over steps, for groups of equal records."""

    kept = (*Residuals.kept, "scores")

    def __init__(
        self,
        job: TrainingJob,
        canaries: Records,
        copies: np.ndarray[Any, Any],
        planted: int,
        *,
        drawn: bool = False,
        sample: Sample | None = None,
    ) -> None:
        """Prepare scores of m ``canaries``, with ``copies`` (m,) each, inserted with probability 1/2.

        ``job`` has only the real records. ``planted`` is the number of canaries that the adversary assumes.
        """
        super().__init__(job, planted, drawn=drawn, sample=sample)
        self._canaries = tensors(canaries.x, canaries.y, job.device)
        self._copies = torch.tensor(copies, dtype=torch.float64, device=job.device)
        self._counts = torch.arange(int(copies.max()) + 1, dtype=torch.float64, device=job.device)
        self.scores = torch.zeros(len(copies), dtype=torch.float64, device=job.device)

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, known: Known) -> None:
        finite = residual.isfinite().all()
        if finite.device.type == "cpu" and not bool(finite):
            return
        rows = torch.cat(list(self._clipped(previous, *self._canaries, phase)))
        gram = (rows @ rows.T).double()
        sigma, q = max(phase.noise_multiplier, _LEAST_NOISE), phase.sampler.inclusion
        covariance = sigma**2 * gram
        if q < 1.0 and not isinstance(known, Drawn):
            covariance += self._sampling(previous, rows, phase, known)
        believed = torch.sigmoid(self.scores)
        mean = believed * q * self._copies
        variance = believed * q * self._copies * (1.0 - q + q * self._copies) - mean.square()
        covariance += (gram * variance) @ gram
        diagonal = covariance.diagonal()
        diagonal += _JITTER * diagonal.mean() + 1e-12
        # Column i: covariance^-1 (gradients) g_i. Without a solution the step adds nothing.
        signal, failed = torch.linalg.solve_ex(covariance, gram)
        surprise = signal.T @ ((rows @ residual).double() - gram @ mean)
        strength = (gram * signal).sum(0)
        # Remove each canary's own share of covariance (Sherman-Morrison) and mean.
        alone = (1.0 - variance * strength).clamp_min(1e-9)
        shift, strength = (surprise + strength * mean) / alone, strength / alone
        # ln sum_j P[J = j] exp(j shift - j^2 strength / 2) for J ~ Binomial(copies, q)
        j, copies = self._counts, self._copies.unsqueeze(1)
        log_choose = torch.lgamma(copies + 1) - torch.lgamma(j + 1) - torch.lgamma((copies - j).clamp_min(0) + 1)
        weights = log_choose + torch.xlogy(j, torch.tensor(q)) + torch.xlogy(copies - j, torch.tensor(1.0 - q))
        terms = weights + j * shift.unsqueeze(1) - 0.5 * j**2 * strength.unsqueeze(1)
        ratio = torch.logsumexp(torch.where(j <= copies, terms, -torch.inf), dim=1)
        self.scores += torch.where(finite & (failed == 0), ratio, 0.0)

    def _sampling(
        self, state: Tensor, rows: Tensor, phase: ScheduledPhase, known: Population | Estimated | None = None
    ) -> Tensor:
        """Covariance (m, m) of the drawn real records along ``rows`` (m, P), including the error of an estimate."""
        q, total = phase.sampler.inclusion, torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        along = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        x, y, c, factor = self.x, self.y, covariance(phase.sampler), 1.0
        if isinstance(known, Estimated):
            at = known.places.to(x.device)
            x, y, factor = x[at], y[at], known.factor
        for chunk in self._clipped(state, x, y, phase):
            products = (rows @ chunk.T).double()
            total += products @ products.T
            along += products.sum(1)
        # The sample represents all records; its own sampling error is q^2 (factor - 1) per record.
        each = q * (1.0 - q) - c + q * q * (factor - 1.0)
        return each * factor * total + c * torch.outer(along, along)

    def _clipped(self, state: Tensor, x: Tensor, y: Tensor, phase: ScheduledPhase) -> Iterator[Tensor]:
        """Clipped gradients in clip norms, rows (b, P), chunk by chunk; zero if not finite."""
        how = clipper(phase.clip)
        for chunk in self.model.gradients(state, x, y):
            named = self.model.layout.split(chunk)
            squares = torch.stack([squares_of(rows) for rows in named.values()])
            factors, _ = how.scale(squares, tuple(named))
            finite = squares.isfinite().all(0).unsqueeze(1)
            parts = [
                (rows.flatten(1) * factor.unsqueeze(1)).clamp(-how.coordinate_bound, how.coordinate_bound)
                for rows, factor in zip(named.values(), factors, strict=True)
            ]
            yield torch.where(finite, torch.cat(parts, dim=1) / phase.clip_norm, 0.0)


def margins(model: nn.Module | FlatModel, state: Tensor, records: Records, *, device: str) -> np.ndarray[Any, Any]:
    """Log-odds ln(p / (1 - p)) of each record's label at ``state`` (P,), (m,) float64."""
    functional = model if isinstance(model, FlatModel) else FlatModel(model, device=device)
    x, y = tensors(records.x, records.y, device)
    with torch.no_grad():
        logits = functional.logits(state.to(functional.device), x).double()
        own = logits.gather(1, y.unsqueeze(1)).squeeze(1)
        others = logits.scatter(1, y.unsqueeze(1), -torch.inf)
        found: np.ndarray[Any, Any] = (own - torch.logsumexp(others, dim=1)).cpu().numpy()
    return found
