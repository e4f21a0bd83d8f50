"""One step of a mixture of Gaussians as cells: its outputs z cut where l(z) is a node's loss.

Where the loss piles up at ln P[c = 0] (most steps do not see the group at all), an interval of outputs with nearly
equal losses is merged into one atom for the lower bound, and the grid is shifted so that the atom lies on a node.

Which outputs of a step matter, and where to cut them, an output range says, with nodes as dense as the mass asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from dpspec.accounting.grid.cells import Cells, TooLongError
from dpspec.accounting.grid.discretise import WIDE, WIDEST, split_wide_cells
from dpspec.accounting.mixture.log_ratio import LogRatio
from dpspec.accounting.mixture.masses import CellMasses, Masses, cell_masses, lower_tail, upper_tail
from dpspec.accounting.numerics.floats import EPS, Direction, Floats, Index
from dpspec.accounting.numerics.search import bisect
from dpspec.accounting.pair import TruncatedPair

#: Points of the table from which nodes are placed.
_TABLE = 2001


@dataclass(frozen=True)
class OutputRange:
    """Where the outputs are cut off, in units of sigma, and the components that are left out as negligible.

    dropped: the weight of the components left out; pull: how much that may change a loss for the lower bound.
    """

    low: float
    high: float
    ratio: LogRatio
    dropped: float
    pull: float

    def losses(self) -> tuple[float, float]:
        """The span of l over the range."""
        values = self.ratio(np.array([self.low, self.high]))
        return float(values[0]), float(values[1])


def truncate_outputs(ratio: LogRatio, direction: Direction, log_edge: float, log_far: float) -> OutputRange:
    """The range of outputs outside which the first distribution has little mass.

    log_edge: ln of the mass that may be lost at the end of large losses, where it counts as infinite.
    log_far: ln of the mass that may be lost at the other end.

    Components may be dropped whose whole weight is far below that. Present-first, their mass is added to what is
    infinite for the upper bound, and missing mass only lowers a lower bound. Absent-first, a smaller second
    distribution only raises the upper bound; for the lower bound the weight moves to c = 0 (a dominated pair by
    Lemma 2.9), which changes losses by at most ``pull``.
    """
    top = float(ratio.shifts[-1])
    if direction == "present-first":
        low = _last(lambda z: lower_tail(ratio, z) <= log_far, float(ndtri_exp(log_far)), top)
        high = _last(lambda z: upper_tail(ratio, z) > log_edge, -10.0, top - float(ndtri_exp(log_edge)))
        trimmed, dropped = _trim(ratio, log_edge - math.log(1e3))
        return OutputRange(low, high, trimmed, dropped, 0.0)
    low, high = float(ndtri_exp(log_edge)), -float(ndtri_exp(log_far))
    largest = -float(ratio(np.array([low]))[0])
    trimmed, dropped = _trim(ratio, -42.0 - largest)
    return OutputRange(low, high, trimmed, dropped, dropped * math.exp(min(largest + 1.0, 700.0)))


def place_output_nodes(
    area: OutputRange,
    direction: Direction,
    origin: float,
    spacing: float,
    tilts: Sequence[float],
    widest: float,
    limit: int,
) -> Index:
    """Grid positions of nodes over the losses from ``origin`` on, starting 0, 1, 2: dense where mass is.

    A cell of width w and tilted mass t adds an error in proportion to t w^2; for a given number of cells the sum is
    least where w^3 is inversely proportional to the density of t. ``tilts`` are those at which answers are wanted;
    ``widest`` limits a cell's width, in grid steps. Raises ``TooLongError`` for more than about ``limit`` nodes.
    """
    z = np.linspace(area.low, area.high, _TABLE)
    losses, slopes = area.ratio.with_slope(z)
    slopes = np.maximum(slopes, 1e-200)
    signed = losses if direction == "present-first" else -losses
    logs = -0.5 * np.square(z) + (losses if direction == "present-first" else 0.0)
    density = np.zeros(_TABLE)
    for tilt in tilts:
        exponents = logs + tilt * signed
        weights = np.exp(exponents - exponents.max())
        density += weights / (_area(weights, z) * slopes)
    root = np.cbrt(density)
    total = _area(root * slopes, z)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore", over="ignore"):
        widths = np.clip(math.sqrt(WIDE / total) / root, 1.0, cap)
    steps = slopes / (spacing * widths)
    count = np.concatenate(([0.0], np.cumsum(0.5 * (steps[1:] + steps[:-1]) * np.diff(z))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    grid = (losses - origin) / spacing
    wanted = np.rint(np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, grid)).astype(np.int64)
    end = max(4, math.ceil(float(grid[-1])))
    inner = np.concatenate(([0, 1, 2], wanted[wanted > 2]))
    inner = inner[np.concatenate(([True], np.diff(inner) > 0))]
    # The last cell is not much narrower than the one before it.
    inner = inner[inner < end - 0.7 * float(inner[-1] - inner[-2])] if len(inner) > 3 else inner[inner < end]
    return split_wide_cells(np.concatenate((inner, [end])), max(1, int(WIDEST / spacing)), limit)


def _trim(ratio: LogRatio, log_budget: float) -> tuple[LogRatio, float]:
    """The components without those, at either end, whose weights add up to at most e^log_budget; and that sum."""
    half = log_budget - math.log(2.0)
    begin = int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights), half))
    end = len(ratio.shifts) - int(np.searchsorted(np.logaddexp.accumulate(ratio.log_weights[::-1]), half))
    if end - begin < 1 or ratio.shifts[end - 1] == 0.0:  # what remains must still be able to lose something
        return ratio, 0.0
    dropped_logs: Floats = np.concatenate((ratio.log_weights[:begin], ratio.log_weights[end:]))
    trimmed = LogRatio(ratio.shifts[begin:end], ratio.log_weights[begin:end])
    return trimmed, float(np.exp(dropped_logs).sum() * (1.0 + 1e-9)) if dropped_logs.size else 0.0


def _area(values: Floats, z: Floats) -> float:
    return float(0.5 * (values[1:] + values[:-1]) @ np.diff(z))


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point, up to 1e-3, for which ``holds`` is true: true at ``low``, perhaps false at ``high``."""
    return bisect(holds, low, high, enough=lambda a, b: b - a <= 1e-3)[0]


