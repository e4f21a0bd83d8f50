"""Every audited record's epsilon, from the norms that all runs measured; findings and tables are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats, Interval, epsilon_at_orders, round_up
from dpspec_per_instance import bounds, theory
from dpspec_per_instance.options import AuditBlock, Audited, Composition, Shards, audited_records

Array: TypeAlias = np.ndarray[Any, Any]

#: Aggregates over fewer records than this count as values of single records.
AGGREGATE = 10

#: Orders that tables show where the spec has them, beside the one that is best for the data-independent bound.
SHOWN_ORDERS = (2.0, 8.0)

#: Figures are rounded to so many significant digits in the table of all records.
_DIGITS = 6

#: The arrays whose last axis is the records.
PER_RECORD = ("ratios", "own", "right", "labels")


def whole_runs(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """One trial for each run whose shards are all there: the first one, with the arrays of all.

    A record's values are over the runs that looked at it; those of all records are compared and counted together, and
    so over the same ones. Raises ``MissingArrayError`` where some shards have arrays that others lack.
    """
    shards = _shards(spec, trials)
    if shards.count == 1:
        return trials
    runs: dict[int, dict[int, dps.Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.index):
        run, shard = shards.run_and_shard(trial.index)
        runs.setdefault(run, {})[shard] = trial
    whole = [list(parts.values()) for parts in runs.values() if len(parts) == shards.count]
    return [replace(parts[0], arrays=_joined_arrays(parts)) for parts in whole]


def first_shards(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Sequence[dps.Trial]:
    """The trials that hold what there is once for each run: checks, accuracy, outcomes of attacks."""
    shards = _shards(spec, trials)
    return [trial for trial in trials if shards.run_and_shard(trial.index)[1] == 0]


def has_arrays(trials: Sequence[dps.Trial]) -> bool:
    """Whether the trials' arrays are here: results carry their evidence alone."""
    return all("ratios" in trial.arrays for trial in trials)


def read_sizes(trials: Sequence[dps.Trial]) -> dps.Facts:
    """How many records there are: all that conclusions need to know of the data.

    Raises ``ValueError`` where trials say different numbers of it.
    """
    sizes = kit.recorded(trials[0], "sizes")
    if any(kit.recorded(trial, "sizes") != sizes for trial in trials):
        raise ValueError("trials are of data of different sizes")
    records, test_records = sizes
    return dps.Facts(
        records=kit.whole_number(records, "sizes", least=1),
        features=0,
        classes=0,
        test_records=kit.whole_number(test_records, "sizes"),
    )


def read_array(trial: dps.Trial, name: str) -> Array:
    """An array of a trial; raises ``MissingArrayError`` where it is absent."""
    arrays: Mapping[str, Array] = trial.arrays
    if name not in arrays:
        raise dps.MissingArrayError(
            f"per-record values need the array {name!r} of trial {trial.index}, which is in the store it was made in"
        )
    return arrays[name]


