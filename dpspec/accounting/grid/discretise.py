"""From cells to a distribution on grid points: from above (connect the dots) and from below (merging).

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.grid.cells import Cells, TooLongError
from dpspec.accounting.numerics.floats import EPS, Floats, Index

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
            part = _share(float(losses[above] - losses[i]), float(losses[i] - losses[below]))
            nodes[below] += mass * part
            nodes[above] += mass * (1.0 - part)
        left[above], right[below] = below, above
        queue.extend(j for j in (below, above) if j >= 0 and nodes[j] < 0.0)
    return np.asarray(nodes * (1.0 - 8.0 * EPS * (1.0 + min(moves, len(nodes)))), dtype=np.float64)


def _share(width: float, rise: float) -> float:
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
