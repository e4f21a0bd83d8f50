"""Records of a run split among trials: the same values, each reported once, in any order and process."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import specs
from support.record_files import unbundle
from support.specs import ON_CPU

import dpspec_per_instance
from dpspec import json_records
from dpspec.contract import Finding, FrozenMap, Plan, Spec, Trial
from dpspec.contract.events import Event, TrialFinished
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.preparing.trial_keys import TrialKeys
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.registry.loader import load_catalog
from dpspec.results.redact import redact
from dpspec_per_instance.findings import first_shards, lower_bounds, whole_runs
from dpspec_per_instance.options import MOST_SHARDS, AuditBlock, Shards

#: 80 training records, 4 observed steps, and three runs, of which two keep logs.
TEXT = """\
dpspec: 1
name: shared-out
mechanism:
  kind: per-instance
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.2}
  steps: 8
  orders: [2, 4, 8, 16]
  composition: {observe_every: 2}
data: {kind: synthetic, pattern: blobs, records: 100, features: 8, classes: 2, split: {test: 20}, public: false}
model: {kind: mlp, hidden: [6]}
training: {learning_rate: 0.5}
threat_model: {points: all, direction: remove}
claims:
  - {id: everyone, kind: approx-dp, epsilon: 6.0, delta: 1e-4}
  - {id: five, kind: per-instance-dp, epsilon: 6.0, delta: 1e-4, record: 5}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.1, expect: [supported, proved, open]}
audit:
  method: many-run
  runs: 3
  seed: 4
  attack: {most: 1, least: 1, records: [5], runs: 6}
  mean_rule: {batches: [4], orders: [2], points: 3, outer: 6, inner: 10}
"""

#: In five trials of 16 records for each run.
SHARED = "audit.shard_records=19"

#: Three records by name, in both directions, in two trials for each run.
BOTH = ("threat_model={points: [5, 9, 30], direction: both}", "audit.attack.most=0", "audit.attack.least=0")


def loaded(folder: Path, *overrides: str) -> Spec:
    return specs.spec_of(folder, TEXT, *overrides)


def audited(
    folder: Path, *overrides: str, store: str = "store", options: RunOptions | None = None
) -> tuple[Result, int]:
    made: list[Event] = []
    result = run(
        [loaded(folder, *overrides)],
        load_catalog(),
        store=Store(folder / store),
        listeners=[lambda event: made.append(event) if isinstance(event, TrialFinished) else None],
        options=options or ON_CPU,
    )
    return result, len(made)


def planned(spec: Spec) -> Plan:
    return prepare(spec, load_catalog()).plan()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def shared(folder: Path) -> AuditResult:
    result, made = audited(folder, SHARED)
    assert (result.complete, made) == (True, 15)
    return result.audits[0]


@pytest.fixture(scope="module")
def whole(folder: Path) -> AuditResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpspec_per_instance, "_TOGETHER", 1)
        result, made = audited(folder, store="whole")
    assert (result.complete, made) == (True, 3)
    return result.audits[0]


def concluded(audit: AuditResult) -> tuple[object, ...]:
    parts = (audit.findings, audit.series, audit.checks, audit.evidence, audit.verdicts, audit.conformance)
    return tuple(json_records.write(part) for part in parts)


def trials(folder: Path, audit: AuditResult, store: str = "store") -> list[Trial]:
    unbundle(folder / store)
    found = [Store(folder / store).get(record.key) for record in audit.trials]
    return [stored.trial for stored in found if stored is not None]


def test_shards_are_disjoint_and_cover_everything() -> None:
    for records in (1, 2, 7, 80, 1001):
        for most in (1, 2, 19, 80, 5000):
            shards = AuditBlock.of({"shard_records": most}).shards(records)
            parts = [range(records)[shards.places(k)] for k in range(shards.count)]
            assert [place for part in parts for place in part] == list(range(records))
            assert max(map(len, parts)) <= most
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert len({shards.run_and_shard(index) for index in range(3 * shards.count)}) == 3 * shards.count
    whole = Shards(records=1000, count=1)
    assert AuditBlock.of({}).shards(1000) == whole == AuditBlock.of({"shard_records": None}).shards(1000)


@pytest.mark.ci
def test_shards_find_what_one_trial_finds(folder: Path, shared: AuditResult, whole: AuditResult) -> None:
    """Each run's iterates are bit for bit the same; gradients of a record among others can be rounded otherwise."""
    runs = whole_runs(loaded(folder, SHARED), trials(folder, shared))
    assert len(runs) == 3
    for ours, theirs in zip(runs, trials(folder, whole, "whole"), strict=True):
        assert ours.evidence == theirs.evidence
        assert set(ours.arrays) == set(theirs.arrays)
        assert np.array_equal(ours.arrays["labels"], theirs.arrays["labels"])
        assert ours.arrays["right"].dtype == theirs.arrays["right"].dtype
        assert np.array_equal(ours.arrays["right"], theirs.arrays["right"])
        np.testing.assert_allclose(ours.arrays["ratios"], theirs.arrays["ratios"], rtol=1e-5)
    assert np.array_equal(runs[0].arrays["mean_rule"], trials(folder, whole, "whole")[0].arrays["mean_rule"])
    same(shared, whole)


