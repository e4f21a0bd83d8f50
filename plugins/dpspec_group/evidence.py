"""Evidence, lower bounds and checks from trials, with designs that are fixed in advance.

One run with many canaries uses fixed guess counts. Many runs have a fair coin each; the threshold for "present" is
fixed in advance if the distribution of scores is known, else chosen on the same runs with a correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval
from dpspec.kit.scores_elsewhere import assumptions, contradiction, recorded_outcomes, table_of
from dpspec.stats import utility
from dpspec.stats.attacks import curve_lines, guess_counts, independence, one_run, thresholds
from dpspec.stats.attacks.independent_bounds import dependence_of_size, independent_bounds, layers_share
from dpspec.stats.conformance import table
from dpspec.stats.conformance.canary_contributions import StepDependence
from dpspec_group import theory
from dpspec_group.options import EDGES, Attack
from dpspec_group.scores import attack_delta, many_run_design, one_run_design

_MANY_RUN_SOURCE = "Clopper & Pearson 1934; Kairouz, Oh & Viswanath 2015"

_GUESSES = dps.Assumption(
    name="guess-count",
    status="declared",
    text="the spec fixes the number of guesses; claims, confidence and runs were chosen before the results were seen",
)

_THRESHOLD = dps.Assumption(
    name="threshold", status="declared", text="the spec fixes the threshold, chosen before the results were seen"
)

_RUNS = dps.Assumption(
    name="independent-runs", status="by-construction", text="runs have independent coins and randomness"
)

_GAUSSIAN = dps.Assumption(
    name="gaussian-scores", status="unchecked", text="scores are Gaussian, and inserting a group only shifts their mean"
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
    """Per group size: evidence, bounds on epsilon and mu, an estimate, and bounds for independent canaries."""
    attack, records = Attack.of(spec), _records(trials)
    counts = dict.fromkeys(attack.sizes, attack.tested(attack.share))
    coins = [kit.coins_by_size(trial, counts) for trial in trials]
    # Findings are public, so measured dependence between canaries is used only for public data.
    ran = [trial.evidence for trial in trials] if spec.data_privacy == "public" else []
    layers = layers_share(ran)
    for size in attack.sizes:
        ordered = [by_size[size] for by_size in coins]
        yield from one_run_outcomes(spec, records, size, ordered, luck=dependence_of_size(ran, size), layers=layers)


def one_run_outcomes(
    spec: dps.Spec,
    records: int,
    size: int,
    outcomes: Sequence[str],
    *,
    external: Sequence[dps.Assumption] = (),
    luck: Sequence[StepDependence] = (),
    layers: float | None = None,
) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence, bounds on epsilon and mu, and an estimate for one group size, with bounds for independent canaries.

    ``external`` are the assumptions about scores of an external program. The bound on mu concerns a whole curve, so it
    uses more guesses; it implies an epsilon only for a Gaussian mechanism.
    """
    assert spec.audit is not None
    attack, confidence = Attack.of(spec), spec.audit.confidence
    canaries = sum(map(len, outcomes))
    if canaries == 0:
        return
    assumptions = (*(external or (kit.COINS,)), _GUESSES)
    planned = one_run_design(spec, records, canaries, size)
    guesses, correct = guess_counts.counts(outcomes, planned.rungs)
    evidence = dps.Evidence(
        id=f"one-run/k={size}",
        kind="one-run-ladder",
        statistics=dps.FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
        scope=attack.scope(spec, records),
        at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
        method=attack.description,
        source=guess_counts.SOURCE,
        power=planned.largest_epsilon,
        assumptions=tuple(external),
    )
    yield evidence
    method, at, scope = f"{attack.description}, {canaries} canary groups of {size}", evidence.at, evidence.scope
    yield kit.lower_from(evidence, confidence, method=method, assumptions=assumptions)
    of_curve, right = guess_counts.counts(outcomes, [guess_counts.of_curve(canaries)])
    mu = one_run.mu_lower(canaries, of_curve[0], right[0], confidence)
    present = records + max(attack.share, canaries) * sum(attack.sizes)  # canaries also fill truncated batches
    yield _mu(spec, mu, size, present, scope, f"{method}, {of_curve[0]} guesses", one_run.CURVE_SOURCE, assumptions)
    if any("0" in ordered and "1" in ordered for ordered in outcomes):
        yield dps.Finding(
            quantity="epsilon",
            value=curve_lines.gaussian_epsilon(curve_lines.estimate_mu(outcomes), at["delta"]),
            bound="estimate",
            rigor="approximate",
            at=at,
            scope=scope,
            method=f"{attack.description}, assuming a Gaussian mechanism",
            source=curve_lines.GAUSSIAN_SOURCE,
            assumptions=(_GAUSSIAN,),
        )
    curve = _status_of_gaussian_curve(spec)
    yield from independent_bounds(outcomes, at, scope, method, confidence, assumptions, luck, layers, curve=curve)


