"""One step of a mechanism: a pair of output laws, with a record (or a group) present and absent.

The stages that turn a pair into certified answers (``composition``, ``solver``) see it only through ``Pair``: how far
its losses reach, a table of them for estimates, and exact masses between the nodes of a grid. Whoever fills this in
gets composition, every question of ``PrivacyLoss``, and certificates that are as good as the masses it states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

from dpspec.accounting.grid.cells import Cells
from dpspec.accounting.grid.discretise import Atoms, discretise_from_above, discretise_from_below
from dpspec.accounting.numerics.floats import Direction, Floats


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
