"""Auditing with many training runs when the attack's threshold is chosen on the same runs that judge it.

Runs are ranked by the attack's score, higher meaning "present". Where the (j + 1)-th largest score of an absent run is
the threshold, j absent runs lie above it by construction. For j fixed in advance the false-positive rate there is a
Beta(j + 1, absent - j) variable (smaller where scores tie), and P[Beta(j + 1, n - j) > u] = P[Bin(n, u) <= j]: the
Clopper-Pearson upper bound of j out of n covers it as it would a rate whose threshold was fixed. Given the threshold
the present runs above it are binomial, so that the test of :mod:`dpspec.stats.attacks.many_run` holds as it is. The
same goes for the (i + 1)-th smallest score of a present run. Both are tried for 0, 1, 2, 4, 8, ... errors, and the
least p-value is multiplied by the number of tries (Bonferroni): ln-many, instead of one for each threshold that the
data offer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpspec.stats.attacks import curve_lines, many_run

#: What evidence and bounds of this kind name as their source.
SOURCE = "Clopper & Pearson 1934 at order statistics, Bonferroni over error counts fixed in advance"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The threshold that shows most, with its errors, and the lower bound on epsilon corrected for choosing it."""

    epsilon: float
    true_positives: int
    false_positives: int


def outcomes(scores: npt.ArrayLike, present: npt.ArrayLike) -> str:
    """Which runs were present ("1") and absent ("0"), from the lowest score to the highest; both arguments (n,).

    Equal scores are ordered against the attack, present runs first. Raises ``ValueError`` on scores that are not
    numbers: rank those lowest or highest, whatever the coins.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(present, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or np.isnan(values).any():
        raise ValueError("scores and present must be vectors of equal length, without NaN")
    return "".join("1" if coins[i] else "0" for i in np.lexsort((~coins, values)))


def p_value(outcomes: str, points: Sequence[curve_lines.Point]) -> float:
    """A valid p-value for the null "(epsilon, delta)-DP for all ``points``"; 1 where a side has no runs."""
    tried = list(_tried(outcomes))
    present, absent = outcomes.count("1"), outcomes.count("0")
    least = min((many_run.curve_p_value(present, absent, *counts, points) for counts in tried), default=1.0)
    return min(1.0, max(1, len(tried)) * least)


def best_threshold(outcomes: str, delta: float, confidence: float) -> Threshold:
    """The largest lower bound on epsilon over the thresholds that are tried, all of which hold together.

    With probability at least ``confidence`` the true epsilon at ``delta`` is no smaller; 0 where nothing is shown.
    """
    tried = list(_tried(outcomes))
    present, absent = outcomes.count("1"), outcomes.count("0")
    each = 1.0 - (1.0 - confidence) / max(1, len(tried))
    found = [
        Threshold(epsilon=epsilon, true_positives=true, false_positives=false)
        for true, false in tried
        if (epsilon := many_run.epsilon_lower(present, absent, true, false, delta, each)) > 0.0
    ]
    return max(found, key=lambda t: t.epsilon, default=Threshold(epsilon=0.0, true_positives=0, false_positives=0))


def epsilon_lower(outcomes: str, delta: float, confidence: float) -> float:
    """The lower bound of :func:`best_threshold`."""
    return best_threshold(outcomes, delta, confidence).epsilon


def largest(present: int, absent: int, delta: float, confidence: float) -> float:
    """The power of the design: the lower bound when every present run scores above every absent one."""
    return epsilon_lower(absent * "0" + present * "1", delta, confidence)


def _tried(outcomes: str) -> Iterator[tuple[int, int]]:
    """True and false positives at each threshold that is tried."""
    if set(outcomes) - {"0", "1"}:
        raise ValueError("outcomes must be a text of 0 and 1")
    present, absent = outcomes.count("1"), outcomes.count("0")
    if not present or not absent:
        return
    places = {coin: [i for i, c in enumerate(outcomes) if c == coin] for coin in "01"}
    for false in _few(absent):
        above = len(outcomes) - 1 - places["0"][absent - 1 - false]
        yield above - false, false
    for missed in _few(present):
        below = places["1"][missed]
        yield present - missed, absent - (below - missed)


def _few(runs: int) -> list[int]:
    """0, 1, 2, 4, ... errors, fewer than there are runs."""
    return [0, *(2**k for k in range(runs.bit_length()) if 2**k < runs)]
