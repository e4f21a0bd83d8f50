"""Accuracy of what was trained, from the counts of trials: what the noise costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Evidence, Finding, FrozenMap, Scope, Spec, Trial


def accuracies(spec: Spec, trials: Sequence[Trial], model: str = "canary-free twin") -> Iterator[Finding | Evidence]:
    """``accuracy`` by split, the mean over the trials, with the counts of the first as evidence.

    Trials keep them as ``internal: {accuracy: {test: {right, records}, ...}}``. model: what was measured, for people.
    One trial's counts are binomial; several trials share their test records, so their sum is not.
    """
    scope = Scope(data="this", adversary="none", pipeline="executed", access=spec.threat_model.access)
    for name in ("train", "test"):
        measured = [t.evidence.get("internal", {}).get("accuracy", {}) for t in trials]
        counts = [accuracy[name] for accuracy in measured if name in accuracy]
        if not counts:
            continue
        yield Finding(
            quantity="accuracy",
            at=FrozenMap({"split": name}),
            value=sum(c["right"] / c["records"] for c in counts) / len(counts),
            bound="estimate",
            rigor="approximate",
            scope=scope,
            method=f"{model}, {len(counts)} run{'s' if len(counts) > 1 else ''}",
            source="measured",
            privacy="public" if spec.data.get("public", False) else "data-dependent",
        )
        if name == "test":
            yield Evidence(
                id="accuracy/test",
                kind="binomial",
                quantity="accuracy",
                at=FrozenMap({"split": name}),
                statistics=FrozenMap({"trials": counts[0]["records"], "successes": counts[0]["right"]}),
                scope=scope,
                method="exact binomial on the test records of the first run",
                source="Clopper & Pearson 1934",
            )
