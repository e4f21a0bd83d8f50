"""From scores and coins to evidence and lower bounds: guesses by rank, how many of them fixed by the design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

import dpspec.contract as dps
from dpspec.stats import onerun
from dpspec_group import theory
from dpspec_group.bounds import claimed_deltas
from dpspec_group.design import Design, design, end_to_end_law, score_law

DEFAULT_DELTA = 1e-6


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """The right guesses among the most extreme scores of one group size."""

    canaries: int
    guesses: int
    correct: int


def designs(spec: dps.Spec, records: int, canaries: int, group_size: int) -> tuple[Design, ...]:
    """The guess counts for one group size: the one that should show most, and all canaries.

    Guessing every canary is weaker on a correct pipeline and stronger on one that is badly broken. Where both are
    tried, each shows what it can at half the level.
    """
    assert spec.audit is not None
    delta, confidence = attack_delta(spec, group_size), spec.audit.confidence
    shared = 1.0 - (1.0 - confidence) / 2.0
    alone, beside = (
        Design(guesses=canaries, expected_epsilon=0.0, largest_epsilon=onerun.largest(canaries, canaries, delta, level))
        for level in (confidence, shared)
    )
    if any(float(phase["noise_multiplier"]) == 0.0 for phase in spec.phases):
        return (alone,)
    sizes = spec.threat_model.group_size
    present = records + theory.planted_on_average(int(spec.audit.options["canary"]["count"]), sizes)
    pairs = [(theory.planted_mixture(p, group_size, present), int(p["steps"])) for p in spec.phases]
    law = score_law(pairs) if spec.threat_model.access == "all-iterates" else end_to_end_law(pairs)
    best = design(law, canaries, delta, shared)
    if best.guesses == canaries:
        return (replace(alone, expected_epsilon=best.expected_epsilon),)
    return (best, beside)


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """The delta at which lower bounds for a group size are stated: the largest that its claims name."""
    deltas = claimed_deltas(spec, group_size) or claimed_deltas(spec, 1)
    return deltas[-1] if deltas else DEFAULT_DELTA


def count(trials: Sequence[dps.Trial], group_size: int, guesses: int) -> Guesses:
    """Guess "in" for the highest half of ``guesses`` scores and "out" for the lowest, over all trials pooled.

    Equal scores are ordered by position, which knows nothing of the coins.
    """
    scores, coins = pooled(trials, group_size)
    order = np.argsort(scores, kind="stable")
    low, high = guesses - guesses // 2, guesses // 2
    out, into = coins[order[:low]], coins[order[len(order) - high :]]
    return Guesses(canaries=len(coins), guesses=guesses, correct=int(np.sum(into == 1) + np.sum(out == 0)))


def pooled(
    trials: Sequence[dps.Trial], group_size: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Scores and coins of the canaries of one group size, over all trials."""
    scores: list[float] = []
    coins: list[int] = []
    for trial in trials:
        at = 0
        for size, number in trial.evidence["groups"]:
            if size == group_size:
                scores.extend(trial.evidence["scores"][at : at + number])
                coins.extend(int(coin) for coin in trial.evidence["coins"][at : at + number])
            at += number
    return np.asarray(scores, dtype=np.float64), np.asarray(coins, dtype=np.int64)


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence for each group size and guess count, and the lower bound that follows from it."""
    assert spec.audit is not None
    scope = dps.Scope(
        adjacency=spec.threat_model.adjacency,
        unit=spec.threat_model.unit,
        access=spec.threat_model.access,
        adversary="gradient",
        data="this",
        pipeline="executed",
    )
    records = int(trials[0].evidence["records"])
    for size in spec.threat_model.group_size:
        canaries = len(pooled(trials, size)[0])
        if canaries == 0:
            continue
        delta, confidence = attack_delta(spec, size), spec.audit.confidence
        tried = designs(spec, records, canaries, size)
        each = 1.0 - (1.0 - confidence) / len(tried)
        best = 0.0
        for number, plan in enumerate(tried):
            seen = count(trials, size, plan.guesses)
            at = dps.FrozenMap({"delta": delta, "group_size": size})
            best = max(best, onerun.epsilon_lower(seen.canaries, seen.guesses, seen.correct, delta, each))
            yield dps.Evidence(
                id=f"one-run/k={size}/{'designed' if number == 0 and len(tried) == 2 else 'all'}",
                kind="one-run",
                statistics=dps.FrozenMap({"canaries": seen.canaries, "guesses": seen.guesses, "correct": seen.correct}),
                scope=scope,
                at=at,
                method=f"one-run, {spec.threat_model.access}",
                source=onerun.SOURCE,
                power=plan.largest_epsilon,
            )
        yield dps.Finding(
            quantity="epsilon",
            value=best,
            bound="lower",
            rigor="statistical",
            at=dps.FrozenMap({"delta": delta, "group_size": size}),
            scope=scope,
            method=f"one-run, {spec.threat_model.access}, {canaries} canary groups of {size}",
            source=onerun.SOURCE,
            confidence=confidence,
            assumptions=(
                dps.Assumption(
                    name="coins",
                    status="by-construction",
                    text="each canary group is planted by an independent fair coin",
                ),
                dps.Assumption(
                    name="guess-count",
                    status="by-construction",
                    text="how many guesses count was fixed before any coin",
                ),
            ),
        )
