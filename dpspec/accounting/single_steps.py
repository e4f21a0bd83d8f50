"""A second opinion about a composition, from the closed forms of its single steps: Theorem 21 of
``docs/explanation/proofs/grids.md``.

A composition costs at least as much as each of its steps, and at most their sum. With the profiles delta_i of T steps:

    delta(epsilon) <= 1 - prod_i (1 - delta_i(epsilon / T)),
    delta(epsilon) >= 1 - prod_i (1 - delta_i(t)) - T e^(epsilon - t)    for each t.

Both are tight if a step reveals nothing or everything, where grids are not:

>>> from dpspec.accounting import Mixture
>>> steps = SingleSteps([(Mixture.poisson(1, 0.01, 0.001), 50)], ["present-first"])
>>> f"{steps.answer(Question('delta', 10.0)):.6f}"
'0.394993 to 0.394994'

This is 1 - 0.99^50, the probability of a draw. ``privacy_loss`` asks here first (``early_answer``), compares each
answer from grids with these bounds (``require_agreements``), and intersects a wide one with them (``answer``).
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from dpspec.accounting import gaussian
from dpspec.accounting.double_mixture import DoubleMixture
from dpspec.accounting.grid import Pair
from dpspec.accounting.large_groups import LargeDraws
from dpspec.accounting.mixture import Mixture
from dpspec.accounting.numerics import (
    EPS,
    ContradictionError,
    Direction,
    Floats,
    Index,
    Interval,
    log_difference,
    log_or_minus_infinity,
)
from dpspec.accounting.profiles import (
    Question,
    bound_without_grid,
    first_below,
    largest_power,
    last_above,
    loss_extremes,
    smallest_level,
)
from dpspec.accounting.truncated_poisson import Revealed

#: Before any answer about an epsilon.
UNKNOWN = Interval(0.0, math.inf)

#: Method of an answer.
STEPS = "exact profiles of single steps"

#: Relative error charged to sums and products of profiles, and by which two opinions may differ.
_ROUNDING, _AGREE = 1e-11, 1e-9

#: The largest numbers of phases whose profiles are evaluated for a lower and for an upper end.
_LOWER, _UPPER = 8, 16

#: The largest number of components of a mixture whose profile is evaluated.
_COMPONENTS = 4096

#: The largest number of components of a mixture that is evaluated at several epsilons together. Each rounding error
#: then covers all components that matter at any of these epsilons.
_TOGETHER = 16

#: Distances of a threshold t from epsilon + ln T.
_BEYOND = np.array([3.0, 10.0, 40.0])

#: No larger epsilon is searched: squares of its distances in outputs would overflow.
_LARGEST = 1e120

#: Losses close to the largest one, as shares of it.
_SHARES = (1.0 - 1e-7, 1.0 - 1e-3, 0.9)

#: A step is steep if ln delta falls by at most ``_CLOSE`` up to this epsilon.
_LARGE, _CLOSE = 20.0, 0.01

#: Numbers of draws count as visible below this ln of a probability.
_RARE = -760.0

#: ln of the chances of few draws that a test of a sum omits.
_MISSED = np.array([-20.0, -40.0, -80.0, -200.0])

#: The largest number of steps whose draws are counted, and the smallest effect of a draw.
_DRAWS, _STEEP = 4096, 8.0


class SingleSteps:
    """Bounds of the profile of the composition of ``phases``, the larger one of the directions ``sides``."""

    def __init__(self, phases: Sequence[tuple[Pair, int]], sides: Sequence[Direction]) -> None:
        self._phases, self._sides = phases, sides
        self._steps = sum(steps for _, steps in phases)
        largest = sorted(phases, key=lambda phase: phase[0].dominating_effect * math.sqrt(phase[1]), reverse=True)
        self._profiles: dict[tuple[object, Direction, float], tuple[float, float]] = {}
        self._closed = [
            (pair, steps) for pair, steps in largest[:_LOWER] if self._exact(pair, 0.0, sides[0]) is not None
        ]
        self._draws = _Draws.of(*phases[0]) if len(phases) == 1 else None
        self._large = LargeDraws.of(phases)
        self.log_upper = functools.cache(self._log_upper)
        self.log_lower = functools.cache(self._log_lower)

    @property
    def are_beyond_grids(self) -> bool:
        """Whether no grid narrows these bounds present-first, the worse direction of Gaussian mixtures."""
        return self._large is not None and self._large.is_beyond_grids and "present-first" in self._sides

    def _log_upper(self, epsilon: float) -> float:
        """ln of an upper bound of delta(``epsilon``)."""
        if len(self._phases) > _UPPER:
            return 0.0
        largest = -math.inf
        for side in self._sides[:1] if epsilon == 0.0 else self._sides:  # the total variation has no direction
            deltas = [(self._profile(pair, epsilon / self._steps, side)[1], steps) for pair, steps in self._phases]
            bound = _log_any(deltas) + _ROUNDING
            if self._draws is not None:
                bound = min(bound, self._draws.log_upper(epsilon))
            if self._large is not None:
                bound = min(bound, self._large.log_upper(epsilon))
            largest_loss, infinite = loss_extremes(self._phases, side)
            if infinite.upper == 0.0 and largest_loss < math.inf:  # every outcome keeps a share e^-largest_loss
                hidden = epsilon - largest_loss  # of equal distributions delta is 1 - e^epsilon, or 0
                bound = min(bound, (math.log(-math.expm1(hidden)) if hidden < 0.0 else -math.inf) + _ROUNDING)
            largest = max(largest, bound)
        return min(0.0, largest)

    def _log_lower(self, epsilon: float) -> float:
        """ln of a lower bound of delta(``epsilon``)."""
        best = -math.inf
        for side in self._sides:
            for pair, _ in self._closed:
                best = max(best, self._profile(pair, epsilon, side)[0])
            for excess, log_power in self._tests(epsilon, side):
                best = max(best, log_difference(log_power, excess))
            best = max(best, self._log_sum_test(epsilon, side))
            if self._large is not None and side == "present-first":
                best = max(best, self._large.log_lower(epsilon))
        return best

    def _log_sum_test(self, epsilon: float, side: Direction) -> float:
        """ln of a lower bound of delta(``epsilon``) from the sum of all outputs, by part 5 of Theorem 21."""
        pair, steps = self._phases[0]
        if len(self._phases) > 1 or not isinstance(pair, Mixture) or len(pair.ratio.shifts) != 2:
            return -math.inf
        zero, shift = pair.ratio.shifts.tolist()
        draws = steps * math.exp(float(pair.log_probabilities[1])) * (1.0 - _ROUNDING)
        if zero > 0.0 or not -2.0 * _MISSED[0] < draws < math.inf:
            return -math.inf
        effects = shift * draws / math.sqrt(steps) * (1.0 - np.sqrt(-2.0 * _MISSED / draws))
        if not 0.0 < effects[0] <= _STEEP:
            return -math.inf
        log_rests, used = np.log1p(-np.exp(_MISSED)), np.maximum(effects, 0.0)
        if side == "present-first":
            return float(np.max(gaussian.log_delta_bounds(epsilon - log_rests, used)[0] + log_rests)) - _ROUNDING
        lows = gaussian.log_delta_bounds(epsilon + log_rests, used)[0] - _ROUNDING
        return max(map(log_difference, lows.tolist(), (epsilon + _MISSED + _ROUNDING).tolist()))

    def _tests(self, epsilon: float, side: Direction) -> Iterator[tuple[float, float]]:
        """Tests for losses above ``epsilon``: upper bounds of ln(level) + epsilon, and lower bounds of ln(power)."""
        yield 0.0, max((self._profile(pair, epsilon, side)[0] for pair, _ in self._closed), default=-math.inf)
        for beyond, t in zip(_BEYOND.tolist(), self._thresholds(epsilon), strict=True):  # whether any loss exceeds t
            log_power = _log_any([(self._profile(pair, t, side)[0], steps) for pair, steps in self._closed])
            yield -beyond, log_power - _ROUNDING
        for share in _SHARES:  # whether all losses exceed this share of the largest one
            yield from self._test_all(epsilon, side, share)
        for draws in (self._draws, self._large):
            if draws is not None and side == "present-first":
                yield from draws.tests(epsilon)

    def _test_all(self, epsilon: float, side: Direction, share: float) -> Iterator[tuple[float, float]]:
        """With delta_i(t) <= P[L_i > t] (1 - e^(t - largest loss)), and level <= e^-(sum of t) power."""
        log_power = total = 0.0
        for pair, steps in self._closed:
            largest = pair.largest_loss(side)
            t = share * largest
            if not 0.0 < t < largest < math.inf or pair.infinite_mass(side) > 0.0:
                return
            beyond = self._profile(pair, t, side)[0] - math.log(-math.expm1(t - largest)) - _ROUNDING
            log_power += steps * min(0.0, beyond)
            total += steps * t
        if self._closed:
            yield log_power + epsilon - total * (1.0 - _ROUNDING), log_power

    def _profile(self, pair: Pair, epsilon: float, side: Direction) -> tuple[float, float]:
        """Bounds of ln delta of one step: its closed form, or a dominating Gaussian pair's."""
        if (bounds := self._exact(pair, epsilon, side)) is not None:
            return bounds
        has_effect = 0.0 < pair.dominating_effect < math.inf
        highs = gaussian.log_delta_bounds(epsilon, pair.dominating_effect)[1] if has_effect else [0.0]
        return -math.inf, float(highs[0])

    def _exact(self, pair: Pair, epsilon: float, side: Direction) -> tuple[float, float] | None:
        """Bounds of ln delta of one step by its closed form; None without one, or if it takes long."""
        key = pair.key, side, epsilon
        if key not in self._profiles and sum(_components(pair)) <= _COMPONENTS:
            bounds = pair.log_delta_bounds(epsilon, side)
            if bounds is not None:
                self._profiles[key] = bounds
        return self._profiles.get(key)

    def _evaluate_profiles(self, lower_epsilons: Iterable[float], upper_epsilons: Iterable[float]) -> None:
        """Evaluate the profiles for ``log_lower`` and ``log_upper`` at all of these epsilons at once."""
        averages = {epsilon / self._steps for epsilon in upper_epsilons}
        thresholds: set[float] = set()
        for epsilon in lower_epsilons:
            thresholds.update((epsilon, *self._thresholds(epsilon)))
        for side in self._sides:
            for pair, _ in self._closed:
                if max(_components(pair), default=0) <= _TOGETHER:
                    largest = pair.largest_loss(side)
                    close = {share * largest for share in _SHARES if thresholds and 0.0 < share * largest < math.inf}
                    epsilons = sorted(averages | thresholds | close)
                    for epsilon, bounds in zip(epsilons, pair.all_log_delta_bounds(epsilons, side), strict=True):
                        self._profiles[pair.key, side, epsilon] = bounds

    def _thresholds(self, epsilon: float) -> list[float]:
        """Losses of one step at the distances ``_BEYOND`` from ``epsilon`` + ln T."""
        thresholds: list[float] = (epsilon + math.log(self._steps) + _BEYOND + 8.0 * EPS * abs(epsilon)).tolist()
        return thresholds

    def power(self, log_level: float) -> float:
        """A lower bound of the power of the best test at level e^``log_level``."""
        best = level = math.exp(log_level)
        for side in self._sides:
            for excess, log_power in self._tests(-log_level, side):
                alpha, power = math.exp(min(0.0, excess + log_level)), math.exp(log_power)
                if power <= alpha:
                    continue
                # with a coin: between the test and one that always or never rejects
                mixed = (
                    power + (level - alpha) * (1.0 - power) / (1.0 - alpha) if alpha < level else power * level / alpha
                )
                best = max(best, mixed)
        return min(1.0, max(best * (1.0 - _ROUNDING), level * (1.0 - 4.0 * EPS)))

    def level(self, log_power: float) -> float:
        """An upper bound of the level of the best test of power e^``log_power``."""
        best = target_power = math.exp(log_power)
        for side in self._sides:
            for epsilon in (0.0, 1.0, 10.0, 100.0):
                for excess, log_beta in self._tests(epsilon, side):
                    alpha, power = math.exp(min(0.0, excess - epsilon)), math.exp(log_beta)
                    if power > target_power:
                        best = min(best, alpha * target_power / power)
                    elif power > alpha:
                        best = min(best, alpha + (target_power - power) * (1.0 - alpha) / (1.0 - power))
        return min(best * (1.0 + _ROUNDING) + math.ulp(0.0), target_power * (1.0 + 4.0 * EPS))

    def answer(self, question: Question, composed: Interval = UNKNOWN) -> Interval:
        """The answer from these bounds and the largest loss; ``ContradictionError`` if they exclude each other.

        An end of an epsilon that does not narrow the ``composed`` answer is not searched for.
        """
        log, trivial = question.value, bound_without_grid(question, self._phases, self._sides)
        if question.kind == "delta":
            log_upper = self.log_upper(log)
            underflow = math.ulp(0.0) if log_upper > -math.inf else 0.0  # delta is positive, however small
            interval = _ordered(math.exp(self.log_lower(log)), math.exp(log_upper) + underflow)
        elif question.kind == "power":
            interval = _ordered(self.power(log), largest_power(log, self.log_upper, 0.0, 1.0)[0])
        elif question.kind == "level":
            interval = _ordered(smallest_level(log, self.log_upper, 0.0, 1.0)[0], self.level(log))
        else:
            lower, upper, rounding = 0.0, trivial.upper, 4.0 * EPS * abs(log)
            if composed.upper == math.inf or self.log_upper(composed.upper) <= log - rounding:
                limit = min(trivial.upper, _LARGEST)
                if self.log_upper(limit) <= log - rounding:  # not with infinite losses of about this delta
                    upper = min(trivial.upper, first_below(self.log_upper, log - rounding, _ROUNDING, limit))
            if composed.lower == 0.0 or self.log_lower(composed.lower) > log + rounding:
                limit = min(upper, _LARGEST)
                if self.log_lower(limit) > log + rounding:
                    lower = limit
                else:
                    lower = last_above(self.log_lower, log + rounding, _ROUNDING, limit)
            interval = _ordered(lower, upper)
        low = interval if interval.lower >= trivial.lower else trivial
        high = interval if interval.upper <= trivial.upper else trivial
        return Interval(min(low.lower, high.upper), high.upper, high.method, low.lower_method)

    def early_answer(self, question: Question, width: float) -> Interval | None:
        """An answer that needs no grid, within the relative ``width``; else None.

        An epsilon of 0, if the advantages of all steps add up to no more than delta. A delta, and a test if losses
        above 20 decide it.
        """
        if question.kind == "epsilon":
            is_free = self.log_upper(0.0) <= question.value - 4.0 * EPS * abs(question.value)
            return Interval(0.0, 0.0).by(STEPS) if is_free else None
        is_steep = self._steps > 1 and self.log_lower(_LARGE) >= self.log_lower(0.0) - _CLOSE
        if not (is_steep or (self._steps > 1 and question.kind == "delta")):
            return None
        answer = self.answer(question)
        return answer if answer.width <= width * max(answer.upper, question.least) else None

    def require_agreements(self, questions: Sequence[Question], answers: Sequence[Interval]) -> None:
        """Raise ``ContradictionError`` if an answer is outside of these bounds."""
        epsilons = [a for question, a in zip(questions, answers, strict=True) if question.kind == "epsilon"]
        highs = [answer.upper * (1.0 + _AGREE) for answer in epsilons if answer.upper < math.inf]
        lows = [answer.lower * (1.0 - _AGREE) for answer in epsilons if 0.0 < answer.lower < math.inf]
        if highs or lows:
            self._evaluate_profiles(highs, lows)
        for question, answer in zip(questions, answers, strict=True):
            log, low, high = question.value, answer.lower, answer.upper
            slack = _AGREE + 1e-14 * abs(log)
            if question.kind == "delta":
                wrong = log_or_minus_infinity(high) < self.log_lower(log) - slack
                wrong |= log_or_minus_infinity(low) > self.log_upper(log) + slack
            elif question.kind == "epsilon":
                wrong = high < math.inf and self.log_lower(high * (1.0 + _AGREE)) > log + slack
                wrong |= 0.0 < low < math.inf and self.log_upper(low * (1.0 - _AGREE)) < log - slack
            else:
                exact = math.exp(log)
                # no test of this level has more power: delta at ln(power / level) is at most the power
                power, level = (high, exact) if question.kind == "power" else (exact, low)
                ratio = math.log(power) - math.log(level) if level > 0.0 else math.inf
                wrong = ratio < math.inf and self.log_lower(ratio) > math.log(power) + slack
                # a test of this level has this power: at most level + delta(0)
                power, level = (low, exact) if question.kind == "power" else (exact, high)
                wrong |= power > (math.exp(self.log_upper(0.0)) + level) * (1.0 + _AGREE)
            if wrong:
                raise ContradictionError(
                    f"{question.kind} from {low:.9g} to {high:.9g} contradicts the exact profiles of single steps"
                )


