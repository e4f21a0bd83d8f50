"""One step of a mechanism, cut into cells in the privacy loss, with the masses of each.

Every discretisation starts from cells: for each interval of losses between neighbouring nodes, the probabilities of the
outcomes in it under the first and the second distribution of the pair. ``Cells`` is all that the later stages see, so
another mechanism only has to fill one in. Nodes lie on a uniform grid but need not use all of it: where little mass
lies, cells are many grid steps wide.

Outcomes of one step can be taken together in bins, which become cells. A bin states its mass under the first
distribution, the loss ``loss = ln(first mass / second mass)`` of the bin as a whole, and a range that holds the losses
of all its outcomes.

Lower bound: outcomes of a bin are merged, which is a post-processing, so the merged pair is dominated by the true one.
Upper bound: the curve H_a = max(first - a second, 0) of any pair with the bin's two masses and with losses in [low,
high] lies below its chord over that range, which is the curve of two outcomes, of loss ``low`` and ``high``, with the
same two masses. A bin inside one cell needs no such split: the cell's own chord does the same.

From cells to a distribution on grid points: from above (connect the dots) and from below (merging).

A measure mu on losses e_i stands for the curve f(a) = sum_i mu_i max(0, 1 - a e^(-e_i)), a > 0. Composition is monotone
in that curve: if f <= f' everywhere then the same holds after composing each with itself or with any third measure,
because a composed curve is the integral of one curve against the other, non-negative, measure. So any measure whose
curve lies above the true H_a(first, second) gives upper bounds, and any whose curve lies below gives lower bounds.

Upper: replace the outcomes of a cell, with masses p and q, by two atoms at its ends that keep both masses. The curve
becomes the chord between its own values at the nodes, above it because it is convex (Doroshenko et al. 2022).

Lower: pull the chords' curve down at node i by g_i, at least the sag of the true curve below the chord in both
neighbouring cells. The sag is largest when the cell is a single outcome of loss ln(p / q), and then equals
(p - q a_i)(q a_{i+1} - p) / (q (a_{i+1} - a_i)). In terms of mass, pulling node i down by g moves mass from
its neighbours to it, keeping both distributions' totals: a merge of outcomes. Where that leaves a node negative, the
curve has a concave kink, which is removed with the chord between its neighbours; that too only lowers it. In terms of
mass, the negative mass is shared between the neighbours so that both distributions' totals are kept.

All rounding errors stated by the cells are charged in the direction that keeps the bound true.

The nodes of a grid lie over the losses of one step everywhere, or as dense as the mass asks for.

One step of a mechanism: a pair of output laws, with a record (or a group) present and absent.

The stages that turn a pair into certified answers (``composition``, ``solver``) see it only through ``Pair``: how far
its losses reach, a table of them for estimates, and exact masses between the nodes of a grid. Whoever fills this in
gets composition, every question of ``PrivacyLoss``, and certificates that are as good as the masses it states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics import EPS, Direction, Floats, Index

_NO_NODES: Index = np.zeros(0, dtype=np.int64)


_NO_MASSES: Floats = np.zeros(0)


class TooLongError(Exception):
    """A grid would need ``needed`` points, more than the ``limit``."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"a grid would need {needed} points, {limit} are allowed")
        self.factor = needed / limit


