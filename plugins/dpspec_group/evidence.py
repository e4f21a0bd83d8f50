"""Evidence, lower bounds and checks from trials, with designs that are fixed in advance.

One run with many canaries uses fixed guess counts. Many runs have a fair coin each; the threshold for "present" is
fixed in advance if the distribution of scores is known, else chosen on the same runs with a correction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec.accounting import Interval
from dpspec.kit.scores_elsewhere import assumptions, contradiction, recorded_outcomes
from dpspec.stats import utility
from dpspec.stats.attacks import (
    curve_lines,
    guess_counts,
    independent_scores,
    one_run,
    ranked_runs,
    sequential,
    thresholds,
)
from dpspec.stats.conformance import table
from dpspec_group import theory
from dpspec_group.options import EDGES, Attack
from dpspec_group.scores import attack_delta, declared_distribution, many_run_design, one_run_design, what

_GUESSES = dps.Assumption(
    name="guess-count",
    status="declared",
    text="the spec fixes the number of canaries that the attack guesses about; claims, confidence and runs were chosen "
    "before the results were seen",
)

_THRESHOLD = dps.Assumption(
    name="threshold", status="declared", text="the spec fixes the threshold, chosen before the results were seen"
)

#: Source of each kind of evidence, and its assumption in addition to fair coins.
_KINDS = {
    "one-run-ladder": (guess_counts.SOURCE, (_GUESSES,)),
    "many-run": ("Clopper & Pearson 1934; Kairouz, Oh & Viswanath 2015", (_THRESHOLD,)),
    "many-run-ranked": (thresholds.SOURCE, ()),
    "many-run-sequential": (sequential.SOURCE, ()),
}

_INDEPENDENT = dps.Assumption(
    name="independent-scores",
    status="not-rejected",
    text="scores of canaries of a run are independent, and all runs leak equally much",
    test="chi-square test of the spread of correct guesses over runs",
)

_RUNS = dps.Assumption(
    name="independent-runs", status="by-construction", text="runs have independent coins and randomness"
)

_GAUSSIAN = dps.Assumption(
    name="gaussian-scores",
    status="unchecked",
    text="the attack's scores, a number per canary, have a normal distribution, and inserting a group only shifts its "
    "mean",
)


def _records(trials: Sequence[dps.Trial]) -> int:
    """Number of real records, without inserted ones."""
    numbers = {kit.recorded_number(trial, "records") for trial in trials}
    logs = [trial.evidence.get("sampling_log") for trial in trials]
    sampled = [log.get("records") for log in logs if isinstance(log, Mapping)]
    records = min(numbers)
    if len(numbers) > 1 or any(isinstance(number, int) and number < records for number in sampled):
        raise ValueError(f"records must be equal in all trials and at most those sampled from, got {max(numbers)}")
    return records


def one_run_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Per group size: evidence, bounds on epsilon and mu, and an estimate."""
    attack, records = Attack.of(spec), _records(trials)
    counts = dict.fromkeys(attack.sizes, attack.tested(attack.share))
    coins = [kit.coins_by_size(trial, counts) for trial in trials]
    for size in attack.sizes:
        yield from one_run_outcomes(spec, records, size, [by_size[size] for by_size in coins])


