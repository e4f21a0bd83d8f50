"""Conclusions from trials: evidence, lower bounds, noise checks, accuracy, and the effect of the canary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.json_records import Amount, Count, Record, read
from dpspec.stats import utility
from dpspec.stats.attacks import thresholds
from dpspec.stats.conformance import noise_tests, table
from dpspec.stats.conformance.measurement import Measurement, Observed, check
from dpspec_preprocessing.bounds import proved_epsilon, tested_epsilon
from dpspec_preprocessing.engines import BINS
from dpspec_preprocessing.options import SAME_MASK, AuditBlock, Declaration

_COINS = kit.coins("independent fair coins choose which of the two datasets is processed", name="independent-coins")
_NOTE = "relative to the declared scale"


@dataclass(frozen=True, kw_only=True)
class CanaryEffect(Record):
    changed: Count
    moved: Amount
    tau: Amount


@dataclass(frozen=True, kw_only=True)
class NoiseDrawn(Record):
    """Number of noise values, and their sum of squares (laplace: of absolute values) in declared scales."""

    count: Count
    squares: Amount


@dataclass(frozen=True, kw_only=True)
class Executions(Record):
    noise: NoiseDrawn
    executed: Count = 1
    steps: tuple[Count, ...] = ()


def conclude_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    assert spec.audit is not None
    if not trials:
        return
    repeats = AuditBlock.of(spec.audit.options).repeats
    drawn = "".join(kit.fair_coins(kit.recorded(trial, "coins"), repeats) for trial in trials)
    bins = [kit.whole_number(b, "a bin", most=BINS - 1) for trial in trials for b in kit.recorded(trial, "bins")]
    if len(bins) != len(drawn):
        raise ValueError(f"expected {len(drawn)} bins, one per coin, got {len(bins)}")
    coins = thresholds.outcomes(bins, [coin == "1" for coin in drawn])  # in ascending order of score
    present, absent = coins.count("1"), coins.count("0")
    declared = Declaration.of(spec.mechanism.options)
    checked = len(declared.steps) == 1 and declared.ptr is None  # trials are then refused outside of the collection
    scope = kit.executed_scope(
        spec,
        adversary="record",
        data="collection" if checked else "planted",
        records=kit.recorded_number(trials[0], "records"),
        access="final-model",
        neighbours=SAME_MASK,  # the canary and its replacement, its negative, have the same missing entries
    )
    method = f"many-run, {len(coins)} executions with one record or its replacement"
    lower_ends: dict[float, float] = {}
    if min(present, absent):
        for delta in kit.claimed_deltas(spec):
            at = dps.FrozenMap({"delta": delta})
            evidence = dps.Evidence(
                id=f"many-run/delta={delta:g}",
                kind="many-run-ranked",
                statistics=dps.FrozenMap({"outcomes": coins}),
                scope=scope,
                at=at,
                method=method,
                source=thresholds.SOURCE,
                power=thresholds.largest(present, absent, delta, spec.audit.confidence),
            )
            lower = kit.lower_from(evidence, spec.audit.confidence, assumptions=(_COINS,))
            lower_ends[delta] = lower.value
            yield evidence
            yield lower
    yield from check_trials(spec, trials)
    yield _side_channel(spec, trials[0], lower_ends)
    effect = kit.recorded_part(trials[0], CanaryEffect, "internal", "planted")
    if effect is not None:  # it depends on the data; redacted results omit it
        yield kit.series(
            "planted",
            "Effect of the canary on the other records",
            {key: [value] for key, value in asdict(effect).items()},
            rigor="approximate",
            source="executed on both datasets",
            units={"changed": "records"},
            privacy=spec.data_privacy,
        )
    yield from utility.accuracies(spec, trials, "the pipeline on the real records")


def _side_channel(spec: dps.Spec, trial: dps.Trial, lower_ends: Mapping[float, float]) -> dps.Series:
    records, features = (kit.recorded_number(trial, key) for key in ("records", "features"))
    declared = Declaration.of(spec.mechanism.options)
    pipeline, test = declared.pipeline(records, features), declared.ptr

    rows: list[tuple[dps.Json, ...]] = []
    for delta, lower in lower_ends.items():
        ignored, repaired, group = (proved_epsilon(pipeline, by, delta) for by in ("ignored", "repaired", "group"))
        rows.append((delta, ignored, lower, repaired if test is None else tested_epsilon(pipeline, test, delta), group))
    names = ("ignored", "attack", "repaired", "group")
    return kit.series(
        "side-channel",
        "Attack, and epsilon without and with the cost of pre-processing",
        kit.columns_of(("delta", *names), rows),
        rigor="approximate",
        source="bounds and executions",
        kind="dots",
        x="delta",
        y=names,
        log=["y"],
        upper=["repaired", "group"],
        lower=["attack"],
    )


def check_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Check noise and released states. The exponential mechanism has no check: it releases only the chosen feature."""
    private = Declaration.of(spec.mechanism.options).private
    observed: Observed = "reported" if private.takes_gradients else "measured"
    runs = [read(Executions, trial.evidence, f"evidence of trial {trial.index}") for trial in trials]
    evidence = [dps.FrozenMap({"steps": number}) for run in runs for number in run.steps]
    states = [dps.FrozenMap({"states": t.evidence["states"]}) for t in trials if "states" in t.evidence]
    yield from table.counted((dps.Phase({"steps": private.step_count}),), [*evidence, *states])
    if runs and not any(run.executed for run in runs):
        notes: list[tuple[str, Observed, str]] = []
        if private.kind != "exponential":
            notes.append(("noise-scale", observed, _NOTE))
        if private.network:
            notes.append(("steps", "measured", table.TABLE[0].compares))
        for assumption, how, note in notes:
            why = f"{note}, not tested: every execution was refused"
            yield dps.Check(assumption=assumption, test="executions", p_value=1.0, observed=how, note=why)
        return
    count = sum(run.noise.count for run in runs)
    if count:
        total = sum(run.noise.squares for run in runs)
        yield check("noise-scale", _measure_scale(private.kind, total, count), observed, _NOTE)


