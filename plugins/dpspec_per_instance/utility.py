"""Accuracy of the models on the declared data: what the noise costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps


def accuracies(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Finding | dps.Evidence]:
    """``accuracy`` by split, the mean over the trials, with the counts of the first as evidence.

    One trial's counts are binomial; several trials share their test records, so their sum is not.
    """
    scope = dps.Scope(data="this", adversary="none", pipeline="executed", access=spec.threat_model.access)
    for name in ("train", "test"):
        measured = [t.evidence.get("internal", {}).get("accuracy", {}) for t in trials]
        counts = [accuracy[name] for accuracy in measured if name in accuracy]
        if not counts:
            continue
        yield dps.Finding(
            quantity="accuracy",
            at=dps.FrozenMap({"split": name}),
            value=sum(c["right"] / c["records"] for c in counts) / len(counts),
            bound="estimate",
            rigor="approximate",
            scope=scope,
            method=f"run on the declared data, {len(counts)} run{'s' if len(counts) > 1 else ''}",
            source="measured",
            privacy="public" if spec.data.get("public", False) else "data-dependent",
        )
        if name == "test":
            yield dps.Evidence(
                id="accuracy/test",
                kind="binomial",
                quantity="accuracy",
                at=dps.FrozenMap({"split": name}),
                statistics=dps.FrozenMap({"trials": counts[0]["records"], "successes": counts[0]["right"]}),
                scope=scope,
                method="exact binomial on the test records of the first run",
                source="Clopper & Pearson 1934",
            )
