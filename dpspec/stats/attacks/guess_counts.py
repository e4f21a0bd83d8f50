"""Auditing with one training run at several guess counts: one test with almost no cost for the choice.

Guesses are ranked by confidence before coins are known. Count k takes the r_k most confident ones, r_1 < ... < r_K
fixed in advance: Theorem 7 of ``docs/explanation/proofs/one-run.md``. The thresholds are those at which each count
alone has a p-value of at most the minimum over the counts. They are integers, so the p-value is made monotone in
epsilon by its maximum over a fixed grid. A whole curve is tested by ``one_run.curve_p_value`` at every count
(Bonferroni).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from dpspec.stats.attacks import curve_lines, one_run

#: Numbers of lowest scores guessed "absent" and of highest scores guessed "present".
Rung = tuple[int, int]

#: Source of evidence and bounds of this kind.
SOURCE = "Steinke, Nasr & Jagielski 2023, Theorem 5.2, at several guess counts with their joint law"

#: Smaller masses are omitted and added to the p-value instead.
_NEGLIGIBLE = 1e-19

#: Counts whose best point has a p-value this many times the minimum are skipped.
_HOPELESS = 30.0

#: Ratio of the rungs of the tests of mu-GDP, and their largest number.
_MORE_GUESSES, _MOST_RUNGS = 1.5, 16

#: Relative rounding error of masses and sums.
_ROUNDING = 1e-9

#: Ratio of the grid of lower bounds from 4 on, and the number of its values.
_RATIO, _STEPS = 1.0025, 3000


def of_curve(canaries: int) -> tuple[tuple[Rung, float], ...]:
    """Rungs of the tests of mu-GDP, ascending, with the largest mu that each one tests.

    The first rung guesses a twentieth of the canaries, at least 100 or two fifths, and the last one guesses half. Few
    guesses do not refute a large mu even without an error, so r guesses test every mu up to ln(r^0.34 / m^0.1) + 0.2.
    The constants are fitted to Gaussian scores with shifts from 1 to 4, for 100 to 20,000 canaries; any function of mu
    is valid (Corollary of Theorem 8 in ``docs/explanation/proofs/one-run.md``).
    """
    half = math.ceil(canaries / 4.0)
    first = math.ceil(0.5 * max(canaries / 20.0, min(100.0, 0.4 * canaries)))
    sides = [side for k in range(_MOST_RUNGS) if (side := round(first * _MORE_GUESSES**k)) < half]
    rungs = [(side, min(side, canaries // 2)) for side in (*sides, half)]
    largest = [0.34 * math.log(sum(rung)) - 0.1 * math.log(canaries) + 0.2 for rung in rungs[:-1]]
    return tuple(zip(rungs, (*largest, math.inf), strict=True))


def mu_lower(outcomes: Sequence[str], confidence: float) -> tuple[float, int]:
    """Lower bound on the smallest mu for which the release is mu-GDP per canary, and the last number of guesses.

    The largest mu such that the tests of all smaller ones reject, each with its own guess count. Valid for all
    mechanisms, within 1e-4, at most 100. It implies no epsilon at a single delta.
    """
    canaries, lower = sum(map(len, outcomes)), 0.0
    for rung, largest_mu in of_curve(canaries):
        (guesses,), (correct,) = counts(outcomes, [rung])

        def p_value(mu: float, guesses: int = guesses, correct: int = correct) -> float:
            return one_run.curve_p_value(canaries, guesses, correct, curve_lines.gaussian(mu))

        if largest_mu == math.inf or p_value(largest_mu) > 1.0 - confidence:
            return max(lower, one_run.mu_lower(canaries, guesses, correct, confidence)), guesses
        lower = largest_mu
    raise AssertionError("the last rung tests every mu")


def counts(outcomes: Sequence[str], rungs: Sequence[Rung]) -> tuple[list[int], list[int]]:
    """Return the distinct guess counts, ascending, and the numbers of right guesses.

    ``outcomes`` are each trial's inclusion bits by ascending score. Ascending ``rungs`` are divided evenly among the
    trials, up to half of each.
    """
    trials = [coins for coins in outcomes if coins]
    total = sum(map(len, trials))
    right_by_count: dict[int, int] = {}
    for low, high in rungs:
        number = right = 0
        for coins in trials:
            below, above = (max(1, round(n / len(trials))) if n else 0 for n in (low, high))
            if low + high >= total:
                below, above = len(coins) - len(coins) // 2, len(coins) // 2
            below, above = min(below, len(coins) - len(coins) // 2), min(above, len(coins) // 2)
            number += below + above
            right += coins[:below].count("0") + coins[len(coins) - above :].count("1")
        right_by_count[number] = right
    return list(right_by_count), list(right_by_count.values())


def around(low: int, high: int, canaries: int) -> tuple[Rung, ...]:
    """Rungs around an expected best guess count: half of it, itself, twice, four times, and all canaries."""
    rungs = [(round(low * times), round(high * times)) for times in (0.5, 1.0, 2.0, 4.0)]
    most = (canaries - canaries // 2, canaries // 2)
    fitting = [r for r in rungs if 0 < sum(r) < canaries and r[0] <= most[0] and r[1] <= most[1]]
    return (*dict.fromkeys(fitting), most)


def fitting(guesses: Sequence[int], expected: Sequence[float]) -> list[int]:
    """Round expected numbers of right guesses so that each increase is between 0 and that of the guesses."""
    correct: list[int] = []
    for before, count, right in zip((0, *guesses), guesses, expected, strict=False):
        least = correct[-1] if correct else 0
        correct.append(min(max(math.floor(right), least), least + count - before))
    return correct


def blind(canaries: int, *, least: int = 8) -> tuple[Rung, ...]:
    """Rungs without knowledge of the scores: ``least`` on each side, then three times as many, up to all canaries."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [least * 3**k for k in range(20) if least * 3**k < most[1]]
    return (*((half, half) for half in halves), most)


