"""From scores and coins to evidence and lower bounds: guesses by rank, how many of them fixed by the design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec.stats import onerun
from dpspec_group import theory
from dpspec_group.bounds import claimed_deltas
from dpspec_group.design import Design, design, end_to_end_law, promise, score_law

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

    def everything(level: float) -> Design:
        largest = onerun.largest(canaries, canaries, delta, level)
        return Design(guesses=canaries, expected_epsilon=0.0, largest_epsilon=largest)

    if any(float(phase["noise_multiplier"]) == 0.0 for phase in spec.phases):
        return (everything(confidence),)
    sizes = spec.threat_model.group_size
    present = records + theory.planted_on_average(int(spec.audit.options["canary"]["count"]), sizes)
    pairs = [(theory.planted_mixture(p, group_size, present), int(p["steps"])) for p in spec.phases]
    law = score_law(pairs) if spec.threat_model.access == "all-iterates" else end_to_end_law(pairs)
    best = design(law, canaries, delta, confidence)
    if best.guesses == canaries:
        return (best,)
    shared = 1.0 - (1.0 - confidence) / 2.0
    return (promise(law, best.guesses, canaries, delta, shared), everything(shared))


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """The delta at which lower bounds for a group size are stated: the largest that its claims name."""
    deltas = claimed_deltas(spec, group_size) or claimed_deltas(spec, 1)
    return deltas[-1] if deltas else DEFAULT_DELTA


def count(trials: Sequence[dps.Trial], group_size: int, guesses: int) -> Guesses:
    """Guess "in" for the highest half of the scores guessed and "out" for the lowest, in every trial alike.

    ``guesses`` is shared out among the trials in equal even parts, at least 2 and at most all, whatever their coins.
    """
    told = [outcome(trial, group_size) for trial in trials]
    each = max(2, 2 * round(guesses / (2 * len(told))))
    guessed = correct = 0
    for coins in told:
        number = min(each, len(coins)) if guesses < sum(map(len, told)) else len(coins)
        low, high = coins[: number - number // 2], coins[len(coins) - number // 2 :]
        guessed += number
        correct += low.count("0") + high.count("1")
    return Guesses(canaries=sum(map(len, told)), guesses=guessed, correct=correct)


def outcome(trial: dps.Trial, group_size: int) -> str:
    """The coins of one trial's canaries of a group size, from the lowest score to the highest; empty without any."""
    return next((str(coins) for size, coins in trial.evidence["outcomes"] if size == group_size), "")


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
        canaries = sum(len(outcome(trial, size)) for trial in trials)
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
                    status="declared",
                    text="how many guesses count follows from the spec: claims, confidence and runs were not chosen "
                    "after looking",
                ),
            ),
        )
