"""Concave kinks of a lower bound's curve removed, so that its measure has no negative mass.

A measure mu on losses e_i stands for the curve f(a) = sum_i mu_i max(0, 1 - a e^(-e_i)). Where a node's mass came out
negative the curve bends the wrong way; the chord between its neighbours lies below it. In terms of mass, the
negative mass is shared between the neighbours so that both distributions' totals are kept.
"""

from __future__ import annotations

import math

import numpy as np

from dpspec.accounting.checks import EPS, Floats


def convex(nodes: Floats, losses: Floats) -> Floats:
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
