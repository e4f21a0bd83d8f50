"""Many runs: in each the target group is planted by a fair coin, and an exact test counts both kinds of error.

Where the law of the scores is known, the threshold from which on a run counts as "present" is fixed before. Where it
is not, the threshold that shows most is chosen on the runs themselves, and the test pays for the choice. Where runs end
as soon as they show enough, each threshold follows from earlier runs, and the test pays for being asked after each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import dpspec.contract as dps
from dpspec.stats import manyrun, sequential, thresholds
from dpspec_group.options import EDGES, attack_of_spec
from dpspec_group.plans import COINS, attack_delta, many_run_design

_SOURCE = "Clopper & Pearson 1934; Kairouz, Oh & Viswanath 2015"

_THRESHOLD = dps.Assumption(
    name="threshold", status="declared", text="the threshold follows from the spec, which was not chosen after looking"
)


class Run(NamedTuple):
    """One run: whether the target was planted, and how many edges of the grid its score reaches."""

    present: bool
    reached: int


def runs_of(trials: Sequence[dps.Trial], group_size: int) -> list[Run]:
    """The runs of one group size."""
    told = [outcome for trial in trials for outcome in trial.evidence["outcomes"]]
    return [Run(bool(coin), int(reached)) for size, coin, reached in told if size == group_size]


def counts(runs: Sequence[Run], edge: int) -> dict[str, int]:
    """The sufficient statistics with "present" said where the score reaches edge number ``edge``."""
    present = [run.reached > edge for run in runs if run.present]
    absent = [run.reached > edge for run in runs if not run.present]
    return {
        "present": len(present),
        "absent": len(absent),
        "true_positives": sum(present),
        "false_positives": sum(absent),
    }


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bound for each group size; nothing for a size whose coins all fell alike."""
    assert spec.audit is not None
    attack, records = attack_of_spec(spec), int(trials[0].evidence["records"])
    confidence, scope = spec.audit.confidence, attack.scope(spec)
    for size in attack.sizes:
        runs = runs_of(trials, size)
        present = sum(run.present for run in runs)
        sides = (present, len(runs) - present)
        if min(sides) == 0:
            continue
        at = dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size})
        fixed = None if attack.sequential else many_run_design(spec, records, len(runs), size)
        statistics: dict[str, dps.Json]
        assumptions: tuple[dps.Assumption, ...]
        if attack.sequential:
            kind, source, assumptions = "many-run-sequential", sequential.SOURCE, (COINS,)
            coins, scores = "".join(str(int(run.present)) for run in runs), tuple(run.reached for run in runs)
            statistics = {"coins": coins, "scores": scores}
            value = sequential.epsilon_lower(coins, scores, at["delta"], confidence)
            power = sequential.largest(len(runs), at["delta"], confidence)
        elif fixed is not None:
            kind, source, assumptions = "many-run", _SOURCE, (COINS, _THRESHOLD)
            statistics = dict(counts(runs, EDGES.index(fixed.score)))
            value = manyrun.epsilon_lower(**statistics, delta=at["delta"], confidence=confidence)
            power = manyrun.largest(*sides, at["delta"], confidence)
        else:
            kind, source, assumptions = "many-run-ranked", thresholds.SOURCE, (COINS,)
            ranked = thresholds.outcomes([run.reached for run in runs], [run.present for run in runs])
            statistics = {"outcomes": ranked}
            value = thresholds.epsilon_lower(ranked, at["delta"], confidence)
            power = thresholds.largest(*sides, at["delta"], confidence)
        yield dps.Evidence(
            id=f"many-run/k={size}",
            kind=kind,
            statistics=dps.FrozenMap(statistics),
            scope=scope,
            at=at,
            method=attack.words,
            source=source,
            power=power,
        )
        yield dps.Finding(
            quantity="epsilon",
            value=value,
            bound="lower",
            rigor="statistical",
            at=at,
            scope=scope,
            method=f"{attack.words}, {len(runs)} runs with and without a group of {size}",
            source=source,
            confidence=confidence,
            assumptions=assumptions,
        )
