"""Accuracy of trained models from the counts of trials, and the test of an average over runs.

A is the mean over training and over the population of test records. Runs and test records are independent, and each
source of randomness has half of the level:

* Given the test records, the runs' shares Y_i in [0, 1] are independent with mean A_T. Under A_T <= a the factors
  1 + f (Y_i / a - 1), 0 <= f <= 1, multiply a capital by at most 1 on average (Ville 1939, for any stopping time).
* A_T is the mean over m independent test records of the probability that training gets one right, with mean A:
  P[A_T >= A + t] <= exp(-m KL(A + t || A)) (Hoeffding 1963, Theorem 1).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpspec.accounting import bisect
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
    subjects = {c.options.get("about") for c in spec.claims if c.kind == "metric" and c.options.get("name") == quantity}
    for name in ("train", "test"):
        counts = [read(Answers, accuracy[name], f"{quantity}.{name}") for accuracy in measured if name in accuracy]
        if not counts:
            continue
        shares = [c.right / c.records for c in counts]
        yield _estimate(spec, quantity, name, "pipeline", sum(shares) / len(shares), model, len(counts), scope)
        first_counts = counts[0] if first and name in measured[0] else None
        if first_counts is not None and "model" in subjects:
            yield _estimate(spec, quantity, name, "model", first_counts.right / first_counts.records, model, 1, scope)
        if name == "test":
            yield from _evidence(quantity, counts, first_counts if "model" in subjects else None, scope)


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
        yield Evidence(
            id=f"{quantity}/test/runs",
            kind="average",
            quantity=quantity,
            at=FrozenMap({"split": "test", "about": "pipeline"}),
            statistics=FrozenMap({"records": records.pop(), "successes": [c.right for c in counts]}),
            scope=scope,
            method=f"average over {len(counts)} runs, on the same test records",
            source=AVERAGE_SOURCE,
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


#: Source of evidence of this kind.
AVERAGE_SOURCE = "Ville 1939: betting on a mean in [0, 1]; Hoeffding 1963, Theorem 1"

#: Fractions of the largest stake, each bet with an equal part of the capital.
_STAKES = (0.1, 0.3, 0.6, 0.9, 1.0)

#: Smaller p-values are 0.
_LEAST = 1e-300


def average_at_least(successes: Sequence[int], records: int, value: float) -> float:
    """P-value of the null that A is at most ``value``, valid at any stopping time; 1 without runs.

    ``successes`` of each run are on the same test records.
    """
    if not successes:
        return 1.0
    shares = np.asarray(successes, dtype=np.float64) / records

    def rejected(log_level: float) -> bool:
        half = log_level - math.log(2.0)
        mean = _above(value, -half / records)
        if mean <= 0.0:
            return bool(np.any(shares > 0.0))
        with np.errstate(divide="ignore"):  # the full stake is lost at a share of 0
            log_wealth = np.log(1.0 + np.multiply.outer(_STAKES, shares / mean - 1.0)).sum(axis=1)
        return float(np.logaddexp.reduce(log_wealth)) - math.log(len(_STAKES)) >= -half

    if not rejected(0.0):
        return 1.0
    least = math.log(_LEAST)
    if rejected(least):
        return 0.0
    return min(1.0, math.exp(bisect(rejected, 0.0, least, within=1e-7)[0]))


def average_at_most(successes: Sequence[int], records: int, value: float) -> float:
    return average_at_least([records - count for count in successes], records, 1.0 - value)


def _above(value: float, rate: float) -> float:
    """Upper end of the share above ``value`` with KL(share || value) = rate; 1 if there is none below 1."""
    value = min(1.0, max(0.0, value))
    if value in (0.0, 1.0):
        return value

    def near(share: float) -> bool:
        return float(special.rel_entr(share, value) + special.rel_entr(1.0 - share, 1.0 - value)) < rate

    return bisect(near, value, 1.0, within=1e-12)[1]
