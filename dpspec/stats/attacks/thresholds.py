"""Auditing with many training runs if the attack's threshold is chosen on the same runs.

If the threshold is the (j + 1)-th largest score of an absent run, j fixed in advance, the false-positive rate is a
Beta(j + 1, absent - j) variable (smaller for ties), and P[Beta(j + 1, n - j) > u] = P[Bin(n, u) <= j]. So the test of
:mod:`dpspec.stats.attacks.many_run` is valid, and also for the (i + 1)-th smallest score of a present run. Both are
tried for 0, 1, 2, 4, 8, ... errors (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dpspec.stats.attacks import curve_lines, many_run

#: Source of evidence and bounds of this kind.
SOURCE = "Clopper & Pearson 1934 at order statistics, Bonferroni over error counts fixed in advance"


def outcomes(scores: npt.ArrayLike, present: npt.ArrayLike) -> str:
    """Present ("1") and absent ("0") runs by ascending score (n,); ties against the attack, present first."""
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(present, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or np.isnan(values).any():
        raise ValueError("scores and present must be vectors of equal length, without NaN")
    return "".join("1" if coins[i] else "0" for i in np.lexsort((~coins, values)))


def p_value(outcomes: str, points: Sequence[curve_lines.Point]) -> float:
    tried = list(_tried(outcomes))
    present, absent = outcomes.count("1"), outcomes.count("0")
    least = min((many_run.curve_p_value(present, absent, *counts, points) for counts in tried), default=1.0)
    return min(1.0, max(1, len(tried)) * least)


def epsilon_lower(outcomes: str, delta: float, confidence: float) -> float:
    """Largest lower bound on epsilon at ``delta`` over the thresholds, jointly valid at ``confidence``."""
    tried = list(_tried(outcomes))
    present, absent = outcomes.count("1"), outcomes.count("0")
    each = 1.0 - (1.0 - confidence) / max(1, len(tried))
    return max((many_run.epsilon_lower(present, absent, *counts, delta, each) for counts in tried), default=0.0)


def largest(present: int, absent: int, delta: float, confidence: float) -> float:
    return epsilon_lower(absent * "0" + present * "1", delta, confidence)


def _tried(outcomes: str) -> Iterator[tuple[int, int]]:
    if set(outcomes) - {"0", "1"}:
        raise ValueError("outcomes must be a string of 0 and 1")
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
    return [0, *(2**k for k in range(runs.bit_length()) if 2**k < runs)]
