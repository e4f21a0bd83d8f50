"""The DP-SGD loop: theta <- update(theta, sum of clipped gradients + noise).

The loop itself only calls its parts in order. Whoever needs another sampler, other contributions, other noise or
another update replaces that part with ``dataclasses.replace`` and keeps the rest. Noise of every law is named by its
standard deviation, so that noise_multiplier * clip_norm means the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from typing import Protocol

import torch
from torch import Tensor

from dpspec.contract.providers import Cancelled, Observer
from dpspec.training.device import full_precision
from dpspec.training.gradients.clipping import Clip
from dpspec.training.gradients.persample import ClippedSum
from dpspec.training.loop.checkpoint import Checkpoint, Random, Remembering
from dpspec.training.loop.schedule import Schedule
from dpspec.training.seeds import generator


class Contributions(Protocol):
    """What the drawn records add to a step."""

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip, /) -> ClippedSum:
        """The clipped sum of records ``indices`` (b,) at parameters ``state`` (P,); norms in the order of indices."""


class Noise(Protocol):
    """What is added to the sum of clipped gradients."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Noise like ``total`` (P,), of standard deviation ``deviation``, drawn from ``source`` alone."""


class Update(Protocol):
    """How the noisy sum changes the model: post-processing, as far as privacy goes."""

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next parameters (P,), as a new tensor."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that decides what a run computes. ``initial`` (P,) stands on the device of the run.

    A part with a memory (an update with momentum, a sampler that shuffles) is :class:`Remembering`; a run starts by
    clearing it.
    """

    initial: Tensor
    schedule: Schedule
    contributions: Contributions
    noise: Noise
    update: Update

    @property
    def remembering(self) -> Mapping[str, Remembering]:
        """The parts that have a memory, by name."""
        parts: dict[str, object] = {
            "contributions": self.contributions,
            "noise": self.noise,
            "update": self.update,
            **{f"sampler{i}": phase.sampler for i, phase in enumerate(self.schedule.phases)},
        }
        return {name: part for name, part in parts.items() if isinstance(part, Remembering)}


def run(
    parts: Parts,
    seed: int,
    *,
    observers: Sequence[Observer] = (),
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Run every step and return the final parameters (P,).

    Sampling and noise have generators of their own, derived from ``seed``; the same seed gives the same run on the
    same device, whatever precision the process allows elsewhere: all of it, observers too, computes in full float32.
    Raises ``Cancelled`` before the next step once ``cancelled()`` is true. With a ``checkpoint`` a run
    goes on where an earlier one of the same job stopped, and ends with the same bits as one that never did.
    """
    state = parts.initial
    sampling = generator(seed, "sampling")
    source = generator(seed, "noise", state.device)
    total = parts.schedule.total
    for part in parts.remembering.values():
        part.restore({})
    remembering: dict[str, Remembering] = {
        **parts.remembering,
        "sampling": Random(sampling),
        "source": Random(source),
        **{f"observer{i}": observer for i, observer in enumerate(observers)},
    }
    resumed = checkpoint.load(remembering, state) if checkpoint is not None else None
    done, state = resumed if resumed is not None else (0, state)
    with torch.no_grad(), full_precision(state.device):
        if resumed is None:
            for observer in observers:
                observer.released(0, state)
        for step, phase in enumerate(islice(parts.schedule, done, None), start=done + 1):
            if cancelled is not None and cancelled():
                if checkpoint is not None:
                    checkpoint.save(step - 1, state, remembering)
                raise Cancelled
            indices = phase.sampler.draw(sampling)
            clipped = parts.contributions(state, indices, phase.clip)
            noise = parts.noise(clipped.sum, phase.deviation, source)
            state = parts.update(state, clipped.sum + noise)
            for observer in observers:
                observer.sampled(step, indices)
                observer.clipped(step, clipped.norms)
                observer.noised(step, noise)
                observer.released(step, state)
            if checkpoint is not None and checkpoint.due(step, total):
                checkpoint.save(step, state, remembering)
            if progress is not None:
                progress(step, total)
    return state


class GaussianNoise:
    """Independent N(0, deviation^2) for every parameter."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Drawn on the device of ``total``, which must be the generator's."""
        return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


class LaplaceNoise:
    """Independent Laplace numbers for every parameter: density exp(-|z| / b) / (2 b) with b = deviation / sqrt(2)."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """The difference of two independent exponentials, which is Laplace, and finite whatever is drawn."""
        first, second = torch.empty_like(total), torch.empty_like(total)
        first.exponential_(generator=source)
        second.exponential_(generator=source)
        return (first - second) * (deviation / sqrt(2.0))


def noise_of(kind: str) -> Noise:
    """The noise that a phase names: ``gaussian`` or ``laplace``; raises ``ValueError`` on any other name."""
    match kind:
        case "gaussian":
            return GaussianNoise()
        case "laplace":
            return LaplaceNoise()
    raise ValueError(f"noise must be gaussian or laplace, got {kind!r}")