@dataclass(frozen=True, eq=False)
class _Draws:
    """T steps with N(0, 1) against N(a, 1) at rate q, otherwise N(0, 1), by the number K of steps with a draw.

    Given K = k, the steps compose to the Gaussian pair of effect a sqrt(k), with the profile delta_k. As the output is
    a mixture of these, delta(epsilon) <= sum_k P[K = k] delta_k(epsilon). Present-first, the test whether the loss of
    any k steps together exceeds t has a power of at least P[K >= k] delta_k(t), and a level of at most binom(T, k)
    e^-t.
    """

    effect: float
    steps: int
    logs: Floats
    ways: Floats

    @classmethod
    def of(cls, pair: Pair, steps: int) -> "_Draws | None":
        """None unless ``pair`` is a Poisson-sampled Gaussian step for single records whose draws are almost visible."""
        if not isinstance(pair, Mixture) or len(pair.ratio.shifts) != 2 or pair.ratio.shifts[0] != 0.0:
            return None
        effect = float(pair.ratio.shifts[1])
        if effect < _STEEP or steps > _DRAWS:
            return None
        k = np.arange(steps + 1.0)
        ways = gammaln(steps + 1.0) - gammaln(k + 1.0) - gammaln(steps - k + 1.0)
        logs = ways + k * pair.log_probabilities[1] + (steps - k) * pair.log_probabilities[0]
        return cls(effect, steps, logs, ways)

    def log_upper(self, epsilon: float) -> float:
        """As for ``SingleSteps``."""
        usual = np.flatnonzero(self.logs > _RARE)
        high = np.zeros(len(self.logs))
        high[usual] = gaussian.log_delta_bounds(epsilon, self.effect * np.sqrt(usual))[1]
        return min(0.0, float(np.logaddexp.reduce(self.logs + high)) + 1e-9)

    def tests(self, epsilon: float) -> Iterator[tuple[float, float]]:
        """As for ``SingleSteps``, present-first."""
        tails = np.logaddexp.accumulate(self.logs[::-1])[::-1] - 1e-9
        k = self._numbers(tails)
        margins = self.ways[k] + 30.0 - tails[k]
        t = epsilon + margins + 8.0 * EPS * abs(epsilon)
        low = gaussian.log_delta_bounds(t, self.effect * np.sqrt(k))[0]
        yield from zip((self.ways[k] - margins + 1e-9).tolist(), (tails[k] + low).tolist(), strict=True)

    def _numbers(self, tails: Floats) -> Index:
        """Numbers of draws, at most 64, of probability at least 1e-300."""
        last = max(1, int(np.count_nonzero(tails > -690.0)) - 1)
        return np.unique(np.rint(np.geomspace(1.0, last, 64)).astype(np.int64))


