"""Epsilon of every audited record from the gradient norms of all runs; findings, tables and bounds from attacks."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import decimals, kit
from dpspec.accounting import Floats, Interval, epsilon_at_orders, round_up
from dpspec.stats.attacks import thresholds
from dpspec_per_instance import bounds
from dpspec_per_instance.bounds import Array
from dpspec_per_instance.options import EDGES, AuditBlock, Audited, Composition, Shards

#: Number of records below which an aggregate counts as per-record information.
AGGREGATE = 10

#: Orders in tables, if the spec has them, in addition to the best order of the data-independent bound.
SHOWN_ORDERS = (2.0, 8.0)

#: Number of significant digits in the table of all records.
_DIGITS = 6

#: Names of the arrays whose last axis is the records.
PER_RECORD = ("ratios", "own", "right", "labels")


def whole_runs(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """One trial per complete run, its first shard with the arrays of all shards: records are compared in equal runs."""
    shards = _shards(spec, trials)
    if shards.count == 1:
        return trials
    runs: dict[int, dict[int, dps.Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.index):
        run, shard = shards.run_and_shard(trial.index)
        runs.setdefault(run, {})[shard] = trial
    joined = []
    for shard_trials in runs.values():
        if len(shard_trials) < shards.count:
            continue
        arrays = dict(shard_trials[0].arrays)
        for name in PER_RECORD:
            if any(name in part.arrays for part in shard_trials.values()):
                arrays[name] = np.concatenate([read_array(part, name) for part in shard_trials.values()], axis=-1)
        joined.append(replace(shard_trials[0], arrays=arrays))
    return joined


def first_shards(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """The first shard of every run, which holds the run's checks, accuracy and attack outcomes."""
    shards = _shards(spec, trials)
    return [trial for trial in trials if shards.run_and_shard(trial.index)[1] == 0]


def read_sizes(trials: Sequence[dps.Trial]) -> dps.Facts:
    sizes = kit.recorded(trials[0], "sizes")
    if any(kit.recorded(trial, "sizes") != sizes for trial in trials):
        raise ValueError("trials report different numbers of records")
    records, test_records = sizes
    return dps.Facts(
        records=kit.whole_number(records, "sizes", least=1),
        features=0,
        classes=0,
        test_records=kit.whole_number(test_records, "sizes"),
    )


def read_array(trial: dps.Trial, name: str) -> Array:
    arrays: Mapping[str, Array] = trial.arrays
    if name not in arrays:
        raise dps.MissingArrayError(
            f"per-record values need the array {name!r} of trial {trial.index}, which only its original store has"
        )
    return arrays[name]


