"""Poisson batches of records or users, and full batches, whose rate is 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract.phase import Phase
from dpspec.sampling.scheme import Composed, SamplingScheme, Theory

if TYPE_CHECKING:
    import torch

    from dpspec.accounting import Mixture


class PoissonTheory(Theory):
    """The dominating pair is attained."""

    source = "Ganesh 2024, Theorem 3.1"

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        return accounting.Mixture.poisson(group_size, phase.rate(), phase.noise_multiplier)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        drawn = self.step(phase.replace(noise_multiplier=1.0), group_size, records)
        missed = float(drawn.log_probabilities[0]) if drawn.sensitivities[0] == 0.0 else -math.inf
        return phase.steps * missed


class _ReplacedInPoisson(PoissonTheory):
    """Batches whose k removed and k inserted records have opposite gradients (Theorem 51)."""

    source = "Schuchardt et al. 2024; proofs, Theorem 51"
    no_profile = "replaced records have a pair of two mixtures"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        pair = accounting.DoubleMixture.poisson(group_size, group_size, phase.rate(), phase.noise_multiplier)
        return ((pair, phase.steps),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The dominating pair (choice 0), or inserted records of gradient 0 (1)."""
        return super().composed(phase, group_size, records) if choice else self.composed(phase, group_size, records)


@dataclass
class Poisson(SamplingScheme):
    """Include every record independently with probability ``rate``: the batch size is Binomial(records, rate).

    With ``records_per_user``, ``records`` is the number of users including canaries, and batches contain users.
    """

    checks = ("rate", "size_of_each_step", "evenness", "inclusions", "overlaps")
    theory = PoissonTheory()
    replaced = _ReplacedInPoisson()

    rate: float
    records_per_user: int | None = None

    @property
    def inclusion(self) -> float:
        return self.rate

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """One uniform number per record, in float64 so that rates are exact to 2^-53."""
        import torch

        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        return (coins < self.rate).nonzero().squeeze(1)


class _FullTheory(PoissonTheory):
    source = "Ganesh 2024, Theorem 3.1 at rate 1"


@dataclass
class Full(SamplingScheme):
    checks = ("exact_sizes",)
    other_gradients = "any"
    theory = _FullTheory()
    replaced = _ReplacedInPoisson()

    @classmethod
    def exact_sizes(cls, phase: Phase, records: int, steps: int) -> tuple[int, int]:
        return records * steps, records**2 * steps

    @property
    def inclusion(self) -> float:
        return 1.0

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        import torch

        return torch.arange(self.records)
