"""Theorems of each sampling scheme for groups: pairs that dominate its steps, and pairs that they attain on some data.

``docs/explanation/proofs/groups.md`` has the theorems (20 and 21). Sensitivities are in units of the clip norm.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from dpspec import accounting  # loads numpy at the first use
from dpspec.contract import Phase

if TYPE_CHECKING:
    from dpspec.accounting import Mixture, Pair, TruncatedPoisson

#: Pairs with the number of compositions of each.
Composed: TypeAlias = "tuple[tuple[Pair, int], ...]"

#: Below this noise, in clip norms, the bound of random allocation assumes that its steps are revealed.
MIN_ALLOCATED_NOISE: Final = 0.1

#: Rounding error of a product of two correctly rounded numbers.
_LAST_PLACE = 4.0 * sys.float_info.epsilon


class SchemeTheory:
    """Poisson and full batches: the dominating pair is attained, and other drawn records do not depend on the
    group.

    Attributes:
        source: Source of the bound.
        add_remove: Whether the bound covers add-remove adjacency.
        zero_out: Whether the bound covers zero-out adjacency.
        independent: Whether the other drawn records are independent of the group.
        allocates: Whether every record is in a fixed number of batches per epoch.
        sampled: Whether a record may be absent from a batch.
        displaces: Whether group members displace other records, so that all gradients matter.
        interval: Whether the dominating and the attained pairs differ for every group.
        no_profile: Why the scheme has no single-record profile for black-box conversions; empty if it has one.
    """

    source = "Ganesh 2024, Theorem 3.1"
    add_remove = True
    zero_out = True
    independent = True
    allocates = False
    sampled = True
    displaces = False
    has_lower = True
    interval = False
    no_profile = ""

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Pairs that dominate a phase, for groups of up to ``group_size`` in datasets of ``records``."""
        return ((self.step(phase, group_size, records), phase.steps),)

    def revealed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Pairs that dominate a phase if shared steps of random allocation are revealed; none out of its range."""
        return self.composed(phase, group_size, records)

    def is_alike(self, phase: Phase, members: int) -> bool:
        """Whether ``attained`` has the pair of ``members`` with one gradient."""
        return True

    def attained(self, phase: Phase, group_size: int, records: int, members: int) -> Composed:
        """Pairs that all steps of a phase attain on some data; ``members`` matters for random allocation only."""
        return ((self.step(phase, group_size, records), phase.steps),)

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        rate = phase.rate()
        if rate < 1.0:
            return accounting.Mixture.poisson(group_size, rate, phase.noise_multiplier)
        return accounting.Mixture.full(group_size, phase.noise_multiplier)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        """ln of the probability that no member is in a batch of the phase; 0 if unknown."""
        drawn = self.step(phase.replace(noise_multiplier=1.0), group_size, records)
        missed = float(drawn.log_probabilities[0]) if drawn.sensitivities[0] == 0.0 else -math.inf
        return phase.steps * missed

    def min_records(self, group_size: int, records: int) -> int:
        """Minimum size of the smaller dataset in the scope of the bound."""
        return 0


class _Full(SchemeTheory):
    source = "Ganesh 2024, Theorem 3.1 at rate 1"
    sampled = False


class _Fixed(SchemeTheory):
    source = "Ganesh 2024, Theorem 3.3"
    zero_out = independent = False
    displaces = True

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        size = int(phase["sampling"]["batch_size"])
        return accounting.Mixture.fixed(group_size, records - group_size, size, phase.noise_multiplier)

    def min_records(self, group_size: int, records: int) -> int:
        return max(records - group_size, 0)


class _Truncated(SchemeTheory):
    """The smaller dataset has ``records - group_size`` to ``records`` records."""

    source = "Ganesh 2024, Lemma 2.9, given which batches are full; one record: Ganesh 2025"
    zero_out = independent = False
    interval = True
    no_profile = "their profile is an interval"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        fewest = max(0, records - group_size)
        return ((self._capped(phase, group_size, records, fewest).above(), phase.steps),)

    def step(self, phase: Phase, group_size: int, records: int) -> Mixture:
        return self._capped(phase, group_size, max(0, records - group_size)).attained()

    @staticmethod
    def _capped(phase: Phase, group_size: int, smaller: int, fewest: int = 0) -> TruncatedPoisson:
        cap = int(phase["sampling"]["max_batch"])
        return accounting.TruncatedPoisson(group_size, phase.rate(), cap, smaller, phase.noise_multiplier, fewest)


class _Shuffled(SchemeTheory):
    """One Gaussian release of sensitivity k per epoch dominates, under zero-out adjacency.

    Given the orders, every member is in one batch per epoch, and the total shift of an epoch's sums has norm at most k.
    Unknown orders leak at most as much (joint convexity). A phase begins ceil(steps / ceil(records / batch_size))
    epochs, and no more with more records. Under add-remove adjacency an additional record shifts all later records in
    the order of an epoch.
    """

    source = "one Gaussian release per epoch, without amplification"
    add_remove = independent = has_lower = False

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        batches = -(-records // int(phase["sampling"]["batch_size"]))
        return ((accounting.Mixture.full(group_size, phase.noise_multiplier), -(-phase.steps // batches)),)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        return 0.0

    def min_records(self, group_size: int, records: int) -> int:
        return records


class _Allocated(SchemeTheory):
    """One pair per member with a share of the noise, or Gaussian pairs if that noise is out of range (Theorem 21)."""

    source = "Chua et al. 2025 and Feldman & Shenfeld 2025, one record; groups: proofs, Theorems 1 and 2"
    independent = False
    allocates = True
    no_profile = "their profile is not that of a mixture of Gaussians"

    def composed(self, phase: Phase, group_size: int, records: int) -> Composed:
        epochs, steps = self.epochs(phase)
        sigma, times = phase.noise_multiplier, phase.sampling.batches_per_epoch
        # the noise is split among the members, rounded down
        each = sigma if group_size == 1 else sigma / math.sqrt(group_size) * (1.0 - _LAST_PLACE)
        if each < MIN_ALLOCATED_NOISE:
            # No step has more than k members, and all steps have k r: the squared shifts sum to at most k^2 r.
            return ((accounting.Mixture.full(group_size, sigma), epochs * times),)
        short, longer = divmod(steps, times)
        blocks = ((short, times - longer), (short + 1, longer))
        return tuple(
            (accounting.RandomAllocation(length, each), epochs * group_size * count)
            for length, count in blocks
            if count
        )

    def revealed(self, phase: Phase, group_size: int, records: int) -> Composed:
        """Theorem 2."""
        if not self.is_alike(phase, group_size) or not 1 < group_size <= accounting.RandomAllocation.most_members:
            return ()
        epochs, steps = self.epochs(phase)
        return ((accounting.RandomAllocation(steps, phase.noise_multiplier, group_size), epochs),)

    def is_alike(self, phase: Phase, members: int) -> bool:
        return phase.noise_multiplier >= MIN_ALLOCATED_NOISE * members and phase.sampling.batches_per_epoch == 1

    def attained(self, phase: Phase, group_size: int, records: int, members: int) -> Composed:
        """The pair of ``members`` with one gradient; if 0 or out of range, the sum over an epoch with all members."""
        epochs, steps = self.epochs(phase)
        if members and self.is_alike(phase, members):
            kind = accounting.RandomAllocation if members == 1 else accounting.EqualMembers
            return ((kind(steps, phase.noise_multiplier, members), epochs),)
        shift = group_size * phase.sampling.batches_per_epoch / math.sqrt(steps) * (1.0 - 2.0 * _LAST_PLACE)
        return ((accounting.Mixture([shift], [1.0], phase.noise_multiplier), epochs),)

    def log_hidden(self, phase: Phase, group_size: int, records: int) -> float:
        return -math.inf  # every member is in every epoch

    @staticmethod
    def epochs(phase: Phase) -> tuple[int, int]:
        """Number of epochs, and of steps in each."""
        steps = int(phase["sampling"]["epoch_steps"])
        epochs, rest = divmod(phase.steps, steps)
        if rest:
            raise ValueError(f"steps must be a multiple of {steps}, the steps of an epoch, got {phase.steps}")
        return epochs, steps


#: The theory of each sampling scheme.
SCHEMES: Mapping[str, SchemeTheory] = {
    "poisson": SchemeTheory(),
    "truncated-poisson": _Truncated(),
    "fixed": _Fixed(),
    "full": _Full(),
    "random-allocation": _Allocated(),
    "shuffled": _Shuffled(),
}

#: Names of the schemes whose bound covers add-remove adjacency.
ADD_REMOVE = tuple(name for name, scheme in SCHEMES.items() if scheme.add_remove)


def scheme_of(phase: Phase) -> SchemeTheory:
    return SCHEMES[phase.sampling.scheme]


def truncates(phases: Sequence[Phase]) -> bool:
    return any(scheme_of(phase).interval for phase in phases)


def allocates(phases: Sequence[Phase]) -> bool:
    return any(scheme_of(phase).allocates for phase in phases)


def has_lower(phases: Sequence[Phase]) -> bool:
    return all(scheme_of(phase).has_lower for phase in phases)