def _log_any(deltas: Sequence[tuple[float, int]]) -> float:
    """ln(1 - prod (1 - delta)^steps) for (ln delta, steps) each."""
    if not deltas:
        return -math.inf
    logs, steps = np.array(deltas, dtype=np.float64).T
    if float(np.exp(np.minimum(logs, 0.0)) @ steps) < 1e-14:  # the sum, whose terms may underflow
        return float(np.logaddexp.reduce(logs + np.log(steps)))
    if float(logs.max()) >= 0.0:
        return 0.0
    return math.log(-math.expm1(float(np.log1p(-np.exp(logs)) @ steps)))


def _components(pair: Pair) -> list[int]:
    """The numbers of components of its mixtures."""
    cases: list[Pair] = [pair]
    if isinstance(pair, DoubleMixture):
        cases = [pair.present, pair.absent]
    elif isinstance(pair, Revealed):
        cases = [case for _, case in pair.cases]
    return [len(case.ratio.shifts) for case in cases if isinstance(case, Mixture)]


def _ordered(low: float, high: float) -> Interval:
    if low > high * (1.0 + _AGREE):
        raise ContradictionError(f"bounds from single steps exclude each other: {low:.9g} exceeds {high:.9g}")
    return Interval(min(low, high), high).by(STEPS)
