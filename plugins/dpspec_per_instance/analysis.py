"""Epsilon of every audited record from the gradient norms of all runs, for findings and tables."""

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
from dpspec_per_instance.options import AuditBlock, Audited, Composition, Shards

Array: TypeAlias = np.ndarray[Any, Any]

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
    for parts in runs.values():
        if len(parts) < shards.count:
            continue
        arrays = dict(parts[0].arrays)
        for name in PER_RECORD:
            if any(name in part.arrays for part in parts.values()):
                arrays[name] = np.concatenate([read_array(part, name) for part in parts.values()], axis=-1)
        joined.append(replace(parts[0], arrays=arrays))
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
        totals = (self.composer.total(order, self.places, log_terms) for order in self.composer.orders)
        # The steps' contributions at all orders would take much memory.
        self.totals = [replace(total, contributions=np.empty((0, 0))) for total in totals]


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
        terms = theory.log_terms(count, self.failure)
        self._tight: dict[str, dict[float, Interval]] = {}
        self._totals: dict[float, bounds.Total] = {}
        self.sides = {name: Side(spec, name, some, terms) for name, some in ratios.items()}

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

    @cached_property
    def best_order(self) -> float:
        return self.shown_side.composer.best(kit.claimed_deltas(self.spec)[-1]).order

    @cached_property
    def shown_orders(self) -> tuple[float, ...]:
        available = self.shown_side.composer.orders
        return tuple(sorted({self.best_order, *(order for order in SHOWN_ORDERS if order in available)}))

    def total(self, order: float) -> bounds.Total:
        """Total of the shown direction at one order, with the contributions of its steps."""
        if order not in self._totals:
            side = self.shown_side
            self._totals[order] = side.composer.total(order, side.places, side.log_terms)
        return self._totals[order]

    def epsilons(self, delta: float, direction: str) -> Epsilons:
        if direction not in self._tight:
            self._tight[direction] = bounds.tight_epsilons(self.spec, direction)
        ends: list[Floats] = []
        for name in ("plug_in", "confidence_upper"):
            by_side = []
            for side in bounds.one_sided(direction):
                totals = self.sides[side].totals
                orders = np.array([total.order for total in totals])[:, None]
                divergences = np.stack([getattr(total, name) for total in totals])
                by_side.append(epsilon_at_orders(orders, divergences, delta).min(axis=0))
            ends.append(np.asarray(np.max(by_side, axis=0), dtype=np.float64))
        return Epsilons(
            delta=delta,
            direction=direction,
            estimate=ends[0],
            confidence_upper=ends[1],
            tight=self._tight[direction][delta].upper,
            renyi=bounds.renyi_epsilon(self.spec.mechanism.options, delta, direction),
        )


def record_table(records: Analysis) -> dps.Series:
    """``ratio`` is relative to the data-independent epsilon of the same method and may exceed 1."""
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
        "ratio": _rounded(whole.estimate / whole.renyi),
        "advantage": _rounded(advantage(np.minimum(whole.estimate, whole.tight), delta)),
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
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1), at most 1: bounds the difference of any event's probabilities."""
    eps = np.asarray(epsilon, dtype=np.float64)
    small = np.exp(-np.minimum(eps, 700.0))
    most = (-np.expm1(-eps) + 2.0 * np.asarray(delta, dtype=np.float64) * small) / (1.0 + small)
    return np.asarray(np.minimum(most, 1.0), dtype=np.float64)


def _rounded(values: Floats | Array) -> list[float]:
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]


def over_training(records: Analysis) -> dps.Series:
    rows: list[Sequence[dps.Json]] = []
    composer = records.shown_side.composer
    for order in records.shown_orders:
        total = records.total(order)
        for step, contributions in zip(composer.observed.tolist(), total.contributions, strict=True):
            ratio = contributions / composer.saturated(order, step)
            rows.append((step, order, float(ratio.mean()), *(float(v) for v in np.quantile(ratio, (0.1, 0.5, 0.9)))))
    return kit.series(
        "ratio-over-training",
        "Contribution of a step relative to the data-independent value, by step",
        kit.columns_of(("step", "order", "mean", "p10", "median", "p90"), rows),
        rigor="approximate",
        source=theory.RUN_SOURCE,
        privacy=records.privacy,
        x="step",
        y=["mean"],
        by="order",
    )


def by_correctness(records: Analysis) -> dps.Series:
    side = records.shown_side
    composer, steps = side.composer, side.composer.observed
    shared = side.direction == records.audited.shared_direction
    right_by_run = [trial.arrays["right"] for trial in records.trials] if shared else None
    rows: list[Sequence[dps.Json]] = []
    for order in records.shown_orders:
        total = records.total(order)
        for j in sorted({0, len(steps) // 4, len(steps) // 2, (3 * len(steps)) // 4, len(steps) - 1}):
            ratio, step = composer.relative(order, j, side.places[j]), int(steps[j])
            if right_by_run is not None:
                right = np.stack([run[j] for run in right_by_run]) > 0
            else:
                right = np.tile(records.right[j] >= 0.5, (records.runs, 1))
            added = float(total.contributions[j].mean() / composer.saturated(order, step))
            means = (float(ratio[chosen].mean()) if chosen.any() else None for chosen in (right, ~right))
            rows.append((step, order, added, *means, float(right.mean()), float(np.median(ratio))))
    return kit.series(
        "right-against-wrong",
        "Steps relative to the data-independent value: mean contribution over records, and one step for records with "
        "correct and incorrect predictions",
        kit.columns_of(("step", "order", "added", "right", "wrong", "share_right", "median"), rows),
        rigor="approximate",
        source=f"{theory.STEP_SOURCE}; {theory.RUN_SOURCE}",
        privacy=records.privacy,
        x="step",
        y=["right", "wrong"],
        by="order",
    )
