"""From the outcomes of attacks on single records to evidence, and to lower bounds beside the records' upper values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dpspec.contract as dps
from dpspec.stats import thresholds
from dpspec_per_instance import bounds

_COINS = dps.Assumption(
    name="coins", status="by-construction", text="the record is there by an independent fair coin in every run"
)


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """For each attacked record what the ranked scores show; nothing where all coins fell alike, or nothing was told.

    Which record is the most exposed one is told per record only: the evidence says no more than why it was chosen, but
    for records that a claim names.
    """
    assert spec.audit is not None
    delta, confidence = bounds.claimed_deltas(spec)[-1], spec.audit.confidence
    claimed = {c.record for c in spec.claims if c.record is not None}
    targets = [dict(trial.evidence.get("internal", {}).get("targets", ())) for trial in trials]
    # Pilot runs on different devices may round differently, and so choose different records.
    first = targets[0] if targets else {}
    indices = {name: place for name, place in first.items() if all(other.get(name) == place for other in targets)}
    for name, runs in told(trials).items():
        present = sum(coin for coin, _ in runs)
        if present in (0, len(runs)):
            continue
        outcomes = thresholds.outcomes([reached for _, reached in runs], [bool(coin) for coin, _ in runs])
        asked = int(name.removeprefix("record ")) if name.startswith("record ") else -1
        record, named = int(indices.get(name, asked)), asked if asked in claimed else name
        at, method = dps.FrozenMap({"delta": delta}), f"many-run, all-iterates, on the {name}"
        if "exposed" in name:
            method += " record"
        yield dps.Evidence(
            id=f"many-run/{name.replace(' ', '-')}",
            kind="many-run-ranked",
            statistics=dps.FrozenMap({"outcomes": outcomes}),
            scope=_scope(spec, named),
            at=at,
            method=method,
            source=thresholds.SOURCE,
            power=thresholds.largest(present, len(runs) - present, delta, confidence),
        )
        value = thresholds.epsilon_lower(outcomes, delta, confidence)
        shared: dict[str, Any] = {
            "quantity": "epsilon",
            "value": value,
            "bound": "lower",
            "rigor": "statistical",
            "at": at,
            "source": thresholds.SOURCE,
            "confidence": confidence,
            "assumptions": (_COINS,),
        }
        yield dps.Finding(scope=_scope(spec, named), method=f"{method}, {len(runs)} runs", **shared)
        if record >= 0 and named != record:
            yield dps.Finding(
                scope=_scope(spec, record),
                method=f"{method}, {len(runs)} runs",
                privacy="per-record",
                **shared,
            )


def told(trials: Sequence[dps.Trial]) -> dict[str, list[tuple[int, int]]]:
    """All runs of each target: coin, and how many edges of the grid the score reaches."""
    found: dict[str, list[tuple[int, int]]] = {}
    for trial in trials:
        for name, runs in trial.evidence.get("outcomes", ()):
            found.setdefault(str(name), []).extend((int(coin), int(reached)) for coin, reached in runs)
    return found


def _scope(spec: dps.Spec, record: str | int) -> dps.Scope:
    return dps.Scope(
        adjacency=spec.threat_model.adjacency,
        unit=spec.threat_model.unit,
        access="all-iterates",
        adversary="none",
        data="this",
        record=record,
        pipeline="executed",
    )
