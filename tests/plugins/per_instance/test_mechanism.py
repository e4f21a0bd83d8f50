"""Whole audits by the per-instance plugin."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from support import specs
from support.record_files import unbundle
from support.specs import ON_CPU

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.contract import Finding, Series
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog
from dpspec.reporters.risk import FALSE_POSITIVES, rates
from dpspec.reporters.terminal import render
from dpspec.results.codec import dump, load, reread
from dpspec.results.redact import redact
from dpspec.testing import MechanismSuite, constant, decreasing, increasing
from dpspec_per_instance import render_records

TEXT = """\
dpspec: 1
name: small
mechanism:
  kind: per-instance
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.2}
  steps: 6
  orders: [2, 4, 8, 16]
  composition: {observe_every: 1}
data: {kind: synthetic, pattern: blobs, records: 100, features: 8, classes: 2, split: {test: 20}, public: false}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {points: [1, 5, 9, 30], direction: both}
claims:
  - {id: everyone, kind: approx-dp, epsilon: 6.0, delta: 1e-4}
  - {id: five, kind: per-instance-dp, epsilon: 6.0, delta: 1e-4, record: 5}
audit:
  method: many-run
  runs: 3
  seed: 4
  attack: {most: 1, least: 1, records: [5], runs: 6}
  mean_rule: {batches: [4, 16], orders: [2], points: 3, outer: 4, inner: 6}
