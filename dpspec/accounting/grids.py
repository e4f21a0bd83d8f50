"""Where to put the nodes of a grid over the losses of one step: everywhere, or as dense as the mass asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpspec.accounting.checks import Floats, Index
from dpspec.accounting.pair import TooLongError

#: Share of the discretisation error that wide cells may add to that of the grid's own spacing.
_WIDE = 0.5

#: The widest cell in loss: its exponential stays a double.
_WIDEST = 300.0

#: A grid has so many steps at least.
_LEAST = 4


def span(lowest: float, highest: float, spacing: float, *, from_top: bool = False) -> tuple[float, int]:
    """The first node and the number of steps of a grid over all losses, with a node at ``lowest`` or at ``highest``."""
    steps = max(_LEAST, math.ceil((highest - lowest) / spacing - 1e-6))
    return (highest - spacing * steps if from_top else lowest), steps


def around(losses: Floats, lowest: float, spacing: float, steps: int, limit: int) -> Index:
    """Positions of nodes on both sides of each of ``losses``, with the ends of the grid; for few, separate losses."""
    at = np.unique(np.clip(np.floor((losses - lowest) / spacing).astype(np.int64), 0, steps - 1))
    index = np.unique(np.concatenate(([0, 1, steps - 1, steps], at, at + 1)))
    return _checked(split(index, int(min(max(_WIDEST / spacing, 1.0), 1e12)), limit), limit)


def dense(
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
    at, logs = losses[order], logs[order]
    tilted = np.zeros(len(at))
    for tilt in tilts:
        exponents = logs + tilt * at
        weights = np.exp(exponents - exponents.max())
        tilted += weights / weights.sum()
    ends = np.concatenate(([lowest], 0.5 * (at[1:] + at[:-1]), [lowest + spacing * steps]))
    gaps = np.maximum(np.diff(ends), spacing)
    root = np.cbrt(tilted / gaps)
    cap = max(1.0, min(widest, 0.5 / ((1.0 + max(tilts)) * spacing)))
    with np.errstate(divide="ignore"):
        widths = np.clip(math.sqrt(_WIDE / float(root @ gaps)) / root, 1.0, cap)
    count = np.concatenate(([0.0], np.cumsum(np.diff(ends) / (spacing * widths))))
    if count[-1] > limit:
        raise TooLongError(math.ceil(count[-1]), limit)
    places = (np.interp(np.arange(0.0, math.ceil(count[-1]) + 1.0), count, ends) - lowest) / spacing
    inner = np.rint(places).astype(np.int64)
    index = np.unique(np.concatenate(([0, 1, steps - 1, steps], inner[(inner > 0) & (inner < steps)])))
    return _checked(split(index, int(min(max(_WIDEST / spacing, 1.0), 1e12)), limit), limit)


def split(nodes: Index, most: int, limit: int) -> Index:
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