def predict_checks(spec: dps.Spec, facts: dps.Facts, executions: int) -> Iterator[dps.Check]:
    private = Declaration.of(spec.mechanism.options).private
    network, steps, kind = private.network, private.step_count, private.kind
    if network and "iterates" in facts.capabilities:
        as_declared = dps.FrozenMap({"steps": steps, "states": {"still": 0, "apart": 0, "blind": False}})
        for released in table.counted((dps.Phase({"steps": steps}),), [as_declared]):
            yield replace(released, test=released.test.partition(", ")[0], declared=None, measured=None)
    width = (facts.parameters or 0) if network else facts.features
    draws = {
        "gaussian": width,
        "laplace": 2,
        "dp-gd": steps * width,
        "sgd-sampled": steps * width,
        "sgd-iterated": (facts.records + 1) // 2 * width,
    }
    if kind not in draws or (network and "noise-log" not in facts.capabilities):
        return
    count = executions * max(1, draws[kind])
    measurement = _measure_scale(kind, float(count), count)
    planned = check("noise-scale", measurement, "reported" if private.takes_gradients else "measured", _NOTE)
    yield replace(planned, test=measurement.test.partition(", ")[0], p_value=1.0, declared=None, measured=None)


def _measure_scale(kind: str, total: float, count: int) -> Measurement:
    """Test a sum of squares in units of the declared standard deviation.

    For Laplace noise, 2 |x| / scale is chi-squared with two degrees of freedom; the result is then the ratio of scales.
    """
    measurement = noise_tests.two_sided(total, count)
    if kind != "laplace":
        return measurement
    detectable = None if measurement.detectable is None else (1.0 + measurement.detectable) ** 2 - 1.0
    return replace(measurement, measured=measurement.measured**2, detectable=detectable)
