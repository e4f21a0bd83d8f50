"""Accuracy and bounded losses of trained models from the evidence of trials, and the tests of their means.

A is the mean over training and over the population of test records. Runs and test records are independent, and each
source of randomness has half of the level:

* Given the test records, the runs' shares Y_i in [0, 1] are independent with mean A_T. Under A_T <= a the factors
  1 + f (Y_i / a - 1), 0 <= f <= 1, multiply a capital by at most 1 on average (Ville 1939, for any stopping time).
* A_T is the mean over m independent test records of the probability that training gets one right, with mean A:
  P[A_T >= A + t] <= exp(-m KL(A + t || A)) (Hoeffding 1963, Theorem 1).

Both hold for any values in [0, 1], thus for a loss divided by its maximum. Stored shares are integers in billionths,
rounded down; the test of a minimum counts the next larger one.

>>> right = [910] * 60  # of 1,000 test records, after each of 60 runs
>>> f"{average_at_least(right, 1000, 0.8):.2g}", average_at_least(right, 1000, 0.9)
('0.033', 1.0)
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpspec.accounting import bisect
from dpspec.contract import Evidence, Finding, FrozenMap, Scope, Spec, Trial
from dpspec.json_records import Amount, Count, Positive, Record, read


@dataclass(frozen=True, kw_only=True)
class Answers(Record):
    """Number of records that a model classifies correctly."""

    right: Count
    records: Positive

    def problem(self) -> str | None:
        return None if self.right <= self.records else f"right must be at most {self.records}, got {self.right}"


@dataclass(frozen=True, kw_only=True)
class Losses(Record):
    """Mean loss of a model over records, and the maximum loss of any record."""

    mean: Amount
    records: Positive
    largest: Amount

    def problem(self) -> str | None:
        if not 0.0 < self.largest < math.inf:
            return f"largest must be positive and finite, got {self.largest:g}"
        # Float64 may round the mean of equal losses up.
        if self.mean > self.largest * (1.0 + 1e-9):
            return f"mean must be at most {self.largest:g}, got {self.mean:g}"
        return None


def accuracies(spec: Spec, trials: Sequence[Trial], model: str = "canary-free run") -> Iterator[Finding | Evidence]:
    """Accuracy of ``model`` by split, from evidence ``internal: {accuracy: {test: {right, records}, ...}}``."""
    measured = [trial.evidence.get("internal", {}).get("accuracy", {}) for trial in trials]
    if (odd := next((counts for counts in measured if not isinstance(counts, Mapping)), None)) is not None:
        raise ValueError(f"accuracy must be a mapping from splits, got {str(odd)[:40]!r}")
    yield from from_counts(spec, measured, model, _scope(spec), first=bool(trials) and trials[0].index == 0)


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
    subjects = _subjects(spec, quantity)
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


def losses(spec: Spec, trials: Sequence[Trial], model: str = "canary-free run") -> Iterator[Finding | Evidence]:
    """Mean loss of ``model`` by split, from evidence ``internal: {loss: {test: {mean, records, largest}, ...}}``.

    Claims are tested as those about accuracies (:func:`from_counts`), on losses divided by the largest one.
    """
    scope, subjects = _scope(spec), _subjects(spec, "loss")
    for name in ("train", "test"):
        stored = [(t.index, _of_split(t, name)) for t in trials]
        runs = [(index, read(Losses, block, f"loss.{name}")) for index, block in stored if block is not None]
        if not runs:
            continue
        means = [run.mean for _, run in runs]
        yield _estimate(spec, "loss", name, "pipeline", sum(means) / len(means), model, len(runs), scope)
        first = runs[0][1] if runs[0][0] == 0 and "model" in subjects else None
        if first is not None:
            yield _estimate(spec, "loss", name, "model", first.mean, model, 1, scope)
        if name == "test":
            yield from _loss_evidence([run for _, run in runs], first, scope)


def _of_split(trial: Trial, name: str) -> Mapping[str, float] | None:
    by_split = trial.evidence.get("internal", {}).get("loss", {})
    if not isinstance(by_split, Mapping):
        raise ValueError(f"loss must be a mapping from splits, got {str(by_split)[:40]!r}")
    return by_split.get(name)


def _scope(spec: Spec) -> Scope:
    return Scope(data="this", adversary="none", pipeline="executed", access=spec.threat_model.access)


def _subjects(spec: Spec, quantity: str) -> set[object]:
    return {c.options.get("about") for c in spec.claims if c.kind == "metric" and c.options.get("name") == quantity}


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


def _loss_evidence(runs: Sequence[Losses], first: Losses | None, scope: Scope) -> Iterator[Evidence]:
    designs = {(run.records, run.largest) for run in runs}
    if len(runs) > 1 and len(designs) == 1:
        yield Evidence(
            id="loss/test/runs",
            kind="bounded-average",
            quantity="loss",
            at=FrozenMap({"split": "test", "about": "pipeline"}),
            statistics=FrozenMap(
                {"billionths": [_billionths(r) for r in runs], "records": runs[0].records, "largest": runs[0].largest}
            ),
            scope=scope,
            method=f"average over {len(runs)} runs, on the same test records",
            source=AVERAGE_SOURCE,
        )
    if first is not None:
        yield Evidence(
            id="loss/test",
            kind="bounded-mean",
            quantity="loss",
            at=FrozenMap({"split": "test", "about": "model"}),
            statistics=FrozenMap(
                {"billionths": _billionths(first), "records": first.records, "largest": first.largest}
            ),
            scope=scope,
            method="mean over the test records of the first run",
            source="Hoeffding 1963, Theorem 1",
        )


#: Unit of stored shares.
_BILLION = 10**9


def _billionths(run: Losses) -> int:
    return min(_BILLION, math.floor(run.mean / run.largest * _BILLION))


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
    return _shares_at_least(np.asarray(successes, dtype=np.float64) / records, records, value)


def _shares_at_least(shares: "np.ndarray[Any, Any]", records: int, value: float) -> float:
    if not len(shares):
        return 1.0

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


def bounded_average_at_least(billionths: Sequence[int], records: int, value: float) -> float:
    """:func:`average_at_least` of means over ``records`` of values in [0, 1], in billionths."""
    return _shares_at_least(np.asarray(billionths, dtype=np.float64) / _BILLION, records, value)


def bounded_average_at_most(billionths: Sequence[int], records: int, value: float) -> float:
    return bounded_average_at_least([_complement(share) for share in billionths], records, 1.0 - value)


def bounded_mean_at_least(billionths: int, records: int, value: float) -> float:
    """P-value of the null that the mean is at most ``value``, from the mean over ``records`` values in [0, 1]."""
    share, value = billionths / _BILLION, min(1.0, max(0.0, value))
    return 1.0 if share <= value else math.exp(-records * _divergence(share, value))


def bounded_mean_at_most(billionths: int, records: int, value: float) -> float:
    return bounded_mean_at_least(_complement(billionths), records, 1.0 - value)


def _complement(billionths: int) -> int:
    """One minus a share that was rounded down, rounded down as well."""
    return max(0, _BILLION - billionths - 1)


def _divergence(share: float, value: float) -> float:
    return float(special.rel_entr(share, value) + special.rel_entr(1.0 - share, 1.0 - value))


def _above(value: float, rate: float) -> float:
    """Upper end of the share above ``value`` with KL(share || value) = rate; 1 if there is none below 1."""
    value = min(1.0, max(0.0, value))
    if value in (0.0, 1.0):
        return value

    def near(share: float) -> bool:
        return _divergence(share, value) < rate

    return bisect(near, value, 1.0, within=1e-12)[1]
