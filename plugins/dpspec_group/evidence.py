"""From what trials recorded to evidence and lower bounds, by designs that were fixed before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec.stats import gdp, ladder
from dpspec_group import manyruns
from dpspec_group.options import attack_of_spec
from dpspec_group.plans import COINS, attack_delta, one_run_design

_GUESSES = dps.Assumption(
    name="guess-count",
    status="declared",
    text="how many guesses count follows from the spec: claims, confidence and runs were not chosen after looking",
)

_GAUSSIAN = dps.Assumption(
    name="gaussian-scores", status="unchecked", text="scores are normal, and planting a group only shifts them"
)


def outcome(trial: dps.Trial, group_size: int) -> str:
    """The coins of one trial's canaries of a group size, from the lowest score to the highest; empty without any."""
    return next((str(coins) for size, coins in trial.evidence["outcomes"] if size == group_size), "")


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence for each group size, the lower bound that follows from it, and an estimate that is no bound."""
    attack = attack_of_spec(spec)
    if attack.method == "many-run":
        yield from manyruns.lower_bounds(spec, trials)
        return
    assert spec.audit is not None
    records, confidence = int(trials[0].evidence["records"]), spec.audit.confidence
    for size in attack.sizes:
        told = [outcome(trial, size) for trial in trials]
        canaries = sum(map(len, told))
        if canaries == 0:
            continue
        at = dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size})
        planned = one_run_design(spec, records, canaries, size)
        guesses, correct = ladder.counts(told, planned.rungs)
        yield dps.Evidence(
            id=f"one-run/k={size}",
            kind="one-run-ladder",
            statistics=dps.FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
            scope=attack.scope(spec),
            at=at,
            method=attack.words,
            source=ladder.SOURCE,
            power=planned.largest_epsilon,
        )
        yield dps.Finding(
            quantity="epsilon",
            value=ladder.epsilon_lower(canaries, guesses, correct, at["delta"], confidence),
            bound="lower",
            rigor="statistical",
            at=at,
            scope=attack.scope(spec),
            method=f"{attack.words}, {canaries} canary groups of {size}",
            source=ladder.SOURCE,
            confidence=confidence,
            assumptions=(COINS, _GUESSES),
        )
        if any("0" in coins and "1" in coins for coins in told):
            yield dps.Finding(
                quantity="epsilon",
                value=gdp.epsilon(gdp.estimate(told, confidence).mu, at["delta"]),
                bound="estimate",
                rigor="approximate",
                at=at,
                scope=attack.scope(spec),
                method=f"{attack.words}, as if a Gaussian mechanism",
                source=gdp.SOURCE,
                assumptions=(_GAUSSIAN,),
            )