def p_value(
    canaries: int,
    guesses: Sequence[int],
    correct: Sequence[int],
    points: Sequence[curve_lines.Point],
    level: float = 0.0,
) -> float:
    """P-value of the null "(epsilon, delta)-DP per canary for all ``points``"; 1 without points.

    ``guesses`` are strictly ascending, and ``correct[k]`` of the most confident ``guesses[k]`` are right. With a
    ``level`` above 0, which saves time, only the side of the level is exact.
    """
    _check(canaries, guesses, correct)
    lines = one_run.support(points)
    if len(lines) == 1 and len(guesses) > 1:
        return _monotone(canaries, tuple(guesses), tuple(correct), *lines[0], level)
    least, singles = 1.0, []
    for r, v in zip(guesses, correct, strict=True):
        singles.append((min((one_run.p_value(canaries, r, v, *line) for line in lines), default=1.0), r, v))
    for single, r, v in sorted(singles):
        if single < _HOPELESS * least:
            least = min(least, one_run.curve_p_value(canaries, r, v, lines))
    return min(1.0, len(guesses) * least)


def epsilon_lower(
    canaries: int, guesses: Sequence[int], correct: Sequence[int], delta: float, confidence: float
) -> float:
    """Lower bound on epsilon at ``delta`` with the given confidence: the largest rejected value of a grid.

    If the true epsilon were smaller, the first grid value above it would have been rejected, which is a true null too.
    """
    _check(canaries, guesses, correct)
    level, several = 1.0 - confidence, 1.0 - (1.0 - confidence) / len(guesses)

    def best(single_confidence: float) -> float:
        pairs = zip(guesses, correct, strict=True)
        return max(one_run.epsilon_lower(canaries, r, v, delta, single_confidence) for r, v in pairs)

    if len(guesses) == 1:
        return best(confidence)
    sure, at_most = best(several), best(confidence)
    if at_most == 0.0:
        return 0.0
    step = max(0, bisect_right(range(_STEPS), sure, key=_grid) - 1)
    while (epsilon := _grid(step + 1)) <= at_most:
        if _joint(canaries, tuple(guesses), tuple(correct), epsilon, delta) > level:
            break
        step += 1
    return _grid(step)


def largest(canaries: int, guesses: Sequence[int], delta: float, confidence: float) -> float:
    return epsilon_lower(canaries, guesses, guesses, delta, confidence)


@lru_cache(maxsize=4096)
def _joint(canaries: int, guesses: tuple[int, ...], correct: tuple[int, ...], epsilon: float, delta: float) -> float:
    """P-value of one point: the probability that the p-value of some count is at most the observed minimum."""

    def single(count: int, right: int) -> float:
        return one_run.p_value(canaries, count, right, epsilon, delta)

    level = min(single(count, right) for count, right in zip(guesses, correct, strict=True))
    if level >= 1.0:
        return 1.0

    wrong = float(special.expit(-epsilon))
    normal_quantile = min(40.0, -float(special.ndtri(level)))

    def threshold(count: int) -> int:
        """The smallest number of right guesses whose p-value is at most the level, near the normal quantile."""

        def is_rejected(right: int) -> bool:
            return single(count, right) <= level

        spread = math.sqrt(count * wrong * (1.0 - wrong))
        guess = math.floor(min(count, max(0.0, count * (1.0 - wrong) + normal_quantile * spread)))
        low, high, step = -1, count + 1, 1 + math.floor(0.01 * spread)  # not rejected, and rejected
        if is_rejected(guess):
            high = guess
            while (right := high - step) > low:
                if not is_rejected(right):
                    low = right
                    break
                high, step = right, 4 * step
        else:
            low = guess
            while (right := low + step) < high:
                if is_rejected(right):
                    high = right
                    break
                low, step = right, 4 * step
        return bisect_left(range(count + 1), True, lo=low + 1, hi=high, key=is_rejected)

    thresholds = [threshold(count) for count in guesses]
    met = [(count, c) for count, c in zip(guesses, thresholds, strict=True) if c <= count]

    def correction(count: int, right: int) -> float:
        beta = one_run.independent(canaries, count, right, epsilon, delta)
        return one_run.correction(canaries, count, right, epsilon, delta, beta)

    extra = math.fsum(correction(count, c) for count, c in met)
    joint = _some_reached(guesses, thresholds, wrong) + extra
    return min(1.0, joint, math.fsum(single(count, c) for count, c in met))


