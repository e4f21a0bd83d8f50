"""Shuffled batches: every epoch takes all records in a random order; its last batch may be smaller."""

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

    from dpspec.accounting import Pair


class _ShuffledTheory(Theory):
    """One Gaussian release of sensitivity k per epoch dominates, under zero-out adjacency.

    Given the orders, every member is in one batch per epoch, and the total shift of an epoch's sums has norm at most k.
    Unknown orders leak at most as much (joint convexity). A phase begins ceil(steps / ceil(records / batch_size))
    epochs, and no more with more records. No theorem bounds add-remove adjacency. Lower bounds for both are in
    ``proofs/shuffle.md``.
    """

    source = "one Gaussian release per epoch, without amplification"
    zero_out = True
    uncovered = "no theorem covers shuffled batches under add-remove adjacency: all batches of an epoch change"
    alone = True
    attained_in = "proofs/shuffle.md"

    #: Means of the largest sum of an epoch with a member and without it: see ``proofs/shuffle.md``, Theorem 22.
    means = ((2.0, 1.0), (0.0, 1.0))

    #: Largest distance, in clip norms, of an epoch's sums per member.
    moved = 1

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        batches = batches_of(records, int(phase["sampling"]["batch_size"]))
        release = accounting.Mixture.full(self.moved * group_size, phase.noise_multiplier)
        return ((release, -(-phase.steps // batches)),)

    def attained(self, phase: Phase, group_size: int, records: int, choice: int) -> Composed:
        """The largest sum of each epoch for a member (choice 0 and 1), or all sums added, for all members (2)."""
        size, sigma = int(phase["sampling"]["batch_size"]), phase.noise_multiplier
        batches = batches_of(records, size)
        epochs, extra_steps = divmod(phase.steps, batches)
        share = extra_steps * size / records
        pairs: list[tuple[Pair, int]] = []
        if choice < len(self.means):
            present, absent = self.means[choice]
            if epochs:
                pairs.append((accounting.largest_sum_pair(batches, sigma, present, absent), epochs))
            if extra_steps:
                pairs.append((accounting.largest_sum_pair(extra_steps, sigma, present, absent, share), 1))
            return tuple(pairs)
        if epochs:
            shift = self.moved * group_size / math.sqrt(batches) * (1.0 - 2.0 * LAST_PLACE)
            pairs.append((accounting.Mixture([shift], [1.0], sigma), epochs))
        if extra_steps:
            shift = (1.0 - 2.0 * LAST_PLACE) / math.sqrt(extra_steps)
            share *= 1.0 - LAST_PLACE
            pairs.append((accounting.Mixture([0.0, shift], [1.0 - share, share], sigma), 1))
        return tuple(pairs)

    def min_records(self, records: int, group_size: int) -> int:
        return records


class _ReplacedInShuffled(_ShuffledTheory):
    """Both records have the same places, and an epoch's sums are at most 2 k apart (Theorem 53)."""

    means = ((2.0, 0.0), (0.0, 2.0))
    moved = 2


@dataclass
class Shuffled(EpochSampling):
    """Each epoch splits a random permutation of all records into batches of ``batch_size``; the last may be smaller."""

    checks = ("exact_sizes", "batches_of_each_epoch", "batches_of_different_epochs")
    directed = False
    theory = _ShuffledTheory()
    replaced = _ReplacedInShuffled()

    batch_size: int

    @classmethod
    def exact_sizes(cls, phase: Phase, records: int, steps: int) -> tuple[int, int]:
        size = int(phase["sampling"]["batch_size"])
        batches = batches_of(records, size)
        last = records - (batches - 1) * size
        epochs, extra_batches = divmod(steps, batches)
        squares = epochs * ((batches - 1) * size**2 + last**2) + extra_batches * size**2
        return epochs * records + extra_batches * size, squares

    @property
    def inclusion(self) -> float:
        """One over the number of batches per epoch, the average over its steps."""
        return 1.0 / batches_of(self.records, self.batch_size)

    @property
    def moment_steps(self) -> int:
        return batches_of(self.records, self.batch_size)

    def inclusion_moments(self, observed: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """P and P (1 - P) per epoch, P the fraction of records in the epoch's observed batches."""
        import numpy as np

        batches = batches_of(self.records, self.batch_size)
        shares = np.full(batches, self.batch_size / self.records)
        shares[-1] = 1.0 - shares[:-1].sum()
        epochs = batches_of(len(observed), batches)
        observed_batches = np.zeros(epochs * batches)
        observed_batches[: len(observed)] = observed
        of_epoch = (observed_batches.reshape(epochs, batches) * shares).sum(axis=1).clip(0.0, 1.0)
        return of_epoch, of_epoch * (1.0 - of_epoch)

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        import torch

        if self.draws is None or self.done >= self.records:
            self.draws, self.done = torch.randperm(self.records, generator=generator), 0
        batch = self.draws[self.done : self.done + self.batch_size]
        self.done += self.batch_size
        return batch.sort().values


def batches_of(records: int, batch_size: int) -> int:
    """Number of batches of an epoch."""
    return -(-records // batch_size)
