"""A sampling scheme of a third party: all records at the last step of each epoch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpspec import accounting
from dpspec.contract import Phase
from dpspec.sampling import Composed, EpochSampling, Theory


class PeriodicTheory(Theory):
    """One Gaussian release of sensitivity k per epoch, which is attained; the other steps add only noise."""

    source = "one Gaussian release per epoch"
    tight = True

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        release = accounting.Mixture.full(group_size, phase.noise_multiplier)
        return ((release, phase.steps // int(phase["sampling"]["epoch_steps"])),)


@dataclass
class Periodic(EpochSampling):
    """All records at the last step of each epoch of ``epoch_steps`` steps, and no record at the other steps."""

    checks = ("exact_sizes", "batches_of_each_epoch")
    directed = False
    theory = PeriodicTheory()

    epoch_steps: int

    @classmethod
    def exact_sizes(cls, phase: Phase, records: int, steps: int) -> tuple[int, int]:
        epochs = steps // int(phase["sampling"]["epoch_steps"])
        return records * epochs, records**2 * epochs

    @property
    def inclusion(self) -> float:
        return 1.0 / self.epoch_steps

    @property
    def dependent_steps(self) -> int:
        return self.epoch_steps

    def inclusion_moments(self, observed: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        last = observed.reshape(-1, self.epoch_steps)[:, -1].astype(float)
        return last, np.zeros(len(last))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        self.done += 1
        return torch.arange(0 if self.done % self.epoch_steps else self.records)
