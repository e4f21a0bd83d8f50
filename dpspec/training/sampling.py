"""How a step draws its batch: every draw is afresh and independent of other steps, empty batches included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Sampler(Protocol):
    """Draws batches of record indices 0..records-1."""

    @property
    def records(self) -> int:
        """How many records there are to draw from, planted ones included."""

    @property
    def inclusion(self) -> float:
        """The probability with which one record enters one batch."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """The batch's indices (b,), int64, ascending, on the CPU; ``generator`` is a CPU generator."""


@dataclass(frozen=True)
class Poisson:
    """Every record enters with probability ``rate``, independently: the batch size is Binomial(records, rate)."""

    records: int
    rate: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"the sampling rate must be within [0, 1], got {self.rate}")

    @property
    def inclusion(self) -> float:
        """The rate."""
        return self.rate

    def draw(self, generator: torch.Generator) -> Tensor:
        """One uniform number per record, float64 so that rates are exact to 2^-53."""
        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        return (coins < self.rate).nonzero().squeeze(1)


@dataclass(frozen=True)
class FixedSize:
    """A uniformly random subset of exactly ``batch_size`` records, without replacement."""

    records: int
    batch_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.records:
            raise ValueError(f"batch_size must be within 1..{self.records} (the records), got {self.batch_size}")

    @property
    def inclusion(self) -> float:
        """batch_size / records."""
        return self.batch_size / self.records

    def draw(self, generator: torch.Generator) -> Tensor:
        """The head of a random permutation, sorted."""
        return torch.randperm(self.records, generator=generator)[: self.batch_size].sort().values


@dataclass(frozen=True)
class Full:
    """Every record, every step."""

    records: int

    @property
    def inclusion(self) -> float:
        """One."""
        return 1.0

    def draw(self, generator: torch.Generator) -> Tensor:
        """All indices; no randomness."""
        return torch.arange(self.records)


def sampler_of(sampling: Mapping[str, Any], records: int) -> Sampler:
    """The sampler of a spec's ``sampling`` block over ``records`` records; raises ``ValueError`` on any other block."""
    match sampling.get("scheme"):
        case "poisson":
            return Poisson(records, float(sampling["rate"]))
        case "fixed":
            return FixedSize(records, int(sampling["batch_size"]))
        case "full":
            return Full(records)
    raise ValueError(f"sampling scheme must be poisson, fixed or full, got {sampling.get('scheme')!r}")
