"""The DP-SGD loop: theta <- update(theta, sum of clipped gradients + noise).

The loop calls its parts in order. A custom sampler, contribution, noise or update replaces its part with
``dataclasses.replace``. All noise distributions are parametrized by their standard deviation noise_multiplier *
clip_norm.
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
from dpspec.training.loop.checkpoint import Checkpoint, GeneratorState, Stateful
from dpspec.training.loop.schedule import Schedule
from dpspec.training.seeds import generator


class Contributions(Protocol):
    """The clipped sum of the drawn records."""

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip, /) -> ClippedSum:
        """Clipped sum of records ``indices`` (b,) at parameters ``state`` (P,); norms in the order of ``indices``."""


class Noise(Protocol):
    """Noise added to the clipped sum."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Noise like ``total`` (P,) with standard deviation ``deviation``, drawn only from ``source``."""


class Update(Protocol):
    """Update of the model from the noisy sum; post-processing for privacy."""

    def __call__(self, state: Tensor, noisy: Tensor) -> Tensor:
        """The next parameters (P,), as a new tensor."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that determines a run. ``initial`` (P,) is on the device of the run.

    Parts with state (an update with momentum, a shuffling sampler) are :class:`Stateful` and are reset when a run
    starts.
    """

    initial: Tensor
    schedule: Schedule
    contributions: Contributions
    noise: Noise
    update: Update

    @property
    def stateful(self) -> Mapping[str, Stateful]:
        """The stateful parts by name."""
        parts: dict[str, object] = {
            "contributions": self.contributions,
            "noise": self.noise,
            "update": self.update,
            **{f"sampler{i}": phase.sampler for i, phase in enumerate(self.schedule.phases)},
        }
        return {name: part for name, part in parts.items() if isinstance(part, Stateful)}


def run(
    parts: Parts,
    seed: int,
    *,
    observers: Sequence[Observer] = (),
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Run all steps.

    Sampling and noise use separate generators derived from ``seed``. The same seed gives the same run on the same
    device. The loop and all observers compute in full float32. A resumed run ends with the same bits as an
    uninterrupted one. Raises ``Cancelled`` if ``cancelled()`` returned true.

    Returns:
        Final parameters (P,).
    """
    state = parts.initial
    sampling = generator(seed, "sampling")
    source = generator(seed, "noise", state.device)
    total = parts.schedule.total
    for part in parts.stateful.values():
        part.restore({})
    stateful: dict[str, Stateful] = {
        **parts.stateful,
        "sampling": GeneratorState(sampling),
        "source": GeneratorState(source),
        **{f"observer{i}": observer for i, observer in enumerate(observers)},
    }
    resumed = checkpoint.load(stateful, state) if checkpoint is not None else None
    done, state = resumed if resumed is not None else (0, state)
    with torch.no_grad(), full_precision(state.device):
        if resumed is None:
            for observer in observers:
                observer.released(0, state)
        for step, phase in enumerate(islice(parts.schedule, done, None), start=done + 1):
            if cancelled is not None and cancelled():
                if checkpoint is not None:
                    checkpoint.save(step - 1, state, stateful)
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
                checkpoint.save(step, state, stateful)
            if progress is not None:
                progress(step, total)
    return state


class GaussianNoise:
    """Independent N(0, deviation^2) per parameter."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Draw on the device of ``total`` and the generator."""
        return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


class LaplaceNoise:
    """Independent Laplace noise per parameter, with density exp(-|z| / b) / (2 b) and b = deviation / sqrt(2)."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Draw the difference of two independent exponentials, which is always finite."""
        first, second = torch.empty_like(total), torch.empty_like(total)
        first.exponential_(generator=source)
        second.exponential_(generator=source)
        return (first - second) * (deviation / sqrt(2.0))


def noise_of(kind: str) -> Noise:
    """Noise of a phase: ``gaussian`` or ``laplace``. Raises ``ValueError`` for other names."""
    match kind:
        case "gaussian":
            return GaussianNoise()
        case "laplace":
            return LaplaceNoise()
    raise ValueError(f"noise must be gaussian or laplace, got {kind!r}")
