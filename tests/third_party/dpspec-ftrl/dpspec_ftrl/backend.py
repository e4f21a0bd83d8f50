"""Who trains: dpspec's loop, with the noise and the batches of the matrix mechanism in the place of DP-SGD's.

A team puts a loop of its own in the place of ``Correlated`` by one line of a spec: ``training: {backend: ...}``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.training.loop.native import parts_of, train_with
from dpspec_ftrl.encoders import Banded, encoder_of
from dpspec_ftrl.noise import BandedNoise


@dataclass
class Cyclic:
    """Step t, counting from 0, takes the records whose numbers leave t mod ``separation``: a slot each, in turn."""

    records: int
    separation: int
    step: int = 0

    @property
    def inclusion(self) -> float:
        """One over the slots: a record's average over an epoch."""
        return 1.0 / self.separation

    def draw(self, generator: torch.Generator) -> Tensor:
        """The next slot's records (b,), in order; no randomness."""
        batch = torch.arange(self.step % self.separation, self.records, self.separation)
        self.step += 1
        return batch

    def state(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The step."""
        return {"step": np.array(self.step)}

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on after it; an empty memory begins anew."""
        self.step = int(state.get("step", 0))


class Correlated:
    """Trains by DP-FTRL: clipped sums of cyclic batches, with the noise of the declared encoder."""

    def train(self, job: dps.TrainingJob) -> None:
        """Run the job; ``job.model`` ends trained."""
        if len(job.phases) != 1:
            raise ValueError(f"one matrix spans all steps: one phase is trained, not {len(job.phases)}")
        options = job.phases[0]
        encoder, parts = encoder_of(options), parts_of(job)
        (phase,), records = parts.schedule.phases, len(job.x) + (job.canaries.count if job.canaries else 0)
        phase = replace(
            phase,
            sampler=Cyclic(records, self.separation(int(options["separation"]))),
            noise_multiplier=self.noise_multiplier(phase.noise_multiplier, encoder),
        )
        schedule = replace(parts.schedule, phases=(phase,))
        train_with(job, replace(parts, schedule=schedule, noise=BandedNoise(encoder)))

    def separation(self, declared: int) -> int:
        """After how many steps a record takes part again."""
        return declared

    def noise_multiplier(self, declared: float, encoder: Banded) -> float:
        """The deviation of Z, per clip norm."""
        return declared


class Thrifty(Correlated):
    """Takes the encoder for one whose columns are normalised, which it is not."""

    def noise_multiplier(self, declared: float, encoder: Banded) -> float:
        """The declared one over the largest norm of a column."""
        return declared / float(encoder.moved(encoder.steps)) ** 0.5


class Eager(Correlated):
    """Takes all records at every step, as DP-SGD with full batches does."""

    def separation(self, declared: int) -> int:
        """None."""
        return 1
