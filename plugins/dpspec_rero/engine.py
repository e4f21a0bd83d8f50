"""The declared steps handed to the accountant: certified curves of any composition, in either direction."""

from __future__ import annotations

from collections.abc import Sequence

from dpspec.accounting.checks import Direction, Directions
from dpspec.accounting.curves import tradeoff_bounds
from dpspec.accounting.interval import Interval
from dpspec.accounting.laplace import Laplace
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.pair import Pair
from dpspec.accounting.pld import PrivacyLoss
from dpspec_rero.steps import Steps

#: The spec's words for people, and the accountant's. Reconstruction is about a record that is there: present-first.
DIRECTIONS: dict[str, Directions] = {"remove": "present-first", "add": "absent-first", "both": "both"}

SOURCE = "Kaissis et al. 2023, Theorem 1 and Corollary 3, option 1"

#: The relative width asked for.
WIDTH = 1e-5


def privacy_loss(phases: Sequence[Steps], direction: Directions) -> PrivacyLoss:
    """The composition of ``phases``, all of them with noise and an effect."""
    return PrivacyLoss(tuple((pair(phase), phase.count) for phase in phases), direction)


def pair(step: Steps) -> Pair:
    """The output laws of one step, with the record and without it."""
    if step.noise == "laplace":
        return Laplace(1.0, step.effect, step.rate)
    return Mixture([0.0, step.effect], [1.0 - step.rate, step.rate], 1.0)


def tprs(phases: Sequence[Steps], fprs: Sequence[float], direction: Direction) -> list[Interval]:
    """The most power at each level in (0, 1] in one direction; present-first it is gamma at each kappa."""
    return privacy_loss(phases, direction).reros(fprs, direction=direction, width=WIDTH)


def symmetrised(phases: Sequence[Steps], fprs: Sequence[float]) -> list[Interval]:
    """The most power at each level that the lower envelope of both directions' curves allows; wider intervals."""
    bounds = tradeoff_bounds(privacy_loss(phases, "both"), floor=1e-6 * min(fprs))
    return [bounds.tpr(fpr) for fpr in fprs]
