"""What scores from elsewhere show, by the tests that the plugin's own attacks use, and what that rests on.

*Why the choice of guesses costs nothing.* The theorem behind one run asks for a number of guesses that was fixed before
the coins were seen. Here the numbers follow from the number of rows alone: 8, 24, 72, ... of either side, and all,
whatever the scores are; they are tested together, by the joint law of their counts. Many runs take thresholds at error
counts that follow from nothing but the numbers of runs, and pay for each (``dpspec.stats.attacks.thresholds``). Scores
that tie are ordered by a lot that knows no coin. Tables whose coins look unfair are not judged, and fair ones look so
with probability 1e-6 at most: by so much, and no more, can that choice raise an error.

*What nobody here can see* is whether coins were thrown as they should, whether scores knew them, and whether canaries
were left out afterwards. These stand as assumptions, ``declared``, beside every number. And dpspec saw nothing of the
training: its upper bounds hold for what is declared, so that of what ran they say nothing without an assumption that
nobody checked, and no claim is proved by them. One thing is tested of it: where the scores reject the bound of the
declared mechanism itself, what ran is not what was declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats import coins as of_coins
from dpspec.stats.attacks import evidence_tests, thresholds
from dpspec_group import theory
from dpspec_group.design import attack_delta, one_run_design
from dpspec_group.elsewhere.table import recorded_outcomes, table_of
from dpspec_group.evidence import one_run_outcomes, ranked_outcomes
from dpspec_group.options import Attack

#: What the upper bounds of a training that nobody here saw rest on.
TRAINED_AS_DECLARED = dps.Assumption(
    name="trained-as-declared",
    status="unchecked",
    text="what made the scores is the declared mechanism, with constants that do not depend on rows: it ran elsewhere, "
    "and dpspec saw nothing of it but the scores",
)

#: The scores contradict the declaration where the p-value of its bound is no larger: so small that a thousand audits
#: in one invocation share the level of conformance, 1e-6.
_CONTRADICTS = 1e-9


def as_executed(finding: dps.Finding) -> dps.Finding:
    """An upper bound of the declared mechanism, as one on what ran elsewhere if that is what was declared."""
    kept = tuple(a for a in finding.assumptions if a.name != "public-constants")
    return replace(
        finding,
        scope=replace(finding.scope, pipeline="executed"),
        assumptions=(*kept, TRAINED_AS_DECLARED),
    )


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
                if isinstance(evidence, dps.Evidence):
                    yield from _contradiction(spec, records, size, evidence)


def assumptions(method: str, rows: int, sizes: int) -> tuple[dps.Assumption, ...]:
    """What every number from scores of elsewhere rests on, of so many rows of one of so many group sizes."""
    one, row = ("run", "runs") if method == "many-run" else ("canary", "canaries")
    level = of_coins.LEVEL / (2 * sizes)
    return (
        dps.Assumption(
            name="fair-coins",
            status="declared",
            text=f"each {one} is in or out by a fair coin of its own, thrown before training and independent of all "
            "else; that not too many are alike, and not too many in turns, was looked at, and nothing else",
            test="exact binomial tests of balance and alternation",
            level=level,
            detectable=2.0 * (of_coins.least_seen(rows, level) - 0.5),
        ),
        dps.Assumption(
            name="blind-scores",
            status="declared",
            text=f"the score of a {one} was made by one rule for those in and those out, without looking at its coin",
        ),
        dps.Assumption(
            name="fixed-rows",
            status="declared",
            text=f"how many {row} there are was fixed before training, and all of them are in the table",
        ),
        dps.Assumption(
            name="access",
            status="declared",
            text="scores were made of what threat_model.access says is released, and of nothing that an adversary "
            "does not know",
        ),
    )


def _contradiction(spec: dps.Spec, records: int, size: int, evidence: dps.Evidence) -> Iterator[dps.Check]:
    """A check that is made known only where it rejects: one that does not would be no word on what ran."""
    curve = _declared_curve(spec.phases, size, records)
    p_value = evidence_tests.curve_p_value(evidence, curve)
    if p_value <= _CONTRADICTS:
        yield dps.Check(
            assumption=TRAINED_AS_DECLARED.name,
            test=f"{evidence.method}: the declared mechanism's own bound",
            p_value=p_value,
            observed="measured",
            note="or coins and scores are not what they are taken for" + (f", groups of {size}" if size > 1 else ""),
        )


@lru_cache(maxsize=64)
def _declared_curve(phases: Sequence[dps.Phase], size: int, records: int) -> tuple[tuple[float, float], ...]:
    """The (epsilon, delta) pairs of the bound of a group size, in either direction; those that are finite."""
    sides = [theory.group_epsilons(phases, size, records, kit.CURVE_DELTAS, way) for way in theory.DIRECTIONS]
    bounds = [max(0.0, one.upper, other.upper) for one, other in zip(*sides, strict=True)]
    pairs = zip(bounds, kit.CURVE_DELTAS, strict=True)
    return tuple((epsilon, delta) for epsilon, delta in pairs if epsilon < float("inf"))
