"""How a step draws its batch: afresh and independently of other steps, empty batches included.

What measurements take for granted of a scheme stands here too (:func:`independent`, :func:`exclusive`,
:func:`covariance`). Shuffled batches are the exception: they are what many loaders do, no accountant here knows what
their order amplifies, and they remember it. So does random allocation, within an epoch: :func:`epoch_of` has its
length, and :func:`drawn_shares` what both do to the number of draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpspec import accounting
from dpspec.contract.phase import SCHEMES
from dpspec.training.loop.checkpoint import Memory, tensor, tensors


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
class PoissonUsers(Poisson):
    """Every user enters with probability ``rate``, independently; of each at most ``most`` records are averaged.

    ``records`` counts users here, planted ones included, and batches hold users.
    """

    most: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise ValueError(f"records_per_user must be at least 1, got {self.most}")


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson sampling at ``rate``; where more than ``max_batch`` records enter, a uniformly random subset is kept."""

    records: int
    rate: float
    max_batch: int

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"the sampling rate must be within (0, 1], got {self.rate}")
        if self.max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {self.max_batch}")

    @property
    def inclusion(self) -> float:
        """The probability to be drawn and kept: below the rate."""
        return _kept(self.records, self.rate, self.max_batch, 1)

    def draw(self, generator: torch.Generator) -> Tensor:
        """The records whose numbers are below the rate, and of too many those with the smallest.

        Given that a number is below the rate it is uniform up to it, whichever record's it is: so the subset is.
        """
        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        drawn = (coins < self.rate).nonzero().squeeze(1)
        if len(drawn) <= self.max_batch:
            return drawn
        return drawn[coins[drawn].argsort(stable=True)[: self.max_batch]].sort().values


@lru_cache(maxsize=256)
def _kept(records: int, rate: float, max_batch: int, together: int) -> float:
    """The probability that so many given records are in a truncated Poisson batch together."""
    if records < together:
        return 0.0
    step = accounting.TruncatedPoisson(together, rate, max_batch, records - together, 1.0)
    return float(step.kept()[together])


def _require_batch(batch_size: int, records: int) -> None:
    if not 1 <= batch_size <= records:
        raise ValueError(f"batch_size must be within 1..{records} (the records), got {batch_size}")


@dataclass(frozen=True)
class FixedSize:
    """A uniformly random subset of exactly ``batch_size`` records, without replacement."""

    records: int
    batch_size: int

    def __post_init__(self) -> None:
        _require_batch(self.batch_size, self.records)

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