@dataclass(frozen=True, eq=False)
class Cells:
    """The outcomes of one step by their privacy loss ln(first / second), between nodes lowest + index * spacing.

    index: (n + 1,) grid positions of the nodes, ascending from 0.
    mass: (n,) probability under the first distribution of losses between node i and node i + 1.
    excess: (n,) what ``mass`` exceeds the second distribution's probability, times e^(loss of node i), by.
    error: (n,) bound on the relative error of ``mass``.
    slip: (n,) bound on the error of ``excess`` relative to ``mass``, beyond ``error`` times ``excess`` itself.
    shift: the nodes' losses are true up to this much.
    below, above: the first distribution's probability of losses under the lowest and over the highest node, rounded
        to the safe side. For an upper bound ``above`` counts as infinite, for a lower one as the highest node.
    infinite: for a lower bound only, the probability of losses that certainly are infinite, not part of ``above``.
    atoms: which nodes have outcomes that lie on them exactly, and the probabilities of those, (k,) each.
    """

    lowest: float
    spacing: float
    index: Index
    mass: Floats
    excess: Floats
    error: Floats
    slip: Floats
    shift: float
    below: float
    above: float
    atoms: tuple[Index, Floats] = (_NO_NODES, _NO_MASSES)
    infinite: float = 0.0

    @property
    def widths(self) -> Floats:
        """The cells' widths in loss, (n,)."""
        return np.asarray(self.spacing * np.diff(self.index), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of outcomes in one direction, (n,) each, in any order.

    mass: the first distribution's probability of each bin; loss: ln of it over the second's, finite.
    low, high: between which the losses of the bin's outcomes lie, up to rounding that is part of ``shift``; infinite
        where nothing is known. An upper bound has to count a bin without ``high`` as of infinite loss.
    error: bounds on the relative error of ``mass``; loss_error: on the absolute error of ``loss``.
    shift: how far low and high may be off by rounding.
    above: mass of outcomes about whose losses nothing is known from above, for an upper bound.
    infinite: mass of outcomes whose loss certainly is infinite.
    """

    mass: Floats
    loss: Floats
    low: Floats
    high: Floats
    error: Floats
    loss_error: Floats
    shift: float = 0.0
    above: float = 0.0
    infinite: float = 0.0

    def reversed(self) -> Bins:
        """The same bins in the other direction; what is ``above`` or ``infinite`` has to be set anew."""
        return replace(
            self,
            mass=self.mass * np.exp(-self.loss),
            loss=-self.loss,
            low=-self.high,
            high=-self.low,
            error=self.error + self.loss_error + 4.0 * EPS,
            above=0.0,
            infinite=0.0,
        )

    def with_tail(self, mass: float, high: float) -> Bins:
        """One more bin, for an upper bound only: of at most ``mass``, with losses up to ``high``."""
        loss = high if math.isfinite(high) else float(self.loss[0])
        return replace(
            self,
            mass=np.append(self.mass, mass),
            loss=np.append(self.loss, loss),
            low=np.append(self.low, -math.inf),
            high=np.append(self.high, high),
            error=np.append(self.error, 1.0),
            loss_error=np.append(self.loss_error, 0.0),
        )

    def cells(self, lowest: float, spacing: float, index: Index) -> tuple[Cells, Cells]:
        """Cells for both bounds between the nodes lowest + index * spacing, which reach from below all losses to the
        largest; outcomes that lie lower all the same are moved up for the upper bound and left out of the lower one.
        """
        nodes = np.asarray(lowest + spacing * index, dtype=np.float64)
        used = self.mass > 0.0
        mass, error = self.mass[used], self.error[used]
        blur = 32.0 * EPS * float(np.max(np.abs(nodes)))
        merged, loss_error = self.loss[used], self.loss_error[used]
        # outcomes of one loss that lies on a node
        nearest = np.minimum(np.searchsorted(nodes, merged - 0.5 * spacing), len(nodes) - 1)
        fits = (np.abs(nodes[nearest] - merged) <= blur) & (self.high[used] - self.low[used] <= blur)
        on, lying, lying_error = nearest[fits], mass[fits], error[fits] + 4.0 * EPS
        mass, error, merged, loss_error = mass[~fits], error[~fits], merged[~fits], loss_error[~fits]
        low, high = self.low[used][~fits], self.high[used][~fits]
        at_most, bounded = mass * (1.0 + error), high < np.inf
        upper = _gathered(nodes, *_raised(nodes, low, high, merged + loss_error, mass, error, bounded))
        bottom = np.minimum(merged - loss_error, nodes[-1])
        on_grid = bottom >= nodes[0]
        lower = _gathered(nodes, bottom[on_grid], mass[on_grid], error[on_grid])
        shift = self.shift + 2.0 * blur + float(np.max(self.loss_error[used][fits], initial=0.0))
        above = min(1.0, (self.above + self.infinite + float(at_most[~bounded].sum())) * (1.0 + 1e-12))
        return (
            Cells(lowest, spacing, index, *upper, shift, 0.0, above, (on, lying * (1.0 + lying_error))),
            Cells(lowest, spacing, index, *lower, shift, 0.0, 0.0, (on, lying * _less(lying_error)), self.infinite),
        )


def _less(error: Floats) -> Floats:
    return np.maximum(1.0 - error, 0.0)


def _raised(
    nodes: Floats, low: Floats, high: Floats, top: Floats, mass: Floats, error: Floats, bounded: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Losses, masses and errors of outcomes for the upper bound: of bins over several nodes, those at their ends."""
    low, high, mass, error = low[bounded], np.clip(high[bounded], nodes[0], nodes[-1]), mass[bounded], error[bounded]
    top = np.clip(top[bounded], nodes[0], high)
    cell = _cell(nodes, top)
    inside = (low >= nodes[cell]) & (high <= nodes[cell + 1])
    split = ~inside & (low >= nodes[0])
    share = np.ones(len(mass))
    share[split] = _high_share(low[split], high[split], top[split])
    return (
        np.concatenate((np.where(inside, top, high), low[split])),
        np.concatenate((mass * share, mass[split] * (1.0 - share[split]))),
        np.concatenate((error, error[split])),
    )


def _cell(nodes: Floats, losses: Floats) -> Index:
    """The number of the cell in which each loss lies; a node belongs to the cell above it, the last to the last."""
    return np.clip(np.searchsorted(nodes, losses, side="right") - 1, 0, len(nodes) - 2)


def _high_share(low: Floats, high: Floats, loss: Floats) -> Floats:
    """The part of a bin's mass that goes to ``high``, the rest to ``low``, so that its second mass is kept."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.expm1(low - loss) / np.expm1(low - high)
    return np.asarray(np.clip(np.where(high > low, share, 1.0) * (1.0 + 16.0 * EPS), 0.0, 1.0), dtype=np.float64)


def _gathered(nodes: Floats, losses: Floats, mass: Floats, error: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The fields mass, excess, error and slip of ``Cells`` for outcomes of exact ``losses``."""
    cell, count = _cell(nodes, losses), len(nodes) - 1
    total = np.asarray(np.bincount(cell, weights=mass, minlength=count), dtype=np.float64)
    more = -mass * np.expm1(nodes[cell] - losses)
    excess = np.asarray(np.bincount(cell, weights=more, minlength=count), dtype=np.float64)
    count_in_cell = np.bincount(cell, minlength=count)
    lost_mass = np.bincount(cell, weights=mass * error, minlength=count)
    relative = np.where(total > 0.0, lost_mass / np.where(total > 0.0, total, 1.0), 0.0)
    return total, excess, relative + EPS * (16.0 + 2.0 * count_in_cell), -relative * np.expm1(-np.diff(nodes))


#: Share of the discretisation error that wide cells may add to that of the grid's own spacing.
WIDE = 0.5


#: The widest cell in loss: its exponential stays a double.
WIDEST = 300.0


#: A grid has so many steps at least.
_LEAST = 4


def span_grid(lowest: float, highest: float, spacing: float, *, from_top: bool = False) -> tuple[float, int]:
    """The first node and the number of steps of a grid over all losses, with a node at ``lowest`` or at ``highest``."""
    steps = max(_LEAST, math.ceil((highest - lowest) / spacing - 1e-6))
    return (highest - spacing * steps if from_top else lowest), steps


def place_nodes_around(losses: Floats, lowest: float, spacing: float, steps: int, limit: int) -> Index:
    """Positions of nodes on both sides of each of ``losses``, with the ends of the grid; for few, separate losses."""
    below = np.unique(np.clip(np.floor((losses - lowest) / spacing).astype(np.int64), 0, steps - 1))
    index = np.unique(np.concatenate(([0, 1, steps - 1, steps], below, below + 1)))
    return _checked(split_wide_cells(index, int(min(max(WIDEST / spacing, 1.0), 1e12)), limit), limit)


def place_nodes_densely(
    losses: Floats,
    logs: Floats,
    lowest: float,
    spacing: float,
    steps: int,
    tilts: Sequence[float],
    widest: float,
    limit: int,
) -> Index:
    """Positions of nodes, from 0 to ``steps``, as dense as a table of losses and ln of their masses asks for.

    A cell of width w and tilted mass t adds an error in proportion to t w^2; for a given number of cells the sum is
    least where w^3 is inversely proportional to the density of t. ``tilts`` are those at which answers are wanted;
    ``widest`` limits a cell's width, in grid steps.
    """
    order = np.argsort(losses)
    sorted_losses, logs = losses[order], logs[order]
    tilted = np.zeros(len(sorted_losses))
    for tilt in tilts:
        exponents = logs + tilt * sorted_losses
        weights = np.exp(exponents - exponents.max())
        tilted += weights / weights.sum()
    ends = np.concatenate(([lowest], 0.5 * (sorted_losses[1:] + sorted_losses[:-1]), [lowest + spacing * steps]))
    gaps = np.maximum(np.diff(ends), spacing)
    root = np.cbrt(tilted / gaps)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore"):
        widths = np.clip(math.sqrt(WIDE / float(root @ gaps)) / root, 1.0, cap)
    count = np.concatenate(([0.0], np.cumsum(np.diff(ends) / (spacing * widths))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    places = (np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, ends) - lowest) / spacing
    inner = np.rint(places).astype(np.int64)
    index = np.unique(np.concatenate(([0, 1, steps - 1, steps], inner[(inner > 0) & (inner < steps)])))
    return _checked(split_wide_cells(index, int(min(max(WIDEST / spacing, 1.0), 1e12)), limit), limit)


def split_wide_cells(nodes: Index, most: int, limit: int) -> Index:
    """The nodes with more between those that are over ``most`` grid steps apart."""
    pieces = -(-np.diff(nodes) // most)
    if pieces.sum() > limit:
        raise TooLongError(int(pieces.sum()), limit)
    if pieces.max() == 1:
        return nodes
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.append(np.repeat(nodes[:-1], pieces) + within * most, nodes[-1])


def _checked(index: Index, limit: int) -> Index:
    if len(index) > limit:
        raise TooLongError(len(index), limit)
    return index


@dataclass(frozen=True, eq=False)
class Atoms:
    """A measure on the losses lowest + index * spacing, and a mass at infinity.

    index: (n + 1,) ascending from 0; masses: (n + 1,), not negative.
    ``shift`` bounds how far the true losses may lie from the grid's. One step's curve is bounded by the measure's
    curve at epsilon -+ shift.
    """

    lowest: float
    spacing: float
    index: Index
    masses: Floats
    infinity: float
    shift: float


def discretise_from_above(cells: Cells) -> Atoms:
    """A measure whose curve lies above that of the pair: every mass rounded up, losses under the grid moved onto it."""
    nodes = _chords(cells, sign=1.0)
    nodes[0] += cells.below
    np.add.at(nodes, *cells.atoms)
    nodes *= 1.0 + 4.0 * EPS
    return Atoms(cells.lowest, cells.spacing, cells.index, nodes, min(1.0, cells.above), cells.shift)


def discretise_from_below(cells: Cells) -> Atoms:
    """A measure whose curve lies below that of the pair: merged outcomes, losses over the grid moved down onto it."""
    nodes = _chords(cells, sign=-1.0)
    np.add.at(nodes, *cells.atoms)
    nodes[-1] += cells.above
    pulls = _pulls(cells, nodes)
    up = 1.0 / np.expm1(cells.widths)  # what pulling a node down by one takes from the node below it
    down = 1.0 + up  # and from the node above it
    taken, given = np.zeros_like(nodes), np.zeros_like(nodes)
    taken[1:] += down * pulls[:-1]
    taken[:-1] += up * pulls[1:]
    given[1:] += down * pulls[1:]
    given[:-1] += up * pulls[:-1]
    nodes = nodes + given - taken - 8.0 * EPS * (nodes + given + taken)
    return Atoms(
        cells.lowest,
        cells.spacing,
        cells.index,
        remove_kinks(nodes, np.asarray(cells.spacing * cells.index, dtype=np.float64)),
        cells.infinite,
        cells.shift,
    )


def _chords(cells: Cells, sign: float) -> Floats:
    """Masses on the nodes that keep each cell's two masses, rounded up (+1) or down (-1)."""
    total = np.maximum(cells.mass * (1.0 + sign * (cells.error + 4.0 * EPS)), 0.0)
    excess = cells.excess * (1.0 + sign * (cells.error + 16.0 * EPS)) + sign * cells.slip * cells.mass
    high = np.clip(excess / -np.expm1(-cells.widths), 0.0, total)
    nodes = np.zeros(len(total) + 1)
    nodes[:-1] += total - high
    nodes[1:] += high
    return nodes


def _pulls(cells: Cells, nodes: Floats) -> Floats:
    """How far the chords' curve is pulled down at each node, (n + 1,); nothing at either end of the grid.

    With the sag s of a cell's single outcome at the share 1 - r of the way from its lower to its upper node, pulls g
    and g' at the two nodes suffice when r g + (1 - r) g' >= s. Pulling a node takes mass from its two neighbours, so
    each node's pull is shaped by what the poorer of them has in ``nodes``, and scaled until both cells beside it
    have enough. The first and the last cell have one free end only, which takes all of it.
    """
    step = np.expm1(cells.widths)
    top = np.maximum(cells.mass - cells.excess, 0.0) * step
    low = np.clip(cells.excess, 0.0, top)
    charge = (cells.slip + (cells.error + 16.0 * EPS) * np.minimum(step, 1.0)) * cells.mass
    safe = np.where(top > 0.0, top, 1.0)
    share = np.where(top > 0.0, (top - low) / safe, 0.0)
    doubt = np.where(top > 0.0, np.minimum(1.0, charge / safe), 1.0)  # how far the share may be off
    sag = low * share + charge
    room = np.minimum(-np.expm1(-cells.widths[1:]) * nodes[2:], step[:-1] * nodes[:-2])
    shape = np.zeros(len(sag) + 1)
    shape[1:-1] = np.maximum(room, 1e-9 * np.maximum(sag[1:], sag[:-1]))
    least, most = np.clip(share - doubt, 0.0, 1.0), np.clip(share + doubt, 0.0, 1.0)
    reached = np.minimum(least * shape[:-1] + (1.0 - least) * shape[1:], most * shape[:-1] + (1.0 - most) * shape[1:])
    scale = np.where(reached > 0.0, sag / np.where(reached > 0.0, reached, 1.0), 0.0)
    scale[0] = scale[-1] = 0.0
    pulls = np.zeros(len(sag) + 1)
    pulls[1:-1] = np.maximum(scale[1:], scale[:-1]) * shape[1:-1]
    pulls[1] = max(pulls[1], (top - low)[0] + 2.0 * charge[0])
    pulls[-2] = max(pulls[-2], low[-1] + 2.0 * charge[-1])
    return pulls


def remove_kinks(nodes: Floats, losses: Floats) -> Floats:
    """Masses without negative ones on the same ``losses``, whose curve lies below that of ``nodes``; (n,) each."""
    bad = np.flatnonzero(nodes < 0.0)
    if bad.size == 0:
        return nodes
    nodes = nodes.copy()
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    last, moves = len(nodes) - 1, 0
    queue = [int(i) for i in bad]
    while queue:
        i = queue.pop()
        mass = float(nodes[i])
        if mass >= 0.0:
            continue
        below, above = left.get(i, i - 1), right.get(i, i + 1)
        moves += 1
        if above > last:
            last = _collapse(nodes, losses)
            queue = [int(i) for i in np.flatnonzero(nodes < 0.0)]
            continue
        nodes[i] = 0.0
        if below < 0:  # a negative mass may move up: the curve only falls
            nodes[above] += mass
        else:
            part = _lower_share(float(losses[above] - losses[i]), float(losses[i] - losses[below]))
            nodes[below] += mass * part
            nodes[above] += mass * (1.0 - part)
        left[above], right[below] = below, above
        queue.extend(j for j in (below, above) if j >= 0 and nodes[j] < 0.0)
    return np.asarray(nodes * (1.0 - 8.0 * EPS * (1.0 + min(moves, len(nodes)))), dtype=np.float64)


def _lower_share(width: float, rise: float) -> float:
    """The part of a mass that goes to the neighbour ``rise`` below it, the other being ``width`` above.

    p e^rise + (1 - p) e^-width = 1; moving everything up errs on the low side when e^rise overflows.
    """
    if rise > 700.0:
        return 0.0
    return math.expm1(-width) / (math.expm1(-width) - math.expm1(rise))


def _collapse(nodes: Floats, losses: Floats) -> int:
    """End the grid earlier where the curve has become negative near its upper end; returns the new last node.

    Lowering the curve by its value at some node, and ending it there, keeps it below the true one, which is never
    negative; the second distribution's mass from that node on ends there. The first node, from the top, at which this
    leaves no negative value is taken.
    """
    first = second = 0.0  # masses over node i: the first distribution's, and the second's times e^(node i)
    for i in range(len(nodes) - 1, -1, -1):
        value = float(nodes[i])
        if first >= second and value + second >= 0.0:
            nodes[i] = value + second
            nodes[i + 1 :] = 0.0
            return i
        first += value
        if i > 0:
            second = (second + value) * math.exp(float(losses[i - 1] - losses[i]))
    nodes[:] = 0.0
    return 0


class TruncatedPair(ABC):
    """What matters of one step in one direction, for one question: outcomes of little mass are cut off."""

    @abstractmethod
    def table(self) -> tuple[Floats, Floats]:
        """Losses and ln of their probabilities under the first distribution, (n,) each; an estimate is enough."""

    @property
    def period(self) -> float | None:
        """A distance in loss that best is a whole number of grid steps, so that outcomes come to lie on nodes."""
        return None

    def cells(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Cells, Cells]:
        """Cells of outcomes by their loss, for an upper and for a lower bound of the profile.

        Args:
            spacing: of the grid.
            tilts: at which answers are wanted.
            widest: the most grid steps in a cell.
            limit: the most cells.

        Raises:
            TooLongError: more cells are needed.
            NotImplementedError: the pair has ``atoms`` of its own instead.
        """
        raise NotImplementedError

    def atoms(self, spacing: float, tilts: Sequence[float], widest: float, limit: int) -> tuple[Atoms, Atoms]:
        """Measures on the grid whose curves are above and below that of the pair; see ``cells``."""
        above, below = self.cells(spacing, tilts, widest, limit)
        return discretise_from_above(above), discretise_from_below(below)


class Pair(ABC):
    """The laws of one step's output, immutable; see the module for what uses it.

    The privacy loss is ln(first / second) of an output drawn from the first distribution: present-first, that is the
    law with the record, absent-first the law without it.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal only for pairs with the same privacy loss: their steps are counted together."""

    @property
    def effect(self) -> float | None:
        """mu where the pair has the privacy loss of N(0, 1) against N(mu, 1), so that steps compose in closed form."""
        return None

    @property
    def dominating_effect(self) -> float:
        """A mu whose Gaussian pair dominates this one; infinite where none is known."""
        return math.inf

    @abstractmethod
    def largest_loss(self, direction: Direction) -> float:
        """No finite loss of one step is larger; may be infinite where losses have no end."""

    def infinite_mass(self, direction: Direction) -> float:
        """The first distribution's probability of outcomes that the second never produces, up to 1e-15 of itself."""
        return 0.0

    def log_delta_bounds(self, epsilon: float, direction: Direction) -> tuple[float, float] | None:
        """Lower and upper bound of ln delta(epsilon) of one step; None where only a grid can tell."""
        return None

    @abstractmethod
    def truncate(self, direction: Direction, log_edge: float, log_far: float) -> TruncatedPair:
        """The step without outcomes of little mass.

        log_edge: ln of the first distribution's mass that may be lost at the end of large losses, where it counts as
        infinite; log_far: ln of what may be lost at the other end.
        """
