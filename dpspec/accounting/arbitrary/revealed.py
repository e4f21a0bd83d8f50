"""A step that first reveals which of several mixtures of Gaussians it is, and then an output of that one.

The case has the same distribution with the group and without, so that only the output leaks: with weights w_i and
profiles delta_i, delta(epsilon) = sum_i w_i delta_i(epsilon). Revealing a case that an adversary does not see gives an
upper bound: forgetting it again is a post-processing (joint convexity of the hockey-stick divergence).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid.discretise import Atoms, discretise_from_above, discretise_from_below
from dpspec.accounting.mixture.mixture import Mixture
from dpspec.accounting.mixture.truncated_mixture import OutputRange, TruncatedMixture, build_cells, truncate_outputs
from dpspec.accounting.numerics.floats import EPS, Direction, Floats, one_direction
from dpspec.accounting.pair import Pair, TruncatedPair

#: How far the weights may sum from one; they are then divided by their sum.
_SUM_TOLERANCE = 1e-9

#: ln of the largest tail of one case that is cut off.
_LEAST_TAIL = -0.7

#: What rounding can have changed of a case's weight or largest loss, relatively.
_ROUNDED = 1e-12


class Revealed(Pair):
    """``cases``: (weight, mixture) each, weights above 0 and summing to one; sensitivities in units of one clip norm.

    All cases have the same sigma. Raises ``ValueError`` naming the argument.
    """

    def __init__(self, cases: Sequence[tuple[float, Mixture]]) -> None:
        if not cases or any(not 0.0 < weight <= 1.0 for weight, _ in cases):
            raise ValueError("cases must have weights above 0 and at most 1")
        total = math.fsum(weight for weight, _ in cases)
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"weights of cases must sum to 1, got {total!r}")
        if len({pair.sigma for _, pair in cases}) != 1:
            raise ValueError("all cases must have the same sigma")
        self.cases = tuple((weight / total, pair) for weight, pair in cases)

    def __repr__(self) -> str:
        return f"Revealed({', '.join(f'{weight:.3g}: {pair!r}' for weight, pair in self.cases)})"

    @property
    def key(self) -> Hashable:
        """The weights and the mixtures' own keys."""
        return ("revealed", *((weight, pair.key) for weight, pair in self.cases))

    @property
    def dominating_effect(self) -> float:
        """That of the worst case."""
        return max(pair.dominating_effect for _, pair in self.cases)

    def largest_loss(self, direction: Direction) -> float:
        """That of the worst case."""
        return max(pair.largest_loss(direction) for _, pair in self.cases)

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The weighted sum of the cases' own profiles."""
        each = [(math.log(weight), pair.log_delta_bounds(epsilon, direction)) for weight, pair in self.cases]
        low = float(np.logaddexp.reduce([log + bounds[0] for log, bounds in each]))
        high = float(np.logaddexp.reduce([log + bounds[1] for log, bounds in each]))
        return low - _ROUNDED, min(0.0, high + _ROUNDED)

    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """Each case without the outcomes that, by its weight, have little mass."""
        parts = []
        for weight, pair in self.cases:
            edge, far = (min(log - math.log(weight), _LEAST_TAIL) for log in (log_edge, log_far))
            parts.append((weight, truncate_outputs(pair.ratio, one_direction(direction), edge, far)))
        return _RevealedPart(tuple(parts), direction)


@dataclass(frozen=True, eq=False)
class _RevealedPart(TruncatedPair):
    """Ranges of outputs of the cases with their weights, put on one grid."""

    cases: tuple[tuple[float, OutputRange], ...]
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        tables = [(math.log(weight), *TruncatedMixture(area, self.direction).table()) for weight, area in self.cases]
        losses = np.concatenate([losses for _, losses, _ in tables])
        return losses, np.concatenate([logs + log for log, _, logs in tables])

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """The weighted measures of all cases; the grid is that of the heaviest case."""
        above: list[tuple[float, Atoms]] = []
        below: list[tuple[float, Atoms]] = []
        align = None
        for weight, area in sorted(self.cases, key=lambda case: -case[0]):
            cells = build_cells(area, self.direction, spacing, tilts, widest, limit // len(self.cases), align)
            if align is None:
                align = cells[0].lowest if self.direction == "present-first" else -cells[0].lowest
            above.append((weight * (1.0 + _ROUNDED), discretise_from_above(cells[0])))
            below.append((weight * (1.0 - _ROUNDED), discretise_from_below(cells[1])))
        return _weighted(above), _weighted(below)


def _weighted(measures: Sequence[tuple[float, Atoms]]) -> Atoms:
    """The weighted sum of measures on grids that differ by whole steps."""
    spacing = measures[0][1].spacing
    first = min((atoms for _, atoms in measures), key=lambda atoms: atoms.lowest)
    offsets = [round((atoms.lowest - first.lowest) / spacing) for _, atoms in measures]
    index = np.concatenate([atoms.index + offset for offset, (_, atoms) in zip(offsets, measures, strict=True)])
    nodes, place = np.unique(index, return_inverse=True)
    masses = np.bincount(place, weights=np.concatenate([weight * atoms.masses for weight, atoms in measures]))
    misfit = max(
        abs(atoms.lowest - first.lowest - spacing * offset)
        for offset, (_, atoms) in zip(offsets, measures, strict=True)
    )
    return Atoms(
        lowest=first.lowest,
        spacing=spacing,
        index=nodes,
        masses=np.asarray(masses, dtype=np.float64),
        infinity=min(1.0, math.fsum(weight * atoms.infinity for weight, atoms in measures)),
        shift=max(atoms.shift for _, atoms in measures)
        + misfit
        + 8.0 * EPS * (abs(first.lowest) + spacing * nodes[-1]),
    )