def same(ours: AuditResult, theirs: AuditResult) -> None:
    assert [(v.claim, v.verdict) for v in ours.verdicts] == [(v.claim, v.verdict) for v in theirs.verdicts]
    assert [replace(f, value=0.0) for f in ours.findings] == [replace(f, value=0.0) for f in theirs.findings]
    assert [f.value for f in ours.findings] == pytest.approx([f.value for f in theirs.findings], rel=1e-3)
    assert ours.evidence == theirs.evidence
    checked = [[(c.assumption, c.test, c.note) for c in audit.checks] for audit in (ours, theirs)]
    assert checked[0] == checked[1]
    assert [c.p_value for c in ours.checks] == pytest.approx([c.p_value for c in theirs.checks], rel=1e-3)
    assert [s.name for s in ours.series] == [s.name for s in theirs.series]


@pytest.mark.ci
def test_what_there_is_once_for_a_run_is_first_shards(folder: Path, shared: AuditResult) -> None:
    shards = trials(folder, shared)
    for trial in shards:
        run_number, shard = divmod(trial.index, 5)
        assert ("outcomes" in trial.evidence) == ("accuracy" in trial.evidence["internal"]) == (shard == 0)
        assert ("targets" in trial.evidence["internal"]) == (shard == 0)
        assert ("sampling_log" in trial.evidence) == (shard == 0 and run_number < 2)
        assert ("mean_rule" in trial.arrays) == (trial.index == 0)
        if shard:
            assert trial.evidence == FrozenMap({"sizes": [80, 20], "internal": {}})
    (attacked,) = [e for e in shared.evidence if e.id == "many-run/record-5"]
    assert len(attacked.statistics["outcomes"]) == 18  # 3 runs of 6, not 15
    assert {f.method for f in shared.findings if f.quantity == "accuracy"} == {"run on the declared data, 3 runs"}
    assert any(f.method.startswith("confidence bound over 3 runs") for f in shared.findings)


@pytest.mark.ci
def test_a_bound_of_runs_against_several_records_names_none(folder: Path, shared: AuditResult) -> None:
    """Where pilot runs on different devices chose different records."""
    spec = loaded(folder, SHARED)
    shards = first_shards(spec, trials(folder, shared))

    def records(trials: Sequence[Trial]) -> set[object]:
        found = lower_bounds(spec, trials)
        return {f.scope.record for f in found if isinstance(f, Finding) and f.privacy == "per-record"}

    alike = dict(shards[0].evidence["internal"]["targets"])
    assert records(shards) == {alike["most exposed 1"], alike["least exposed 1"]}
    other = [["most exposed 1", 79 - alike["most exposed 1"]], ["least exposed 1", alike["least exposed 1"]]]
    internal = FrozenMap({**shards[1].evidence["internal"], "targets": other})
    changed = replace(shards[1], evidence=FrozenMap({**shards[1].evidence, "internal": internal}))
    assert records([shards[0], changed, *shards[2:]]) == {alike["least exposed 1"]}


@pytest.mark.ci
def test_runs_on_data_of_their_own_are_shared_out_too(folder: Path) -> None:
    ours, _ = audited(folder, *BOTH, "audit.shard_records=2", store="both")
    theirs, _ = audited(folder, *BOTH, store="both")
    assert (len(ours.audits[0].trials), len(theirs.audits[0].trials)) == (6, 3)
    shapes = [trial.arrays["own"].shape for trial in trials(folder, ours.audits[0], "both")]
    assert shapes == [(4, 1), (4, 2)] * 3
    runs = whole_runs(loaded(folder, *BOTH, "audit.shard_records=2"), trials(folder, ours.audits[0], "both"))
    for one, other in zip(runs, trials(folder, theirs.audits[0], "both"), strict=True):
        np.testing.assert_allclose(one.arrays["own"], other.arrays["own"], rtol=1e-3, atol=1e-6)


