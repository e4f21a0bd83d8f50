"""Epsilon of DP-SGD for groups of records: the mixtures of a training schedule, composed.

Ganesh 2024, Theorems 3.1 and 3.3: the composition of the one-step mixtures dominates the whole training run, for an
adversary that sees every iterate, and equality is reached by some losses and data.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.accounting.checks import Directions
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.pld import WIDTH, PrivacyLoss


def group_epsilon(
    phases: Sequence[tuple[Mixture, int]], delta: float, direction: Directions = "both", width: float = WIDTH
) -> Interval:
    """The least epsilon at ``delta`` over ``phases`` of (one-step pair, steps): an interval that contains it.

    Raises ``ValueError`` naming the argument that makes no sense.
    """
    return PrivacyLoss(tuple(phases), direction).epsilon(delta, width=width)


def group_curve(
    phases: Sequence[tuple[Mixture, int]], deltas: Sequence[float], direction: Directions = "both", width: float = WIDTH
) -> list[Interval]:
    """``group_epsilon`` at each of ``deltas``, in their order, from as few compositions as precision allows."""
    return PrivacyLoss(tuple(phases), direction).epsilons(deltas, width=width)