def one_run_outcomes(
    spec: dps.Spec, records: int, size: int, outcomes: Sequence[str], *, external: Sequence[dps.Assumption] = ()
) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence, bounds on epsilon and mu (of a whole curve, with more guesses) and an estimate for one group size."""
    attack = Attack.of(spec)
    canaries = sum(map(len, outcomes))
    if canaries == 0:
        return
    planned = one_run_design(spec, records, canaries, size)
    guesses, correct = guess_counts.counts(outcomes, planned.rungs)
    statistics = {"canaries": canaries, "guesses": guesses, "correct": correct}
    power = planned.largest_epsilon
    evidence, lower = _tested(spec, records, size, canaries, "one-run-ladder", statistics, power, external)
    yield evidence
    yield lower
    mu, mu_guesses = guess_counts.mu_lower(outcomes, attack.confidence)
    method = f"{lower.method}, {mu_guesses} guesses"
    mu_arguments = dps.FrozenMap({"group_size": size})
    yield replace(lower, quantity="mu", value=mu, at=mu_arguments, method=method, source=one_run.CURVE_SOURCE)
    conditional: dps.Finding | str = ""
    if not external and len(outcomes) >= independent_scores.LEAST_RUNS:
        conditional = _if_independent(spec, records, size, outcomes, lower)
    if isinstance(conditional, dps.Finding):
        yield conditional
    if any("0" in ordered and "1" in ordered for ordered in outcomes):
        refused = f"; no epsilon-if-independent, because {conditional}" if isinstance(conditional, str) else ""
        yield dps.Finding(
            quantity="epsilon",
            value=curve_lines.gaussian_epsilon(curve_lines.estimate_mu(outcomes), evidence.at["delta"]),
            bound="estimate",
            rigor="approximate",
            at=evidence.at,
            scope=evidence.scope,
            method=f"{attack.description}, assuming a Gaussian mechanism{refused if conditional else ''}",
            source=curve_lines.GAUSSIAN_SOURCE,
            assumptions=(_GAUSSIAN,),
        )


def _if_independent(
    spec: dps.Spec, records: int, size: int, outcomes: Sequence[str], lower: dps.Finding
) -> dps.Finding | str:
    """Conditional bound on epsilon of several runs at a testable delta, and its condition; or why it is missing.

    The declared distribution of scores determines the design, or, if it is unknown, the first quarter of the runs,
    which is then not guessed. ``lower`` is the unconditional bound.
    """
    attack, law = Attack.of(spec), declared_distribution(spec, records, size)
    calibration_runs = 0 if law is not None else max(1, len(outcomes) // 4)
    mu = law.mu() if law is not None else curve_lines.estimate_mu(outcomes[:calibration_runs])
    guessed = outcomes[calibration_runs:]
    canaries = sum(map(len, guessed)) // max(1, len(guessed))
    delta = lower.at["delta"]
    chosen = independent_scores.design(mu, max(2, len(guessed)), canaries, delta, attack.confidence)
    try:
        bound = independent_scores.epsilon_lower(guessed, chosen, attack.confidence)
    except independent_scores.NoBoundError as error:
        return str(error)
    method = f"{lower.method}, {bound.guesses} guesses, if scores of a run are independent"
    phases = theory.accounted(spec)
    if not theory.uncovered(phases, [spec.threat_model.adjacency]):
        direction = spec.threat_model.direction
        (proved,) = theory.group_epsilons(phases, size, records, [chosen.delta], direction)
        method += f"; at most {decimals.upper(proved.upper)} is certified at this delta"
    independent = replace(_INDEPENDENT, level=independent_scores.LEVEL, detectable=bound.detectable)
    return replace(
        lower,
        quantity="epsilon-if-independent",
        value=bound.epsilon,
        rigor="approximate",
        at=dps.FrozenMap({"delta": chosen.delta, "group_size": size}),
        method=method,
        source=independent_scores.SOURCE,
        assumptions=(*lower.assumptions, independent),
    )


def mu_of_runs(spec: dps.Spec, records: int, size: int, ranked: str) -> Iterator[dps.Finding]:
    """Lower bound on mu from runs with and without one group, for any mechanism; empty for fewer than four runs."""
    if len(ranked) < ranked_runs.LEAST_RUNS:
        return
    attack, guesses, delta = Attack.of(spec), ranked_runs.design(len(ranked)), attack_delta(spec, size)
    mu = ranked_runs.mu_lower(guesses, ranked_runs.right(ranked, guesses), attack.confidence)
    method = f"{attack.description}, {what(attack, len(ranked), size)}, {guesses.low + guesses.high} guesses"
    if mu > 0.0:
        shown = decimals.lower(curve_lines.gaussian_epsilon(mu, delta))
        method += f"; for a Gaussian mechanism epsilon {shown} at delta {decimals.exact(delta)}"
    yield dps.Finding(
        quantity="mu",
        value=mu,
        bound="lower",
        rigor="statistical",
        at=dps.FrozenMap({"group_size": size}),
        scope=attack.scope(spec, records),
        method=method,
        source=ranked_runs.SOURCE,
        assumptions=(kit.COINS, _RUNS),
        confidence=attack.confidence,
    )


def runs_of(attack: Attack, trials: Sequence[dps.Trial]) -> dict[int, list[tuple[int, int]]]:
    """By group size: the coin of each run, and the number of edges that its score reaches."""
    runs: dict[int, list[tuple[int, int]]] = {size: [] for size in attack.sizes}
    declared = [size for size in attack.sizes for _ in range(attack.share)]
    for trial in trials:
        outcomes = list(kit.recorded(trial, "outcomes"))
        if [outcome[0] for outcome in outcomes] != declared:
            raise ValueError(f"outcomes must contain {attack.share} groups of each size")
        scored = kit.scored_coins([outcome[1:] for outcome in outcomes], len(declared), len(EDGES))
        for size, run in zip(declared, scored, strict=True):
            runs[size].append(run)
    return runs


def counts(runs: Sequence[tuple[int, int]], edge: int) -> dict[str, int]:
    """Numbers of present and absent groups, and of those whose score is above the ``edge``."""
    present, absent = ([reached > edge for coin, reached in runs if coin == side] for side in (1, 0))
    return {
        "present": len(present),
        "absent": len(absent),
        "true_positives": sum(present),
        "false_positives": sum(absent),
    }


def many_run_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bounds for each group size, except for sizes with equal coins in all runs."""
    attack, records = Attack.of(spec), _records(trials)
    for size, runs in runs_of(attack, trials).items():
        if attack.sequential:
            yield from sequential_outcomes(spec, records, size, runs)
            continue
        ranked = thresholds.outcomes([reached for _, reached in runs], [bool(coin) for coin, _ in runs])
        if len(set(ranked)) < 2:
            continue
        fixed = many_run_design(spec, records, len(runs), size)
        counted = None if fixed is None else counts(runs, EDGES.index(fixed[0]))
        yield from many_run_outcomes(spec, records, size, ranked, counted)
        yield from mu_of_runs(spec, records, size, ranked)


