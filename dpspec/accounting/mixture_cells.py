"""One step of a mixture of Gaussians as cells: its outputs z cut where l(z) is a node's loss.

Where the loss piles up at ln P[c = 0] (most steps do not see the group at all), an interval of outputs with nearly
equal losses is merged into one atom for the lower bound, and the grid is shifted so that the atom lies on a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.cells import Cells
from dpspec.accounting.checks import EPS, Direction, Floats, Index
from dpspec.accounting.masses import CellMasses, Masses, cell_masses
from dpspec.accounting.outputs import Range, place
from dpspec.accounting.pair import Part, TooLongError
from dpspec.accounting.ratio import Ratio

#: Outputs under this, in units of sigma, have no mass that a double could hold.
_FAR_LEFT = -39.0

#: Quadrature step of the table in units of sigma, and its most points.
_STEP, _POINTS = 0.05, 20_000


@dataclass(frozen=True, eq=False)
class MixturePart(Part):
    """A range of outputs of one step, seen in one direction."""

    area: Range
    direction: Direction

    def table(self) -> tuple[Floats, Floats]:
        """By quadrature over the outputs in the range."""
        area = self.area
        count = int(min(max((area.high - area.low) / _STEP, 100.0), _POINTS)) + 1
        z = np.linspace(area.low, area.high, count)
        losses = area.ratio(z)
        logs = -0.5 * np.square(z) + math.log((z[1] - z[0]) / math.sqrt(2.0 * math.pi))
        return (losses, logs + losses) if self.direction == "present-first" else (-losses, logs)

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        """See ``build``."""
        return build(self.area, self.direction, spacing, tilts, widest, limit)


def build(
    area: Range, direction: Direction, spacing: float, tilts: Sequence[float], widest: float, limit: int
) -> tuple[Cells, Cells]:
    """The cells for an upper and for a lower bound; they differ where the loss piles up.

    tilts: at which answers are wanted; widest: the most grid steps in a cell; limit: the most cells. Raises
    ``TooLongError`` when more are needed.
    """
    ratio, present = area.ratio, direction == "present-first"
    bottom, step = np.array([-np.inf]), np.array([spacing])
    heap = _Heap.of(area, spacing)
    origin = area.losses()[0] if heap is None else heap.loss
    index = place(area, direction, origin, spacing, tilts, widest, limit)
    # The upper bound has nodes inside the heap as well, down to ln P[c = 0] or as far as there are outputs.
    lead = 0 if heap is None else max(0, math.ceil((origin - ratio.log_zero) / spacing) - 1)
    before = ratio.inverse(origin - spacing * np.arange(lead, 0, -1.0))
    complete = heap is not None and bool(np.all(before > _FAR_LEFT))
    lead = int(np.sum(before > _FAR_LEFT))
    if lead + len(index) > limit:
        raise TooLongError(lead + len(index), limit)
    longer = np.concatenate((np.arange(-lead, 0), index))
    nodes = np.asarray(origin + spacing * longer, dtype=np.float64)
    z = np.concatenate((before[len(before) - lead :], ratio.inverse(nodes[lead:])))
    z[lead] = area.low if heap is None else max(z[lead], _FAR_LEFT)
    losses, noise = ratio.with_noise(z)
    shift = float(np.max(np.abs(losses - nodes) + noise)) + 4.0 * EPS * float(np.max(np.abs(nodes)))
    inner = cell_masses(ratio, z, nodes[:-1], np.diff(nodes), np.maximum(noise[1:], noise[:-1]), present=present)
    head, tail = Masses.of(ratio, bottom, z[:1]), Masses.of(ratio, z[-1:], -bottom)
    if complete:  # upper: one more cell, for what lies beyond the first node
        above = head.cells(nodes[:1] - spacing, step, noise[:1], present=present).joined(inner)
        wider = np.concatenate(([0], longer + lead + 1))
        upper = _Oriented(origin - spacing * (lead + 1), spacing, wider, above, present, None, tail, area.dropped)
    else:
        upper = _Oriented(float(nodes[0]), spacing, longer + lead, inner, present, head, tail, area.dropped)
    if heap is None:
        return upper.cells(shift), upper.cells(shift + area.pull, lower=True)
    # Lower: the heap is an atom, and what it leaves of its cell a shorter cell.
    ends = (heap.end, z[lead + 1 : lead + 2])
    rest = Masses.of(ratio, *ends).cells(nodes[lead : lead + 1], step, noise[lead + 1 : lead + 2], present=present)
    lower = _Oriented(origin, spacing, index, rest.joined(inner, lead + 1), present, None, tail, 0.0)
    return upper.cells(shift), lower.cells(shift + heap.error + area.pull, heap.masses, lower=True)


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
        atoms: tuple[list[int], list[float]] = ([], [])
        if heap is not None:
            atoms = ([0 if self.present else len(self.index) - 1], [heap.first(self.present)[0]])
        on = (np.array(atoms[0], dtype=np.int64), np.array(atoms[1]))
        extra = 0.0 if lower or not self.present else self.dropped
        if self.present:
            return Cells(self.origin, self.spacing, self.index, *self.values, shift, head, tail + extra, on)
        lowest = -(self.origin + self.spacing * float(self.index[-1]))
        index = self.index[-1] - self.index[::-1]
        values = CellMasses(*(array[::-1] for array in self.values))
        return Cells(lowest, self.spacing, index, *values, shift, tail, head, on)


@dataclass(frozen=True, eq=False)
class _Heap:
    """The outputs up to ``end``, (1,), whose losses are close to ln P[c = 0]; merged, they have the loss ``loss``."""

    end: Floats
    masses: Masses
    loss: float
    error: float

    @classmethod
    def of(cls, area: Range, spacing: float) -> _Heap | None:
        """The heap of a range of outputs; None if hardly any outcome lies there.

        It is taken as far as the next node, one spacing over its own loss ln(P / Q): then no outcome is left between
        the two, which the lower bound could only merge with heavier losses.
        """
        ratio = area.ratio
        if ratio.log_zero == -math.inf:
            return None
        ends = ratio.inverse(ratio.log_zero + spacing * np.geomspace(1.0, 64.0, 97))
        losses, _ = _merged(ratio, ends)
        with np.errstate(invalid="ignore"):
            inside = ratio(ends) - losses <= spacing * (1.0 - 1e-9)
        fits = int(np.argmin(inside)) if not inside.all() else len(ends)
        end = ends[max(0, fits - 1) : max(1, fits)]
        if float(end[0]) <= area.low:
            return None
        loss, error = (float(x[0]) for x in _merged(ratio, end))
        start = np.maximum(ratio.inverse(np.array([loss])), _FAR_LEFT)
        if float(ratio(start)[0]) - loss > 1e-14 * (1.0 + abs(loss)):
            return None  # its own loss is that of outputs too far away to be told apart
        return cls(end, Masses.of(ratio, np.array([-np.inf]), end), loss, error)


def _merged(ratio: Ratio, ends: Floats) -> tuple[Floats, Floats]:
    """The losses ln(P / Q) of the outputs up to each of ``ends``, taken together, and bounds on their errors.

    ln p(c = 0) and what the other components add to it, so that no digit of a small addition is lost.
    """
    zero = ratio.log_zero
    rest = Masses.of(Ratio(ratio.shifts[1:], ratio.log_weights[1:]), np.full(len(ends), -np.inf), ends)
    with np.errstate(invalid="ignore"):
        beside = np.where(np.isneginf(rest.group), -np.inf, rest.group - rest.none - zero)
    more = np.logaddexp(0.0, beside)
    rounding = 4.0 * EPS * (np.abs(rest.group) + np.abs(rest.none) + abs(zero))
    share = -np.expm1(-more)
    off = np.where(share > 0.0, share * (rest.group_error + rest.none_error + rounding), 0.0)
    return zero + more, np.asarray(8.0 * EPS * (abs(zero) + more) + off, dtype=np.float64)