"""


def audited(folder: Path, *overrides: str, store: Store | None = None) -> tuple[Result, Store]:
    store = store or Store(folder / "store")
    result = run([specs.spec_of(folder, TEXT, *overrides)], load_catalog(), store=store, options=ON_CPU)
    unbundle(Path(store.location))  # tests read single records
    return result, store


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditResult, Store, Result]:
    result, store = audited(tmp_path_factory.mktemp("both"))
    return result.audits[0], store, result


def table(audit: AuditResult, name: str) -> Series:
    return next(series for series in audit.series if series.name == name)


def per_record(audit: AuditResult, record: int, side: str) -> list[Finding]:
    return [f for f in audit.findings if f.scope.record == record and f.bound == side and f.quantity == "epsilon"]


@pytest.mark.ci
def test_verdicts_and_conformance(both) -> None:
    audit, _, result = both
    assert result.complete
    assert [(v.claim, v.verdict) for v in audit.verdicts] == [("everyone", "proved"), ("five", "proved")]
    assert audit.conformance.status == "no-deviation-found"


@pytest.mark.ci
def test_estimates_are_no_bounds_and_say_what_would_make_them_some(both) -> None:
    audit, _, _ = both
    own = [f for f in audit.findings if f.scope.record == 5 and f.scope.data == "this" and f.bound != "lower"]
    assert {(f.bound, f.rigor) for f in own} == {("estimate", "approximate"), ("upper", "statistical")}
    assert all(f.privacy == "per-record" for f in own)
    assert {f.confidence for f in own if f.bound == "upper"} == {0.95}
    index = next(f for f in audit.findings if f.quantity == "estimability_index")
    assert "ln(runs)" in index.method


@pytest.mark.ci
def test_no_value_exceeds_the_data_independent_one(both) -> None:
    audit, _, _ = both
    records = table(audit, "records").columns
    bounds = {
        f.scope.direction: f.value
        for f in audit.findings
        if (f.bound, f.rigor) == ("upper", "certified") and f.at == {"delta": 1e-4}
    }
    for f in per_record(audit, 5, "upper") + per_record(audit, 5, "estimate"):
        assert f.value <= bounds[f.scope.direction]
        assert f.method.endswith("value is smaller") == (f.value == bounds[f.scope.direction])
    tight = bounds["both"]
    assert set(records["data_independent"]) == {tight}
    for estimate, epsilon, source in zip(
        np.maximum(records["estimate_remove"], records["estimate_add"]),
        records["epsilon"],
        records["from"],
        strict=True,
    ):
        assert epsilon == pytest.approx(min(estimate, tight), rel=1e-5)
        assert source == ("data set" if estimate >= tight else "record")
    assert all(c >= e for c, e in zip(records["confidence_upper_remove"], records["estimate_remove"], strict=True))


@pytest.mark.ci
def test_estimates_above_the_worst_case_are_counted_and_rank_records_uncapped(both) -> None:
    audit, _, result = both
    columns = table(audit, "records").columns
    uncapped = np.maximum(columns["estimate_remove"], columns["estimate_add"])
    assert columns["uncapped"] == pytest.approx(uncapped)
    ranked = [place for _, place in sorted(zip(columns["rank"], range(4), strict=True))]
    assert list(uncapped[ranked]) == sorted(uncapped, reverse=True)
    (share,) = [f for f in audit.findings if f.quantity == "share_above_data_independent"]
    tight = columns["data_independent"][0]
    assert share.value == np.mean(uncapped > tight)
    assert f"{100.0 * share.value:.3g}% of the estimates exceed the certified {tight:.4g}" in share.method
    top = [f for f in audit.findings if f.quantity == "epsilon_uncapped"]
    assert [f.scope.record for f in top] == [columns["record"][place] for place in ranked]
    assert {f.privacy for f in top} == {"per-record"}
    assert not any(f.quantity == "epsilon_uncapped" for f in redact(result).audits[0].findings)


def test_the_risk_is_that_of_the_certified_curve(both) -> None:
    audit, _, _ = both
    (rate,) = rates(audit)
    pair = Mixture.poisson(1, 0.2, 1.5)
    losses = [PrivacyLoss(((pair, 6),), side) for side in ("present-first", "absent-first")]  # type: ignore[arg-type]
    for power, level in zip(rate.powers, FALSE_POSITIVES, strict=True):
        true = max(1.0 - loss.tradeoff(level).upper for loss in losses)
        assert true <= power <= 1.03 * true


def test_lower_bounds_stay_below_upper_values(both) -> None:
    audit, _, _ = both
    records = table(audit, "records").columns
    attacked = {f.scope.record: f.value for f in audit.findings if f.bound == "lower" and f.privacy == "per-record"}
    attacked[5] = max(f.value for f in per_record(audit, 5, "lower"))
    assert 2 <= len(attacked) <= 3
    for record, value in attacked.items():
        assert value <= records["epsilon"][records["record"].index(record)]


def test_norms_are_those_of_the_gradients_before_each_step(both) -> None:
    """The first row of every run is the first model's, by plain autograd; own runs start from the same model."""
    audit, store, _ = both
    first = store.get(audit.trials[0].key).trial
    second = store.get(audit.trials[1].key).trial
    assert np.array_equal(first.arrays["ratios"][0], second.arrays["ratios"][0])
    assert np.array_equal(first.arrays["ratios"][0], first.arrays["own"][0])
    assert not np.array_equal(first.arrays["ratios"][1:], second.arrays["ratios"][1:])
    assert not np.array_equal(first.arrays["ratios"][1:], first.arrays["own"][1:])
    assert first.arrays["ratios"].shape == (6, 4)
    assert first.arrays["ratios"].max() <= 1.0


def test_the_table_of_the_mean_rule_has_medians_by_direction(both) -> None:
    audit, store, _ = both
    values = store.get(audit.trials[0].key).trial.arrays["mean_rule"]
    columns = table(audit, "mean-rule").columns
    for kind, name in enumerate(("remove", "add", "sum")):
        assert columns[name] == pytest.approx(np.median(values[..., kind, :], axis=-1).ravel().tolist())


def test_reports_without_internal_hold_no_record(both) -> None:
    audit, _, result = both
    public = redact(result).audits[0]
    theory = {"profile", "divergence-by-order", "one-step", "attack-limits", "unlearning"}
    assert {s.name for s in public.series} == theory
    assert {s.name for s in audit.series} > theory
    assert all(s.privacy != "public" for s in audit.series if s.name not in theory)
    assert all(f.privacy == "public" for f in public.findings)
    assert "internal" not in public.trials[0].evidence
    texts = repr(public.findings) + repr(public.evidence)
    chosen = dict(audit.trials[0].evidence["internal"]["targets"])
    assert set(chosen) == {"record 5", "most exposed 1", "least exposed 1"}
    assert "most exposed 1" in texts
    assert not any(e.scope.record in set(chosen.values()) - {5} for e in public.evidence)


