"""Poisson batches with a cap: of more records than ``max_batch``, a uniformly random subset is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract.phase import Phase
from dpspec.sampling.poisson import PoissonTheory
from dpspec.sampling.scheme import Composed, SamplingScheme

if TYPE_CHECKING:
    import torch

    from dpspec.accounting import Mixture

#: Angles of the members' gradients for lower bounds (Theorem 5a).
REVEALING = (0.5 * math.pi, 0.0, 0.3)


class TruncatedPoissonTheory(PoissonTheory):
    """The smaller dataset has ``records - group_size`` to ``records`` records."""

    source = "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025; proofs, Theorems 4a and 4b"
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

    def displaced(self, phase: Phase, smaller: int) -> Composed:
        """Theorem 4b, for ``smaller`` records and one more; none out of its range."""
        pair = accounting.displacement_pair(self._capped(phase, 1, smaller, smaller))
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
        return drawn[coins[drawn].argsort(stable=True)[: self.max_batch]].sort().values


@lru_cache(maxsize=256)
def _joint_inclusion(records: int, rate: float, max_batch: int, together: int) -> float:
    """Probability that ``together`` given records are all in a batch."""
    if records < together:
        return 0.0
    step = accounting.TruncatedPoisson(together, rate, max_batch, records - together, 1.0)
    return float(step.kept()[together])
