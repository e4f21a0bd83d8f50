"""Is every batch drawn afresh? Tests of the records that it has in common with earlier ones.

An order that is gone through shows in what batches have in common. A record that a truncated batch keeps is one that
Poisson sampling would draw too, so that no more of an earlier batch come again than there; fewer may.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from dpspec.accounting import bisect
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement

#: Exponents at which a likelihood ratio against independent batches is tried.
_TILTS = np.geomspace(0.01, 20.0, 24)

#: More than the error of the inverse beta function, relatively.
_MARGIN = 1e-12


def overlap_at_a_step(lag: int, common: int, chances: int, rate: float, tried: int) -> Measurement:
    """Test that no single batch has too much, or too little, in common with that ``lag`` steps before.

    common, chances: as for :func:`overlap`, of the most surprising of ``tried`` steps. p = 2 tried exp(-chances KL), by
    Chernoff's bound, which holds for batches of a fixed size too (Hoeffding 1963, Theorem 4).
    """
    if not 0 <= common <= chances or chances < 1 or lag < 1 or tried < 1 or not 0.0 < rate < 1.0:
        raise ValueError(
            f"need 0 <= common <= chances, lag, tried >= 1 and a rate in (0, 1), got {common}, {chances}, {rate}"
        )
    log_level = math.log(LEVEL / (2.0 * tried))
    again = common_divergence(chances, chances, rate)
    return Measurement(
        test=f"records in common with the batch {lag} step{'s' if lag > 1 else ''} before at a single step",
        declared=rate,
        measured=common / chances,
        p_value=min(1.0, 2.0 * tried * math.exp(-common_divergence(common, chances, rate))),
        # What the same batch again would be: nothing less is spoken of.
        detectable=1.0 / rate - 1.0 if -again <= log_level else None,
    )


def common_divergence(common: float, chances: float, rate: float) -> float:
    """chances KL(common / chances, rate), in nats: how surprising so many records in common are."""
    if chances <= 0:
        return 0.0
    return float(special.rel_entr(common, chances * rate) + special.rel_entr(chances - common, chances * (1.0 - rate)))


def overlap(lag: int, common: int, chances: int, rate: float, *, fewer: bool = True) -> Measurement:
    """Test that batches ``lag`` steps apart are independent: ``common`` of the earlier ones' ``chances`` were in both.

    Given the past, the records that a batch shares with an earlier one are Binomial(size of the earlier, rate) under
    Poisson sampling, and no more spread out than that in batches of a fixed size (Hoeffding 1963, Theorem 4). So
    exp(s common) / (1 - rate + rate e^s)^chances is a supermartingale for every s, and twice the inverse of its mean
    over a grid of s of one sign is a p-value, however sizes and batches follow from the past (Ville). ``measured`` is
    the rate of inclusion among the earlier batches' records. fewer: whether too few in common are surprising as well.
    """
    if not 0 <= common <= chances or chances < 1 or lag < 1 or not 0.0 < rate < 1.0:
        raise ValueError(f"need 0 <= common <= chances, lag >= 1 and a rate in (0, 1), got {common}, {chances}, {rate}")
    return Measurement(
        test=f"records in common with the batch {lag} step{'s' if lag > 1 else ''} before",
        declared=rate,
        measured=common / chances,
        p_value=_betting(common, chances, rate, fewer=fewer),
        detectable=_detectable_overlap(chances, rate, fewer=fewer),
    )


def _betting(common: float, chances: int, rate: float, *, fewer: bool = True) -> float:
    p_values = []
    for s in (_TILTS, -_TILTS) if fewer else (_TILTS,):
        log_values = s * common - chances * np.log1p(rate * np.expm1(s))
        p_values.append(2.0 * math.exp(min(0.0, math.log(len(s)) - float(special.logsumexp(log_values)))))
    return min(1.0, *p_values)


@lru_cache(maxsize=1024)
def _detectable_overlap(chances: int, rate: float, *, fewer: bool = True) -> float | None:
    """The larger relative distance from ``rate`` to one whose count is rejected with the stated power, either way.

    The p-value falls as the count leaves its mean, so that counts from one on are rejected; the probability of those
    rises with the rate, to the stated power at a quantile of a beta law.
    """

    def rejected(count: float) -> bool:
        return _betting(count, chances, rate, fewer=fewer) <= LEVEL

    found, mean = [], chances * rate
    for end in (0, chances)[0 if fewer else 1 :]:
        if not rejected(end):
            return None
        seen = bisect(rejected, end, mean, enough=lambda seen, unseen: abs(seen - unseen) <= 1e-6)[0]
        if end:
            first = math.ceil(seen)
            other = float(special.betaincinv(first, chances - first + 1, POWER)) * (1.0 + _MARGIN)
        else:
            first = math.floor(seen)
            other = float(special.betainccinv(first + 1, chances - first, POWER)) * (1.0 - _MARGIN)
        found.append(abs(other / rate - 1.0))
    return max(found)