def _monotone(
    canaries: int, guesses: tuple[int, ...], correct: tuple[int, ...], epsilon: float, delta: float, level: float
) -> float:
    """Largest p-value on the grid up to the first value >= ``epsilon``; see ``p_value`` for ``level``."""
    pairs = list(zip(guesses, correct, strict=True))
    step = bisect_left(range(_STEPS), epsilon, key=_grid)
    if level > 0.0:  # no joint p-value is less than the least single one
        least = min(one_run.p_value(canaries, r, v, _grid(step), delta) for r, v in pairs)
        if least > level:
            return least
    largest = _joint(canaries, guesses, correct, _grid(step), delta)
    for lower in range(step - 1, -1, -1):
        if largest > level > 0.0 or largest >= 1.0:  # no p-value is larger than 1
            break
        least = min(one_run.p_value(canaries, r, v, _grid(lower), delta) for r, v in pairs)
        if len(pairs) * least <= max(largest, level):  # no joint p-value is larger, and it falls on the way down
            break
        largest = max(largest, _joint(canaries, guesses, correct, _grid(lower), delta))
    return largest


def _some_reached(guesses: Sequence[int], thresholds: Sequence[int], wrong: float) -> float:
    """Upper bound on P[some W_k >= c_k] for independent guesses that are wrong with probability ``wrong``."""
    first, mass = 0, np.ones(1)  # distribution of wrong guesses without a reached threshold: mass[j] at first + j
    reached, before = 0.0, 0
    for count, c in zip(guesses, thresholds, strict=True):
        start, new, lost = _wrong_guesses(count - before, wrong)
        mass, first, before = np.convolve(mass, new), first + start, count
        over = max(0, count - c - first + 1)  # numbers of wrong guesses that reach the threshold
        reached += float(mass[:over].sum()) + lost
        mass, first = mass[over:], first + over
        if mass.size == 0:
            break
    return min(1.0, reached * (1.0 + _ROUNDING))


@lru_cache(maxsize=1024)
def _wrong_guesses(number: int, wrong: float) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """Bin(number, wrong) without negligible masses: the first value, the masses, and the omitted probability."""
    spread = math.sqrt(number * wrong * (1.0 - wrong))
    low = max(0, math.floor(number * wrong - 10.0 * spread - 10.0))
    high = min(number, math.ceil(number * wrong + 10.0 * spread + 60.0))
    k = np.arange(low, high + 1, dtype=np.float64)
    log_mass = special.gammaln(number + 1) - special.gammaln(k + 1) - special.gammaln(number - k + 1)
    mass = np.exp(log_mass + special.xlogy(k, wrong) + special.xlog1py(number - k, -wrong))
    relevant = np.flatnonzero(mass > _NEGLIGIBLE)
    if relevant.size == 0:
        return 0, np.ones(1), 1.0
    start, end = int(relevant[0]), int(relevant[-1]) + 1
    lost = special.bdtr(low + start - 1, number, wrong) if low + start > 0 else 0.0
    lost += special.bdtrc(low + end - 1, number, wrong) if low + end <= number else 0.0
    return low + start, mass[start:end], float(lost)


def _grid(step: int) -> float:
    """Grid of epsilon: 0, 0.01, ..., 4, then geometric."""
    return 0.01 * step if step <= 400 else 4.0 * _RATIO ** (step - 400)


def _check(canaries: int, guesses: Sequence[int], correct: Sequence[int]) -> None:
    rising = len(guesses) > 0 and all(a < b for a, b in zip((0, *guesses), guesses, strict=False))
    if not rising or guesses[-1] > canaries:
        raise ValueError(f"guesses must be counts that rise strictly, up to {canaries} canaries, got {list(guesses)}")
    if len(correct) != len(guesses):
        raise ValueError(f"need a number of right guesses for each count, got {list(correct)} for {list(guesses)}")
    rises = zip((0, *guesses), guesses, (0, *correct), correct, strict=False)
    if not all(0 <= v - u <= r - s for s, r, u, v in rises):
        raise ValueError(f"right guesses {list(correct)} do not fit counts {list(guesses)}")
