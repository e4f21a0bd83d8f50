"""Group privacy of DP-SGD: from a spec's phases to mixtures of Gaussians, and from those to epsilon.

Ganesh 2024, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians Mechanisms":
with c the random number of group members in a batch (Theorem 3.1, Poisson: Binomial(k, rate)) or twice that number
(Theorem 3.3, fixed size: 2 Hypergeometric(batch, n + k, k)), the T-fold composition of the pair

    N(0, sigma^2)   and   sum_j P[c = j] N(j, sigma^2)

dominates T steps of DP-SGD for groups of up to k records, under add-up-to-k and remove-up-to-k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec.accounting.checks import Direction
from dpspec.accounting.group import group_curve
from dpspec.accounting.interval import Interval
from dpspec.accounting.mixture import Mixture
from dpspec.contract import FrozenMap

#: The spec's words for people, and the accountant's: present-first compares with-the-group to without.
DIRECTIONS: dict[str, Direction] = {"remove": "present-first", "add": "absent-first"}

#: With less noise than this, epsilon is beyond what a float can hold.
NO_NOISE = 1e-100

SOURCES = {
    "poisson": "Ganesh 2024, Theorem 3.1",
    "fixed": "Ganesh 2024, Theorem 3.3",
    "full": "Ganesh 2024, Theorem 3.1 at rate 1",
}


def mixture(phase: FrozenMap, group_size: int, records: int) -> Mixture:
    """The one-step pair of one phase, in units of the clip norm.

    records: the size of the data set that is held. For fixed-size batches Theorem 3.3 wants a lower bound on the
    smaller data set of a pair, which is ``records - group_size``.
    Raises ``ValueError`` naming the argument that does not fit.
    """
    sampling, sigma = phase["sampling"], float(phase["noise_multiplier"])
    if sampling["scheme"] == "poisson":
        return Mixture.poisson(group_size, float(sampling["rate"]), sigma)
    if sampling["scheme"] == "fixed":
        return Mixture.fixed(group_size, records - group_size, int(sampling["batch_size"]), sigma)
    return Mixture.full(group_size, sigma)


def without_amplification(pair: Mixture) -> Mixture:
    """The Gaussian pair whose sensitivity is the largest of the mixture's: it dominates it (Ganesh 2024, Lemma 2.9)."""
    return Mixture([float(pair.sensitivities[-1])], [1.0], pair.sigma)


def planted_mixture(phase: FrozenMap, group_size: int, records: int, *, spread: float = 0.0) -> Mixture:
    """What one step adds along the direction of a planted group: members that were drawn, each of norm one.

    With fixed-size batches a drawn member displaces another record, whose gradient points elsewhere: the planted
    direction sees the member alone, unlike the worst case of Theorem 3.3.

    records: how many are in the run, planted ones included; batches of a fixed size include each the less often.
    spread: the angle between each member and the direction, which sees its cosine; the noise is divided by it, as only
    their ratio counts.
    """
    sigma = float(phase["noise_multiplier"]) / math.cos(spread)
    rate = sampling_rate(phase, records)
    return Mixture.full(group_size, sigma) if rate >= 1.0 else Mixture.poisson(group_size, rate, sigma)


def sampling_rate(phase: FrozenMap, records: int) -> float:
    """The probability with which one record enters a batch."""
    sampling = phase["sampling"]
    if sampling["scheme"] == "poisson":
        return float(sampling["rate"])
    if sampling["scheme"] == "fixed":
        return min(1.0, float(sampling["batch_size"]) / records)
    return 1.0


def group_epsilons(
    phases: Sequence[FrozenMap], group_size: int, records: int, deltas: Sequence[float], direction: str
) -> list[Interval]:
    """Epsilon at each delta for groups of up to ``group_size``, in one direction (``remove`` or ``add``).

    Each interval holds the worst-case epsilon over all data sets and adversaries that see every iterate. Without
    noise it is infinite.
    """
    if any(float(phase["noise_multiplier"]) < NO_NOISE for phase in phases):
        return [Interval(math.inf, math.inf) for _ in deltas]
    pairs = [(mixture(phase, group_size, records), int(phase["steps"])) for phase in phases]
    return list(group_curve(pairs, deltas, DIRECTIONS[direction]))
