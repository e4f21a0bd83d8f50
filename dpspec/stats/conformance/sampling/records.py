"""Is every record drawn as often as declared? Tests of the numbers of batches that records were in.

Under Poisson sampling each is binomial, independently: their spread sees weights, and batches that go through an order.
In fixed and truncated batches they are not independent, and no more spread out than that: the squares by which they
exceed their mean see records that are drawn too often, and the largest of them sees a single one, under every scheme.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.accounting import bisect
from dpspec.stats import binomial
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.conformance.sampling.sizes import batch_variance, detectable_more
from dpspec.stats.truncated_binomial import TruncatedSize


def record_spread(records: int, total: int, total_of_squares: int, steps: int, rate: float) -> Measurement:
    """Test that records are drawn alike and each afresh: ``records`` inclusion counts, with their sum and squares' sum.

    Under Poisson sampling each count is Binomial(steps, rate), independently: the same test as of the batch sizes, with
    records and steps exchanged. Shuffled batches give counts that are too even, weighted ones too uneven.
    """
    found = batch_variance(records, total, total_of_squares, steps, rate)
    return replace(found, test="variance of inclusions per record")


def most_inclusions(records: int, most: int, steps: int, rate: float) -> Measurement:
    """Test that no single record is drawn more often than at ``rate``; ``most``: the largest of all ``records`` counts.

    Each is Binomial(steps, rate), or where batches are truncated at most that: p = records P[Bin >= most], at most 1.
    ``measured`` is the realised rate of that record.
    """
    return Measurement(
        test="inclusions of the record drawn most often, binomial, Bonferroni",
        declared=rate,
        measured=most / steps,
        p_value=min(1.0, records * binomial.at_least(min(most, steps), steps, rate)),
        detectable=detectable_more(steps, rate, LEVEL / records),
    )


def excess(counts: npt.ArrayLike, mean: float) -> float:
    """The sum over records of max(0, N - mean)^2 of their numbers of inclusions N: what :func:`record_excess` tests."""
    return float(np.square(np.maximum(np.asarray(counts, dtype=np.float64) - mean, 0.0)).sum())


def record_excess(records: int, above: float, steps: int, rate: float) -> Measurement:
    """Test that no records are drawn more often than at ``rate``: ``above`` is the :func:`excess` of their inclusions.

    f(N) = max(0, N - steps rate)^2 grows with N. In batches of a fixed size the counts are negatively associated, each
    Binomial(steps, rate) with rate = size / records (Joag-Dev & Proschan 1983, Theorem 2.11 and P2, P6, P7): the
    mean of the product of their exp(s f(N)), s > 0, is at most the product of the means. In truncated batches no count
    is above that of the record's own coins, which are independent. So p, Chernoff's bound for independent counts, holds
    for both; what is left out at the ends of their law is charged. ``measured`` is the mean of f.
    """
    law = TruncatedSize(steps, rate, steps)
    return Measurement(
        test="excess of inclusions per record, upper tail",
        declared=law.moments_of_excess()[0],
        measured=above / records,
        p_value=law.excess(above, records),
        detectable=_detectable_excess(records, steps, rate),
    )


@lru_cache(maxsize=1024)
def _detectable_excess(records: int, steps: int, rate: float) -> float | None:
    """How much larger a mean of f is rejected with the stated power, spread as it should be; None where none is."""
    law = TruncatedSize(steps, rate, steps)
    mean, deviation = law.moments_of_excess()
    most = (steps - law.mean) ** 2 / mean
    least = 1.0 + float(special.ndtri(POWER)) * deviation / (mean * math.sqrt(records))

    def rejects(ratio: float) -> bool:
        return law.excess(ratio * mean * records, records) <= LEVEL

    if not rejects(most):
        return None
    seen = 1.0 if rejects(1.0) else bisect(rejects, most, 1.0, enough=lambda seen, unseen: seen - unseen <= 1e-3)[0]
    return seen + least - 2.0
