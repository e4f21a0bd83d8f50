"""Random allocation, or balls-in-bins: each record is in one or several random batches of each epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract.phase import Phase
from dpspec.sampling.scheme import LAST_PLACE, Composed, EpochSampling, Theory

if TYPE_CHECKING:
    import numpy as np
    import torch


class _AllocationTheory(Theory):
    """One pair per member with a share of the noise, or Gaussian pairs if that noise is out of range (Theorem 20)."""

    source = "Chua et al. 2025 and Feldman & Shenfeld 2025, one record; groups: proofs, Theorems 1 and 2"
    no_profile = "no mixture of Gaussians has their profile"
    zero_out = True

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        epochs, steps = self.epochs(phase)
        sigma, times = phase.noise_multiplier, phase.sampling.batches_per_epoch
        # the noise is split among the members, rounded down
        sigma_of_each = sigma if group_size == 1 else sigma / math.sqrt(group_size) * (1.0 - LAST_PLACE)
        if not accounting.RandomAllocation.has_noise(sigma_of_each, 1):
            # The bound assumes that steps are revealed. No step has more than k members, and all steps have k r: the
            # squared shifts sum to at most k^2 r.
            return ((accounting.Mixture.full(group_size, sigma), epochs * times),)
        short, longer = divmod(steps, times)
        blocks = ((short, times - longer), (short + 1, longer))
        return tuple(
            (accounting.RandomAllocation(length, sigma_of_each), epochs * group_size * count)
            for length, count in blocks
            if count
        )

    def joint(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Theorem 2."""
        if not is_alike(phase, group_size) or not 1 < group_size <= accounting.RandomAllocation.exact_members:
            return ()
        return self.attained(phase, group_size, records, group_size)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The pair of ``choice`` members with one gradient; if 0 or out of range, an epoch's sum with all members."""
        epochs, steps = self.epochs(phase)
        if choice and is_alike(phase, choice):
            return ((accounting.RandomAllocation(steps, phase.noise_multiplier, choice), epochs),)
        shift = group_size * phase.sampling.batches_per_epoch / math.sqrt(steps) * (1.0 - 2.0 * LAST_PLACE)
        return ((accounting.Mixture([shift], [1.0], phase.noise_multiplier), epochs),)

    def attains(self, phase: Phase, group_size: int) -> bool:
        return group_size == 1 and is_alike(phase, 1)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        return -math.inf  # every member is in every epoch

    @staticmethod
    def epochs(phase: Phase) -> tuple[int, int]:
        """Number of epochs, and of steps in each."""
        steps = int(phase["sampling"]["epoch_steps"])
        epochs, remainder = divmod(phase.steps, steps)
        if remainder:
            raise ValueError(f"steps must be a multiple of {steps}, the steps of an epoch, got {phase.steps}")
        return epochs, steps


def is_alike(phase: Phase, members: int) -> bool:
    """Whether the phase attains the pair of ``members`` with one gradient."""
    if phase.sampling.scheme != "random-allocation":
        return True
    enough = accounting.RandomAllocation.has_noise(phase.noise_multiplier, members)
    return enough and phase.sampling.batches_per_epoch == 1


@dataclass
class RandomAllocation(EpochSampling):
    """Each record is in k = ``batches_per_epoch`` random batches of each epoch of t = ``epoch_steps`` steps.

    numpy draws the steps from a 128-bit seed per epoch, k numbers per record in order, so that adding or removing the
    last record changes no other record's steps.
    """

    checks = ("size_of_each_step", "evenness", "overlaps", "batches_of_each_epoch")
    theory = _AllocationTheory()

    epoch_steps: int
    batches_per_epoch: int = 1

    @property
    def inclusion(self) -> float:
        """k / t at any step, given other epochs' draws."""
        return self.batches_per_epoch / self.epoch_steps

    @property
    def dependent_steps(self) -> int:
        return self.epoch_steps

    def inclusion_moments(self, observed: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """k P and P (1 - P) k (t - k) / (t - 1) per epoch with m of t steps observed, P = m / t (hypergeometric)."""
        t, k = self.epoch_steps, self.batches_per_epoch
        shared = observed.reshape(-1, t).sum(axis=1) * (1.0 / t)
        return k * shared, (shared * (1.0 - shared)).clip(0.0) * (k * (t - k) / max(1, t - 1))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Records allocated to the next step. The first step of an epoch draws all records' steps."""
        import numpy as np
        import torch

        if self.draws is None or self.done >= self.epoch_steps:
            seed = torch.randint(2**32, (4,), generator=generator, dtype=torch.int64).tolist()
            rng, k = np.random.default_rng(seed), self.batches_per_epoch
            # Every record's step (records,), or its k > 1 steps (records, k), by Floyd's method (Bentley and Floyd
            # 1987): the i-th number is uniform on 0..t - k + i, and replaced by t - k + i if it is already taken. A
            # permutation of t = 1,000 steps per record takes 300 times as long for k = 2.
            if k == 1:
                steps = rng.integers(self.epoch_steps, size=self.records, dtype=np.int64)
            else:
                largest = np.arange(self.epoch_steps - k, self.epoch_steps, dtype=np.int64)
                steps = rng.integers(largest + 1, size=(self.records, k), dtype=np.int64)
                for i, last in enumerate(largest):
                    steps[(steps[:, :i] == steps[:, i, None]).any(axis=1), i] = last
            self.draws, self.done = torch.from_numpy(steps), 0
        self.done += 1
        allocated = self.draws == self.done - 1
        return (allocated if allocated.ndim == 1 else allocated.any(1)).nonzero().squeeze(1)
