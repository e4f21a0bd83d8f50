"""The DP-SGD loop: theta <- update(theta, sum of clipped gradients + noise), over the declared phases.

A custom sampler, contribution, noise or update replaces its part with ``dataclasses.replace``. All noise distributions
are parametrized by their standard deviation noise_multiplier * clip_norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from math import isfinite, sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.contract.providers import Cancelled, Observer
from dpspec.training.device import full_precision, generator
from dpspec.training.gradients.clipping import Clip, clipper_of
from dpspec.training.gradients.persample import ClippedSum
from dpspec.training.loop.checkpoint import Checkpoint, GeneratorState, Stateful
from dpspec.training.loop.samplers import PoissonUsers, Sampler, epoch_of, sampler_of


@dataclass(frozen=True, kw_only=True)
class ScheduledPhase:
    steps: int
    noise_multiplier: float
    clip_norm: float
    sampler: Sampler
    clip: Clip
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not (isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ValueError(f"noise_multiplier must be finite and at least 0, got {self.noise_multiplier}")
        if not (isfinite(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"clip_norm must be finite and above 0, got {self.clip_norm}")
        if self.steps % epoch_of(self.sampler):
            raise ValueError(f"steps must be a whole number of epochs of {epoch_of(self.sampler)}, got {self.steps}")

    @property
    def deviation(self) -> float:
        return self.noise_multiplier * self.clip_norm


@dataclass(frozen=True)
class Schedule:
    phases: tuple[ScheduledPhase, ...]

    @classmethod
    def of(cls, phases: Sequence[Mapping[str, Any]], records: int) -> Schedule:
        return cls(
            tuple(
                ScheduledPhase(
                    steps=phase.steps,
                    noise_multiplier=phase.noise_multiplier,
                    clip_norm=phase.clip_norm,
                    sampler=sampler_of(phase["sampling"], records),
                    clip=clipper_of(phase),
                    noise=phase.noise,
                )
                for phase in map(dps.Phase.of, phases)
            )
        )

    @property
    def total(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def records_per_user(self) -> int | None:
        """Maximum number of records averaged per drawn user, the same in all phases; None if records are drawn."""
        said = {phase.sampler.most if isinstance(phase.sampler, PoissonUsers) else None for phase in self.phases}
        if len(said) != 1:
            raise ValueError("all phases must sample users with the same records_per_user, or all must sample records")
        return said.pop()

    @property
    def noise(self) -> str:
        laws = {phase.noise for phase in self.phases}
        if len(laws) != 1:
            raise ValueError(f"all phases must have the same noise distribution, got {', '.join(sorted(laws))}")
        return laws.pop()

    def __iter__(self) -> Iterator[ScheduledPhase]:
        return chain.from_iterable(repeat(phase, phase.steps) for phase in self.phases)


#: Clipped sum of records ``indices`` (b,) at parameters ``state`` (P,); norms in the order of ``indices``.
Contributions: TypeAlias = Callable[[Tensor, Tensor, Clip], ClippedSum]

#: Noise like a sum (P,) with a standard deviation, drawn only from a generator.
Noise: TypeAlias = Callable[[Tensor, float, torch.Generator], Tensor]

#: The next parameters (P,), as a new tensor, from the current ones and the noisy sum; post-processing for privacy.
Update: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that determines a run. Parts with state are :class:`Stateful` and are reset when a run starts."""

    initial: Tensor
    schedule: Schedule
    contributions: Contributions
    noise: Noise
    update: Update

    @property
    def stateful(self) -> Mapping[str, Stateful]:
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
    """Run all steps; returns the final parameters (P,). Raises ``Cancelled`` if ``cancelled()`` returned true.

    Sampling and noise use separate generators derived from ``seed``. The same seed gives the same run on the same
    device, and a resumed run ends with the same bits. The loop and all observers compute in full float32.
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


def gaussian_noise(total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
    """Independent N(0, deviation^2) per parameter, on the device of ``total`` and the generator."""
    return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


def laplace_noise(total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
    """Independent Laplace noise per parameter, with density exp(-|z| / b) / (2 b) and b = deviation / sqrt(2).

    The difference of two independent exponentials is always finite.
    """
    first, second = torch.empty_like(total), torch.empty_like(total)
    first.exponential_(generator=source)
    second.exponential_(generator=source)
    return (first - second) * (deviation / sqrt(2.0))


def noise_of(kind: str) -> Noise:
    kinds: dict[str, Noise] = {"gaussian": gaussian_noise, "laplace": laplace_noise}
    if kind not in kinds:
        raise ValueError(f"noise must be gaussian or laplace, got {kind!r}")
    return kinds[kind]
