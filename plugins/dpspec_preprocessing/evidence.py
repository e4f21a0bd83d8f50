"""From coins and bins to evidence and lower bounds, accuracy, and the side channel as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import dpspec.contract as dps
from dpspec.stats import checking, noise, thresholds, utility
from dpspec_preprocessing.bounds import epsilon, tested_epsilon
from dpspec_preprocessing.options import build, claimed_deltas

_COINS = dps.Assumption(
    name="independent-coins",
    status="by-construction",
    text="which of the two data sets was processed is decided by independent fair coins",
)


def ranked(trials: Sequence[dps.Trial]) -> str:
    """Coins of all executions, from the lowest score to the highest."""
    bins = [int(b) for trial in trials for b in trial.evidence["bins"]]
    coins = [coin == "1" for trial in trials for coin in trial.evidence["coins"]]
    return thresholds.outcomes(bins, coins)


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Evidence and lower bound at every claimed delta, what the planted records did, and accuracy."""
    assert spec.audit is not None
    if not trials:
        return
    told, confidence = ranked(trials), spec.audit.confidence
    present, absent = told.count("1"), told.count("0")
    scope = dps.Scope(
        adjacency=spec.threat_model.adjacency,
        unit=spec.threat_model.unit,
        access="final-model",
        adversary="record",
        data=_data(spec),
        pipeline="executed",
    )
    method = f"many-run, {len(told)} executions with one record or its replacement"
    shown: dict[float, float] = {}
    if min(present, absent):
        for delta in claimed_deltas(spec):
            at = dps.FrozenMap({"delta": delta})
            yield dps.Evidence(
                id=f"many-run/delta={delta:g}",
                kind="many-run-ranked",
                statistics=dps.FrozenMap({"outcomes": told}),
                scope=scope,
                at=at,
                method=method,
                source=thresholds.SOURCE,
                power=thresholds.largest(present, absent, delta, confidence),
            )
            shown[delta] = thresholds.epsilon_lower(told, delta, confidence)
            yield dps.Finding(
                quantity="epsilon",
                value=shown[delta],
                bound="lower",
                rigor="statistical",
                at=at,
                scope=scope,
                method=method,
                source=thresholds.SOURCE,
                confidence=confidence,
                assumptions=(_COINS,),
            )
    yield from _noise(spec, trials)
    yield _side_channel(spec, trials[0], shown)
    yield from _planted(spec, trials[0])
    yield from utility.accuracies(spec, trials, "the pipeline on the real records")


def _data(spec: dps.Spec) -> str:
    """Which data sets the attack speaks of: planted ones, of which trials checked that they lie in the collection.

    Of chains, and where a test decides instead, that is not checked.
    """
    checked = len(spec.mechanism["pipeline"]) == 1 and spec.mechanism.get("ptr") is None
    return "collection" if checked else "planted"


def _noise(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Whether Gaussian noise was as large as declared: measured on a query's outputs, reported of gradients."""
    count = sum(int(trial.evidence["noise"]["count"]) for trial in trials)
    if count == 0:
        return
    total = sum(float(trial.evidence["noise"]["squares"]) for trial in trials)
    observed: checking.Observed = "measured" if spec.mechanism["private"]["kind"] == "gaussian" else "reported"
    yield checking.check("noise-scale", noise.two_sided(total, 1.0, count), observed, "relative to the declared scale")


def _side_channel(spec: dps.Spec, trial: dps.Trial, shown: Mapping[float, float]) -> dps.Series:
    """What the attack shows, between epsilon without counting pre-processing and with it."""
    found = build(spec.mechanism.options, int(trial.evidence["records"]), int(trial.evidence["features"]))
    columns: dict[str, list[dps.Json]] = {name: [] for name in ("delta", "ignored", "attack", "certified", "group")}
    for delta, lower in shown.items():
        tested = spec.mechanism.get("ptr") is not None
        proved = tested_epsilon(spec, found, delta) if tested else epsilon(found, "certified", delta)
        row = (delta, epsilon(found, "ignored", delta), lower, proved, epsilon(found, "group", delta))
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value if math.isfinite(value) else None)
    return dps.Series(
        name="side-channel",
        title="What the attack shows, beside epsilon without and with counting pre-processing",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source="bounds beside executions",
    )


def _planted(spec: dps.Spec, trial: dps.Trial) -> Iterator[dps.Series]:
    """What one record did to the others in the attack's two data sets."""
    told = trial.evidence.get("internal", {}).get("planted")
    if told is None:
        return
    yield dps.Series(
        name="planted",
        title="What the planted record changed among the others",
        columns=dps.FrozenMap({key: [told[key]] for key in ("changed", "moved", "tau")}),
        units=dps.FrozenMap({"changed": "records", "moved": "", "tau": ""}),
        rigor="approximate",
        source="executed on both data sets",
        privacy=spec.data_privacy,
    )
