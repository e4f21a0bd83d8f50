"""Accuracy of trained models from the counts of trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpspec.contract import Evidence, Finding, FrozenMap, Scope, Spec, Trial
from dpspec.json_records import Count, Positive, Record, read


@dataclass(frozen=True, kw_only=True)
class Answers(Record):
    """Number of records that a model classifies correctly."""

    right: Count
    records: Positive

    def problem(self) -> str | None:
        return None if self.right <= self.records else f"right must be at most {self.records}, got {self.right}"


def accuracies(spec: Spec, trials: Sequence[Trial], model: str = "canary-free run") -> Iterator[Finding | Evidence]:
    """Accuracy of ``model`` by split, from evidence ``internal: {accuracy: {test: {right, records}, ...}}``."""
    scope = Scope(data="this", adversary="none", pipeline="executed", access=spec.threat_model.access)
    measured = [trial.evidence.get("internal", {}).get("accuracy", {}) for trial in trials]
    if (odd := next((counts for counts in measured if not isinstance(counts, Mapping)), None)) is not None:
        raise ValueError(f"accuracy must be a mapping from splits, got {str(odd)[:40]!r}")
    yield from from_counts(spec, measured, model, scope, first=bool(trials) and trials[0].index == 0)


def from_counts(
    spec: Spec,
    measured: Sequence[Mapping[str, Mapping[str, int]]],
    model: str,
    scope: Scope,
    quantity: str = "accuracy",
    *,
    first: bool = True,
) -> Iterator[Finding | Evidence]:
    """Mean of ``quantity`` by split over ``measured``, and evidence for claims about the test split.

    Claims about the pipeline are tested on all runs, and claims about a model on the test records of the first run.
    ``measured`` has ``{test: {right, records}, ...}`` for each trial; ``first``: whether its first is the first run.
    """
    asked = {c.options.get("about") for c in spec.claims if c.kind == "metric" and c.options.get("name") == quantity}
    for name in ("train", "test"):
        counts = [read(Answers, accuracy[name], f"{quantity}.{name}") for accuracy in measured if name in accuracy]
        if not counts:
            continue
        shares = [c.right / c.records for c in counts]
        yield _estimate(spec, quantity, name, "pipeline", sum(shares) / len(shares), model, len(counts), scope)
        one = counts[0] if first and name in measured[0] else None
        if one is not None and "model" in asked:
            yield _estimate(spec, quantity, name, "model", one.right / one.records, model, 1, scope)
        if name == "test":
            yield from _evidence(quantity, counts, one if "model" in asked else None, scope)


def _estimate(
    spec: Spec, quantity: str, split: str, about: str, value: float, model: str, runs: int, scope: Scope
) -> Finding:
    origin = "the first run" if about == "model" else f"{runs} run{'s' if runs > 1 else ''}"
    return Finding(
        quantity=quantity,
        at=FrozenMap({"split": split} | ({"about": about} if about == "model" else {})),
        value=value,
        bound="estimate",
        rigor="approximate",
        scope=scope,
        method=f"{model}, {origin}",
        source="measured",
        privacy=spec.data_privacy,
    )


def _evidence(quantity: str, counts: Sequence[Answers], first: Answers | None, scope: Scope) -> Iterator[Evidence]:
    records = {c.records for c in counts}
    if len(counts) > 1 and len(records) == 1:
        from dpspec.stats import averages

        yield Evidence(
            id=f"{quantity}/test/runs",
            kind="average",
            quantity=quantity,
            at=FrozenMap({"split": "test", "about": "pipeline"}),
            statistics=FrozenMap({"records": records.pop(), "successes": [c.right for c in counts]}),
            scope=scope,
            method=f"average over {len(counts)} runs, on the same test records",
            source=averages.SOURCE,
        )
    if first is not None:
        yield Evidence(
            id=f"{quantity}/test",
            kind="binomial",
            quantity=quantity,
            at=FrozenMap({"split": "test", "about": "model"}),
            statistics=FrozenMap({"trials": first.records, "successes": first.right}),
            scope=scope,
            method="exact binomial on the test records of the first run",
            source="Clopper & Pearson 1934",
        )
