"""Accuracy of what was trained, from the counts of trials: what the noise costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpspec.contract import Evidence, Finding, FrozenMap, Scope, Spec, Trial


def accuracies(spec: Spec, trials: Sequence[Trial], model: str = "canary-free twin") -> Iterator[Finding | Evidence]:
    """``accuracy`` by split of the model that trials measured.

    Trials keep the counts as ``internal: {accuracy: {test: {right, records}, ...}}``. model: what it is, for people.
    """
    scope = Scope(data="this", adversary="none", pipeline="executed", access=spec.threat_model.access)
    measured = [trial.evidence.get("internal", {}).get("accuracy", {}) for trial in trials]
    yield from from_counts(spec, measured, model, scope)


def from_counts(
    spec: Spec,
    measured: Sequence[Mapping[str, Mapping[str, int]]],
    model: str,
    scope: Scope,
    quantity: str = "accuracy",
) -> Iterator[Finding | Evidence]:
    """``quantity`` by split, the mean over ``measured``; of ``accuracy``, the test counts of the first as evidence.

    measured: for each trial ``{test: {right, records}, ...}``. One trial's counts are binomial; several trials share
    their test records, so their sum is not.
    """
    for name in ("train", "test"):
        counts = [accuracy[name] for accuracy in measured if name in accuracy]
        if not counts:
            continue
        yield Finding(
            quantity=quantity,
            at=FrozenMap({"split": name}),
            value=sum(c["right"] / c["records"] for c in counts) / len(counts),
            bound="estimate",
            rigor="approximate",
            scope=scope,
            method=f"{model}, {len(counts)} run{'s' if len(counts) > 1 else ''}",
            source="measured",
            privacy=spec.data_privacy,
        )
        if name == "test" and quantity == "accuracy":
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
