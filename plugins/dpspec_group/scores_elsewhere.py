"""Lower bounds from external scores, with the tests of the plugin's attacks.

The numbers of guesses depend only on the number of rows (8, 24, 72, ... per side, and all), thresholds of many runs
only on the numbers of runs. Ties are ordered at random, independently of the coins. Tables with implausible coins are
refused, which happens to fair coins with probability at most 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.kit.scores_elsewhere import assumptions, contradiction, recorded_outcomes, table_of
from dpspec.stats.attacks import thresholds
from dpspec_group import theory
from dpspec_group.design import attack_delta, one_run_design
from dpspec_group.evidence import one_run_outcomes, ranked_outcomes
from dpspec_group.options import Attack


def plan(spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
    assert spec.audit is not None
    table, attack, confidence = table_of(spec.document, spec.directory), Attack.of(spec), spec.audit.confidence
    powers = []
    for size in table.sizes:
        coins, _ = table.of_size(size)
        delta, rows, present = attack_delta(spec, size), len(coins), int(coins.sum())
        if attack.method == "many-run":
            largest, what = thresholds.largest(present, rows - present, delta, confidence), f"{rows} runs of"
        else:
            largest, what = one_run_design(spec, facts.records, rows, size).largest_epsilon, f"{rows} canary"
        powers.append(
            dps.Power(
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                epsilon=largest,
                method=f"{attack.description}, {what} groups of {size}",
                note="the expected bound is unknown",
            )
        )
    return dps.Plan(
        chunks=((0,),),
        seconds=5e-6 * len(table),
        memory_bytes=2**26 + 400 * len(table),
        power=tuple(powers),
        notes=("No training: the scores come from an external program.",),
    )


def conclude(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    attack = Attack.of(spec)
    # Without an applicable theorem no score can contradict the declaration.
    unknown = theory.uncovered(spec.phases, [spec.threat_model.adjacency])
    for trial in trials:
        records = kit.recorded_number(trial, "records")
        outcomes = recorded_outcomes(spec, trial)
        for size, coins in outcomes.items():
            assumed = assumptions(len(coins), len(outcomes))
            if attack.method == "many-run":
                found = list(ranked_outcomes(spec, records, size, coins, coins=assumed, rests_on=assumed))
            else:
                found = list(one_run_outcomes(spec, records, size, [coins], coins=assumed, rests_on=assumed))
            yield from found
            for evidence in found:
                if isinstance(evidence, dps.Evidence) and not unknown:
                    yield from contradiction(evidence, _declared_curve(spec.phases, size, records), size)


@lru_cache(maxsize=64)
def _declared_curve(phases: Sequence[dps.Phase], size: int, records: int) -> tuple[tuple[float, float], ...]:
    """Finite (epsilon, delta) pairs of the bound for a group size, as the maximum over both directions."""
    bounds = theory.worst_epsilons(phases, size, records, kit.CURVE_DELTAS, "both", width=theory.CURVE_WIDTH)
    pairs = zip((bound.upper for bound in bounds), kit.CURVE_DELTAS, strict=True)
    return tuple((epsilon, delta) for epsilon, delta in pairs if epsilon < float("inf"))
