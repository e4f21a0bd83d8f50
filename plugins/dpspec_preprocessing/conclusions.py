"""What follows from trials: evidence and lower bounds, checks of the noise, accuracy, and what one record changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats import utility
from dpspec.stats.attacks import thresholds
from dpspec.stats.conformance import noise_size, run_checks
from dpspec.stats.conformance.evidence.json_records import Amount, Count, Record, read
from dpspec.stats.conformance.measurement import Measurement, Observed, check
from dpspec_preprocessing.bounds import proved_epsilon, tested_epsilon
from dpspec_preprocessing.execution.engines import BINS
from dpspec_preprocessing.options import SAME_MASK, AuditBlock, Declaration
from dpspec_preprocessing.theory.private import GRADIENT

_COINS = kit.coins(
    "which of the two data sets was processed is decided by independent fair coins", name="independent-coins"
)
_NOTE = "relative to the declared scale"


@dataclass(frozen=True, kw_only=True)
class Planted(Record):
    """What one record changed: how many of the others, the farthest that one moved, and all their ways together."""

    changed: Count
    moved: Amount
    tau: Amount


@dataclass(frozen=True, kw_only=True)
class NoiseDrawn(Record):
    """How many numbers were drawn, and their sum of squares (of absolute values) in declared scales."""

    count: Count
    squares: Amount


@dataclass(frozen=True, kw_only=True)
class Executions(Record):
    """The runs of a mechanism in one trial: how many there were, their noise, and every number of states of one."""

    noise: NoiseDrawn
    executed: Count = 1
    steps: tuple[Count, ...] = ()


def conclude_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Evidence and lower bound at every claimed delta, what the planted records did, and accuracy."""
    assert spec.audit is not None
    if not trials:
        return
    coins = ranked_coins(trials, AuditBlock.of(spec.audit.options).repeats)
    present, absent = coins.count("1"), coins.count("0")
    scope = kit.executed_scope(
        spec,
        adversary="record",
        data=_attacked_data(spec),
        records=kit.recorded_number(trials[0], "records"),
        access="final-model",
        neighbours=SAME_MASK,  # the canary and its replacement, its negative, miss the same entries
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
    yield from _planted(spec, trials[0])
    yield from utility.accuracies(spec, trials, "the pipeline on the real records")


def ranked_coins(trials: Sequence[dps.Trial], repeats: int) -> str:
    """Coins of all executions, ``repeats`` a trial, from the lowest score to the highest.

    Raises ``ValueError`` where a trial holds those of other executions.
    """
    coins = "".join(kit.fair_coins(kit.recorded(trial, "coins"), repeats) for trial in trials)
    bins = [kit.whole_number(b, "a bin", most=BINS - 1) for trial in trials for b in kit.recorded(trial, "bins")]
    if len(bins) != len(coins):
        raise ValueError(f"bins must be {len(coins)}, one for each coin, got {len(bins)}")
    return thresholds.outcomes(bins, [coin == "1" for coin in coins])


def _attacked_data(spec: dps.Spec) -> str:
    """Which data sets the attack speaks of: planted ones, of which trials checked that they lie in the collection.

    Of chains, and where a test decides instead, that is not checked.
    """
    declared = Declaration.of(spec.mechanism.options)
    checked = len(declared.steps) == 1 and declared.test is None
    return "collection" if checked else "planted"


def _side_channel(spec: dps.Spec, trial: dps.Trial, lower_ends: Mapping[float, float]) -> dps.Series:
    """What the attack shows, between epsilon without counting pre-processing and with it."""
    records, features = (kit.recorded_number(trial, key) for key in ("records", "features"))
    declared = Declaration.of(spec.mechanism.options)
    pipeline, test = declared.pipeline(records, features), declared.test

    def row(delta: float, lower: float) -> tuple[dps.Json, ...]:
        ignored, repaired, group = (proved_epsilon(pipeline, way, delta) for way in ("ignored", "repaired", "group"))
        return delta, ignored, lower, repaired if test is None else tested_epsilon(pipeline, test, delta), group

    names = ("ignored", "attack", "repaired", "group")
    return kit.series(
        "side-channel",
        "What the attack shows, beside epsilon without and with counting pre-processing",
        kit.columns_of(("delta", *names), (row(delta, lower) for delta, lower in lower_ends.items())),
        rigor="approximate",
        source="bounds beside executions",
        kind="dots",
        x="delta",
        y=names,
        log=["y"],
        upper=["repaired", "group"],
        lower=["attack"],
    )


def _planted(spec: dps.Spec, trial: dps.Trial) -> Iterator[dps.Series]:
    """What one record did to the others in the attack's two data sets; it speaks of the data, and may be left out."""
    planted = kit.recorded_part(trial, Planted, "internal", "planted")
    if planted is None:
        return
    yield kit.series(
        "planted",
        "What the planted record changed among the others",
        {key: [value] for key, value in asdict(planted).items()},
        rigor="approximate",
        source="executed on both data sets",
        units={"changed": "records"},
        privacy=spec.data_privacy,
    )


def check_trials(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """One check of the noise over all trials, but for exponential, of which only the chosen feature is seen.

    Of networks, which a backend trains, the released states are counted too.
    """
    runs = [read(Executions, trial.evidence, f"evidence of trial {trial.index}") for trial in trials]
    evidence = [dps.FrozenMap({"steps": number}) for run in runs for number in run.steps]
    states = [dps.FrozenMap({"states": t.evidence["states"]}) for t in trials if "states" in t.evidence]
    yield from run_checks.counted((_phase(spec),), [*evidence, *states])
    if runs and not any(run.executed for run in runs):
        yield from _untested(spec)
        return
    count = sum(run.noise.count for run in runs)
    if count:
        total, kind = sum(run.noise.squares for run in runs), _kind(spec)
        yield check("noise-scale", _measure_scale(kind, total, count), _observed(kind), _NOTE)


def foresee_checks(spec: dps.Spec, facts: dps.Facts, executions: int) -> Iterator[dps.Check]:
    """The checks that so many executions will allow, and the deviation that they would detect."""
    private = Declaration.of(spec.mechanism.options).private
    network, steps, kind = private.network, private.steps, private.kind
    if network and "iterates" in facts.capabilities:
        states = {"still": 0, "apart": 0, "blind": False}
        as_declared = dps.FrozenMap({"steps": _phase(spec).steps, "states": states})
        for released in run_checks.counted((_phase(spec),), [as_declared]):
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
    planned = check("noise-scale", measurement, _observed(kind), _NOTE)
    yield replace(planned, test=measurement.test.partition(", ")[0], p_value=1.0, declared=None, measured=None)


def _untested(spec: dps.Spec) -> Iterator[dps.Check]:
    """The checks that could not be made, because propose-test-release refused every execution."""
    notes: list[tuple[str, Observed, str]] = []
    if _kind(spec) != "exponential":
        notes.append(("noise-scale", _observed(_kind(spec)), _NOTE))
    if Declaration.of(spec.mechanism.options).private.network:
        notes += [("steps", "measured", note) for note in run_checks.RELEASED]
    for assumption, observed, note in notes:
        why = f"{note}, not tested: every execution was refused"
        yield dps.Check(assumption=assumption, test="executions", p_value=1.0, observed=observed, note=why)


def _phase(spec: dps.Spec) -> dps.Phase:
    """How many steps a network is trained for."""
    return dps.Phase({"steps": Declaration.of(spec.mechanism.options).private.steps})


def _measure_scale(kind: str, total: float, count: int) -> Measurement:
    """The test of a sum of squares in units of the declared deviation.

    |x| / scale of Laplace noise, twice, has the law of two such squares: there the scale itself is in their place.
    """
    measurement = noise_size.two_sided(total, 1.0, count)
    if kind != "laplace":
        return measurement
    detectable = None if measurement.detectable is None else (1.0 + measurement.detectable) ** 2 - 1.0
    return replace(measurement, measured=measurement.measured**2, detectable=detectable)


def _kind(spec: dps.Spec) -> str:
    return Declaration.of(spec.mechanism.options).private.kind


def _observed(kind: str) -> Observed:
    return "reported" if kind in GRADIENT else "measured"
