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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import EPS, Direction, Floats
from dpspec.accounting.masses import Masses, log_masses, quadrature_reach
from dpspec.accounting.outputs import Range
from dpspec.accounting.ratio import Ratio

Index = npt.NDArray[np.int64]


class TooLongError(Exception):
    """A grid would need more points than allowed."""


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
