"""Auditing with one training run at several guess counts at once: one test, with nearly no price for the choice.

Guesses are ranked by confidence before coins are seen: count k takes the r_k most confident ones, r_1 < ... < r_K all
fixed in advance, and v_k of those are right. Few guesses show most of a correct pipeline, many most of a broken one.

Bound. Thresholds c_k fixed in advance, null (epsilon, delta)-DP per canary, q = 1 / (1 + e^-epsilon):

    P[some V_k >= c_k] <= P[some W_k >= c_k] + sum over k of the correction of ``one_run`` at (r_k, c_k),

where W_k counts the successes among the first r_k of independent trials of probability q.

Proof. Let X in {0, 1}^r say which guesses are right, the most confident first, and g(X) whether some V_k >= c_k, a
rising function. For the law of X, averaged over coins, DP says (as in ``one_run``, before summing over positions)

    sum over i and x with x_i = 1 of max(0, P[x] - e^epsilon P[x with x_i = 0]) <= m delta.                        (1)

Redraw each coordinate at rate 1 from the independent law: h = integral over time of (P_t g - E g) solves
g - E g = sum_i (h - E_i h), E_i the mean over coordinate i. With D_i h = h(x_i = 1) - h(x_i = 0), h - E_i h is
(1 - q) D_i h where x_i = 1 and -q D_i h where x_i = 0, and q = e^epsilon (1 - q), so that

    E_P[g] - E g = sum over i and x with x_i = 1 of (1 - q) D_i h (P[x] - e^epsilon P[x with x_i = 0])
                <= m delta max (1 - q) D_i h,

as D_i h = integral of e^-t P_t D_i g >= 0. Where x_i decides whether some V_k >= c_k it decides one of them, so that
D_i g <= sum_k D_i g_k, and so for h. For one count the equation has one solution that depends on numbers of right
guesses only, the one in ``one_run``, whose largest (1 - q) D_i h times m delta is the correction there.

Test. The thresholds are those at which each count alone has p-value t at most; t is the least over the counts, so that
for each null the rejection regions are nested. As thresholds move in steps, the p-value is made to rise with epsilon:
it is the largest one on a fixed grid up to the next value, which the null implies. A whole curve is tested by
``one_run_curve`` at every count, and the least p-value multiplied by their number.

Nothing is gained by counting right guesses of "present" and of "absent" apart: under the least favourable law of a pure
null all guesses are right with the same q, independently, so that only how sure each guess was expected to be can make
a difference. Against exact Gaussian scores the best such weights (Neyman & Pearson) would show 3% more epsilon than the
best single count with 20,000 canaries, 6% with 2,000, and less where the expectation is wrong; the ladder assumes none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from dpspec.stats.attacks import curve_lines, one_run, one_run_curve

#: Guesses "absent" for so many lowest scores, and "present" for so many highest.
Rung = tuple[int, int]

#: What evidence and bounds of this kind name as their source.
SOURCE = "Steinke, Nasr & Jagielski 2023, Theorem 5.2, at several guess counts with their joint law"

#: Masses below this are left out of laws and charged to the p-value instead.
_NEGLIGIBLE = 1e-19

#: A count whose best point has a p-value so many times the least one yet is not looked at any closer.
_HOPELESS = 30.0

#: Round-off of masses and sums, relatively.
_ROUNDING = 1e-9

#: Lower bounds lie on a grid, from 4 on with this ratio, of so many values: more than any float64 exponent needs.
_RATIO, _STEPS = 1.0025, 3000


def of_curve(canaries: int) -> Rung:
    """How many of so many canaries a bound on mu guesses, half of them on either side; fixed by their number alone.

    A whole curve is told by more guesses than one of its points: a twentieth of the canaries, but a hundred of few
    canaries, or two fifths where there are fewer than 250. Any number is valid; simulated Gaussian scores
    with mu from 0.25 to 1.7 show notably more with no other number.
    """
    side = math.ceil(0.5 * max(canaries / 20.0, min(100.0, 0.4 * canaries)))
    return min(side, canaries - canaries // 2), min(side, canaries // 2)


def counts(outcomes: Sequence[str], rungs: Sequence[Rung]) -> tuple[list[int], list[int]]:
    """The guess counts that are really made, strictly rising, and how many guesses of each are right.

    outcomes: for each trial its coins ("0" or "1") from the lowest score to the highest. rungs: (low, high) pairs, both
    rising: "0" is guessed for the ``low`` lowest scores, "1" for the ``high`` highest. Both are shared out in equal
    parts among the trials, whatever their coins, up to half of each; a rung of all coins guesses every one. Rungs that
    come to the same are one.
    """
    told = [coins for coins in outcomes if coins]
    total = sum(map(len, told))
    made: dict[int, int] = {}
    for low, high in rungs:
        number = right = 0
        for coins in told:
            below, above = (max(1, round(n / len(told))) if n else 0 for n in (low, high))
            if low + high >= total:
                below, above = len(coins) - len(coins) // 2, len(coins) // 2
            below, above = min(below, len(coins) - len(coins) // 2), min(above, len(coins) // 2)
            number += below + above
            right += coins[:below].count("0") + coins[len(coins) - above :].count("1")
        made[number] = right
    return list(made), list(made.values())


def around(low: int, high: int, canaries: int) -> tuple[Rung, ...]:
    """The rungs around a guess count that should show most: half of it, itself, twice, four times, and all canaries."""
    rungs = [(round(low * times), round(high * times)) for times in (0.5, 1.0, 2.0, 4.0)]
    most = (canaries - canaries // 2, canaries // 2)
    fitting = [r for r in rungs if 0 < sum(r) < canaries and r[0] <= most[0] and r[1] <= most[1]]
    return (*dict.fromkeys(fitting), most)


def fitting(guesses: Sequence[int], expected: Sequence[float]) -> list[int]:
    """Whole numbers of right guesses at each count, about those expected: none falls from one count to the next, or
    rises by more than the guesses do, as rounding would let them."""
    correct: list[int] = []
    for before, count, right in zip((0, *guesses), guesses, expected, strict=False):
        least = correct[-1] if correct else 0
        correct.append(min(max(math.floor(right), least), least + count - before))
    return correct


def blind(canaries: int, *, least: int = 8) -> tuple[Rung, ...]:
    """The rungs where nothing is known of the scores beforehand: ``least`` of either side, each three times the one
    before, and all ``canaries``."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [least * 3**k for k in range(20) if least * 3**k < most[1]]
    return (*((half, half) for half in halves), most)


