"""Declared parameters of every step, from the phases of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from math import isfinite
from typing import Any

import dpspec.contract as dps
from dpspec.training.gradients.clipping import Clip, Flat, clipper_of
from dpspec.training.loop.samplers import PoissonUsers, Sampler, epoch_of, sampler_of


@dataclass(frozen=True, kw_only=True)
class ScheduledPhase:
    """Steps with the same parameters. Noise has standard deviation noise_multiplier * clip_norm.

    Attributes:
        clip: A clipper, or the clip norm for flat clipping.
    """

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
        """Standard deviation of the noise per parameter."""
        return self.noise_multiplier * self.clip_norm


#: By this name plugins import it that were written for version 0.1.
Phase = ScheduledPhase


@dataclass(frozen=True)
class Schedule:
    """All phases in order."""

    phases: tuple[ScheduledPhase, ...]

    @classmethod
    def of(cls, phases: Sequence[Mapping[str, Any]], records: int) -> Schedule:
        """Build from the phases of a job over ``records`` records, including canaries. Raises ``ValueError`` if one is
        invalid.
        """
        return cls(
            tuple(
                ScheduledPhase(
                    steps=phase.steps,
                    noise_multiplier=phase.noise_multiplier,
                    clip_norm=phase.clip_norm,
                    sampler=sampler_of(phase["sampling"], records),
                    clip=_clip(phase),
                    noise=phase.noise,
                )
                for phase in map(dps.Phase.of, phases)
            )
        )

    @property
    def total(self) -> int:
        """Number of steps."""
        return sum(phase.steps for phase in self.phases)

    @property
    def records_per_user(self) -> int | None:
        """Maximum number of records averaged per drawn user, the same in all phases; None if records are drawn.

        Raises ``ValueError`` if phases differ.
        """
        said = {phase.sampler.most if isinstance(phase.sampler, PoissonUsers) else None for phase in self.phases}
        if len(said) != 1:
            raise ValueError("all phases must sample users with the same records_per_user, or all must sample records")
        return said.pop()

    @property
    def noise(self) -> str:
        """Noise distribution of all phases. Raises ``ValueError`` if phases differ."""
        laws = {phase.noise for phase in self.phases}
        if len(laws) != 1:
            raise ValueError(f"all phases must have the same noise distribution, got {', '.join(sorted(laws))}")
        return laws.pop()

    def __iter__(self) -> Iterator[ScheduledPhase]:
        """Yield the phase of step 1, of step 2, ..."""
        return chain.from_iterable(repeat(phase, phase.steps) for phase in self.phases)


def _clip(phase: Mapping[str, Any]) -> Clip:
    made = clipper_of(phase)
    return made.clip_norm if isinstance(made, Flat) else made
