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

import math
from dataclasses import dataclass

import numpy as np

from dpspec.accounting.cells import Cells
from dpspec.accounting.checks import EPS, Floats


@dataclass(frozen=True, eq=False)
class Atoms:
    """A measure on the losses lowest + i * spacing, i = 0..n, and a mass at infinity.

    ``shift`` bounds how far the true losses may lie from the grid's. One step's curve is bounded by the measure's
    curve at epsilon -+ shift.
    """

    lowest: float
    spacing: float
    masses: Floats
    infinity: float
    shift: float


def pessimistic(cells: Cells) -> Atoms:
    """A measure whose curve lies above that of the pair: every mass rounded up, losses under the grid moved onto it."""
    total, high = _split(cells, sign=1.0)
    nodes = np.zeros(len(total) + 1)
    nodes[:-1] += total - high
    nodes[1:] += high
    nodes[0] += cells.below
    if cells.atom[0] >= 0:
        nodes[cells.atom[0]] += cells.atom[1]
    return Atoms(cells.lowest, cells.spacing, nodes * (1.0 + 4.0 * EPS), min(1.0, cells.above), cells.shift)


def optimistic(cells: Cells) -> Atoms:
    """A measure whose curve lies below that of the pair: merged outcomes, losses over the grid moved down onto it."""
    total, high = _split(cells, sign=-1.0)
    nodes = np.zeros(len(total) + 1)
    nodes[:-1] += total - high
    nodes[1:] += high
    pull = _pulls(cells)
    up = 1.0 / math.expm1(cells.spacing)  # mass taken from the node above, per unit of pull
    down = 1.0 + up
    taken = np.zeros_like(nodes)
    taken[1:] += down * pull[:-1]
    taken[:-1] += up * pull[1:]
    given = (up + down) * pull
    nodes = nodes + given - taken - 8.0 * EPS * (nodes + given + taken)
    if cells.atom[0] >= 0:
        nodes[cells.atom[0]] += cells.atom[1]
    nodes[-1] += cells.above
    return Atoms(cells.lowest, cells.spacing, _convex(nodes, cells.spacing), 0.0, cells.shift)


def _split(cells: Cells, sign: float) -> tuple[Floats, Floats]:
    """Each cell's mass and the part of it that goes to its upper end, both rounded up (+1) or down (-1)."""
    total = cells.mass * (1.0 + sign * (cells.error + 4.0 * EPS))
    excess = (cells.mass - cells.scaled) * (1.0 + sign * (cells.error + 16.0 * EPS)) + sign * cells.slip * cells.mass
    total = np.maximum(total, 0.0)
    return total, np.clip(excess / -math.expm1(-cells.spacing), 0.0, total)


def _pulls(cells: Cells) -> Floats:
    """How far the chords' curve is pulled down at each node, (n + 1,); nothing at either end of the grid.

    The first and the last cell have one free end only: there the line through the fixed end must not rise above the
    curve, which takes the whole excess over it.
    """
    step = math.expm1(cells.spacing)
    top = cells.scaled * step
    low = np.clip(cells.mass - cells.scaled, 0.0, top)
    charge = (cells.slip + cells.error * step + 16.0 * EPS) * cells.mass
    sag = np.where(top > 0.0, low * (top - low) / np.where(top > 0.0, top, 1.0), 0.0) + charge
    pulls = np.zeros(len(sag) + 1)
    pulls[1:-1] = np.maximum(sag[1:], sag[:-1])
    pulls[1] = max(pulls[1], (top - low)[0] + 2.0 * charge[0])
    pulls[-2] = max(pulls[-2], low[-1] + 2.0 * charge[-1])
    return pulls


def _convex(nodes: Floats, spacing: float) -> Floats:
    """The masses without negative ones: each concave kink of the curve is replaced by the chord over it."""
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
            last = _collapse(nodes, spacing)
            queue = [int(i) for i in np.flatnonzero(nodes < 0.0)]
            continue
        nodes[i] = 0.0
        if below < 0:  # a negative mass may move up: the curve only falls
            nodes[above] += mass
        else:
            width, rise = (above - i) * spacing, (i - below) * spacing
            part = math.expm1(-width) / (math.expm1(-width) - math.expm1(rise)) if rise < 700.0 else 0.0
            nodes[below] += mass * part
            nodes[above] += mass * (1.0 - part)
        left[above], right[below] = below, above
        queue.extend(j for j in (below, above) if j >= 0 and nodes[j] < 0.0)
    return np.asarray(nodes * (1.0 - 8.0 * EPS * (1.0 + min(moves, len(nodes)))), dtype=np.float64)


def _collapse(nodes: Floats, spacing: float) -> int:
    """End the grid earlier where the curve has become negative near its upper end; returns the new last node.

    Lowering the curve by its value at some node, and ending it there, keeps it below the true one; the second
    distribution's mass from that node on ends there. The first node, from the top, at which this leaves no negative
    value is taken.
    """
    shrink = math.exp(-spacing)
    first = second = 0.0  # masses over node i: the first distribution's, and the second's times e^(node i)
    for i in range(len(nodes) - 1, -1, -1):
        value = float(nodes[i])
        if first >= second and value + second >= 0.0:
            nodes[i] = value + second
            nodes[i + 1 :] = 0.0
            return i
        first += value
        second = (second + value) * shrink
    nodes[:] = 0.0
    return 0
