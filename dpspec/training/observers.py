"""What auditors keep of a run: sufficient statistics, step by step, and never whole iterates."""

from __future__ import annotations

import torch
from torch import Tensor

from dpspec.contract.providers import TrainingJob
from dpspec.training.canaries import SignBlocks
from dpspec.training.expected import Population
from dpspec.training.residuals import NoiseScale, Residuals
from dpspec.training.schedule import Phase


class ProjectionObserver(Residuals):
    """Projects what is left of each update on the directions of gradient canaries.

    projections: (steps, count) float32, the inner products of r_t with the directions, in units of the clip norm.
    """

    directions: SignBlocks
    kept = (*Residuals.kept, "projections")

    def __init__(
        self, job: TrainingJob, directions: SignBlocks, planted: int | None = None, looks: int | None = None
    ) -> None:
        """``job``, ``planted`` and ``looks`` as for :class:`~dpspec.training.residuals.Residuals`."""
        super().__init__(job, planted, looks)
        self.directions = directions
        self.projections = torch.zeros(self.schedule.total, directions.count, dtype=torch.float32)

    def seen(self, step: int, phase: Phase, previous: Tensor, residual: Tensor, known: Population) -> None:
        """Keep the projections."""
        self.projections[step - 1] = self.directions.project(residual)

    def noise_scale(self) -> NoiseScale:
        """The noise measured where no canary speaks; steps that declare no noise are left out."""
        inside = self.projections.double().square().sum(1)
        return self._noise_scale(inside, self.directions.parameters - self.directions.count)
