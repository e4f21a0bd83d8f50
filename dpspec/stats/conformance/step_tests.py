"""Is every step as declared? In a sum over all steps one of them makes up for another; here each stands for itself.

The numbers of T steps (squared lengths of noise, batch sizes) are independent and of one law. Where something else is
in them that a step's noise is independent of, each is, whatever came before, at least of that law in distribution; then
all of them together are at least as large as independent ones, and a test that rejects only what is too small errs no
more often than on those (``both`` of the law is False). Looked at are

* single steps: p = T times the smallest tail (Bonferroni),
* stretches of 2, 4, 8, ... steps, and every k-th step for k up to 32, the level shared out among all of them,
* any steps, wherever they stand: with f the law and f_s that of another size s, every

      E = prod over steps t of (1 - e + e f_s(x_t) / f(x_t))

  has mean at most 1, and so has their average over a grid of shares e and sizes s: p = 1 / E (Markov). A step of the
  declared size takes at most a factor 1 - e away, so that none makes up for another.

A run is boiled down to the extremes of these sums: a few hundred numbers, however many steps there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np

from dpspec.stats.conformance.evidence.steps import (
    LEAST_STEPS,
    PeriodSums,
    SomeSteps,
    StepSums,
    StepValue,
    StretchSums,
    last_period,
)
from dpspec.stats.conformance.measurement import LEVEL, Measurement

Array: TypeAlias = np.ndarray[Any, Any]

#: What ``detectable`` of patterns speaks of: a quarter of the steps.
_SHARE = 4

#: Stretches, regular patterns and any steps share the level.
_KINDS = 3

#: What stands for sums that are not finite: evidence is JSON, which has none.
_HUGE = 1e300


class Law(Protocol):
    """The law of what one step is declared to show, and of sums over some steps."""

    @property
    def both(self) -> bool:
        """Whether too much speaks against the declaration as well as too little."""

    @property
    def mean(self) -> float:
        """Of one step."""

    @property
    def test(self) -> str:
        """The name of the test of a sum."""

    @property
    def declared(self) -> float:
        """The size that is declared, in the unit of :meth:`size`."""

    def below(self, total: float, steps: int) -> float:
        """P[a sum over ``steps`` steps <= ``total``]."""

    def above(self, total: float, steps: int) -> float:
        """P[a sum over ``steps`` steps >= ``total``]."""

    def size(self, total: float, steps: int) -> float:
        """What a sum over some steps says of the declared quantity."""

    def detectable(self, most: float, steps: int, level: float) -> float | None:
        """The deviation of some steps that is rejected at ``level``; their sum is otherwise at most ``most``."""

    def log_ratios(self, values: Array) -> Iterator[tuple[float, Array]]:
        """Other sizes, relative to the declared one, and ln f_s(x) / f(x) of each value under them."""


def summary(values: Array, law: Law, numbers: Array | None = None, count: int | None = None) -> StepSums:
    """The extremes of all sums of ``values`` (T,), T >= 1; ``numbers`` (T,) are those of the steps, from 1 on.

    count: the degrees of freedom of a step, where values are squared lengths of noise.
    """
    given = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=_HUGE, posinf=_HUGE, neginf=0.0)
    step = np.arange(1, len(given) + 1) if numbers is None else numbers
    low, high = int(np.argmin(given)), int(np.argmax(given))
    least, most = (StepValue(_number(given[i]), int(step[i])) for i in (low, high))
    if len(given) < LEAST_STEPS:
        return StepSums(steps=len(given), least=least, most=most, count=count)
    with np.errstate(over="ignore"):
        return StepSums(
            steps=len(given),
            least=least,
            most=most,
            stretches=tuple(StretchSums(n, _number(sums.min()), _number(sums.max())) for n, sums in _stretches(given)),
            every=tuple(_every(given, k, law.mean) for k in range(2, 1 + last_period(len(given)))),
            any=SomeSteps(*(_number(v) for v in _any(given, law))),
            count=count,
        )


def single(sums: StepSums, law: Law) -> Measurement:
    """Test each step by itself; ``detectable`` is the deviation of one step, even that with most else in it."""
    tails = [(law.below(sums.least.value, 1), sums.least.value, sums.least.step)]
    if law.both:
        tails.append((law.above(sums.most.value, 1), sums.most.value, sums.most.step))
    tried = sums.steps * len(tails)
    p_value, value, step = min(tails)
    return Measurement(
        test=f"{law.test} at each step, step {step}",
        declared=law.declared,
        measured=law.size(value, 1),
        p_value=min(1.0, tried * p_value),
        detectable=law.detectable(sums.most.value, 1, LEVEL / tried),
    )


def patterns(sums: StepSums, law: Law) -> Measurement:
    """Test stretches of steps, every k-th step, and any steps; for at least :data:`LEAST_STEPS` of them.

    ``detectable`` is the deviation of a quarter of all steps, in one piece or every fourth.
    """
    if sums.stretches is None or sums.every is None or sums.any is None:
        raise ValueError(f"patterns are tested from {LEAST_STEPS} steps on, got {sums.steps}")
    sides = 2 if law.both else 1
    tested: list[tuple[float, float, str]] = []
    detectable: list[float | None] = []
    whole = max(stretch.length for stretch in sums.stretches if _is_within(stretch.length, sums.steps))
    for stretch in sums.stretches:
        length = stretch.length
        tried = _KINDS * sides * len(sums.stretches) * _windows(sums.steps, length)
        ends = [(law.below(stretch.least, length), stretch.least)]
        ends += [(law.above(stretch.most, length), stretch.most)] if law.both else []
        tested += [(tried * p, law.size(total, length), f"{length} steps in a row") for p, total in ends]
        if length == whole:
            detectable.append(law.detectable(stretch.most, length, LEVEL / tried))
    for one in sums.every:
        tried = _KINDS * sides * len(sums.every) * one.period
        tails = [(law.below(one.least, one.least_steps), one.least, one.least_steps)]
        tails += [(law.above(one.most, one.most_steps), one.most, one.most_steps)] if law.both else []
        tested += [(tried * p, law.size(total, n), f"every {_ordinal(one.period)} step") for p, total, n in tails]
        if one.period == _SHARE:
            detectable.append(law.detectable(one.most, one.most_steps, LEVEL / tried))
    some = f"{100.0 * sums.any.share:.3g}% of the steps"
    tested.append((_KINDS * math.exp(-max(0.0, sums.any.log_ratio)), law.declared * sums.any.size, some))
    p_value, measured, where = min(tested)
    seen = [d for d in detectable if d is not None]
    return Measurement(
        test=f"{law.test} of stretches and patterns of steps, {where}",
        declared=law.declared,
        measured=measured,
        p_value=min(1.0, p_value),
        detectable=max(seen) if len(seen) == len(detectable) else None,
    )


def _is_within(length: int, steps: int) -> bool:
    """Whether a quarter of the steps in one piece, wherever it stands, holds a tested stretch of this length."""
    return length == 2 or 1.5 * length <= steps / _SHARE


def _windows(steps: int, length: int) -> int:
    """How many stretches of one length are looked at, from the start and from the end; some of them may be the same."""
    return 2 * (2 * steps // length - 1)


def _stretches(values: Array) -> Iterator[tuple[int, Array]]:
    """Sums over stretches that start at multiples of half their length, counted from the first and from the last step.

    Each is added up from its halves and never taken as a difference, so that one huge value spoils no other sum.
    """
    halves, length = [values, values[::-1]], 2
    while 2 * length <= len(values):
        yield length, np.concatenate([half[:-1] + half[1:] for half in halves])
        halves = [half[0 : len(half) // 2 * 2 : 2] + half[1::2] for half in halves]
        length *= 2


def _every(values: Array, period: int, mean: float) -> PeriodSums:
    counts = np.array([len(values[start::period]) for start in range(period)])
    sums = np.array([values[start::period].sum() for start in range(period)])
    surprise = (sums - counts * mean) / np.sqrt(counts)
    low, high = int(np.argmin(surprise)), int(np.argmax(surprise))
    return PeriodSums(period, int(counts[low]), _number(sums[low]), int(counts[high]), _number(sums[high]))


def _any(values: Array, law: Law) -> tuple[float, float, float]:
    shares = 0.5 ** np.arange(1 + int(math.log2(len(values))))
    found: list[tuple[float, float, float]] = []
    for size, ratios in law.log_ratios(values):
        for share in shares.tolist():
            rest = math.log1p(-share) if share < 1.0 else -math.inf
            found.append((float(np.logaddexp(rest, math.log(share) + ratios).sum()), share, size))
    largest = max(found)
    average = largest[0] + math.log(math.fsum(math.exp(one[0] - largest[0]) for one in found) / len(found))
    return average if math.isfinite(average) else largest[0], largest[1], largest[2]


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 != 1 else "th"
    return f"{number}{ending}"


def _number(value: float) -> float | int:
    """Nine digits are more than any tail here can tell; whole numbers stay whole."""
    capped = float(np.clip(value, -_HUGE, _HUGE))
    return int(capped) if capped.is_integer() and abs(capped) < 2.0**53 else float(f"{capped:.9g}")
