"""From coins and bins to evidence and lower bounds, accuracy, and the side channel as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import dpspec.contract as dps
from dpspec.stats import thresholds, utility
from dpspec_preprocessing import conformance
from dpspec_preprocessing.bounds import epsilon, tested_epsilon
from dpspec_preprocessing.options import build, claimed_deltas
from dpspec_preprocessing.series import series

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
    yield from conformance.checks(spec, trials)
    yield _side_channel(spec, trials[0], shown)
    yield from _planted(spec, trials[0])
    yield from utility.accuracies(spec, trials, "the pipeline on the real records")


def _data(spec: dps.Spec) -> str:
    """Which data sets the attack speaks of: planted ones, of which trials checked that they lie in the collection.

    Of chains, and where a test decides instead, that is not checked.
    """
    checked = len(spec.mechanism["pipeline"]) == 1 and spec.mechanism.get("ptr") is None
    return "collection" if checked else "planted"


def _side_channel(spec: dps.Spec, trial: dps.Trial, shown: Mapping[float, float]) -> dps.Series:
    """What the attack shows, between epsilon without counting pre-processing and with it."""
    found = build(spec.mechanism.options, int(trial.evidence["records"]), int(trial.evidence["features"]))

    def certified(delta: float) -> float:
        tested = spec.mechanism.get("ptr") is not None
        return tested_epsilon(spec, found, delta) if tested else epsilon(found, "certified", delta)

    return series(
        "side-channel",
        "What the attack shows, beside epsilon without and with counting pre-processing",
        ("delta", "ignored", "attack", "certified", "group"),
        (
            (delta, epsilon(found, "ignored", delta), lower, certified(delta), epsilon(found, "group", delta))
            for delta, lower in shown.items()
        ),
        source="bounds beside executions",
        plot={"kind": "dots", "x": "delta", "y": ["ignored", "attack", "certified", "group"], "log": ["y"]},
    )


def _planted(spec: dps.Spec, trial: dps.Trial) -> Iterator[dps.Series]:
    """What one record did to the others in the attack's two data sets."""
    told = trial.evidence.get("internal", {}).get("planted")
    if told is None:
        return
    names = ("changed", "moved", "tau")
    yield series(
        "planted",
        "What the planted record changed among the others",
        names,
        [[told[key] for key in names]],
        source="executed on both data sets",
        units={"changed": "records"},
        privacy=spec.data_privacy,
    )
