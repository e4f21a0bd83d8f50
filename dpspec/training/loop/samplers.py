"""Batch samplers of the sampling schemes, and the properties of schemes that measurements use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpspec import accounting
from dpspec.contract.phase import SCHEMES, Sampling
from dpspec.training.loop.checkpoint import Remembering


class Sampler(Protocol):
    @property
    def records(self) -> int: ...

    @property
    def inclusion(self) -> float:
        """Probability that a batch includes a given record."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """The batch's indices (b,), int64, ascending, on the CPU; ``generator`` is a CPU generator."""


@dataclass(frozen=True)
class Poisson:
    """Include every record independently with probability ``rate``: the batch size is Binomial(records, rate)."""

    records: int
    rate: float

    @property
    def inclusion(self) -> float:
        return self.rate

    def draw(self, generator: torch.Generator) -> Tensor:
        """One uniform number per record, in float64 so that rates are exact to 2^-53."""
        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        return (coins < self.rate).nonzero().squeeze(1)


@dataclass(frozen=True)
class PoissonUsers(Poisson):
    """Include every user independently with probability ``rate``, averaging at most ``most`` of their records.

    ``records`` is the number of users including canaries; batches contain users.
    """

    most: int


@dataclass(frozen=True)
class TruncatedPoisson(Poisson):
    """Poisson sampling at ``rate``. If more than ``max_batch`` records enter, a uniformly random subset is kept."""

    max_batch: int

    @property
    def inclusion(self) -> float:
        return _joint_inclusion(self.records, self.rate, self.max_batch, 1)

    def draw(self, generator: torch.Generator) -> Tensor:
        """If too many numbers are below the rate, the records with the smallest are a uniformly random subset."""
        coins = torch.rand(self.records, generator=generator, dtype=torch.float64)
        drawn = (coins < self.rate).nonzero().squeeze(1)
        if len(drawn) <= self.max_batch:
            return drawn
        return drawn[coins[drawn].argsort(stable=True)[: self.max_batch]].sort().values


@lru_cache(maxsize=256)
def _joint_inclusion(records: int, rate: float, max_batch: int, together: int) -> float:
    """Probability that ``together`` given records are all in a truncated Poisson batch."""
    if records < together:
        return 0.0
    step = accounting.TruncatedPoisson(together, rate, max_batch, records - together, 1.0)
    return float(step.kept()[together])


def _require_batch(batch_size: int, records: int) -> None:
    if not 1 <= batch_size <= records:
        raise ValueError(f"batch_size must be within 1..{records} (the records), got {batch_size}")


@dataclass(frozen=True)
class FixedSize:
    records: int
    batch_size: int

    def __post_init__(self) -> None:
        _require_batch(self.batch_size, self.records)

    @property
    def inclusion(self) -> float:
        return self.batch_size / self.records

    def draw(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.records, generator=generator)[: self.batch_size].sort().values


@dataclass(frozen=True)
class Full:
    records: int

    @property
    def inclusion(self) -> float:
        return 1.0

    def draw(self, generator: torch.Generator) -> Tensor:
        return torch.arange(self.records)


