"""One step of a mixture, cut into cells in the privacy loss, with exact masses.

Every discretisation starts from cells: for each interval of losses between neighbouring nodes, the probabilities of the
outcomes in it under the first and the second distribution of the pair. ``Cells`` is all that the later stages see, so
another mechanism only has to fill one in. Nodes lie on a uniform grid but need not use all of it: where little mass
lies, cells are many grid steps wide. Here the outputs z of a mixture are cut where l(z) is a node's loss.

Where the loss piles up at ln P[c = 0] (most steps do not see the group at all), an interval of outputs with nearly
equal losses is merged into one atom for the lower bound, and the grid is shifted so that the atom lies on a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.checks import EPS, Direction, Floats, Index
from dpspec.accounting.masses import CellMasses, Masses, cell_masses
from dpspec.accounting.outputs import Range, TooLongError, place
from dpspec.accounting.ratio import Ratio

#: Outputs under this, in units of sigma, have no mass that a double could hold.
_FAR_LEFT = -39.0


@dataclass(frozen=True, eq=False)
class Cells:
    """The outcomes of one step by their privacy loss ln(first / second), between nodes lowest + index * spacing.

    index: (n + 1,) grid positions of the nodes, ascending from 0.
    mass: (n,) probability under the first distribution of losses between node i and node i + 1.
    scaled: (n,) the second distribution's probability of the same outcomes, times e^(loss of node i).
    error: (n,) bound on the relative error of ``mass``.
    slip: (n,) bound on the error of ``mass - scaled`` relative to ``mass``, beyond ``error`` times the difference.
    shift: the nodes' losses are true up to this much.
    below, above: the first distribution's probability of losses under the lowest and over the highest node, rounded
        to the safe side.
    atom: which node, and the probability of outcomes that lie on it exactly; node -1 for none.
    """

    lowest: float
    spacing: float
    index: Index
    mass: Floats
    scaled: Floats
    error: Floats
    slip: Floats
    shift: float
    below: float
    above: float
    atom: tuple[int, float] = (-1, 0.0)

    @property
    def widths(self) -> Floats:
        """The cells' widths in loss, (n,)."""
        return np.asarray(self.spacing * np.diff(self.index), dtype=np.float64)


def build(
    area: Range, direction: Direction, spacing: float, tilts: Sequence[float], widest: float, limit: int
) -> tuple[Cells, Cells]:
    """The cells for an upper and for a lower bound; they differ where the loss piles up.

    tilts: at which answers are wanted; widest: the most grid steps in a cell; limit: the most cells. Raises
    ``TooLongError`` when more are needed.
    """
    ratio, present = area.ratio, direction == "present-first"
    bottom, step = np.array([-np.inf]), np.array([spacing])
    merged = _heap_end(area, spacing)
    lead, off = 0, 0.0
    if merged is None:
        origin = area.losses()[0]
    else:
        heap = Masses.of(ratio, bottom, merged)
        origin, off = float(heap.group[0] - heap.none[0]), float(heap.group_error[0] + heap.none_error[0])
        lead = max(0, math.ceil((origin - ratio.log_zero) / spacing) - 1)  # the upper bound's nodes in the heap
    index = place(area, direction, origin, spacing, tilts, widest, limit)
    if lead + len(index) > limit:
        raise TooLongError(lead + len(index), limit)
    longer = np.concatenate((np.arange(-lead, 0), index))
    nodes = np.asarray(origin + spacing * longer, dtype=np.float64)
    # Where rounding leaves a node at ln P[c = 0] itself, any output far to the left has that loss.
    z = np.maximum(ratio.inverse(nodes), min(area.low, _FAR_LEFT))
    if merged is None:
        z[0] = area.low
    noise = _noise(ratio, max(abs(z[0]), abs(z[-1])))
    shift = float(np.max(np.abs(ratio(z) - nodes))) + noise + 4.0 * EPS * float(np.max(np.abs(nodes)))
    inner = cell_masses(ratio, z, nodes[:-1], np.diff(nodes), noise, present=present)
    head, tail = Masses.of(ratio, bottom, z[:1]), Masses.of(ratio, z[-1:], -bottom)
    if merged is None:
        both = _Oriented(origin, spacing, index, inner, present, head, tail, area.dropped)
        return both.cells(shift), both.cells(shift + area.pull, lower=True)
    # Upper: one more cell, for what lies beyond the first node. Lower: the heap is an atom, its rest a shorter cell.
    extra = head.cells(nodes[:1] - spacing, step, noise, present=present).joined(inner)
    rest = Masses.of(ratio, merged, z[lead + 1 : lead + 2]).cells(nodes[lead : lead + 1], step, noise, present=present)
    rest = rest.joined(inner, lead + 1)
    longer = np.concatenate(([0], longer + lead + 1))
    first = origin - spacing * (lead + 1)
    return (
        _Oriented(first, spacing, longer, extra, present, None, tail, area.dropped).cells(shift),
        _Oriented(origin, spacing, index, rest, present, None, tail, 0.0).cells(shift + off + area.pull, heap, True),
    )


@dataclass(frozen=True, eq=False)
class _Oriented:
    """Cells by increasing l, to be read by increasing loss: l present-first, -l absent-first.

    head, tail: the outcomes with l under the first node (None where none is left) and over the last.
    """

    origin: float
    spacing: float
    index: Index
    values: CellMasses
    present: bool
    head: Masses | None
    tail: Masses
    dropped: float

    def cells(self, shift: float, heap: Masses | None = None, lower: bool = False) -> Cells:
        """For an upper or a lower bound; ``heap`` holds the outcomes that lie on the first node exactly."""
        side = 0 if lower else 1
        head = 0.0 if self.head is None else self.head.first(self.present)[side]
        tail = self.tail.first(self.present)[side]
        atom = 0.0 if heap is None else heap.first(self.present)[0]
        node = -1 if heap is None else 0 if self.present else len(self.index) - 1
        extra = 0.0 if lower or not self.present else self.dropped
        if self.present:
            return Cells(self.origin, self.spacing, self.index, *self.values, shift, head, tail + extra, (node, atom))
        lowest = -(self.origin + self.spacing * float(self.index[-1]))
        index = self.index[-1] - self.index[::-1]
        values = CellMasses(*(array[::-1] for array in self.values))
        return Cells(lowest, self.spacing, index, *values, shift, tail, head, (node, atom))


def _heap_end(area: Range, spacing: float) -> Floats | None:
    """The output, (1,), below which all losses are merged; None if hardly any outcome lies there.

    The heap is taken as far as the next node, one spacing over the heap's own loss ln(P / Q): then no outcome is left
    between the two, which the lower bound could only merge with heavier losses.
    """
    ratio = area.ratio
    if ratio.log_zero == -math.inf:
        return None
    ends = ratio.inverse(ratio.log_zero + spacing * np.geomspace(1.0, 64.0, 97))
    heap = Masses.of(ratio, np.full(len(ends), -np.inf), ends)
    with np.errstate(invalid="ignore"):
        inside = ratio(ends) - (heap.group - heap.none) <= spacing * (1.0 - 1e-9)
    fits = int(np.argmin(inside)) if not inside.all() else len(ends)
    chosen = ends[max(0, fits - 1) : max(1, fits)]
    return chosen if float(chosen[0]) > area.low else None


def _noise(ratio: Ratio, reach: float) -> float:
    """A bound on the rounding error of l(z) for |z| up to ``reach``, and of its weights."""
    largest = np.max(np.abs(ratio.log_weights) + ratio.shifts * (reach + 0.5 * ratio.shifts))
    return EPS * (32.0 + 4.0 * float(largest))
