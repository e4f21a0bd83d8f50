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
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpspec.accounting.numerics.floats import EPS, Floats, Index

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
        """Cells for both bounds between the nodes lowest + index * spacing, which cover the losses up to the largest.

        Outcomes below the first node are moved up for the upper bound and omitted from the lower one.
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
    share[split] = _share(low[split], high[split], top[split])
    return (
        np.concatenate((np.where(inside, top, high), low[split])),
        np.concatenate((mass * share, mass[split] * (1.0 - share[split]))),
        np.concatenate((error, error[split])),
    )


def _cell(nodes: Floats, losses: Floats) -> Index:
    """The number of the cell in which each loss lies; a node belongs to the cell above it, the last to the last."""
    return np.clip(np.searchsorted(nodes, losses, side="right") - 1, 0, len(nodes) - 2)


def _share(low: Floats, high: Floats, loss: Floats) -> Floats:
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
