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
curve has a concave kink, which is removed with the chord between its neighbours; that too only lowers it.

All rounding errors stated by the cells are charged in the direction that keeps the bound true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpspec.accounting.cells import Cells
from dpspec.accounting.checks import EPS, Floats, Index
from dpspec.accounting.convex import convex


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


def pessimistic(cells: Cells) -> Atoms:
    """A measure whose curve lies above that of the pair: every mass rounded up, losses under the grid moved onto it."""
    nodes = _chords(cells, sign=1.0)
    nodes[0] += cells.below
    np.add.at(nodes, *cells.atoms)
    nodes *= 1.0 + 4.0 * EPS
    return Atoms(cells.lowest, cells.spacing, cells.index, nodes, min(1.0, cells.above), cells.shift)


def optimistic(cells: Cells) -> Atoms:
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
        convex(nodes, np.asarray(cells.spacing * cells.index, dtype=np.float64)),
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
