"""Findings of trials: epsilons of records and quantiles, estimability, and lower bounds from attacks."""

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
    below, audited = np.sort(np.minimum(epsilons.estimate, epsilons.renyi)), records.audited
    share = float(np.mean(epsilons.estimate < epsilons.renyi))
    values: list[tuple[str, dict[str, dps.Json], float]] = [("share_below_data_independent", {}, share)]
    for fraction in FRACTIONS:
        place = quantile_place(fraction, len(below), audited.quantile_size, None)
        at: dict[str, dps.Json] = {"fraction": fraction, "population": audited.quantiles_of}
        values.append(("epsilon_by_rdp", at, float(below[place or 0])))
    for quantity, at, value in values:
        yield dps.Finding(
            quantity=quantity,
            value=value,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap({"delta": epsilons.delta, **at}),
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
    for confident, values in ((False, epsilons.estimate), (True, epsilons.confidence_upper)):
        place: int | None
        if record is None:
            values = np.sort(values)
            failure = records.failure if confident else None
            place = quantile_place(fraction, len(values), audited.quantile_size, failure)
        else:
            place = audited.points.index(record)
        value = epsilons.tight if place is None else min(float(values[place]), epsilons.tight)
        how = "confidence bound over" if confident else "plug-in over"
        which = "the data-independent value is smaller"
        which = which if value >= epsilons.tight else "below the data-independent value"
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


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """Evidence and lower bound per attacked record, named by why it was chosen: its index is per-record information."""
    assert spec.audit is not None
    attack = AuditBlock.of(spec.audit.options).attack
    if attack is None:
        return
    delta, confidence = kit.claimed_deltas(spec)[-1], spec.audit.confidence
    claimed = {c.record for c in spec.claims if c.record is not None}
    fewest = min((read_sizes([trial]).records for trial in trials), default=1) - 1  # the dataset without the record
    requested: dict[str, int | None] = {f"record {record}": record for record in attack.records}
    requested |= {f"{w} exposed {i + 1}": None for w in ("most", "least") for i in range(getattr(attack, w))}
    outcomes: dict[str, list[tuple[int, int]]] = {name: [] for name in requested}
    chosen: list[dict[str, int]] = []
    for trial in trials:
        attacked = list(kit.recorded(trial, "outcomes"))
        if [name for name, _ in attacked] != list(requested):
            raise ValueError(f"outcomes must name the targets {', '.join(requested)}")
        for name, runs in attacked:  # inclusion bit and number of grid edges below the score
            outcomes[name] += kit.scored_coins(runs, attack.runs, len(EDGES))
        targets = trial.evidence.get("internal", {}).get("targets", ())
        chosen.append({str(name): kit.whole_number(i, "the index of a target") for name, i in targets})

    def scope(record: str | int) -> dps.Scope:
        return kit.executed_scope(spec, adversary="none", access="all-iterates", record=record, records=fewest)

    for name, runs in outcomes.items():
        present = sum(coin for coin, _ in runs)
        if present in (0, len(runs)):
            continue
        # Pilot runs on different devices round differently and may choose different records.
        indices = {targets.get(name) for targets in chosen}
        record = indices.pop() if len(indices) == 1 else None
        wanted = requested[name]
        record = wanted if record is None else record
        public_name = name if wanted is None or wanted not in claimed else wanted
        method = f"many-run, all-iterates, on the {name}" + (" record" if "exposed" in name else "")
        evidence = dps.Evidence(
            id=f"many-run/{name.replace(' ', '-')}",
            kind="many-run-ranked",
            statistics=dps.FrozenMap(
                {"outcomes": thresholds.outcomes([reached for _, reached in runs], [bool(coin) for coin, _ in runs])}
            ),
            scope=scope(public_name),
            at=dps.FrozenMap({"delta": delta}),
            method=method,
            source=thresholds.SOURCE,
            power=thresholds.largest(present, len(runs) - present, delta, confidence),
        )
        yield evidence
        lower = kit.lower_from(evidence, confidence, method=f"{method}, {len(runs)} runs", assumptions=(_COINS,))
        yield lower
        if record is not None and public_name != record:
            yield replace(lower, scope=scope(record), privacy="per-record")