#: Outputs under this, in units of sigma, have no mass that a double could hold.
_FAR_LEFT = -39.0

#: A mixture piles up at ln P[c = 0] if its least loss is within so many grid steps of it.
_PILED = 64.0

#: Quadrature step of the table in units of sigma, and its most points.
_STEP, _POINTS = 0.05, 20_000


@dataclass(frozen=True, eq=False)
class TruncatedMixture(TruncatedPair):
    """A range of outputs of one step, seen in one direction."""

    area: OutputRange
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
        return build_cells(self.area, self.direction, spacing, tilts, widest, limit)


def build_cells(
    area: OutputRange,
    direction: Direction,
    spacing: float,
    tilts: Sequence[float],
    widest: float,
    limit: int,
    align: float | None = None,
) -> tuple[Cells, Cells]:
    """The cells for an upper and for a lower bound; they differ where the loss piles up.

    Args:
        area: the outputs.
        direction: which of the two distributions is the first.
        spacing: of the grid.
        tilts: at which answers are wanted.
        widest: the most grid steps in a cell.
        limit: the most cells.
        align: a log ratio that is on the grid, if the grid is that of another mixture too; the pile then is in a cell.

    Raises:
        TooLongError: more cells are needed.
    """
    ratio, present = area.ratio, direction == "present-first"
    bottom, step = np.array([-np.inf]), np.array([spacing])
    pile = _Pile.of(area, spacing) if align is None else None
    origin = area.losses()[0] if pile is None else pile.loss
    piled = pile is not None or (align is not None and origin - ratio.log_zero < _PILED * spacing)
    if align is not None:
        origin = align + spacing * math.ceil((origin - align) / spacing)
    index = place_output_nodes(area, direction, origin, spacing, tilts, widest, limit)
    # The upper bound has nodes inside the pile as well, down to ln P[c = 0] or as far as there are outputs.
    lead = max(0, math.ceil((origin - ratio.log_zero) / spacing) - 1) if piled else 0
    before = ratio.inverse(origin - spacing * np.arange(lead, 0, -1.0))
    complete = piled and bool(np.all(before > _FAR_LEFT))
    lead = int(np.sum(before > _FAR_LEFT))
    if lead + len(index) > limit:
        raise TooLongError(lead + len(index), limit)
    longer = np.concatenate((np.arange(-lead, 0), index))
    nodes = np.asarray(origin + spacing * longer, dtype=np.float64)
    z = np.concatenate((before[len(before) - lead :], ratio.inverse(nodes[lead:])))
    z[lead] = area.low if not piled else max(z[lead], _FAR_LEFT)
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
    if pile is None:
        return upper.cells(shift), upper.cells(shift + area.pull, lower=True)
    # Lower: the pile is an atom, and what it leaves of its cell a shorter cell.
    ends = (pile.end, z[lead + 1 : lead + 2])
    remainder = Masses.of(ratio, *ends).cells(nodes[lead : lead + 1], step, noise[lead + 1 : lead + 2], present=present)
    lower = _Oriented(origin, spacing, index, remainder.joined(inner, lead + 1), present, None, tail, 0.0)
    return upper.cells(shift), lower.cells(shift + pile.error + area.pull, pile.masses, lower=True)


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

    def cells(self, shift: float, pile: Masses | None = None, lower: bool = False) -> Cells:
        """For an upper or a lower bound; ``pile`` holds the outcomes that lie on the first node exactly."""
        side = 0 if lower else 1
        head = 0.0 if self.head is None else self.head.first(self.present)[side]
        tail = self.tail.first(self.present)[side]
        atoms: tuple[list[int], list[float]] = ([], [])
        if pile is not None:
            atoms = ([0 if self.present else len(self.index) - 1], [pile.first(self.present)[0]])
        on = (np.array(atoms[0], dtype=np.int64), np.array(atoms[1]))
        extra = 0.0 if lower or not self.present else self.dropped
        if self.present:
            return Cells(self.origin, self.spacing, self.index, *self.values, shift, head, tail + extra, on)
        lowest = -(self.origin + self.spacing * float(self.index[-1]))
        index = self.index[-1] - self.index[::-1]
        values = CellMasses(*(array[::-1] for array in self.values))
        return Cells(lowest, self.spacing, index, *values, shift, tail, head, on)


