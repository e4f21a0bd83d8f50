"""Is each batch a uniformly random one of its size? Tests of batches against all earlier ones that are remembered.

Under Poisson, fixed-size and truncated Poisson sampling alike a batch, given its size and everything before it, is a
uniformly random set of so many of the ``records``. Two things follow, each exact for any run:

* Moves of the records among themselves that are a group of R + 1 leave its law as it is. So whatever is looked at, the
  batch is above all R others that the moves make of it with probability 1 / (R + 1) at most, given the past (Hemerik &
  Goeman 2018, Theorem 1): of all R + 1, each equally likely, one is above the others at most. The number of steps at
  which that happens is at most Binomial(steps, 1 / (R + 1)) in distribution. What is looked at is Q, the sum of squared
  standardised overlaps with remembered batches (:mod:`~.remembered`): the score for records that entered together
  before. Of pairs that always enter together its mean is twice as large, of blocks of b about b times.
* The records that it has in common with one earlier batch are hypergeometric.

Sketches of fixed random halves of the records would not do for the first: over the choice of the halves the mean square
of a batch's deviation is the same for *every* law of batches of that size, pairs and blocks included.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import special

from dpspec.stats import binomial
from dpspec.stats.conformance.measurement import LEVEL, Measurement
from dpspec.stats.conformance.sampling.sizes import detectable_more


def alike(looked: int, most: int, least: int, references: int) -> Measurement:
    """Test that batches are no more, and no less, like earlier ones than they are with their records moved.

    Of ``looked`` batches ``most`` had a larger Q than each of ``references`` others, and ``least`` a smaller one.
    p = 2 min(P[Bin >= most], P[Bin >= least]), Bin of ``looked`` trials at 1 / (references + 1). ``measured`` is the
    more surprising share of steps, and ``detectable`` how much larger than declared it has to be.
    """
    if not (most >= 0 and least >= 0 and most + least <= looked and looked >= 1 and references >= 1):
        raise ValueError(
            f"need most, least >= 0 with a sum of at most looked, and references >= 1; got {most}, {least}, "
            f"{looked}, {references}"
        )
    share = 1.0 / (references + 1)
    return Measurement(
        test="likeness to earlier batches, binomial, two-sided",
        declared=share,
        measured=max(most, least) / looked,
        p_value=min(1.0, 2.0 * binomial.at_least(max(most, least), looked, share)),
        detectable=detectable_more(looked, share, 0.5 * LEVEL),
    )


def closest(common: int, size: int, before: int, records: int, pairs: int, lag: int) -> Measurement:
    """Test that no two batches have too much, or too little, in common: ``lag`` steps apart, the worst of ``pairs``.

    common: how many of the ``size`` records were among the ``before`` ones of the earlier batch. p is 2 pairs times the
    bound of :func:`log_tail`, which is the exact probability where a batch returns. ``measured`` is the share of the
    earlier batch that was drawn, declared size / records; ``detectable`` is that of the same batch again.
    """
    if not (max(0, size + before - records) <= common <= min(size, before) and min(size, before, pairs) >= 1):
        raise ValueError(
            f"need two batches of {records} records with so many in common, and pairs >= 1; got {size}, {before}, "
            f"{common} and {pairs}"
        )
    log_pairs = math.log(2.0 * pairs)
    again = log_pairs + log_tail(size, size, size, records)
    return Measurement(
        test=f"records in common of two batches, {lag} step{'s' if lag > 1 else ''} apart",
        declared=size / records,
        measured=common / before,
        p_value=min(1.0, math.exp(min(0.0, log_pairs + log_tail(common, size, before, records)))),
        detectable=records / size - 1.0 if again <= math.log(LEVEL) and size < records else None,
    )


@lru_cache(maxsize=4096)
def log_tail(common: int, size: int, before: int, records: int) -> float:
    """ln of a bound on the hypergeometric tail from ``common`` away from the mean; 0 at the mean.

    The ratio r of a probability to the one before falls along the tail (the law is log-concave), so that the tail is at
    most its first probability over 1 - r: exact at either end of the support. What rounding can do to the logarithms
    of factorials is added.
    """
    rest = records - size - before  # below 0 where two such batches must have some in common
    if common * records >= size * before:
        ratio = (size - common) * (before - common) / ((common + 1) * (rest + common + 1))
    else:
        ratio = common * (rest + common) / ((size - common + 1) * (before - common + 1))
    if ratio >= 1.0:
        return 0.0
    log_mass = _log_ways(before, common) + _log_ways(records - before, size - common) - _log_ways(records, size)
    rounding = 1e-14 * (1.0 + float(special.gammaln(records + 1)))
    return min(0.0, log_mass - math.log1p(-ratio) + rounding)


def _log_ways(of: int, chosen: int) -> float:
    """ln of the binomial coefficient."""
    return float(special.gammaln(of + 1) - special.gammaln(chosen + 1) - special.gammaln(of - chosen + 1))