def p_value(
    canaries: int, guesses: Sequence[int], correct: Sequence[int], points: Sequence[curve_lines.Point]
) -> float:
    """A valid p-value for the null "(epsilon, delta)-DP per canary for all ``points``", at most 1; 1 without points.

    correct[k] of the guesses[k] most confident guesses are right. Raises ``ValueError`` where the counts of guesses
    do not rise strictly or those of right guesses do not fit them.
    """
    _check(canaries, guesses, correct)
    lines = one_run_curve.support(points)
    if len(lines) == 1 and len(guesses) > 1:
        return _monotone(canaries, tuple(guesses), tuple(correct), *lines[0])
    least = 1.0
    pairs = zip(guesses, correct, strict=True)
    for single, r, v in sorted((one_run_curve.by_point(canaries, r, v, lines), r, v) for r, v in pairs):
        if single < _HOPELESS * least:
            least = min(least, one_run_curve.p_value(canaries, r, v, lines))
    return min(1.0, len(guesses) * least)


def rejects(
    canaries: int, guesses: Sequence[int], correct: Sequence[int], points: Sequence[curve_lines.Point], level: float
) -> bool:
    """Whether :func:`p_value` is at most ``level``, below 1, looking no further than that takes; raises as it does."""
    _check(canaries, guesses, correct)
    lines = one_run_curve.support(points)
    if len(lines) != 1 or len(guesses) == 1:
        return p_value(canaries, guesses, correct, points) <= level
    return _monotone(canaries, tuple(guesses), tuple(correct), *lines[0], level) <= level


def epsilon_lower(
    canaries: int, guesses: Sequence[int], correct: Sequence[int], delta: float, confidence: float
) -> float:
    """A lower bound on epsilon at ``delta``: no larger than the truth with probability at least ``confidence``.

    The largest value of the grid whose p-value is small enough. If the truth were smaller, the first grid value above
    it, which holds of the release too, would have been rejected. Values are rejected without a look where the least
    p-value of a single count, times the number of counts, is small enough: no joint p-value is larger.
    """
    _check(canaries, guesses, correct)
    level, several = 1.0 - confidence, 1.0 - (1.0 - confidence) / len(guesses)

    def best(at: float) -> float:
        pairs = zip(guesses, correct, strict=True)
        return max(one_run.epsilon_lower(canaries, r, v, delta, at) for r, v in pairs)

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
    """The power of the design: the lower bound on epsilon when every guess is right."""
    return epsilon_lower(canaries, guesses, guesses, delta, confidence)


@lru_cache(maxsize=4096)
def _joint(canaries: int, guesses: tuple[int, ...], correct: tuple[int, ...], epsilon: float, delta: float) -> float:
    """The p-value for one point: the probability of the region in which some count is as surprising as the worst."""

    def single(count: int, right: int) -> float:
        return one_run.p_value(canaries, count, right, epsilon, delta)

    level = min(single(count, right) for count, right in zip(guesses, correct, strict=True))
    if level >= 1.0:
        return 1.0

    def threshold(count: int) -> int:
        return _first(count, lambda right: one_run.rejects(canaries, count, right, epsilon, delta, level))

    thresholds = [threshold(count) for count in guesses]
    met = [(count, c) for count, c in zip(guesses, thresholds, strict=True) if c <= count]
    extra = math.fsum(one_run.correction(canaries, count, c, epsilon, delta) for count, c in met)
    joint = _some_reached(guesses, thresholds, float(special.expit(-epsilon))) + extra
    return min(1.0, joint, math.fsum(single(count, c) for count, c in met))


