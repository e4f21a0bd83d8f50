"""What the schedule that ran costs: certified, for single records and for groups.

*Poisson samples.* With k members of a group, of which c ~ Binomial(k, rate) are in a batch, the pair N(0, sigma^2) and
sum_j P[c = j] N(j, sigma^2) dominates a step, and steps compose (Ganesh 2024, Theorem 3.1): for groups that are added
or removed, and as well for members whose gradients are put to 0, the number of records left as it is (zero-out).

*Batches in an order that does not depend on the records* (shuffled or sequential). Nothing is amplified: a step with j
members is a Gaussian of sensitivity j. If no record is in more than m batches, the members' numbers j_t at steps t have
sum_t j_t <= k m and j_t <= k, so that the composition is at most a Gaussian of

    mu^2 = sum_t (j_t / sigma_t)^2 <= k^2 * (sum of the m largest sigma_t^-2)

(Dong, Roth and Su 2022, Corollary 3.3). That is zero-out alone: whoever adds a record shifts all batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.accounting import Interval, Mixture, PrivacyLoss
from dpspec.engine.recorded.schedule import composed, is_rounded

#: With less noise than this, epsilon is beyond what a float can hold.
_LEAST = 1e-100

#: Neighbours: by whether the number of records is the same for both.
ZERO_OUT, ADD_REMOVE = "zero-out", "add-remove"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Epsilon of a schedule: an interval that holds the worst case over data sets, or a reason why there is none.

    tight: whether the lower end counts; not where noise was rounded down, or m bounds what records take part in.
    """

    interval: Interval | None
    reason: str = ""
    tight: bool = True
    how: str = ""


def bare_cost(noise: Sequence[float]) -> Cost | None:
    """The cost of steps of which some have no noise, or hardly any: no epsilon is finite; None where all have some."""
    bare = sum(sigma < _LEAST for sigma in noise)
    if not bare:
        return None
    reason = f"{bare} of {len(noise)} updates got no noise: no epsilon is finite"
    return Cost(interval=Interval(0.0, math.inf), reason=reason, tight=False)


def poisson_cost(noise: Sequence[float], rates: Sequence[float], delta: float, group_size: int) -> Cost:
    """Epsilon at ``delta`` in (0, 1) of steps that are Poisson samples, for groups of up to ``group_size``."""
    if not noise:
        return Cost(interval=Interval(0.0, 0.0), how="no step")
    counts = composed(noise, rates)
    parts = [(Mixture.poisson(group_size, rate or 1.0, sigma), steps) for (sigma, rate), steps in counts.items()]
    interval = PrivacyLoss(tuple(parts)).epsilon(delta)
    return Cost(interval=interval, tight=not is_rounded(noise), how="PLD of Poisson samples")


def ordered_cost(noise: Sequence[float], times: int, delta: float, group_size: int) -> Cost:
    """The same of batches whose order does not depend on records, each of which is in at most ``times`` of them."""
    if not noise or times < 1:
        return Cost(interval=Interval(0.0, 0.0), how="no step")
    worst = sorted(noise)[:times]
    mu = group_size * math.sqrt(math.fsum(sigma**-2 for sigma in worst)) * (1.0 + 1e-12)
    interval = PrivacyLoss.gaussian(1.0 / mu).epsilon(delta)
    how = f"a Gaussian at each of {len(worst)} batches that a record is in, nothing amplified"
    return Cost(interval=interval, tight=False, how=how)
