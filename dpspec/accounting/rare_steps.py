"""Compositions without a rare step, or with exactly one, each with a separate tilt.

Theorem 17 of ``docs/explanation/proofs/grids.md``: m^T = b^T + T b^(T - 1) j + rest for a step's measure m = b + j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpspec.accounting.composition import Composition, Split, compose
from dpspec.accounting.grid import Atoms, TooLongError
from dpspec.accounting.numerics import bisect, log_or_minus_infinity

#: The maximum probability of such a step, as a share of the root of delta.
_SHARE = 1e-3

#: The maximum number of phases that are split.
_KINDS = 4


def split_rare_steps(
    whole: Composition, phases: Sequence[tuple[Atoms, int]], floor: float, limit: int, log_delta: float
) -> Split:
    """The ``whole`` composition of ``phases``, whose sum at its reference is imprecise, split if that is possible.

    ``log_delta``: ln of the wanted delta at the reference; ``floor`` and ``limit`` as for ``compose``.
    """
    alone = ((whole, 0.0),), -math.inf
    if len(phases) > _KINDS:
        return alone
    reference = whole.reference
    halves = [_cut(atoms, steps, _SHARE * math.exp(0.5 * log_delta)) for atoms, steps in phases]
    if not any(jump.masses.any() for _, jump in halves):
        return alone
    calm = [(bulk, steps) for (bulk, _), (_, steps) in zip(halves, phases, strict=True)]
    # infinite losses are counted once, with the first term
    finite = [(replace(bulk, infinity=0.0), steps) for bulk, steps in calm]
    members, chance = [], 0.0
    try:
        members.append((compose(calm, _tilt(calm, reference), reference, floor, limit), 0.0))
        for i, ((_, jump), (_, steps)) in enumerate(zip(halves, phases, strict=True)):
            if not jump.masses.any():
                continue
            once = [(part, count - (k == i)) for k, (part, count) in enumerate(finite) if count > (k == i)]
            once.append((jump, 1))
            members.append((compose(once, _tilt(once, reference), reference, floor, limit), math.log(steps)))
            chance += steps * float(jump.masses.sum())
    except TooLongError:
        return alone
    return tuple(members), log_or_minus_infinity(0.5 * chance * chance * (1.0 + 1e-6))


def _cut(atoms: Atoms, steps: int, largest: float) -> tuple[Atoms, Atoms]:
    """The atoms up to a loss, and the atoms above it, of probability up to ``largest`` over all steps."""
    above = np.cumsum(atoms.masses[::-1])[::-1] * steps
    first = int(np.searchsorted(-above, -largest))
    if not 0 < first < len(above):
        first = len(above)
    bulk = replace(atoms, index=atoms.index[:first], masses=atoms.masses[:first])
    start = int(atoms.index[min(first, len(above) - 1)])
    jump = replace(
        atoms,
        lowest=atoms.lowest + atoms.spacing * start,
        index=atoms.index[first:] - start,
        masses=atoms.masses[first:],
        infinity=0.0,
    )
    return bulk, jump


def _tilt(phases: Sequence[tuple[Atoms, int]], epsilon: float) -> float:
    """The tilt s at which the tilted mean of the sum is about epsilon + 1 / s + 1 / (1 + s)."""
    tables = []
    for atoms, steps in phases:
        used = atoms.masses > 0.0
        tables.append((atoms.lowest + atoms.spacing * atoms.index[used], np.log(atoms.masses[used]), steps))

    def is_low(log_tilt: float) -> bool:
        s, mean = math.exp(log_tilt), 0.0
        for losses, logs, steps in tables:
            exponents = logs + s * losses
            weights = np.exp(exponents - exponents.max())
            mean += steps * float(weights @ losses) / float(weights.sum())
        return mean < epsilon + 1.0 / s + 1.0 / (1.0 + s)

    low, high = bisect(is_low, math.log(1e-9), -math.log(phases[0][0].spacing), halvings=50)
    return math.exp(0.5 * (low + high))
