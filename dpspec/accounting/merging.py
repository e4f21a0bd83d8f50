"""Many similar phases as few, for a first stage: Theorem 22 of ``docs/explanation/proofs/grids.md``.

A mixture dominates if its sensitivities over sigma, and its probabilities of reaching each sensitivity, are all at
least as large. Mixtures of similar noise and rate share a dominating and a dominated mixture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid import Pair
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import Floats

#: The relative range of the largest shift, and of the log probability of any shift, of mixtures that are merged.
_SHIFTS, _RATES = 0.02, 0.04

#: Merging must leave at most this share of the phases, and begins at this number of phases.
_FEWER, _MANY = 0.25, 64


@dataclass(frozen=True)
class MergedPhases:
    """Fewer phases of (pair, steps) than a composition's: ``above`` dominate it, ``below`` are dominated by it.

    ``similar`` are members of it, for estimates.
    """

    above: list[tuple[Pair, int]]
    below: list[tuple[Pair, int]]
    similar: list[tuple[Pair, int]]

    @classmethod
    def of(cls, phases: Sequence[tuple[Pair, int]]) -> "MergedPhases | None":
        """None unless that saves most of the phases."""
        if len(phases) < _MANY:
            return None
        buckets: dict[object, list[tuple[Pair, int]]] = {}
        for pair, steps in phases:
            buckets.setdefault(_bucket_of(pair), []).append((pair, steps))
        if len(buckets) > _FEWER * len(phases):
            return None
        above: list[tuple[Pair, int]] = []
        below: list[tuple[Pair, int]] = []
        similar: list[tuple[Pair, int]] = []
        for members in buckets.values():
            steps = sum(count for _, count in members)
            mixtures = [pair for pair, _ in members if isinstance(pair, Mixture)]
            ends = _ends(mixtures) if len(members) > 1 else None
            above += [(ends[0], steps)] if ends else members
            below += [(ends[1], steps)] if ends else members
            similar.append((members[len(members) // 2][0], steps))
        return cls(above, below, similar)


def _bucket_of(pair: Pair) -> object:
    if not isinstance(pair, Mixture) or len(pair.ratio.shifts) < 2 or pair.ratio.shifts[0] > 0.0:
        return pair.key
    log_rate = math.log(-math.expm1(float(pair.log_probabilities[0])))
    log_shift = math.log(float(pair.ratio.shifts[-1]))
    return len(pair.ratio.shifts), math.floor(log_shift / _SHIFTS), math.floor(log_rate / _RATES)


def _ends(mixtures: Sequence[Mixture]) -> tuple[Mixture, Mixture] | None:
    """A mixture that dominates all, and one that all dominate; None if their probabilities are not in one order."""
    shifts = np.array([mixture.ratio.shifts for mixture in mixtures])
    tails = np.array([np.logaddexp.accumulate(mixture.log_probabilities[:0:-1]) for mixture in mixtures])
    order = np.argsort(tails[:, -1])
    low, high = int(order[0]), int(order[-1])
    if not (np.all(tails <= tails[high]) and np.all(tails >= tails[low])):
        return None

    def mixture(shifts: Floats, member: int) -> Mixture:
        return Mixture.of_logs(shifts, mixtures[member].log_probabilities)

    return mixture(shifts.max(axis=0), high), mixture(shifts.min(axis=0), low)
