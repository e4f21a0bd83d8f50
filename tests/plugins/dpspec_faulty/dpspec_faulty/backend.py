"""The faults: each replaces the noise part of dpspec's own loop and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from dpspec.contract import TrainingJob
from dpspec.training.dpsgd import Noise
from dpspec.training.native import parts_of, train_with


class NoNoise:
    """Zeros, whatever was declared."""

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Zeros like ``total`` (P,)."""
        return torch.zeros_like(total)


class ScaledNoise:
    """The real noise, but of the wrong size."""

    def __init__(self, noise: Noise, factor: float) -> None:
        self._noise = noise
        self._factor = factor

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Noise like ``total`` (P,) of standard deviation factor * deviation."""
        return self._noise(total, self._factor * deviation, source)


_BROKEN: Mapping[str, Callable[[Noise], Noise]] = {
    "none": lambda noise: noise,
    "no-noise": lambda noise: NoNoise(),
    "tenth-noise": lambda noise: ScaledNoise(noise, 0.1),
}


def train_broken(job: TrainingJob, fault: str) -> None:
    """Train a job with one fault; raises ``ValueError`` where there is no such fault."""
    if fault not in _BROKEN:
        raise ValueError(f"fault must be one of {', '.join(_BROKEN)}, got {fault!r}")
    parts = parts_of(job)
    train_with(job, replace(parts, noise=_BROKEN[fault](parts.noise)))


class FaultyTrainer:
    """The fault that ``job.options`` names."""

    def train(self, job: TrainingJob) -> None:
        """Run the job, broken as ``fault`` says."""
        train_broken(job, str(job.options.get("fault", "none")))


class NoNoiseTrainer:
    """Always without noise."""

    def train(self, job: TrainingJob) -> None:
        """Run the job without its noise."""
        train_broken(job, "no-noise")


class TenthNoiseTrainer:
    """Always with a tenth of the noise."""

    def train(self, job: TrainingJob) -> None:
        """Run the job with a tenth of its noise."""
        train_broken(job, "tenth-noise")