def test_a_result_that_names_records_by_why_they_were_chosen_is_read_back(both) -> None:
    audit, _, result = both
    assert any(str(finding.scope.record).startswith("most exposed") for finding in audit.findings)
    read = load(dump(result))
    assert read == reread(result)
    assert "the record 'most exposed 1'" in " ".join(render(read, internal=True).split())


@pytest.mark.ci
def test_quantiles_of_few_records_are_as_sensitive_as_records(both, tmp_path: Path) -> None:
    """Nothing about four records is an aggregate. Ten records of public data are one."""
    audit, store, _ = both
    assert {f.privacy for f in audit.findings if "population" in f.at and f.rigor != "certified"} == {"per-record"}
    assert {f.at["population"] for f in audit.findings if "population" in f.at} == {"chosen"}
    only = ["data.public=true", "audit.attack=null", "audit.mean_rule=null", "mechanism.steps=3", "audit.runs=2"]
    only.append("threat_model.direction=remove")
    assert {s.privacy for s in audit.series if s.name.startswith("ratio")} == {"per-record"}
    ten, _ = audited(tmp_path, *only, f"threat_model.points={list(range(10))}", store=store)
    assert all(f.privacy == "public" for f in ten.audits[0].findings if f.at.get("population") == "chosen")
    assert table(ten.audits[0], "records").privacy == "per-record"


def test_the_table_of_records_is_a_file_of_its_own(both) -> None:
    audit, _, result = both
    assert render_records(result) == "# per-record values are omitted: use --internal to include them\n"
    rows = list(csv.DictReader(io.StringIO(render_records(result, internal=True))))
    assert [int(row["record"]) for row in rows] == [1, 5, 9, 30]
    assert tuple(float(row["epsilon"]) for row in rows) == table(audit, "records").columns["epsilon"]
    assert {row["audit"] for row in rows} == {"small"}


@pytest.mark.ci
def test_orders_and_rules_of_composition_train_nothing_again(both, tmp_path: Path) -> None:
    audit, store, _ = both
    for change in ("mechanism.orders=[3]", "mechanism.step_bound=theorem", "mechanism.composition.exponent=50"):
        result, _ = audited(tmp_path, change, store=store)
        assert [t.key for t in result.audits[0].trials] == [t.key for t in audit.trials]


def test_without_an_audit_there_are_bounds_alone(tmp_path: Path) -> None:
    result, _ = audited(tmp_path, "audit=null", "data={kind: declared, records: 60000, features: 784}")
    assert result.complete
    assert [v.verdict for v in result.audits[0].verdicts] == ["proved", "proved"]
    assert result.audits[0].trials == ()


@pytest.mark.ci
def test_test_records_share_runs_without_them(tmp_path: Path) -> None:
    only = ["threat_model={population: test, points: {count: 7, seed: 1}, direction: add}", "audit.attack=null"]
    metric = "claims.five={kind: metric, name: accuracy, at_least: 0.1, expect: [supported, proved]}"
    gone = [f"claims.five.{key}=null" for key in ("record", "epsilon", "delta")]
    result, store = audited(tmp_path, *only, *gone, metric)
    audit = result.audits[0]
    trial = store.get(audit.trials[0].key).trial
    assert trial.arrays["ratios"].shape == (6, 7)
    assert "own" not in trial.arrays
    assert trial.arrays["mean_rule"].shape == (3, 2, 1, 3, 3)
    assert {"estimate_add"} == {n for n in table(audit, "records").columns if n.startswith("estimate")}


class TestPerInstance(MechanismSuite):
    kind = "per-instance"
    quantities = ("epsilon",)  # one step is the same however many there are
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(0.8, 1.0, 2.0),
        "mechanism.steps": increasing(5, 20, 60),
        "mechanism.sampling.rate": increasing(0.02, 0.1, 0.4),
        "mechanism.clip_norm": constant(0.5, 2.0),
    }
