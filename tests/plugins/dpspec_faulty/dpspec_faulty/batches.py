"""Faults of the batches: each stands where dpspec's own loop has its sampler."""

import torch

from dpspec.sampling import SamplingScheme


class Broken(SamplingScheme):
    """A sampler that claims the declared distribution."""

    def __init__(self, sampler: SamplingScheme) -> None:
        self._sampler = sampler
        self.records = sampler.records

    @property
    def inclusion(self) -> float:
        return self._sampler.inclusion


class LastBatchDropped(Broken):
    """The declared batch in random order, cut into pieces of sixteen for the memory's sake, full pieces only."""

    piece = 16

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        drawn = self._sampler.draw(generator)
        order = torch.randperm(len(drawn), generator=generator)
        return drawn[order[: len(drawn) // self.piece * self.piece]].sort().values


class LargeOnce(Broken):
    """The declared batch, with additional independent records at one of ``steps`` steps."""

    extra = 78

    def __init__(self, sampler: SamplingScheme, steps: int) -> None:
        super().__init__(sampler)
        self._at = steps // 2
        self._step = 0

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        self._step += 1
        drawn = self._sampler.draw(generator)
        if self._step != self._at:
            return drawn
        chance = self.extra / (self.records * (1.0 - self.inclusion))
        more = torch.rand(self.records, generator=generator) < chance
        more[drawn] = True
        return more.nonzero().squeeze(1)


class SameSteps(Broken):
    """The batches of the first epoch, again in every other one."""

    def __init__(self, sampler: SamplingScheme) -> None:
        super().__init__(sampler)
        self._epoch: list[torch.Tensor] = []
        self._step = 0

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        if len(self._epoch) < self._sampler.dependent_steps:
            self._epoch.append(self._sampler.draw(generator))
        self._step += 1
        return self._epoch[(self._step - 1) % self._sampler.dependent_steps]