def _monotone(
    canaries: int, guesses: tuple[int, ...], correct: tuple[int, ...], epsilon: float, delta: float, level: float = 0.0
) -> float:
    """The largest p-value on the grid up to the first value from ``epsilon`` on; where it is at most ``level``, some
    value up to that, and where it is more, some value above."""
    pairs = list(zip(guesses, correct, strict=True))
    step = bisect_left(range(_STEPS), epsilon, key=_grid)
    if level > 0.0:  # no joint p-value is less than the least single one
        least = min(one_run.p_value(canaries, r, v, _grid(step), delta) for r, v in pairs)
        if least > level:
            return least
    found = _joint(canaries, guesses, correct, _grid(step), delta)
    for lower in range(step - 1, -1, -1):
        if found > level > 0.0 or found >= 1.0:  # no p-value is larger than 1
            break
        least = min(one_run.p_value(canaries, r, v, _grid(lower), delta) for r, v in pairs)
        if len(pairs) * least <= max(found, level):  # no joint p-value is larger, and it falls on the way down
            break
        found = max(found, _joint(canaries, guesses, correct, _grid(lower), delta))
    return found


def _some_reached(guesses: Sequence[int], thresholds: Sequence[int], wrong: float) -> float:
    """P[some W_k >= c_k] for independent guesses that are wrong with probability ``wrong``, from above.

    The law of the number of wrong guesses among those that reached no threshold so far, count by count.
    """
    first, mass = 0, np.ones(1)  # the law of wrong guesses: mass[j] at first + j
    reached, before = 0.0, 0
    for count, c in zip(guesses, thresholds, strict=True):
        start, new, lost = _wrong_guesses(count - before, wrong)
        mass, first, before = np.convolve(mass, new), first + start, count
        over = max(0, count - c - first + 1)  # so few wrong ones that the threshold is reached
        reached += float(mass[:over].sum()) + lost
        mass, first = mass[over:], first + over
        if mass.size == 0:
            break
    return min(1.0, reached * (1.0 + _ROUNDING))


@lru_cache(maxsize=1024)
def _wrong_guesses(number: int, wrong: float) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """The law of Bin(number, wrong) where it is not negligible: its first value, its masses, and what was left out."""
    spread = math.sqrt(number * wrong * (1.0 - wrong))
    low = max(0, math.floor(number * wrong - 10.0 * spread - 10.0))
    high = min(number, math.ceil(number * wrong + 10.0 * spread + 60.0))
    k = np.arange(low, high + 1, dtype=np.float64)
    log_mass = special.gammaln(number + 1) - special.gammaln(k + 1) - special.gammaln(number - k + 1)
    mass = np.exp(log_mass + special.xlogy(k, wrong) + special.xlog1py(number - k, -wrong))
    kept = np.flatnonzero(mass > _NEGLIGIBLE)
    if kept.size == 0:
        return 0, np.ones(1), 1.0
    start, end = int(kept[0]), int(kept[-1]) + 1
    lost = special.bdtr(low + start - 1, number, wrong) if low + start > 0 else 0.0
    lost += special.bdtrc(low + end - 1, number, wrong) if low + end <= number else 0.0
    return low + start, mass[start:end], float(lost)


def _first(count: int, met: Callable[[int], bool]) -> int:
    """The least number of right guesses in 0..count that meets a condition which larger numbers meet too; else one
    more than ``count``."""
    low, high = 0, count + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle + 1, high)
    return low


def _grid(step: int) -> float:
    """The epsilons at which lower bounds are tested: 0, 0.01, ... up to 4, from there in equal ratios."""
    return 0.01 * step if step <= 400 else 4.0 * _RATIO ** (step - 400)


def _check(canaries: int, guesses: Sequence[int], correct: Sequence[int]) -> None:
    rising = len(guesses) > 0 and all(a < b for a, b in zip((0, *guesses), guesses, strict=False))
    if not rising or guesses[-1] > canaries:
        raise ValueError(f"guesses must be counts that rise strictly, up to {canaries} canaries, got {list(guesses)}")
    if len(correct) != len(guesses):
        raise ValueError(f"need a number of right guesses for each count, got {list(correct)} for {list(guesses)}")
    made = zip((0, *guesses), guesses, (0, *correct), correct, strict=False)
    if not all(0 <= v - u <= r - s for s, r, u, v in made):
        raise ValueError(f"right guesses {list(correct)} do not fit counts {list(guesses)}")