@pytest.mark.ci
def test_a_shard_that_is_missing_is_made_again_alone(folder: Path, shared: AuditResult) -> None:
    unbundle(folder / "store")
    store = Store(folder / "store")
    store.quarantine(shared.trials[7].key)
    again, made = audited(folder, SHARED)
    assert made == 1
    assert concluded(again.audits[0]) == concluded(shared)
    assert [t.evidence for t in again.audits[0].trials] == [t.evidence for t in shared.trials]
    assert [t.arrays for t in again.audits[0].trials] == [t.arrays for t in shared.trials]  # digests: the same bytes


@pytest.mark.ci
def test_runs_that_are_not_whole_wait(folder: Path) -> None:
    """Values of records use the runs that observed all records; values of a first shard count at once."""
    result, made = audited(folder, SHARED, store="part", options=RunOptions(device="cpu", max_trials=3))
    none = result.audits[0]
    assert (result.complete, made) == (False, 3)
    assert not [f for f in none.findings if f.rigor in ("approximate", "statistical") and f.scope.record == 5
                and f.bound != "lower"]  # fmt: skip
    assert not any(s.name == "records" for s in none.series)
    assert {f.method for f in none.findings if f.quantity == "accuracy"} == {"run on the declared data, 1 run"}
    result, made = audited(folder, SHARED, store="part", options=RunOptions(device="cpu", max_trials=4))
    one = result.audits[0]
    assert (len(one.trials), made) == (7, 4)
    assert any(f.method.startswith("confidence bound over 1 runs") for f in one.findings)
    assert {f.method for f in one.findings if f.quantity == "accuracy"} == {"run on the declared data, 2 runs"}
    store = Store(folder / "part")
    assert verify(result, load_catalog(), directory=str(folder), store=store) == ()


@pytest.mark.ci
def test_a_shared_out_result_can_be_verified(folder: Path, shared: AuditResult) -> None:
    result, made = audited(folder, SHARED)
    assert made == 0
    catalog = load_catalog()
    assert verify(result, catalog, directory=str(folder), store=Store(folder / "store")) == ()
    assert [m for m in verify(redact(result), catalog, directory=str(folder)) if m.differs] == []
    (missing,) = verify(result, catalog, directory=str(folder))
    assert "the array 'ratios' of trial 0" in missing.after
    held = trials(folder, shared)
    held[7] = replace(held[7], arrays={})
    with pytest.raises(ValueError, match="'ratios' of trial 7"):
        whole_runs(loaded(folder, SHARED), held)


def test_sharing_out_changes_keys_and_no_seed(folder: Path) -> None:
    catalog = load_catalog()
    plain, shared = (prepare(loaded(folder, *overrides), catalog) for overrides in ((), (SHARED,)))
    inputs = [p.trial_inputs() for p in (plain, shared)]
    assert "split" not in inputs[0]
    assert "shard_records" not in inputs[0]["audit"]
    assert {key: value for key, value in inputs[1].items() if key != "split"} == dict(inputs[0].items())
    keys = [TrialKeys(i, p.facts, p.revisions).of((0,), 0) for i, p in zip(inputs, (plain, shared), strict=True)]
    assert keys[0] != keys[1]
    contexts = [RunContext(p, catalog, i, device="cpu") for i, p in zip(inputs, (plain, shared), strict=True)]
    assert contexts[0].seed(2, "training") == contexts[1].seed(2, "training")
    assert contexts[0].seed(2, "training") != contexts[1].seed(1, "training")


def test_more_shards_than_pay_are_refused(folder: Path) -> None:
    sizes = ["data.records=2020", "data.split.test=20"]
    (diagnostic,) = specs.diagnostics(folder, TEXT, *sizes, "audit.shard_records=1")
    assert diagnostic.path == ("audit", "shard_records")
    assert f"2000 trials of every run, which all repeat the training: at most {MOST_SHARDS}" in diagnostic.message
