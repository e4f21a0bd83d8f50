"""Poisson batches of records or users, full batches, whose rate is 1, and Poisson batches with a cap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract.phase import Phase
from dpspec.sampling.scheme import Composed, SamplingScheme, Theory

if TYPE_CHECKING:
    import torch

    from dpspec.accounting import Mixture


class PoissonTheory(Theory):
    """Steps are independent, with one pair each, which some data attains."""

    source = "Ganesh 2024, Theorem 3.1"
    tight = True
    zero_out = True

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        return ((self.step(phase, group_size, records), phase.steps),)

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

        # In float32 the numbers are multiples of 2^-24: a rate of 1e-6 draws 1.3% too many records, one of 1e-7 19%.
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


#: Angles of the members' gradients for lower bounds of truncated batches (Theorem 5a).
REVEALING = (0.5 * math.pi, 0.0, 0.2, 0.3)


class TruncatedPoissonTheory(PoissonTheory):
    """The smaller dataset has ``records - group_size`` to ``records`` records."""

    source = "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025; proofs, Theorems 4a to 4d"
    no_profile = "their profile is an interval"
    tight = False
    zero_out = False
    attained_in = "dpspec.accounting.TruncatedPoisson"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        fewest = max(0, records - group_size)
        return ((self._capped(phase, group_size, records, fewest).above(), phase.steps),)

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        return self._capped(phase, group_size, max(0, records - group_size)).attained()

    @staticmethod
    def _capped(phase: Phase, group_size: int, smaller: int, fewest: int = 0) -> accounting.TruncatedPoisson:
        cap = int(phase["sampling"]["max_batch"])
        return accounting.TruncatedPoisson(group_size, phase.rate(), cap, smaller, phase.noise_multiplier, fewest)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The pair of other records without gradients, or of Theorem 5a: choices -1, -2, ... for ``REVEALING``."""
        step = self._capped(phase, group_size, max(0, records - group_size))
        revealing = step.revealing(REVEALING[-choice - 1]) if choice < 0 else None
        return ((revealing or step.attained(), phase.steps),)

    def routed(self, phase: Phase, group_size: int, smaller: int, share: float) -> Composed:
        """Theorem 4a, for ``smaller`` records and ``group_size`` more, or Theorem 4 out of its range."""
        step = self._capped(phase, group_size, smaller, smaller)
        return ((step.routed(share) or step.above(), phase.steps),)

    def displaced(self, phase: Phase, smaller: int, group_size: int = 1) -> Composed:
        """Theorem 4b with 4d, or 4c, for ``smaller`` records and ``group_size`` more; none out of its range."""
        pair = accounting.displacement_pair(self._capped(phase, group_size, smaller, smaller))
        return () if pair is None else ((pair, phase.steps),)


@dataclass
class TruncatedPoisson(SamplingScheme):
    """Poisson sampling at ``rate``. If more than ``max_batch`` records enter, a uniformly random subset is kept."""

    checks = ("mean_size", "size_of_each_step", "evenness", "inclusions", "overlaps")
    negatively_correlated = True
    theory = TruncatedPoissonTheory()

    rate: float
    max_batch: int

    @property
    def inclusion(self) -> float:
        return _joint_inclusion(self.records, self.rate, self.max_batch, 1)

    def covariance(self) -> float:
        if self.records < 2:
            return 0.0
        q = self.inclusion
        return min(0.0, _joint_inclusion(self.records, self.rate, self.max_batch, 2) - q * q)

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """If too many numbers are below the rate, the records with the smallest are a uniformly random subset."""
        import torch

        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        drawn = (coins < self.rate).nonzero().squeeze(1)
        if len(drawn) <= self.max_batch:
            return drawn
        # The first records of the drawn ones would not be a random subset: of 10 records at rate 1/2 and cap 3, the
        # first is then in 50% of the batches and the last in 5%, instead of 29% each.
        return drawn[coins[drawn].argsort(stable=True)[: self.max_batch]].sort().values


@lru_cache(maxsize=256)
def _joint_inclusion(records: int, rate: float, max_batch: int, together: int) -> float:
    """Probability that ``together`` given records are all in a truncated batch."""
    if records < together:
        return 0.0
    step = accounting.TruncatedPoisson(together, rate, max_batch, records - together, 1.0)
    return float(step.kept()[together])
