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
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats.attacks import guess_counts, many_run, one_run, sequential, thresholds
from dpspec_group.options import DEFAULT_DELTA, EDGES, Attack
from dpspec_group.scores import ScoreLaw, end_to_end, planted_pairs, score_law

#: Shares of the canaries that are tried as guesses on one side; "present" and "absent" need not be guessed alike.
_SHARES = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)

#: With fewer guesses than this no interesting epsilon can be shown.
_LEAST_GUESSES = 8

#: Designed thresholds are looked for on every so many edges of the grid.
_COARSE = 16


@dataclass(frozen=True, kw_only=True)
class Design:
    """A one-run design: for each rung (low, high) the ``low`` lowest scores are guessed absent, the ``high`` highest
    present; each rung holds the guesses of the one before.

    expected_epsilon: what it shows if the shares of right guesses are the expected ones; nan where those are unknown.
    largest_epsilon: what it shows if every guess is right.
    """

    rungs: tuple[guess_counts.Rung, ...]
    expected_epsilon: float
    largest_epsilon: float


def design(law: ScoreLaw, canaries: int, delta: float, confidence: float) -> Design:
    """The guess counts around those that are expected to show the largest epsilon with ``canaries`` coins.

    Fewer guesses are there for a pipeline that leaks more than declared, all canaries for one that is broken.
    """

    rungs = guess_counts.around(*_best(law, canaries, delta, confidence), canaries)
    guesses = [sum(rung) for rung in rungs]
    correct = guess_counts.fitting(guesses, [law.correct(*rung, canaries) for rung in rungs])
    expected = guess_counts.epsilon_lower(canaries, guesses, correct, delta, confidence)
    return Design(rungs=rungs, expected_epsilon=expected, largest_epsilon=_largest(rungs, canaries, delta, confidence))


def blind(canaries: int, delta: float, confidence: float, *, all_only: bool = False) -> Design:
    """Guess counts where no law is known: from few to all canaries, each three times the one before; or all alone."""
    rungs = guess_counts.blind(canaries, least=_LEAST_GUESSES)
    rungs = rungs[-1:] if all_only else rungs
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
        hits = present * tpr - deviations * math.sqrt(present * tpr * (1.0 - tpr))
        false = absent * fpr + deviations * math.sqrt(absent * fpr * (1.0 - fpr))
        counts = max(0, math.floor(hits)), min(absent, math.ceil(false - 1e-9))
        return many_run.epsilon_lower(present, absent, *counts, delta, confidence)

    def worth(score: float) -> tuple[float, float]:
        tpr, fpr = law.rates(score)
        return expected(score, 1.0), tpr - fpr

    best = max(scores, key=worth)
    return Threshold(score=best, expected_epsilon=expected(best))


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """The delta at which lower bounds for a group size are stated: the largest that its claims name."""
    return kit.claimed_deltas(spec, group_size, default=DEFAULT_DELTA)[-1]


def law_of(spec: dps.Spec, records: int, group_size: int) -> ScoreLaw | None:
    """The law of the scores of one group size if the pipeline is as declared, in the units in which they are reported.

    None where nothing is known beforehand: without noise, for planted records, whose gradients are their own, and for
    scores from elsewhere.
    """
    attack = Attack.of(spec)
    if attack.elsewhere or attack.space != "gradient" or _noiseless(spec):
        return None
    present = records + attack.records_on_average
    pairs = planted_pairs(spec.phases, attack, present, group_size, summed=not attack.white_box)
    if attack.white_box:
        return score_law(pairs)
    return end_to_end(pairs, [phase.clip_norm for phase in spec.phases], attack.every).law()


@lru_cache(maxsize=64)  # a plan, the audit and its verification ask the same
def one_run_design(spec: dps.Spec, records: int, canaries: int, group_size: int) -> Design:
    """How many of so many canaries of one size to guess."""
    assert spec.audit is not None
    delta, confidence = attack_delta(spec, group_size), spec.audit.confidence
    law = law_of(spec, records, group_size)
    if law is None:
        all_only = _noiseless(spec) and not Attack.of(spec).elsewhere
        return blind(canaries, delta, confidence, all_only=all_only)
    return design(law, canaries, delta, confidence)