def _shards(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Shards:
    assert spec.audit is not None
    return AuditBlock.of(spec.audit.options).shards(len(audited_records(spec, read_sizes(trials)).points))


def _joined_arrays(parts: Sequence[dps.Trial]) -> dict[str, Array]:
    arrays = dict(parts[0].arrays)
    for name in PER_RECORD:
        if any(name in part.arrays for part in parts):
            arrays[name] = np.concatenate([read_array(part, name) for part in parts], axis=-1)
    return arrays


@dataclass(frozen=True, kw_only=True)
class Epsilons:
    """Epsilon at one delta in one direction, per record, (m,) each.

    estimate: by the plug-in. confidence_upper: with the confidence of the spec. tight: what no record exceeds, by the
    tightest accountant; renyi: the same by the method of the estimate, whose fair comparison it is.
    """

    delta: float
    direction: str
    estimate: Floats
    confidence_upper: Floats
    tight: float
    renyi: float

    @property
    def capped_estimate(self) -> Floats:
        """min(data-independent, estimate)."""
        return np.minimum(self.estimate, self.tight)

    @property
    def capped_confidence_upper(self) -> Floats:
        """min(data-independent, confidence_upper)."""
        return np.minimum(self.confidence_upper, self.tight)


class Side:
    """One direction: the runs that its expectation is over, and what follows from them."""

    def __init__(self, spec: dps.Spec, direction: str, ratios: Sequence[Array], log_terms: float) -> None:
        """``ratios``: per run the clipped norms (observed, m) in clip norms."""
        self.direction = direction
        self.composer = bounds.Composer(spec.mechanism.options, bounds.DIRECTIONS[direction])
        self.ratios = ratios
        self.places = self.composer.places(ratios)
        self.log_terms = log_terms
        self.totals = [self.composer.total(order, self.places, log_terms) for order in self.composer.orders]

    def total_of_runs(self, order: float, runs: int) -> bounds.Total:
        """The total at one order from the first ``runs`` runs alone."""
        return self.composer.total(order, [place[:runs] for place in self.places], self.log_terms)


class Analysis:
    """All directions together."""

    def __init__(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> None:
        """``trials``: one for each run. Raises ``ValueError`` where the norms of one are absent."""
        assert spec.audit is not None
        self.spec, self.trials = spec, trials
        self.audited: Audited = audited_records(spec, read_sizes(trials))
        self.confidence = spec.audit.confidence
        # A random sample spends half of what may fail on being one.
        self.failure = (1.0 - self.confidence) * (0.5 if self.audited.quantile_size > len(self.audited.points) else 1.0)
        shared = self.audited.shared_direction
        ratios = {
            direction: [read_array(trial, "ratios" if direction == shared else "own") for trial in trials]
            for direction in self.audited.directions
        }
        observed, points = next(iter(ratios.values()))[0].shape
        if points != len(self.audited.points):
            raise ValueError(f"norms of {points} records, where {len(self.audited.points)} are audited")
        count = max(1, observed - 1) * points * len(Composition.of(spec.mechanism.options).orders) * len(ratios)
        terms = theory.log_terms(count, self.failure)
        self._tight: dict[str, dict[float, Interval]] = {}
        self._detailed: dict[float, bounds.DetailedTotal] = {}
        self.sides = {name: Side(spec, name, some, terms) for name, some in ratios.items()}

    @property
    def privacy(self) -> dps.findings.Privacy:
        """How sensitive averages and quantiles over all audited records are."""
        return self.privacy_of(len(self.audited.points))

    def privacy_of(self, count: int) -> dps.findings.Privacy:
        """How sensitive averages and quantiles over ``count`` records are."""
        return self.spec.data_privacy if count >= AGGREGATE else "per-record"

    @property
    def records(self) -> int:
        """How many records the data has to train on."""
        return int(self.trials[0].evidence["sizes"][0])

    @property
    def runs(self) -> int:
        """How many runs each expectation is over."""
        return len(self.trials)

    @cached_property
    def labels(self) -> Array:
        """The audited records' labels, (m,)."""
        return read_array(self.trials[0], "labels")

    @cached_property
    def right(self) -> Array:
        """The share of runs whose model is right about each record, per observed step: (observed, m)."""
        return np.asarray(np.mean([read_array(trial, "right") for trial in self.trials], axis=0), dtype=np.float64)

    @cached_property
    def shown_side(self) -> Side:
        """The side whose details are shown: that of the shared runs, where it is audited."""
        return self.sides.get(self.audited.shared_direction, next(iter(self.sides.values())))

    @cached_property
    def best_order(self) -> float:
        """The order that is best for the data-independent bound at the largest claimed delta."""
        return self.shown_side.composer.best_order(bounds.claimed_deltas(self.spec)[-1])

    @cached_property
    def shown_orders(self) -> tuple[float, ...]:
        """The orders whose details are shown, ascending."""
        available = self.shown_side.composer.orders
        return tuple(sorted({self.best_order, *(order for order in SHOWN_ORDERS if order in available)}))

    def detailed_total(self, order: float) -> bounds.DetailedTotal:
        """The shown side's total at one order, with its steps."""
        if order not in self._detailed:
            side = self.shown_side
            self._detailed[order] = side.composer.detailed_total(order, side.places, side.log_terms)
        return self._detailed[order]

    def epsilons(self, delta: float, direction: str) -> Epsilons:
        """Every record's epsilon: the worse of two directions for ``both``."""
        sides = [self.sides[side] for side in bounds.one_sided(direction)]
        if direction not in self._tight:
            self._tight[direction] = bounds.tight_epsilons(self.spec, direction)
        return Epsilons(
            delta=delta,
            direction=direction,
            estimate=_worst([_epsilon(s.totals, [t.plug_in for t in s.totals], delta) for s in sides]),
            confidence_upper=_worst([_epsilon(s.totals, [t.confidence_upper for t in s.totals], delta) for s in sides]),
            tight=self._tight[direction][delta].upper,
            renyi=bounds.renyi_epsilon(self.spec.mechanism.options, delta, direction),
        )


def _epsilon(totals: Sequence[bounds.Total], divergences: Sequence[Floats], delta: float) -> Floats:
    orders = np.array([total.order for total in totals])
    return np.asarray(epsilon_at_orders(orders[:, None], np.stack(divergences), delta).min(axis=0))


def _worst(epsilons: Sequence[Floats]) -> Floats:
    return np.asarray(np.max(epsilons, axis=0), dtype=np.float64)


def record_table(records: Analysis) -> dps.Series:
    """One row per audited record: epsilon per direction, the data-independent one, the smaller, and which it is.

    ratio: the estimate over the data-independent epsilon by the same method; it may exceed 1. advantage: the most that
    knowing the record helps to tell that it was used, or that the model is right about it for having seen it.
    """
    delta, audited, ratios = bounds.claimed_deltas(records.spec)[-1], records.audited, records.shown_side.ratios
    whole = records.epsilons(delta, audited.widest_direction)
    norms = np.mean([run.mean(axis=0, dtype=np.float64) for run in ratios], axis=0)
    columns: dict[str, Sequence[dps.Json]] = {
        "record": list(audited.points),
        "label": [int(label) for label in records.labels],
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
        "ratio": _rounded(whole.estimate / whole.renyi),
        "advantage": _rounded(advantage(whole.capped_estimate, delta)),
    }
    return kit.series(
        "records",
        f"Every audited record at delta {delta:g}: estimates and confidence bounds".replace("e-0", "e-"),
        columns,
        rigor="approximate",
        source=f"{theory.STEP_SOURCE}; {theory.RUN_SOURCE}",
        kind="sorted",
        y=["epsilon"],
        by="label",
        units={"mean_norm": "clip norms"},
        upper=[name for name in columns if name == "data_independent" or "confidence_upper_" in name],
        privacy="per-record",
    )


def advantage(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1), at most 1; arrays broadcast.

    With (epsilon, delta) in both directions the probabilities of any event differ by at most this: a bound on a
    membership advantage, and on how much likelier the model is right about the record for having seen it.
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    small = np.exp(-np.minimum(eps, 700.0))
    most = (-np.expm1(-eps) + 2.0 * np.asarray(delta, dtype=np.float64) * small) / (1.0 + small)
    return np.asarray(np.minimum(most, 1.0), dtype=np.float64)


def _rounded(values: Floats | Array) -> list[float]:
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]