@dataclass(frozen=True, eq=False)
class _Pile:
    """The outputs up to ``end``, (1,), whose losses are close to ln P[c = 0]; merged, they have the loss ``loss``."""

    end: Floats
    masses: Masses
    loss: float
    error: float

    @classmethod
    def of(cls, area: OutputRange, spacing: float) -> _Pile | None:
        """The pile of a range of outputs; None if hardly any outcome lies there.

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


def _merged(ratio: LogRatio, ends: Floats) -> tuple[Floats, Floats]:
    """The losses ln(P / Q) of the outputs up to each of ``ends``, taken together, and bounds on their errors.

    ln p(c = 0) and what the other components add to it, so that no digit of a small addition is lost.
    """
    zero = ratio.log_zero
    shifted = Masses.of(LogRatio(ratio.shifts[1:], ratio.log_weights[1:]), np.full(len(ends), -np.inf), ends)
    with np.errstate(invalid="ignore"):
        beside = np.where(np.isneginf(shifted.group), -np.inf, shifted.group - shifted.none - zero)
    more = np.logaddexp(0.0, beside)
    rounding = 4.0 * EPS * (np.abs(shifted.group) + np.abs(shifted.none) + abs(zero))
    share = -np.expm1(-more)
    off = np.where(share > 0.0, share * (shifted.group_error + shifted.none_error + rounding), 0.0)
    return zero + more, np.asarray(8.0 * EPS * (abs(zero) + more) + off, dtype=np.float64)
