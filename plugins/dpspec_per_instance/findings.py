"""Findings of trials: epsilons of records and quantiles, estimability, and lower bounds from attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats.attacks import thresholds
from dpspec_per_instance import bounds, theory
from dpspec_per_instance.analysis import Analysis, Epsilons, read_sizes
from dpspec_per_instance.options import EDGES, AuditBlock, Audited

#: Fractions of the population at which epsilon is reported, in addition to claimed fractions.
FRACTIONS = (0.1, 0.5, 0.9)

#: Number of runs that counts as infinite.
MOST_RUNS = 1e300

_SOURCE = f"{theory.STEP_SOURCE} and {theory.RUN_SOURCE.partition(', ')[2]}"

_RUNS = dps.Assumption(name="independent-runs", status="by-construction", text="runs differ only in batches and noise")
_COINS = kit.coins("the record is included independently with probability 1/2 in every run")


def record_findings(spec: dps.Spec, records: Analysis) -> Iterator[dps.Finding]:
    claimed = {c.record for c in spec.claims if c.record is not None and c.kind == "per-instance-dp"}
    fractions = {*FRACTIONS, *(float(c["fraction"]) for c in spec.claims if "fraction" in c.options)}
    for direction in bounds.spoken_directions(spec):
        if not set(bounds.one_sided(direction)) <= set(records.audited.directions):
            continue
        for delta in kit.claimed_deltas(spec):
            epsilons = records.epsilons(delta, direction)
            for record in sorted(claimed):
                yield from _epsilon_findings(records, epsilons, record=record)
            for fraction in sorted(fractions):
                yield from _epsilon_findings(records, epsilons, fraction=fraction)
            if direction == records.audited.widest_direction:
                yield from _renyi_comparison(records, epsilons)
    yield _runs_needed(records)


def quantile_place(fraction: float, audited: int, population: int, failure: float | None) -> int | None:
    """Index of the sorted values of ``audited`` records that bounds a ``fraction`` of the population."""
    if audited > population:
        raise ValueError(f"{audited} records cannot be a sample of {population}")
    wanted = int(np.ceil(fraction * population - 1e-9))
    if audited == population:
        return max(0, wanted - 1)
    if failure is None:
        return max(0, int(np.ceil(fraction * audited - 1e-9)) - 1)
    enough = np.flatnonzero(above(population, max(0, wanted - 1), audited) <= failure)
    return int(enough[0]) if len(enough) else None


def above(population: int, marked: int, drawn: int) -> npt.NDArray[np.float64]:
    """P[X > i], i = 0, ..., drawn - 1, of the hypergeometric number X of marked records in a sample, shape (drawn,).

    Linear in ``drawn``; the relative rounding error of results above 1e-290 is at most (10 drawn + 100) 2^-52. SciPy's
    function is linear in the population and does not finish for 2^62.
    """
    least, most = max(0, drawn - (population - marked)), min(drawn, marked)
    k = np.arange(least, most)
    gain = np.log(marked - k) + np.log(drawn - k) - np.log(k + 1) - np.log(population - marked - drawn + 1 + k)
    logs = np.concatenate([[0.0], np.cumsum(gain)])
    weights = np.exp(logs - logs.max())
    tails = np.cumsum(weights[::-1])[::-1]
    found = np.concatenate([np.ones(least), tails[1:] / tails[0], np.zeros(drawn - most)])
    return found[:drawn]


def _renyi_comparison(records: Analysis, epsilons: Epsilons) -> Iterator[dps.Finding]:
    below = np.minimum(epsilons.estimate, epsilons.renyi)
    values: list[tuple[str, float | None, float]] = [
        ("share_below_data_independent", None, float(np.mean(epsilons.estimate < epsilons.renyi)))
    ]
    for fraction in FRACTIONS:
        place = quantile_place(fraction, len(below), records.audited.quantile_size, None)
        values.append(("epsilon_by_rdp", fraction, float(np.sort(below)[place or 0])))
    for quantity, at_fraction, value in values:
        at: dict[str, dps.Json] = {"delta": epsilons.delta}
        if at_fraction is not None:
            at |= {"fraction": at_fraction, "population": records.audited.quantiles_of}
        yield dps.Finding(
            quantity=quantity,
            value=value,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap(at),
            scope=dps.Scope(direction=epsilons.direction, data="this"),
            method=f"plug-in over {records.runs} runs, against rdp at the spec's orders, {epsilons.renyi:.4g}",
            source=_SOURCE,
            privacy=records.privacy,
        )


def _epsilon_findings(
    records: Analysis, epsilons: Epsilons, *, record: int | None = None, fraction: float = 1.0
) -> Iterator[dps.Finding]:
    """Estimate and confidence bound of one ``record``, or of a ``fraction`` of the population."""
    audited, at = records.audited, dict[str, dps.Json]({"delta": epsilons.delta})
    if record is None:
        at |= {"fraction": fraction, "population": audited.quantiles_of}
    for confident in (False, True):
        values = np.minimum(epsilons.confidence_upper if confident else epsilons.estimate, epsilons.tight)
        if record is None:
            failure = records.failure if confident else None
            place = quantile_place(fraction, len(values), audited.quantile_size, failure)
            value = epsilons.tight if place is None else float(np.sort(values)[place])
        else:
            value = float(values[audited.points.index(record)])
        how = "confidence bound over" if confident else "plug-in over"
        smaller = "the data-independent value is smaller"
        which = smaller if value >= epsilons.tight else "below the data-independent value"
        yield dps.Finding(
            quantity="epsilon",
            value=value,
            bound="upper" if confident else "estimate",
            rigor="statistical" if confident else "approximate",
            at=dps.FrozenMap(at),
            scope=dps.Scope(direction=epsilons.direction, data="this", record="all" if record is None else record),
            method=f"{how} {records.runs} runs; {which}",
            source=f"{_SOURCE}; {theory.CONFIDENCE_SOURCE}" if confident else _SOURCE,
            assumptions=(*kit.ASSUMPTIONS, _RUNS),
            confidence=records.confidence if confident else None,
            privacy=records.privacy if record is None else "per-record",
        )


def estimability(spec: dps.Spec, trials: Sequence[dps.Trial]) -> dps.Finding:
    """Ability of the runs, one trial each, to observe rare models with a large loss; independent of measured norms."""
    audited, runs = Audited.of(spec.document["threat_model"], read_sizes(trials)), len(trials)
    shared = audited.shared_direction
    direction = shared if shared in audited.directions else audited.directions[0]
    composer = bounds.Composer(spec.mechanism.options, bounds.DIRECTIONS[direction])
    order = composer.best(kit.claimed_deltas(spec)[-1]).order
    last, second = composer.kappa(order)
    side = "above" if last > math.log(runs) else "below"
    return dps.Finding(
        quantity="estimability_index",
        value=last,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"alpha": order}),
        scope=dps.Scope(direction=direction, data="this"),
        method=f"{second:.3g} at the second step, {last:.3g} at the last: {side} ln(runs) = {math.log(runs):.3g}; "
        "the larger the excess, the less the runs can observe rare models with a large loss",
        source=theory.RUN_SOURCE,
    )


def _runs_needed(records: Analysis) -> dps.Finding:
    total = records.total(records.best_order)
    median = int(np.argsort(total.plug_in, kind="stable")[len(total.plug_in) // 2])
    random = slice(1, None)
    needed = runs_needed(
        total.contributions[random, median],
        total.weights[random],
        total.largest[random],
        float(total.contributions[0, median]) + total.fixed,
        total.baseline,
        records.shown_side.log_terms,
    )
    return dps.Finding(
        quantity="runs_needed",
        value=needed,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({"alpha": records.best_order}),
        scope=dps.Scope(direction=records.shown_side.direction, data="this"),
        method="counting runs until the confidence bound of the median record is below the data-independent divergence",
        source=theory.CONFIDENCE_SOURCE,
        privacy=records.privacy,
    )


def runs_needed(
    means: npt.ArrayLike, weights: npt.ArrayLike, largest: npt.ArrayLike, fixed: float, goal: float, log_terms: float
) -> float:
    """Number of runs with these plug-in ``means`` (s,) whose confidence bound on the total is at most ``goal``.

    ``weights`` and ``largest`` (s,) belong to the random terms, ``fixed`` is the rest; ``log_terms`` is ln(s / J).
    """
    terms = list(zip(*(np.asarray(v, dtype=np.float64).tolist() for v in (means, weights, largest)), strict=True))

    def total(log_runs: float) -> float:
        runs = math.exp(log_runs)
        return fixed + sum(float(theory.confidence_upper_mean(mean, w, d, runs, log_terms)) for mean, w, d in terms)

    low, high = 0.0, math.log(MOST_RUNS)
    if total(high) > goal:
        return math.inf
    if total(low) <= goal:
        return 1.0
    while high - low > 1e-6 * max(1.0, high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total(middle) > goal else (low, middle)
    return math.ceil(math.exp(high)) if high < 30.0 else math.exp(high)


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bound per attacked record, named by why it was chosen: its index is per-record information."""
    assert spec.audit is not None
    delta, confidence = kit.claimed_deltas(spec)[-1], spec.audit.confidence
    claimed = {c.record for c in spec.claims if c.record is not None}
    fewest = min((read_sizes([trial]).records for trial in trials), default=1) - 1  # the dataset without the record
    targets = [
        {
            str(n): kit.whole_number(i, "the index of a target")
            for n, i in trial.evidence.get("internal", {}).get("targets", ())
        }
        for trial in trials
    ]

    def scope(record: str | int) -> dps.Scope:
        return kit.executed_scope(spec, adversary="none", access="all-iterates", record=record, records=fewest)

    # Pilot runs on different devices round differently and may choose different records.
    first = targets[0] if targets else {}
    indices = {name: place for name, place in first.items() if all(other.get(name) == place for other in targets)}
    for name, runs in _outcomes_by_target(spec, trials).items():
        present = sum(coin for coin, _ in runs)
        if present in (0, len(runs)):
            continue
        outcomes = thresholds.outcomes([reached for _, reached in runs], [bool(coin) for coin, _ in runs])
        requested = int(name.removeprefix("record ")) if name.startswith("record ") else -1
        record, public_name = int(indices.get(name, requested)), requested if requested in claimed else name
        method = f"many-run, all-iterates, on the {name}" + (" record" if "exposed" in name else "")
        evidence = dps.Evidence(
            id=f"many-run/{name.replace(' ', '-')}",
            kind="many-run-ranked",
            statistics=dps.FrozenMap({"outcomes": outcomes}),
            scope=scope(public_name),
            at=dps.FrozenMap({"delta": delta}),
            method=method,
            source=thresholds.SOURCE,
            power=thresholds.largest(present, len(runs) - present, delta, confidence),
        )
        yield evidence
        lower = kit.lower_from(evidence, confidence, method=f"{method}, {len(runs)} runs", assumptions=(_COINS,))
        yield lower
        if record >= 0 and public_name != record:
            yield replace(lower, scope=scope(record), privacy="per-record")


def _outcomes_by_target(spec: dps.Spec, trials: Sequence[dps.Trial]) -> dict[str, list[tuple[int, int]]]:
    """All runs of each target: inclusion bit and number of grid edges below the score."""
    assert spec.audit is not None
    attack, outcomes = AuditBlock.of(spec.audit.options).attack, dict[str, list[tuple[int, int]]]()
    if attack is None:
        return outcomes
    targets = [f"record {record}" for record in attack.records]
    targets += [f"{which} exposed {i + 1}" for which in ("most", "least") for i in range(getattr(attack, which))]
    for trial in trials:
        attacked = list(kit.recorded(trial, "outcomes"))
        if [name for name, _ in attacked] != targets:
            raise ValueError(f"outcomes must name the targets {', '.join(targets)}")
        for name, runs in attacked:
            outcomes.setdefault(name, []).extend(kit.scored_coins(runs, attack.runs, len(EDGES)))
    return outcomes
