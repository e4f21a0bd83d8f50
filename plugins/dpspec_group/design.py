"""Design of the attack's test from the spec: the number of guesses, or the threshold for "present".

The design has the largest expected epsilon under the distribution of scores, at one standard deviation below the
expected number of correct guesses. Tests are valid for any design that is fixed in advance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats.attacks import guess_counts, one_run, sequential, thresholds
from dpspec_group.options import DEFAULT_DELTA, EDGES, Attack
from dpspec_group.scores import ScoreDistribution, canary_pairs, end_to_end, score_distribution

#: Candidate shares of guessed canaries on each side, "present" and "absent".
_SHARES = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)

#: Minimum number of guesses with any power.
_MIN_GUESSES = 8

#: Candidate thresholds are every n-th edge of the grid.
_COARSE = 16


@dataclass(frozen=True, kw_only=True)
class Design:
    """A one-run design.

    Attributes:
        rungs: Pairs (low, high): the ``low`` lowest scores are guessed absent, the ``high`` highest present. Each rung
            includes the guesses of the previous one.
        expected_epsilon: Lower bound at the expected accuracy; NaN if that is unknown.
        largest_epsilon: Lower bound if all guesses are correct.
    """

    rungs: tuple[guess_counts.Rung, ...]
    expected_epsilon: float
    largest_epsilon: float


def design(law: ScoreDistribution, canaries: int, delta: float, confidence: float) -> Design:
    """Guess counts around the ones with the largest expected epsilon for ``canaries`` coins.

    Rungs with fewer guesses serve pipelines that leak more than declared, the rung of all canaries broken ones.
    """
    # The pair of guess counts with the largest epsilon at one standard deviation below the expected accuracy; if all
    # show 0, the pair that deviates most from random guessing.
    best, worth = (0, 0), (-1.0, 0.0)
    sides = sorted({0, *(round(share * canaries) for share in _SHARES), canaries // 2})
    for rung in itertools.product(sides, sides):
        guesses = sum(rung)
        if guesses < min(_MIN_GUESSES, canaries):
            continue
        right = law.correct(*rung, canaries)
        unlucky = max(0, math.floor(right - math.sqrt(right * max(0.0, 1.0 - right / guesses))))
        if worth[0] > 0.0 and not one_run.rejects(canaries, guesses, unlucky, worth[0], delta, 1.0 - confidence):
            continue  # its epsilon is smaller
        shown = one_run.epsilon_lower(canaries, guesses, unlucky, delta, confidence)
        found = (shown, (right - 0.5 * guesses) / math.sqrt(guesses))
        if found > worth:
            best, worth = rung, found
    rungs = guess_counts.around(*best, canaries)
    counts = [sum(rung) for rung in rungs]
    correct = guess_counts.fitting(counts, [law.correct(*rung, canaries) for rung in rungs])
    expected = guess_counts.epsilon_lower(canaries, counts, correct, delta, confidence)
    return Design(rungs=rungs, expected_epsilon=expected, largest_epsilon=_largest(rungs, canaries, delta, confidence))


def blind(canaries: int, delta: float, confidence: float, *, all_only: bool = False) -> Design:
    """Guess counts for an unknown distribution: a geometric sequence up to all canaries, or only all canaries."""
    rungs = guess_counts.blind(canaries, least=_MIN_GUESSES)
    rungs = rungs[-1:] if all_only else rungs
    return Design(rungs=rungs, expected_epsilon=math.nan, largest_epsilon=_largest(rungs, canaries, delta, confidence))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A many-run design: guess "present" for scores of at least ``score``."""

    score: float
    expected_epsilon: float


