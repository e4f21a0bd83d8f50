"""How many canaries to guess, or at which score to say "present": decided from the spec alone, before any coin is seen.

From the law of the scores follows how often the most extreme ones are guessed right, and so the design that can be
expected to show the largest epsilon. A law that is wrong can only cost tightness: the tests hold for any design that
was fixed in advance. Designs are compared by what they show when luck is one standard deviation below par, since the
largest expected value alone would stake everything on a handful of guesses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpspec.stats import ladder, manyrun, onerun
from dpspec_group.laws import ScoreLaw

#: Shares of the canaries that are tried as guesses on one side; "present" and "absent" need not be guessed alike.
_SHARES = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)

#: With fewer guesses than this no interesting epsilon can be shown.
_LEAST_GUESSES = 8


@dataclass(frozen=True, kw_only=True)
class Design:
    """A one-run design: for each rung (low, high) the ``low`` lowest scores are guessed absent, the ``high`` highest
    present; each rung holds the guesses of the one before.

    expected_epsilon: what it shows if the shares of right guesses are the expected ones; nan where those are unknown.
    largest_epsilon: what it shows if every guess is right.
    """

    rungs: tuple[ladder.Rung, ...]
    expected_epsilon: float
    largest_epsilon: float


def design(law: ScoreLaw, canaries: int, delta: float, confidence: float) -> Design:
    """The guess counts around those that are expected to show the largest epsilon with ``canaries`` coins.

    Fewer guesses are there for a pipeline that leaks more than declared, all canaries for one that is broken.
    """

    def cautious(rung: ladder.Rung) -> tuple[float, float]:
        guesses, correct = sum(rung), law.correct(*rung, canaries)
        unlucky = correct - math.sqrt(correct * max(0.0, 1.0 - correct / guesses))
        # Where nothing can be expected, the design that is farthest from guessing blindly.
        return (
            onerun.epsilon_lower(canaries, guesses, max(0, math.floor(unlucky)), delta, confidence),
            (correct - 0.5 * guesses) / math.sqrt(guesses),
        )

    rungs = ladder.around(*max(_sides(canaries), key=cautious), canaries)
    correct = [math.floor(law.correct(*rung, canaries)) for rung in rungs]
    expected = ladder.epsilon_lower(canaries, [sum(rung) for rung in rungs], correct, delta, confidence)
    return Design(rungs=rungs, expected_epsilon=expected, largest_epsilon=_largest(rungs, canaries, delta, confidence))


def blind(canaries: int, delta: float, confidence: float, *, all_only: bool = False) -> Design:
    """Guess counts where no law is known: from few to all canaries, each three times the one before; or all alone."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [] if all_only else [_LEAST_GUESSES * 3**k for k in range(20) if _LEAST_GUESSES * 3**k < most[1]]
    rungs = (*((half, half) for half in halves), most)
    return Design(rungs=rungs, expected_epsilon=math.nan, largest_epsilon=_largest(rungs, canaries, delta, confidence))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A many-run design: say "present" where the score is ``score`` or more."""

    score: float
    expected_epsilon: float


def threshold(
    law: ScoreLaw, scores: Sequence[float], present: int, absent: int, delta: float, confidence: float
) -> Threshold:
    """The one of ``scores`` that is expected to show the largest epsilon in so many runs of either kind."""

    def expected(score: float, deviations: float = 0.0) -> float:
        tpr, fpr = law.rates(score)
        found = present * tpr - deviations * math.sqrt(present * tpr * (1.0 - tpr))
        wrong = absent * fpr + deviations * math.sqrt(absent * fpr * (1.0 - fpr))
        counts = max(0, math.floor(found)), min(absent, math.ceil(wrong - 1e-9))
        return manyrun.epsilon_lower(present, absent, *counts, delta, confidence)

    def worth(score: float) -> tuple[float, float]:
        tpr, fpr = law.rates(score)
        return expected(score, 1.0), tpr - fpr

    best = max(scores, key=worth)
    return Threshold(score=best, expected_epsilon=expected(best))


def _sides(canaries: int) -> Iterator[ladder.Rung]:
    """Pairs of guess counts (low, high) worth trying."""
    sides = sorted({0, *(round(share * canaries) for share in _SHARES), canaries // 2})
    for low in sides:
        for high in sides:
            if low + high >= min(_LEAST_GUESSES, canaries):
                yield low, high


def _largest(rungs: Sequence[ladder.Rung], canaries: int, delta: float, confidence: float) -> float:
    return ladder.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)
