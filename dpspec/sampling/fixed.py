"""Batches of a fixed size: a uniformly random subset of the records at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract.phase import Phase
from dpspec.sampling.poisson import PoissonTheory
from dpspec.sampling.scheme import Composed, SamplingScheme

if TYPE_CHECKING:
    import torch

    from dpspec.accounting import Mixture, Pair


class _FixedTheory(PoissonTheory):
    source = "Ganesh 2024, Theorem 3.3"
    zero_out = False

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        size = int(phase["sampling"]["batch_size"])
        return accounting.Mixture.fixed(group_size, records - group_size, size, phase.noise_multiplier)

    def min_records(self, records: int, group_size: int) -> int:
        return max(records - group_size, 0)


class _ReplacedInFixed(_FixedTheory):
    """An inserted record displaces nothing but the removed one (Theorem 52)."""

    source = "proofs, Theorem 52"
    no_profile = "replaced records have a pair of two mixtures"
    tight = False

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        drawn = self.step(phase, group_size, records)
        pair = accounting.SymmetricMixture((1.0, drawn)) if group_size == 1 else self._double(drawn, 1.0)
        return ((pair, phase.steps),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """Other records of gradient 0 (choice 0), or of the inserted records' gradient (1)."""
        drawn = self.step(phase, group_size, records)
        return ((drawn if choice else self._double(drawn, 0.5), phase.steps),)

    def min_records(self, records: int, group_size: int) -> int:
        return records  # both datasets have equally many

    @staticmethod
    def _double(drawn: Mixture, scale: float) -> Pair:
        side = accounting.Mixture(scale * drawn.sensitivities, drawn.probabilities, drawn.noise_multiplier)
        return accounting.DoubleMixture(side, side)


@dataclass
class FixedSize(SamplingScheme):
    checks = ("exact_sizes", "inclusions", "overlaps")
    negatively_correlated = True
    other_gradients = "opposite"
    theory = _FixedTheory()
    replaced = _ReplacedInFixed()

    batch_size: int

    @classmethod
    def exact_sizes(cls, phase: Phase, records: int, steps: int) -> tuple[int, int]:
        size = int(phase["sampling"]["batch_size"])
        return size * steps, size**2 * steps

    @property
    def inclusion(self) -> float:
        return self.batch_size / self.records

    def covariance(self) -> float:
        q, n = self.inclusion, self.records
        return -q * (1.0 - q) / (n - 1) if n > 1 else 0.0

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        import torch

        return torch.randperm(self.records, generator=generator)[: self.batch_size].sort().values