@dataclass
class Shuffled:
    """Every epoch takes all records in a new random order, ``batch_size`` at a time; its last batch is what is left.

    A record is in exactly one batch of each epoch, so that batches depend on each other: an accountant for Poisson or
    fixed-size sampling does not cover it.
    """

    records: int
    batch_size: int
    _order: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_batch(self.batch_size, self.records)

    @property
    def inclusion(self) -> float:
        """One over the batches of an epoch: the average over its steps."""
        return 1.0 / -(-self.records // self.batch_size)

    def draw(self, generator: torch.Generator) -> Tensor:
        """The next piece of the epoch's order, sorted."""
        if self._order is None or self._taken >= self.records:
            self._order, self._taken = torch.randperm(self.records, generator=generator), 0
        batch = self._order[self._taken : self._taken + self.batch_size]
        self._taken += self.batch_size
        return batch.sort().values

    def state(self) -> Memory:
        """The epoch's order and how much of it was taken."""
        return {**tensors(order=self._order), "taken": np.array(self._taken)}

    def restore(self, state: Memory) -> None:
        """Go on within an epoch, or begin one."""
        self._order, self._taken = tensor(state, "order"), int(state.get("taken", 0))


@dataclass
class RandomAllocation:
    """In every epoch of ``epoch_steps`` t steps each record is in ``batches_per_epoch`` k batches, a uniformly random
    set of k steps, independently of all others.

    An epoch's steps are numpy's of a seed of 128 bits, k numbers for each record in order: with the same generator a
    record that comes or goes at the end changes no other's step, in this epoch or a later one.
    """

    records: int
    epoch_steps: int
    batches_per_epoch: int = 1
    _steps: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.epoch_steps < 1:
            raise ValueError(f"epoch_steps must be at least 1, got {self.epoch_steps}")
        if not 1 <= self.batches_per_epoch <= self.epoch_steps:
            raise ValueError(f"batches_per_epoch must be within 1..{self.epoch_steps}, got {self.batches_per_epoch}")

    @property
    def inclusion(self) -> float:
        """k / t, at any step, given what other epochs drew."""
        return self.batches_per_epoch / self.epoch_steps

    def draw(self, generator: torch.Generator) -> Tensor:
        """The records that have the epoch's next step; at its first step every record's steps are drawn."""
        if self._steps is None or self._taken >= self.epoch_steps:
            seed = torch.randint(2**32, (4,), generator=generator, dtype=torch.int64).tolist()
            self._steps, self._taken = torch.from_numpy(self._drawn(np.random.default_rng(seed))), 0
        self._taken += 1
        here = self._steps == self._taken - 1
        return (here if here.ndim == 1 else here.any(1)).nonzero().squeeze(1)

    def _drawn(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Every record's step (records,), or its k > 1 steps (records, k): by Floyd's method the i-th is uniform among
        0..t - k + i, and where that one is taken it is t - k + i itself (Bentley and Floyd 1987)."""
        first = self.epoch_steps - self.batches_per_epoch
        if self.batches_per_epoch == 1:
            return rng.integers(self.epoch_steps, size=self.records, dtype=np.int64)
        largest = np.arange(first, self.epoch_steps, dtype=np.int64)
        steps = rng.integers(largest + 1, size=(self.records, self.batches_per_epoch), dtype=np.int64)
        for i, last in enumerate(largest):
            steps[(steps[:, :i] == steps[:, i, None]).any(axis=1), i] = last
        return steps

    def state(self) -> Memory:
        """Every record's steps in this epoch, and how many steps there were."""
        return {**tensors(steps=self._steps), "taken": np.array(self._taken)}

    def restore(self, state: Memory) -> None:
        """Go on within an epoch, or begin one."""
        self._steps, self._taken = tensor(state, "steps"), int(state.get("taken", 0))


def independent(sampler: Sampler) -> bool:
    """Whether records enter a batch independently of one another, so that its size is binomial."""
    return isinstance(sampler, Poisson | RandomAllocation)


def epoch_of(sampler: Sampler) -> int:
    """Of how many steps an epoch is within which batches depend on each other by design; 1 where no step tells of
    others. Shuffled batches count as none: nothing is claimed of them."""
    return sampler.epoch_steps if isinstance(sampler, RandomAllocation) else 1


def exclusive(sampler: Sampler) -> bool:
    """Whether batches have a fixed or a largest size, so that draws exclude each other."""
    return isinstance(sampler, FixedSize | TruncatedPoisson)


def covariance(sampler: Sampler) -> float:
    """Of the inclusions of two records in one batch; not above 0, and 0 where they are independent."""
    q, n = sampler.inclusion, sampler.records
    if n < 2:
        return 0.0
    if isinstance(sampler, FixedSize):
        return -q * (1.0 - q) / (n - 1)
    if isinstance(sampler, TruncatedPoisson):
        return min(0.0, _kept(n, sampler.rate, sampler.max_batch, 2) - q * q)
    return 0.0


def drawn_shares(sampler: Sampler, looked: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two vectors that add up to the mean and to the variance of the number of steps that draw one record, of those
    ``looked`` at (steps,) bool.

    In shuffled batches it is drawn once an epoch at most, in a batch of b of N records with the chance b / N: of an
    epoch of which batches with P of all records are looked at, P and P (1 - P). So it is in random allocation, with
    P = m / t for m steps of an epoch of t; of k batches an epoch it is k P, and P (1 - P) k (t - k) / (t - 1)
    (hypergeometric).
    """
    if isinstance(sampler, RandomAllocation):
        t, k = sampler.epoch_steps, sampler.batches_per_epoch
        shared = looked.reshape(-1, t).sum(axis=1) * (1.0 / t)
        return k * shared, (shared * (1.0 - shared)).clip(0.0) * (k * (t - k) / max(1, t - 1))
    if not isinstance(sampler, Shuffled):
        rates = np.full(int(looked.sum()), sampler.inclusion)
        return rates, rates * (1.0 - rates)
    batches = -(-sampler.records // sampler.batch_size)
    shares = np.full(batches, sampler.batch_size / sampler.records)
    shares[-1] = 1.0 - shares[:-1].sum()
    epochs = -(-len(looked) // batches)
    seen = np.zeros(epochs * batches)
    seen[: len(looked)] = looked
    of_epoch = (seen.reshape(epochs, batches) * shares).sum(axis=1).clip(0.0, 1.0)
    return of_epoch, of_epoch * (1.0 - of_epoch)


def sampler_of(sampling: Mapping[str, Any], records: int) -> Sampler:
    """The sampler of a spec's ``sampling`` block over ``records`` records, or users where it draws those; raises
    ``ValueError`` on any other block."""
    if sampling.get("unit") == "user":
        if sampling.get("scheme") != "poisson":
            raise ValueError(f"users are drawn by scheme poisson alone, got {sampling.get('scheme')!r}")
        return PoissonUsers(records, float(sampling["rate"]), int(sampling["records_per_user"]))
    match sampling.get("scheme"):
        case "poisson":
            return Poisson(records, float(sampling["rate"]))
        case "truncated-poisson":
            return TruncatedPoisson(records, float(sampling["rate"]), int(sampling["max_batch"]))
        case "fixed":
            return FixedSize(records, int(sampling["batch_size"]))
        case "full":
            return Full(records)
        case "shuffled":
            return Shuffled(records, int(sampling["batch_size"]))
        case "random-allocation":
            return RandomAllocation(records, int(sampling["epoch_steps"]), int(sampling.get("batches_per_epoch") or 1))
    raise ValueError(f"sampling scheme must be one of {', '.join(SCHEMES)}, got {sampling.get('scheme')!r}")
