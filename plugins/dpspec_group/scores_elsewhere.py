"""What scores from elsewhere show, by the tests that the plugin's own attacks use, and what that rests on.

*Why the choice of guesses costs nothing.* The theorem behind one run asks for a number of guesses that was fixed before
the coins were seen. Here the numbers follow from the number of rows alone: 8, 24, 72, ... of either side, and all,
whatever the scores are; they are tested together, by the joint law of their counts. Many runs take thresholds at error
counts that follow from nothing but the numbers of runs, and pay for each (``dpspec.stats.attacks.thresholds``). Scores
that tie are ordered by a lot that knows no coin. Tables whose coins look unfair are not judged, and fair ones look so
with probability 1e-6 at most: by so much, and no more, can that choice raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.kit.scores_elsewhere.assumptions import assumptions, contradiction
from dpspec.kit.scores_elsewhere.score_trial import recorded_outcomes, table_of
from dpspec.stats.attacks import thresholds
from dpspec_group import theory
from dpspec_group.design import attack_delta, one_run_design
from dpspec_group.evidence import one_run_outcomes, ranked_outcomes
from dpspec_group.options import Attack


def plan(spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
    """One trial, which trains nothing; what each group size's rows could show at best."""
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
                note="how much is expected cannot be said beforehand",
            )
        )
    return dps.Plan(
        chunks=((0,),),
        seconds=5e-6 * len(table),
        memory_bytes=2**26 + 400 * len(table),
        power=tuple(powers),
        notes=("Nothing is trained: the scores are those of another program.",),
    )


def conclude(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Evidence and lower bounds for each group size, and whether they contradict what is declared."""
    attack = Attack.of(spec)
    # Where no theorem covers what is declared, no score can contradict it.
    unknown = theory.uncovered(spec.phases, [spec.threat_model.adjacency])
    for trial in trials:
        records = kit.recorded_number(trial, "records")
        outcomes = recorded_outcomes(spec, trial)
        for size, coins in outcomes.items():
            assumed = assumptions(attack.method, len(coins), len(outcomes))
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
    """The (epsilon, delta) pairs of the bound of a group size, in either direction; those that are finite."""
    bounds = theory.worst_epsilons(phases, size, records, kit.CURVE_DELTAS, "both", width=theory.CURVE_WIDTH)
    pairs = zip((bound.upper for bound in bounds), kit.CURVE_DELTAS, strict=True)
    return tuple((epsilon, delta) for epsilon, delta in pairs if epsilon < float("inf"))