def _status_of_gaussian_curve(spec: dps.Spec) -> Literal["declared", "unchecked"] | None:
    """Status of the assumption that each canary's privacy curve is Gaussian; None if it is known not to be.

    A gradient canary shifts the declared Gaussian noise. Sampling makes the curve of its presence larger at small
    rates than the fitted one, so that epsilon is understated, and the curve of its absence smaller. For external
    scores, their author declares it.
    """
    assert spec.audit is not None
    attack = Attack.of(spec)
    if attack.elsewhere:
        return "declared" if spec.audit.options["scores"].get("gaussian_curve") else None
    if spec.threat_model.direction == "add" and not all(phase.sampling.is_full for phase in spec.phases):
        return None
    noisy = not any(phase.noiseless for phase in spec.phases)
    return "declared" if attack.space == "gradient" and noisy else "unchecked"


def mu_of_runs(spec: dps.Spec, records: int, size: int, ranked: str) -> Iterator[dps.Finding]:
    """Lower bound on mu from runs with and without one group, for any mechanism; empty for fewer than four runs."""
    assert spec.audit is not None
    if len(ranked) < independence.LEAST_CANARIES:
        return
    attack, guesses, delta = Attack.of(spec), independence.design(len(ranked)), attack_delta(spec, size)
    mu = independence.mu_lower([guesses], independence.right(ranked, guesses), spec.audit.confidence)
    method = f"{attack.description}, {len(ranked)} runs with and without a group of {size}"
    method += f", {guesses.low + guesses.high} guesses"
    if mu > 0.0:
        method += f"; for a Gaussian mechanism epsilon {curve_lines.gaussian_epsilon(mu, delta):.4g} at delta {delta:g}"
    present, scope = records + sum(attack.sizes), attack.scope(spec, records)
    yield _mu(spec, mu, size, present, scope, method, independence.SOURCE, (kit.COINS, _RUNS))


def _mu(
    spec: dps.Spec,
    mu: float,
    size: int,
    records: int,
    scope: dps.Scope,
    method: str,
    source: str,
    assumptions: tuple[dps.Assumption, ...],
) -> dps.Finding:
    assert spec.audit is not None
    if not theory.uncovered(spec.phases, [spec.threat_model.adjacency]):
        method += theory.noise_ruled_out(spec.phases, size, records, mu)
    return dps.Finding(
        quantity="mu",
        value=mu,
        bound="lower",
        rigor="statistical",
        at=dps.FrozenMap({"group_size": size}),
        scope=scope,
        method=method,
        source=source,
        assumptions=assumptions,
        confidence=spec.audit.confidence,
    )


class Run(NamedTuple):
    """One of many runs: whether the canary group was present, and the number of edges that its score reaches."""

    present: bool
    reached: int


def runs_of(attack: Attack, trials: Sequence[dps.Trial]) -> dict[int, list[Run]]:
    """Runs by group size."""
    runs: dict[int, list[Run]] = {size: [] for size in attack.sizes}
    declared = [size for size in attack.sizes for _ in range(attack.share)]
    for trial in trials:
        outcomes = list(kit.recorded(trial, "outcomes"))
        if [outcome[0] for outcome in outcomes] != declared:
            raise ValueError(f"outcomes must contain {attack.share} groups of each size")
        scored = kit.scored_coins([outcome[1:] for outcome in outcomes], len(declared), len(EDGES))
        for size, (coin, reached) in zip(declared, scored, strict=True):
            runs[size].append(Run(bool(coin), reached))
    return runs


def counts(runs: Sequence[Run], edge: int) -> dict[str, int]:
    present = [run.reached > edge for run in runs if run.present]
    absent = [run.reached > edge for run in runs if not run.present]
    return {
        "present": len(present),
        "absent": len(absent),
        "true_positives": sum(present),
        "false_positives": sum(absent),
    }