def threshold(
    law: ScoreDistribution, scores: Sequence[float], present: int, absent: int, delta: float, confidence: float
) -> Threshold:
    def expected(score: float, deviations: float = 0.0) -> float:
        tpr, fpr = law.rates(score)
        hits = present * tpr - deviations * math.sqrt(present * tpr * (1.0 - tpr))
        false = absent * fpr + deviations * math.sqrt(absent * fpr * (1.0 - fpr))
        counts = max(0, math.floor(hits)), min(absent, math.ceil(false - 1e-9))
        return thresholds.fixed_epsilon_lower(present, absent, *counts, delta, confidence)

    def worth(score: float) -> tuple[float, float]:
        tpr, fpr = law.rates(score)
        return expected(score, 1.0), tpr - fpr

    best = max(scores, key=worth)
    return Threshold(score=best, expected_epsilon=expected(best))


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """Delta of the lower bounds for a group size: the largest claimed one."""
    return kit.claimed_deltas(spec, group_size, default=DEFAULT_DELTA)[-1]


def declared_distribution(spec: dps.Spec, records: int, group_size: int) -> ScoreDistribution | None:
    """Distribution of the reported scores of one group size under the declaration.

    None if it is unknown: without noise, for input canaries and for external scores.
    """
    attack = Attack.of(spec)
    if attack.elsewhere or attack.space != "gradient" or any(phase.noiseless for phase in spec.phases):
        return None
    present = records + attack.records_on_average
    pairs = canary_pairs(spec.phases, attack, present, group_size, summed=not attack.white_box)
    if attack.white_box:
        return score_distribution(pairs)
    return end_to_end(pairs, [phase.clip_norm for phase in spec.phases], attack.every).law()


@lru_cache(maxsize=64)  # a plan, the audit and its verification compute the same design
def one_run_design(spec: dps.Spec, records: int, canaries: int, group_size: int) -> Design:
    assert spec.audit is not None
    delta, confidence = attack_delta(spec, group_size), spec.audit.confidence
    law = declared_distribution(spec, records, group_size)
    if law is None:
        all_only = any(phase.noiseless for phase in spec.phases) and not Attack.of(spec).elsewhere
        return blind(canaries, delta, confidence, all_only=all_only)
    return design(law, canaries, delta, confidence)


def many_run_design(spec: dps.Spec, records: int, runs: int, group_size: int) -> Threshold | None:
    """The threshold for ``runs`` runs, half of them present; None if the distribution of scores is unknown."""
    assert spec.audit is not None
    law = declared_distribution(spec, records, group_size)
    if law is None:
        return None
    delta = attack_delta(spec, group_size)
    return threshold(law, EDGES[::_COARSE], runs - runs // 2, runs // 2, delta, spec.audit.confidence)


def power(spec: dps.Spec, records: int) -> tuple[dps.Power, ...]:
    attack = Attack.of(spec)
    assert spec.audit is not None
    runs, powers = spec.audit.runs, []
    for size in attack.sizes:
        delta, confidence = attack_delta(spec, size), spec.audit.confidence
        what, expected = f"{runs} runs with and without a group of {size}", math.nan
        if attack.method == "one-run":
            planned = one_run_design(spec, records, attack.tested(attack.share) * runs, size)
            what = f"{attack.share * runs} canary groups of {size}"
            largest, expected = planned.largest_epsilon, planned.expected_epsilon
        elif attack.sequential:
            what, largest = f"{what} at most", sequential.largest(runs, delta, confidence)
        else:
            fixed, sides = many_run_design(spec, records, runs, size), (runs - runs // 2, runs // 2)
            strongest = thresholds.largest if fixed is None else thresholds.fixed_largest
            largest = strongest(*sides, delta, confidence)
            expected = math.nan if fixed is None else fixed.expected_epsilon
        powers.append(
            dps.Power(
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                epsilon=largest,
                method=f"{attack.description}, {what}",
                note="the expected bound is unknown"
                if math.isnan(expected)
                else f"about {expected:.2f} expected if the pipeline is as declared",
            )
        )
    return tuple(powers)


def _largest(rungs: Sequence[guess_counts.Rung], canaries: int, delta: float, confidence: float) -> float:
    return guess_counts.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)