def _shards(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Shards:
    assert spec.audit is not None
    return AuditBlock.of(spec.audit.options).shards(
        len(Audited.of(spec.document["threat_model"], read_sizes(trials)).points)
    )


@dataclass(frozen=True, kw_only=True)
class Epsilons:
    """Estimates and confidence bounds (m,) at one delta; ``renyi``: data-independent, by the estimates' method."""

    delta: float
    direction: str
    estimate: Floats
    confidence_upper: Floats
    tight: float
    renyi: float


class Side:
    def __init__(self, spec: dps.Spec, direction: str, ratios: Sequence[Array], log_terms: float) -> None:
        """``ratios``: per run, the clipped norms in units of the clip norm, shape (observed, m)."""
        self.direction = direction
        self.composer = bounds.Composer(spec.mechanism.options, bounds.DIRECTIONS[direction])
        self.ratios = ratios
        self.places = self.composer.places(ratios)
        self.log_terms = log_terms
        totals = [self.total(order)[:2] for order in self.composer.orders]  # the contributions would take much memory
        self.plug_in, self.confidence_upper = (np.stack(part) for part in zip(*totals, strict=True))

    def total(self, order: float) -> bounds.Total:
        return self.composer.total(order, self.places, self.log_terms)


class Analysis:
    def __init__(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> None:
        assert spec.audit is not None
        self.spec, self.trials = spec, trials
        sizes = read_sizes(trials)
        self.records, self.runs = sizes.records, len(trials)
        self.audited: Audited = Audited.of(spec.document["threat_model"], sizes)
        self.confidence = spec.audit.confidence
        # A random sample uses half of the failure probability for the sampling error.
        self.failure = (1.0 - self.confidence) * (0.5 if self.audited.quantile_size > len(self.audited.points) else 1.0)
        shared = self.audited.shared_direction
        ratios = {
            direction: [read_array(trial, "ratios" if direction == shared else "own") for trial in trials]
            for direction in self.audited.directions
        }
        observed, points = next(iter(ratios.values()))[0].shape
        if points != len(self.audited.points):
            raise ValueError(f"expected norms of {len(self.audited.points)} audited records, got {points}")
        count = max(1, observed - 1) * points * len(Composition.of(spec.mechanism.options).orders) * len(ratios)
        terms = bounds.log_terms(count, self.failure)
        self._tight: dict[str, dict[float, Interval]] = {}
        self.sides = {name: Side(spec, name, direction_ratios, terms) for name, direction_ratios in ratios.items()}

    @property
    def privacy(self) -> dps.findings.Privacy:
        return self.privacy_of(len(self.audited.points))

    def privacy_of(self, count: int) -> dps.findings.Privacy:
        return self.spec.data_privacy if count >= AGGREGATE else "per-record"

    @cached_property
    def right(self) -> Array:
        """Fraction of runs with a correct prediction for each record, per observed step, shape (observed, m)."""
        return np.asarray(np.mean([read_array(trial, "right") for trial in self.trials], axis=0), dtype=np.float64)

    @cached_property
    def shown_side(self) -> Side:
        """The direction with shared runs, if audited."""
        return self.sides.get(self.audited.shared_direction, next(iter(self.sides.values())))

    def epsilons(self, delta: float, direction: str) -> Epsilons:
        if direction not in self._tight:
            self._tight[direction] = bounds.tight_epsilons(self.spec, direction)
        sides = [self.sides[side] for side in bounds.one_sided(direction)]
        orders = np.array(sides[0].composer.orders)[:, None]

        def worst(divergences: Iterable[Floats]) -> Floats:
            epsilons = [epsilon_at_orders(orders, divergence, delta).min(axis=0) for divergence in divergences]
            return np.asarray(np.max(epsilons, axis=0), dtype=np.float64)

        return Epsilons(
            delta=delta,
            direction=direction,
            estimate=worst(side.plug_in for side in sides),
            confidence_upper=worst(side.confidence_upper for side in sides),
            tight=self._tight[direction][delta].upper,
            renyi=bounds.renyi_epsilon(self.spec.mechanism.options, delta, direction),
        )


def record_table(records: Analysis) -> dps.Series:
    """``ratio`` is relative to the data-independent epsilon of the same method and may exceed 1.

    ``epsilon`` is at most the data-independent value: records can tie. ``rank`` orders ``uncapped`` from 1, the
    largest.
    """
    delta, audited, ratios = kit.claimed_deltas(records.spec)[-1], records.audited, records.shown_side.ratios
    whole = records.epsilons(delta, audited.widest_direction)
    norms = np.mean([run.mean(axis=0, dtype=np.float64) for run in ratios], axis=0)
    columns: dict[str, Sequence[dps.Json]] = {
        "record": list(audited.points),
        "label": [int(label) for label in read_array(records.trials[0], "labels")],
        "right": _rounded(records.right[-1]),
        "mean_norm": _rounded(norms),
        "saturated": _rounded(np.mean([(run >= 1.0).mean(axis=0) for run in ratios], axis=0)),
    }
    for direction in audited.directions:
        epsilons = whole if direction == whole.direction else records.epsilons(delta, direction)
        columns[f"estimate_{direction}"] = _rounded(epsilons.estimate)
        columns[f"confidence_upper_{direction}"] = [round_up(value, _DIGITS) for value in epsilons.confidence_upper]
    columns |= {
        "data_independent": [whole.tight] * len(norms),
        "epsilon": [min(value, whole.tight) for value in _rounded(whole.estimate)],
        "from": ["data set" if value >= whole.tight else "record" for value in _rounded(whole.estimate)],
        "uncapped": _rounded(whole.estimate),
        "rank": _ranks(whole.estimate),
        "ratio": _rounded(whole.estimate / whole.renyi),
        "advantage": _rounded(advantage(np.minimum(whole.estimate, whole.tight), delta)),
    }
    return kit.series(
        "records",
        f"Every audited record at delta {delta:g}: estimates and confidence bounds".replace("e-0", "e-"),
        columns,
        rigor="approximate",
        source=f"{bounds.STEP_SOURCE}; {bounds.RUN_SOURCE}",
        kind="sorted",
        y=["uncapped"],
        by="label",
        units={"mean_norm": "clip norms"},
        upper=[name for name in columns if name == "data_independent" or "confidence_upper_" in name],
        privacy="per-record",
    )


def advantage(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1), at most 1: bounds the difference of any event's probabilities."""
    eps = np.asarray(epsilon, dtype=np.float64)
    small = np.exp(-np.minimum(eps, 700.0))
    most = (-np.expm1(-eps) + 2.0 * np.asarray(delta, dtype=np.float64) * small) / (1.0 + small)
    return np.asarray(np.minimum(most, 1.0), dtype=np.float64)


def _ranks(values: Floats) -> list[int]:
    """The place of each value in descending order, from 1; equal values in their order."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return [int(rank) for rank in ranks]


def _rounded(values: Floats | Array) -> list[float]:
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]


#: The unit of contributions relative to the data-independent value.
_RELATIVE = "share of the worst case"


def step_tables(records: Analysis) -> Iterator[dps.Series]:
    """Steps relative to the data-independent value: by step, and by correctness of the prediction."""
    side, delta = records.shown_side, kit.claimed_deltas(records.spec)[-1]
    composer, steps = side.composer, side.composer.observed.tolist()
    right_by_run = None
    if side.direction == records.audited.shared_direction:
        right_by_run = [trial.arrays["right"] for trial in records.trials]
    over_training: list[Sequence[dps.Json]] = []
    by_correctness: list[Sequence[dps.Json]] = []
    stages = sorted({0, len(steps) // 4, len(steps) // 2, (3 * len(steps)) // 4, len(steps) - 1})
    for order in sorted({composer.best(delta).order, *(order for order in SHOWN_ORDERS if order in composer.orders)}):
        contributions = side.total(order).contributions
        for step, row in zip(steps, contributions, strict=True):
            ratio = row / composer.saturated(order, step)
            quantiles = np.quantile(ratio, (0.1, 0.5, 0.9)).tolist()
            over_training.append((step, order, float(ratio.mean()), *quantiles))
        for j in stages:
            ratio = composer.relative(order, j, side.places[j])
            if right_by_run is not None:
                right = np.stack([run[j] for run in right_by_run]) > 0
            else:
                right = np.tile(records.right[j] >= 0.5, (records.runs, 1))
            added = float(contributions[j].mean() / composer.saturated(order, steps[j]))
            means = (float(ratio[chosen].mean()) if chosen.any() else None for chosen in (right, ~right))
            by_correctness.append((steps[j], order, added, *means, float(right.mean()), float(np.median(ratio))))
    by_order = partial(kit.series, rigor="approximate", privacy=records.privacy, x="step", by="order")
    yield by_order(
        "ratio-over-training",
        "Contribution of a step relative to the data-independent value, by step",
        kit.columns_of(("step", "order", "mean", "p10", "median", "p90"), over_training),
        source=bounds.RUN_SOURCE,
        y=["mean"],
        units={"mean": _RELATIVE},
    )
    yield by_order(
        "right-against-wrong",
        "Steps relative to the data-independent value: mean contribution over records, and one step for records with "
        "correct and incorrect predictions",
        kit.columns_of(("step", "order", "added", "right", "wrong", "share_right", "median"), by_correctness),
        source=f"{bounds.STEP_SOURCE}; {bounds.RUN_SOURCE}",
        y=["right", "wrong"],
        units=dict.fromkeys(("right", "wrong"), _RELATIVE),
    )


#: Fractions of the population at which epsilon is reported, in addition to claimed fractions.
FRACTIONS = (0.1, 0.5, 0.9)

_SOURCE = f"{bounds.STEP_SOURCE} and {bounds.RUN_SOURCE.partition(', ')[2]}"

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
                yield from _comparisons(records, epsilons)


def quantile_place(fraction: float, audited: int, population: int, failure: float | None) -> int | None:
    """Index of the sorted values of ``audited`` records that bounds a ``fraction`` of the population."""
    if audited > population:
        raise ValueError(f"{audited} records cannot be a sample of {population}")
    bounded_records = int(np.ceil(fraction * population - 1e-9))
    if audited == population:
        return max(0, bounded_records - 1)
    if failure is None:
        return max(0, int(np.ceil(fraction * audited - 1e-9)) - 1)
    enough = np.flatnonzero(above(population, max(0, bounded_records - 1), audited) <= failure)
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
    tail_probabilities = np.concatenate([np.ones(least), tails[1:] / tails[0], np.zeros(drawn - most)])
    return tail_probabilities[:drawn]


#: Number of named records with the largest estimates.
_TOP = 5


def _comparisons(records: Analysis, epsilons: Epsilons) -> Iterator[dps.Finding]:
    """Estimates against rdp, the share above the data-independent epsilon, and the records with the largest ones."""
    estimates, tight, audited = epsilons.estimate, epsilons.tight, records.audited
    below = np.sort(np.minimum(estimates, epsilons.renyi))
    by_rdp = f"plug-in over {records.runs} runs, against rdp at the spec's orders, {epsilons.renyi:.4g}"
    share_below = float(np.mean(estimates < epsilons.renyi))
    values: list[tuple[str, dict[str, dps.Json], float, str]] = [
        ("share_below_data_independent", {}, share_below, by_rdp)
    ]
    for fraction in FRACTIONS:
        quantile_index = quantile_place(fraction, len(below), audited.quantile_size, None)
        position: dict[str, dps.Json] = {"fraction": fraction, "population": audited.quantiles_of}
        values.append(("epsilon_by_rdp", position, float(below[quantile_index or 0]), by_rdp))
    share_above, ratio = float(np.mean(estimates > tight)), float(np.quantile(estimates, 0.9)) / tight
    capped = (
        f"plug-in over {records.runs} runs, by rdp: {100.0 * share_above:.3g}% of the estimates exceed the certified "
        f"{decimals.upper(tight)} of any record (by a factor of {ratio:.3g} at the 90th percentile), are reported as "
        "this value, and tie; ranks use the uncapped estimates"
    )
    values.append(("share_above_data_independent", {}, share_above, capped))
    for quantity, position, value, method in values:
        yield dps.Finding(
            quantity=quantity,
            value=value,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap({"delta": epsilons.delta, **position}),
            scope=dps.Scope(direction=epsilons.direction, data="this"),
            method=method,
            source=_SOURCE,
            privacy=records.privacy,
        )
    for rank, record in enumerate(np.argsort(-estimates, kind="stable")[:_TOP].tolist(), start=1):
        yield dps.Finding(
            quantity="epsilon_uncapped",
            value=float(estimates[record]),
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap({"delta": epsilons.delta, "rank": rank}),
            scope=dps.Scope(direction=epsilons.direction, data="this", record=audited.points[record]),
            method=f"plug-in over {records.runs} runs, among {len(estimates)} audited records",
            source=_SOURCE,
            privacy="per-record",
        )


def _epsilon_findings(
    records: Analysis, epsilons: Epsilons, *, record: int | None = None, fraction: float = 1.0
) -> Iterator[dps.Finding]:
    """Estimate and confidence bound of one ``record``, or of a ``fraction`` of the population."""
    audited, position = records.audited, dict[str, dps.Json]({"delta": epsilons.delta})
    if record is None:
        position |= {"fraction": fraction, "population": audited.quantiles_of}
    for confident, values in ((False, epsilons.estimate), (True, epsilons.confidence_upper)):
        value_index: int | None
        if record is None:
            values = np.sort(values)
            failure = records.failure if confident else None
            value_index = quantile_place(fraction, len(values), audited.quantile_size, failure)
        else:
            value_index = audited.points.index(record)
        value = epsilons.tight if value_index is None else min(float(values[value_index]), epsilons.tight)
        how = "confidence bound over" if confident else "plug-in over"
        which = "the data-independent value is smaller"
        which = which if value >= epsilons.tight else "below the data-independent value"
        yield dps.Finding(
            quantity="epsilon",
            value=value,
            bound="upper" if confident else "estimate",
            rigor="statistical" if confident else "approximate",
            at=dps.FrozenMap(position),
            scope=dps.Scope(direction=epsilons.direction, data="this", record="all" if record is None else record),
            method=f"{how} {records.runs} runs; {which}",
            source=f"{_SOURCE}; {bounds.CONFIDENCE_SOURCE}" if confident else _SOURCE,
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
        source=bounds.RUN_SOURCE,
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
        requested_record = requested[name]
        record = requested_record if record is None else record
        public_name = name if requested_record is None or requested_record not in claimed else requested_record
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