@dataclass
class Shuffled(Remembering):
    """Each epoch splits a random permutation of all records into batches of ``batch_size``; the last may be smaller."""

    kept = ("_order", "_taken")
    records: int
    batch_size: int
    _order: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_batch(self.batch_size, self.records)

    @property
    def inclusion(self) -> float:
        """One over the number of batches per epoch, the average over its steps."""
        return 1.0 / -(-self.records // self.batch_size)

    def draw(self, generator: torch.Generator) -> Tensor:
        if self._order is None or self._taken >= self.records:
            self._order, self._taken = torch.randperm(self.records, generator=generator), 0
        batch = self._order[self._taken : self._taken + self.batch_size]
        self._taken += self.batch_size
        return batch.sort().values


@dataclass
class RandomAllocation(Remembering):
    """Each record is in k = ``batches_per_epoch`` random batches of each epoch of t = ``epoch_steps`` steps.

    numpy draws the steps from a 128-bit seed per epoch, k numbers per record in order, so that adding or removing the
    last record changes no other record's steps.
    """

    kept = ("_steps", "_taken")
    records: int
    epoch_steps: int
    batches_per_epoch: int = 1
    _steps: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _taken: int = field(default=0, init=False, repr=False, compare=False)

    @property
    def inclusion(self) -> float:
        """k / t at any step, given other epochs' draws."""
        return self.batches_per_epoch / self.epoch_steps

    def draw(self, generator: torch.Generator) -> Tensor:
        """Records allocated to the next step. The first step of an epoch draws all records' steps."""
        if self._steps is None or self._taken >= self.epoch_steps:
            seed = torch.randint(2**32, (4,), generator=generator, dtype=torch.int64).tolist()
            rng, k = np.random.default_rng(seed), self.batches_per_epoch
            # Every record's step (records,), or its k > 1 steps (records, k), by Floyd's method (Bentley and Floyd
            # 1987): the i-th number is uniform on 0..t - k + i, and replaced by t - k + i if it is already taken.
            if k == 1:
                steps = rng.integers(self.epoch_steps, size=self.records, dtype=np.int64)
            else:
                largest = np.arange(self.epoch_steps - k, self.epoch_steps, dtype=np.int64)
                steps = rng.integers(largest + 1, size=(self.records, k), dtype=np.int64)
                for i, last in enumerate(largest):
                    steps[(steps[:, :i] == steps[:, i, None]).any(axis=1), i] = last
            self._steps, self._taken = torch.from_numpy(steps), 0
        self._taken += 1
        allocated = self._steps == self._taken - 1
        return (allocated if allocated.ndim == 1 else allocated.any(1)).nonzero().squeeze(1)


def epoch_of(sampler: Sampler) -> int:
    """Number of steps whose batches depend on each other; 1 for shuffled batches, for which nothing is claimed."""
    return sampler.epoch_steps if isinstance(sampler, RandomAllocation) else 1


def covariance(sampler: Sampler) -> float:
    """Covariance of two records' inclusions in one batch: at most 0, and 0 if they are independent."""
    q, n = sampler.inclusion, sampler.records
    if n < 2:
        return 0.0
    if isinstance(sampler, FixedSize):
        return -q * (1.0 - q) / (n - 1)
    if isinstance(sampler, TruncatedPoisson):
        return min(0.0, _joint_inclusion(n, sampler.rate, sampler.max_batch, 2) - q * q)
    return 0.0


def inclusion_moments(
    sampler: Sampler, looked: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Terms of the mean and variance of a record's number of inclusions over observed steps.

    Shuffled: P and P (1 - P) per epoch, P the fraction of records in the epoch's observed batches. Random allocation
    with m of t steps observed, P = m / t: k P and P (1 - P) k (t - k) / (t - 1) (hypergeometric).
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
    observed_batches = np.zeros(epochs * batches)
    observed_batches[: len(looked)] = looked
    of_epoch = (observed_batches.reshape(epochs, batches) * shares).sum(axis=1).clip(0.0, 1.0)
    return of_epoch, of_epoch * (1.0 - of_epoch)


def sampler_of(sampling: Mapping[str, Any], records: int) -> Sampler:
    """The sampler of a spec's ``sampling`` block over ``records`` records or users."""
    if sampling.get("scheme") not in SCHEMES:
        raise ValueError(f"sampling scheme must be one of {', '.join(SCHEMES)}, got {sampling.get('scheme')!r}")
    drawn = Sampling.of(sampling)
    if drawn.of_users and not drawn.is_poisson:
        raise ValueError(f"sampling of users requires scheme poisson, got {drawn.scheme!r}")
    if drawn.of_users:
        return PoissonUsers(records, float(sampling["rate"]), int(sampling["records_per_user"]))
    if drawn.is_poisson:
        return Poisson(records, float(sampling["rate"]))
    if drawn.is_fixed:
        return FixedSize(records, int(sampling["batch_size"]))
    if drawn.is_shuffled:
        return Shuffled(records, int(sampling["batch_size"]))
    if drawn.is_full:
        return Full(records)
    if drawn.epoch_steps is not None:
        return RandomAllocation(records, drawn.epoch_steps, drawn.batches_per_epoch)
    return TruncatedPoisson(records, float(sampling["rate"]), int(sampling["max_batch"]))