def many_run_design(spec: dps.Spec, records: int, runs: int, group_size: int) -> Threshold | None:
    """From which score on to say "present" in so many runs, half of either kind; None where the law is not known."""
    assert spec.audit is not None
    law = law_of(spec, records, group_size)
    if law is None:
        return None
    delta = attack_delta(spec, group_size)
    return threshold(law, EDGES[::_COARSE], runs - runs // 2, runs // 2, delta, spec.audit.confidence)


def power(spec: dps.Spec, records: int) -> tuple[dps.Power, ...]:
    """For each group size what the attack could show at best, and what it should if all is as declared."""
    attack = Attack.of(spec)
    powers = []
    for size in attack.sizes:
        what, largest, expected = _compared_and_expected(spec, attack, records, size)
        powers.append(
            dps.Power(
                at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
                epsilon=largest,
                method=f"{attack.description}, {what}",
                note="how much is expected cannot be said beforehand"
                if math.isnan(expected)
                else f"about {expected:.2f} expected if the pipeline is as declared",
            )
        )
    return tuple(powers)


def _best(law: ScoreLaw, canaries: int, delta: float, confidence: float) -> guess_counts.Rung:
    """The first of the pairs of guess counts that show the largest epsilon when luck is one deviation below par; where
    nothing can be expected, the one that is farthest from guessing blindly."""
    best, worth = (0, 0), (-1.0, 0.0)
    for rung in _sides(canaries):
        guesses, correct = sum(rung), law.correct(*rung, canaries)
        unlucky = max(0, math.floor(correct - math.sqrt(correct * max(0.0, 1.0 - correct / guesses))))
        if worth[0] > 0.0 and not one_run.rejects(canaries, guesses, unlucky, worth[0], delta, 1.0 - confidence):
            continue  # it shows less
        shown = one_run.epsilon_lower(canaries, guesses, unlucky, delta, confidence)
        found = (shown, (correct - 0.5 * guesses) / math.sqrt(guesses))
        if found > worth:
            best, worth = rung, found
    return best


def _sides(canaries: int) -> Iterator[guess_counts.Rung]:
    """Pairs of guess counts (low, high) worth trying."""
    sides = sorted({0, *(round(share * canaries) for share in _SHARES), canaries // 2})
    for low in sides:
        for high in sides:
            if low + high >= min(_LEAST_GUESSES, canaries):
                yield low, high


def _largest(rungs: Sequence[guess_counts.Rung], canaries: int, delta: float, confidence: float) -> float:
    return guess_counts.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)


def _compared_and_expected(spec: dps.Spec, attack: Attack, records: int, size: int) -> tuple[str, float, float]:
    """In words what is compared, and the largest and the expected lower bound on epsilon."""
    assert spec.audit is not None
    runs, delta, confidence = spec.audit.runs, attack_delta(spec, size), spec.audit.confidence
    if attack.method == "many-run":
        what = f"{runs} runs with and without a group of {size}"
        if attack.sequential:
            return f"{what} at most", sequential.largest(runs, delta, confidence), math.nan
        fixed, sides = many_run_design(spec, records, runs, size), (runs - runs // 2, runs // 2)
        largest = (thresholds if fixed is None else many_run).largest(*sides, delta, confidence)
        return what, largest, math.nan if fixed is None else fixed.expected_epsilon
    planned = one_run_design(spec, records, attack.tested(attack.share) * runs, size)
    what = f"{attack.share * runs} canary groups of {size}"
    return what, planned.largest_epsilon, planned.expected_epsilon


def _noiseless(spec: dps.Spec) -> bool:
    return any(phase.noiseless for phase in spec.phases)