def many_run_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bounds for each group size, except for sizes with equal coins in all runs."""
    assert spec.audit is not None
    attack, records, confidence = Attack.of(spec), _records(trials), spec.audit.confidence
    for size, runs in runs_of(attack, trials).items():
        present = sum(run.present for run in runs)
        sides = (present, len(runs) - present)
        if min(sides) == 0:
            continue
        delta = attack_delta(spec, size)
        ranked = thresholds.outcomes([run.reached for run in runs], [run.present for run in runs])
        fixed = many_run_design(spec, records, len(runs), size)
        if fixed is None:
            yield from ranked_outcomes(spec, records, size, ranked)
        else:
            counted: dict[str, dps.Json] = dict(counts(runs, EDGES.index(fixed.score)))
            power = thresholds.fixed_largest(*sides, delta, confidence)
            kind, assumed = ("many-run", _MANY_RUN_SOURCE), [kit.COINS, _THRESHOLD]
            yield from _many_run_outcomes(spec, records, size, len(runs), kind, counted, power, assumed)
        yield from mu_of_runs(spec, records, size, ranked)


def ranked_outcomes(
    spec: dps.Spec, records: int, size: int, ranked: str, external: Sequence[dps.Assumption] = ()
) -> Iterator[dps.Evidence | dps.Finding]:
    assert spec.audit is not None
    sides = (ranked.count("1"), ranked.count("0"))
    if min(sides) == 0:
        return
    power = thresholds.largest(*sides, attack_delta(spec, size), spec.audit.confidence)
    kind, assumptions = ("many-run-ranked", thresholds.SOURCE), external or [kit.COINS]
    statistics: dict[str, dps.Json] = {"outcomes": ranked}
    yield from _many_run_outcomes(spec, records, size, len(ranked), kind, statistics, power, assumptions, external)


def _many_run_outcomes(
    spec: dps.Spec,
    records: int,
    size: int,
    runs: int,
    kind_and_source: tuple[str, str],
    statistics: dict[str, dps.Json],
    power: float,
    assumptions: Sequence[dps.Assumption],
    external: Sequence[dps.Assumption] = (),
) -> Iterator[dps.Evidence | dps.Finding]:
    assert spec.audit is not None
    attack = Attack.of(spec)
    evidence = dps.Evidence(
        id=f"many-run/k={size}",
        kind=kind_and_source[0],
        statistics=dps.FrozenMap(statistics),
        scope=attack.scope(spec, records),
        at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
        method=attack.description,
        source=kind_and_source[1],
        power=power,
        assumptions=tuple(external),
    )
    yield evidence
    method = f"{attack.description}, {runs} runs with and without a group of {size}"
    yield kit.lower_from(evidence, spec.audit.confidence, method=method, assumptions=assumptions)


def conclude_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Lower bounds, accuracy, and a check per declared property; epsilon of the executed run once all runs of a
    planned audit are complete.
    """
    assert spec.audit is not None
    attack = Attack.of(spec)
    yield from (many_run_bounds if attack.method == "many-run" else one_run_bounds)(spec, trials)
    if not attack.chosen_weights:  # accuracy from adversarial initial weights is meaningless
        yield from utility.accuracies(spec, trials)
    yield from table.checks(spec.phases, [trial.evidence for trial in trials], privacy=spec.data_privacy)
    if len(trials) == spec.audit.runs:
        records, direction = _records(trials), spec.threat_model.direction

        def epsilons(phases: Sequence[dps.Phase], size: int, deltas: Sequence[float]) -> list[Interval]:
            return theory.group_epsilons(phases, size, records, deltas, direction)

        yield from kit.epsilon_as_run(spec, trials, epsilons)


def plan_external(spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
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


def conclude_external(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    attack = Attack.of(spec)
    for trial in trials:
        records, outcomes = kit.recorded_number(trial, "records"), recorded_outcomes(spec, trial)
        for size, coins in outcomes.items():
            assumed = assumptions(len(coins), len(outcomes))
            if attack.method == "many-run":
                found = list(ranked_outcomes(spec, records, size, coins, assumed))
            else:
                found = list(one_run_outcomes(spec, records, size, [coins], external=assumed))
            yield from found
            # Without an applicable theorem no score can contradict the declaration.
            if theory.uncovered(spec.phases, [spec.threat_model.adjacency]):
                continue
            for evidence in found:
                if isinstance(evidence, dps.Evidence):
                    yield from contradiction(evidence, _declared_curve(spec.phases, size, records), size)


@lru_cache(maxsize=64)
def _declared_curve(phases: Sequence[dps.Phase], size: int, records: int) -> tuple[tuple[float, float], ...]:
    """Finite (epsilon, delta) pairs of the bound for a group size, as the maximum over both directions."""
    bounds = theory.group_epsilons(phases, size, records, kit.CURVE_DELTAS, "both", width=theory.CURVE_WIDTH)
    pairs = zip((bound.upper for bound in bounds), kit.CURVE_DELTAS, strict=True)
    return tuple((epsilon, delta) for epsilon, delta in pairs if epsilon < float("inf"))
