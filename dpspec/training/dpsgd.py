"""The DP-SGD loop: theta <- theta - learning_rate * (sum of clipped gradients + noise) / divisor.

The loop itself only calls its parts in order. Whoever needs another sampler, other contributions, other noise or
another update replaces that part with ``dataclasses.replace`` and keeps the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpspec.contract.providers import Cancelled, Observer
from dpspec.training.persample import ClippedSum
from dpspec.training.schedule import Schedule
from dpspec.training.seeds import generator


class Contributions(Protocol):
    """What the drawn records add to a step."""

    def __call__(self, state: Tensor, indices: Tensor, clip_norm: float) -> ClippedSum:
        """The clipped sum of records ``indices`` (b,) at parameters ``state`` (P,); norms in the order of indices."""


class Noise(Protocol):
    """What is added to the sum of clipped gradients."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Noise like ``total`` (P,), of standard deviation ``deviation``, drawn from ``source`` alone."""


class Update(Protocol):
    """How the noisy sum changes the model: post-processing, as far as privacy goes."""

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next parameters (P,), as a new tensor."""


class GaussianNoise:
    """Independent N(0, deviation^2) for every parameter."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Drawn on the device of ``total``, which must be the generator's."""
        return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


@dataclass(frozen=True)
class Sgd:
    """theta - learning_rate * noisy / divisor; the divisor is a public constant (1, or the expected batch size)."""

    learning_rate: float
    divisor: float = 1.0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not self.divisor > 0:
            raise ValueError(f"the expected batch size must be above 0, got {self.divisor}")

    @property
    def scale(self) -> float:
        """By how much the noisy sum is multiplied."""
        return self.learning_rate / self.divisor

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next parameters (P,)."""
        return state - self.scale * noisy


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that decides what a run computes. ``initial`` (P,) stands on the device of the run."""

    initial: Tensor
    schedule: Schedule
    contributions: Contributions
    noise: Noise
    update: Update


def run(
    parts: Parts,
    seed: int,
    *,
    observers: Sequence[Observer] = (),
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Tensor:
    """Run every step and return the final parameters (P,).

    Sampling and noise have generators of their own, derived from ``seed``; the same seed gives the same run on the
    same device. Raises ``Cancelled`` before the next step once ``cancelled()`` is true.
    """
    state = parts.initial
    sampling = generator(seed, "sampling")
    source = generator(seed, "noise", state.device)
    total = parts.schedule.total
    with torch.no_grad():
        for observer in observers:
            observer.released(0, state)
        for step, phase in enumerate(parts.schedule, start=1):
            if cancelled is not None and cancelled():
                raise Cancelled
            indices = phase.sampler.draw(sampling)
            clipped = parts.contributions(state, indices, phase.clip_norm)
            noise = parts.noise(clipped.sum, phase.deviation, source)
            state = parts.update(state, clipped.sum + noise)
            for observer in observers:
                observer.sampled(step, indices)
                observer.clipped(step, clipped.norms)
                observer.noised(step, noise)
                observer.released(step, state)
            if progress is not None:
                progress(step, total)
    return state
