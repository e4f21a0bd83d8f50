"""One step of a mechanism, cut into cells in the privacy loss, with the masses of each.

Every discretisation starts from cells: for each interval of losses between neighbouring nodes, the probabilities of the
outcomes in it under the first and the second distribution of the pair. ``Cells`` is all that the later stages see, so
another mechanism only has to fill one in. Nodes lie on a uniform grid but need not use all of it: where little mass
lies, cells are many grid steps wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpspec.accounting.checks import Floats, Index

_NO_NODES: Index = np.zeros(0, dtype=np.int64)
_NO_MASSES: Floats = np.zeros(0)


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