def sequential_outcomes(
    spec: dps.Spec, records: int, size: int, runs: Sequence[tuple[int, int]]
) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bound, valid after any number of runs; ``runs`` are coins and reached edges, in order."""
    coins, scores = "".join(str(coin) for coin, _ in runs), [reached for _, reached in runs]
    if len(set(coins)) == 2:
        power = sequential.largest(len(runs), attack_delta(spec, size), Attack.of(spec).confidence)
        statistics: dict[str, dps.Json] = {"coins": coins, "scores": scores}
        yield from _tested(spec, records, size, len(runs), "many-run-sequential", statistics, power)


def many_run_outcomes(
    spec: dps.Spec,
    records: int,
    size: int,
    ranked: str,
    counted: Mapping[str, dps.Json] | None = None,
    external: Sequence[dps.Assumption] = (),
) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bound from coins in ascending order of score, or from counts at a threshold fixed before."""
    sides = ranked.count("1"), ranked.count("0")
    if min(sides) == 0:
        return
    kind, largest = "many-run", thresholds.fixed_largest
    if counted is None:
        kind, largest, counted = "many-run-ranked", thresholds.largest, {"outcomes": ranked}
    power = largest(*sides, attack_delta(spec, size), Attack.of(spec).confidence)
    yield from _tested(spec, records, size, len(ranked), kind, counted, power, external)


def _tested(
    spec: dps.Spec,
    records: int,
    size: int,
    rows: int,
    kind: str,
    statistics: Mapping[str, dps.Json],
    power: float,
    external: Sequence[dps.Assumption] = (),
) -> tuple[dps.Evidence, dps.Finding]:
    """Evidence from ``rows`` canaries or runs of one group size, and its lower bound on epsilon."""
    attack, (source, further) = Attack.of(spec), _KINDS[kind]
    evidence = dps.Evidence(
        id=f"{attack.method}/k={size}",
        kind=kind,
        statistics=dps.FrozenMap(statistics),
        scope=attack.scope(spec, records),
        at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
        method=attack.description,
        source=source,
        power=power,
        assumptions=tuple(external),
    )
    method = f"{attack.description}, {what(attack, rows, size)}"
    assumptions = (*(external or (kit.COINS,)), *further)
    return evidence, kit.lower_from(evidence, attack.confidence, method=method, assumptions=assumptions)


def conclude_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Lower bounds, accuracy and checks; epsilon of the executed run once all planned runs are complete."""
    attack = Attack.of(spec)
    yield from (many_run_bounds if attack.method == "many-run" else one_run_bounds)(spec, trials)
    if not attack.chosen_weights:  # accuracy from adversarial initial weights is meaningless
        yield from utility.accuracies(spec, trials)
    yield from table.checks(spec.phases, [trial.evidence for trial in trials], privacy=spec.data_privacy)
    if len(trials) == attack.runs and not attack.sequential:
        records, direction = _records(trials), spec.threat_model.direction

        def epsilons(phases: Sequence[dps.Phase], size: int, deltas: Sequence[float]) -> list[Interval]:
            return theory.group_epsilons(phases, size, records, deltas, direction)

        yield from kit.epsilon_as_run(spec, trials, epsilons)


def conclude_external(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    attack = Attack.of(spec)
    for trial in trials:
        records, outcomes = kit.recorded_number(trial, "records"), recorded_outcomes(spec, trial)
        for size, coins in outcomes.items():
            assumed = assumptions(len(coins), len(outcomes))
            if attack.method == "many-run":
                results = list(many_run_outcomes(spec, records, size, coins, external=assumed))
            else:
                results = list(one_run_outcomes(spec, records, size, [coins], external=assumed))
            yield from results
            # Without an applicable theorem no score can contradict the declaration.
            if theory.uncovered(spec.phases, [spec.threat_model.adjacency]):
                continue
            for evidence in results:
                if isinstance(evidence, dps.Evidence):
                    yield from contradiction(evidence, _declared_curve(theory.accounted(spec), size, records), size)


@lru_cache(maxsize=64)
def _declared_curve(phases: Sequence[dps.Phase], size: int, records: int) -> tuple[tuple[float, float], ...]:
    """Finite (epsilon, delta) pairs of the bound for a group size, as the maximum over both directions."""
    bounds = theory.group_epsilons(phases, size, records, kit.CURVE_DELTAS, "both", width=theory.CURVE_WIDTH)
    pairs = zip((bound.upper for bound in bounds), kit.CURVE_DELTAS, strict=True)
    return tuple((epsilon, delta) for epsilon, delta in pairs if epsilon < float("inf"))
