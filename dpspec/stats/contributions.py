"""Does a planted record add what it should? What was seen along the canaries' directions, held against the declared.

A planted record's gradient is clipped to the clip norm and enters a batch with the declared rate, so that the mean of
the projections on the directions of groups of k planted records exceeds that of groups left out by

    k * (sum over steps of the rate) clip norms.

Coins decide which groups are planted, so that whatever else lies along the directions is in both alike. Each sum over
the steps is close to normal (noise, and a binomial number of inclusions), and Welch's t statistic compares the two
means. Copies of a record and gradients that escape clipping add more; records that are dropped, or canaries that share
a clip norm or never reach the model, add less, which would make the attack blind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import special

from dpspec.contract import Check, FrozenMap
from dpspec.stats import checking
from dpspec.stats.measurement import LEVEL, POWER, Measurement

#: Means of fewer groups than this are not compared.
LEAST = 12


def checks(signals: Sequence[FrozenMap]) -> Iterator[Check]:
    """One check over all trials and group sizes, or none where too few groups were planted or left out."""
    groups: dict[int, list[list[float]]] = {}
    for signal in signals:
        for size, coin, count, total, squares in signal["moments"]:
            moments = groups.setdefault(size, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[coin]
            for at, value in enumerate((count, total, squares)):
                moments[at] += value
    if not groups or any(moments[0] < LEAST for both in groups.values() for moments in both):
        return
    draws = float(signals[0]["draws"])
    found = contribution([(size, absent, present) for size, (absent, present) in sorted(groups.items())], draws)
    yield checking.check("contribution", found, "measured", "of a planted record, relative to rate * clip norm")


def contribution(groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], draws: float) -> Measurement:
    """Test that every planted record adds 1, in units of ``draws`` clip norms; two-sided.

    groups: per group size k, the moments (count, sum, sum of squares) of the groups left out and of those planted.
    The estimates of the sizes are weighted by k^2 over their variance; p is by Student's t with the fewest degrees of
    freedom of any mean, which errs upwards. ``measured`` is the estimate, ``detectable`` in its unit.
    """
    weighted = information = 0.0
    fewest = math.inf
    for size, absent, present in groups:
        (mean_out, variance_out), (mean_in, variance_in) = _mean(*absent), _mean(*present)
        variance = variance_out + variance_in
        if variance <= 0.0:
            continue
        expected = size * draws
        weighted += expected * (mean_in - mean_out) / variance
        information += expected**2 / variance
        fewest = min(fewest, absent[0] - 1, present[0] - 1)
    test = "planted groups against those left out, Welch"
    if information == 0.0:
        return Measurement(test=test, declared=1.0, measured=1.0, p_value=1.0, detectable=None)
    estimate, deviation = weighted / information, information**-0.5
    t = abs(estimate - 1.0) / deviation
    threshold = -float(special.stdtrit(fewest, 0.5 * LEVEL)) + float(special.ndtri(POWER))
    return Measurement(
        test=test,
        declared=1.0,
        measured=estimate,
        p_value=min(1.0, 2.0 * float(special.stdtr(fewest, -t))),
        detectable=threshold * deviation,
    )


def _mean(count: float, total: float, squares: float) -> tuple[float, float]:
    """The mean, and the estimated variance of it."""
    mean = total / count
    spread = max(0.0, squares - count * mean * mean) / (count - 1.0)
    return mean, spread / count
