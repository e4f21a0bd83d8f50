"""``stop: settled``: many runs end when all claims are decided, by a test that holds whenever one stops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from dpspec.contract import Evidence, FrozenMap, Json, Scope
from dpspec.contract.events import Event, Noticed
from dpspec.engine.results.result import AuditResult, Result
from dpspec.engine.running.run_options import RunOptions
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode, SpecError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks import evidence_tests
from dpspec_group import mechanism
from dpspec_group.refusals import MAX_SEQUENTIAL_RUNS

SPEC = """\
dpspec: 1
name: stopping
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 1.0}, steps: 2}
data: {kind: synthetic, pattern: blobs, records: 30, features: 8, classes: 2}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
threat_model: {group_size: [1, 4]}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
  - {id: four, kind: approx-dp, epsilon: 0.5, delta: 1e-5, group_size: 4, expect: refuted}
audit: {method: many-run, canary: {space: gradient}, runs: 160, seed: 3, stop: settled}
"""


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "_TOGETHER", 16)


def audited(
    tmp_path: Path,
    *overrides: str,
    store: str = "store",
    options: RunOptions | None = None,
    train: bool = True,
    heard: list[Event] | None = None,
    text: str = SPEC,
) -> Result:
    path = tmp_path / "stopping.yaml"
    path.write_text(text, encoding="utf-8")
    catalog = load_catalog()
    loaded = load_specs([path], catalog, overrides)
    assert loaded.ok, loaded.diagnostics
    listeners = [] if heard is None else [heard.append]
    return run(loaded.specs, catalog, store=Store(tmp_path / store), options=options, listeners=listeners, train=train)


def told(audit: AuditResult) -> object:
    return (audit.verdicts, audit.findings, audit.evidence, audit.checks, audit.settled_after, len(audit.trials))


def lower(audit: AuditResult) -> dict[object, float]:
    return {f.at["group_size"]: f.value for f in audit.findings if f.quantity == "epsilon" and f.bound == "lower"}


def test_it_ends_when_claims_are_decided(tmp_path: Path) -> None:
    heard: list[Event] = []
    result = audited(tmp_path, heard=heard)
    (audit,) = result.audits
    assert [v.verdict for v in audit.verdicts] == ["proved", "refuted"]
    assert audit.settled_after == len(audit.trials) == len(list(Store(tmp_path / "store").keys())) < 160
    assert audit.settled_after % 16 == 0
    assert result.complete
    assert result.exit_code is ExitCode.OK
    notices = [event.message for event in heard if isinstance(event, Noticed)]
    assert any(f"decided after {audit.settled_after} of 160 trials" in notice for notice in notices)
    assert verify(result, load_catalog()) == ()
    # It stopped at the first look that was enough.
    if audit.settled_after > 16:
        shorter = audited(tmp_path, f"audit.runs={audit.settled_after - 16}", store="other").audits[0]
        assert shorter.verdicts[1].p_value is not None
        assert shorter.verdicts[1].p_value > 0.05  # theory alone refutes it then


@pytest.mark.ci
def test_it_is_the_same_whatever_is_stored_and_wherever_it_is_made(tmp_path: Path) -> None:
    once = audited(tmp_path, store="a").audits[0]
    whole = audited(tmp_path, "audit.stop=planned", store="b").audits[0]
    assert (whole.settled_after, len(whole.trials)) == (None, 160)
    assert told(audited(tmp_path, store="b").audits[0]) == told(once)  # from what is stored, although there is more
    again = audited(tmp_path, store="a", options=RunOptions(max_trials=1)).audits[0]
    assert told(again) == told(once)
    piece = audited(tmp_path, store="c", options=RunOptions(max_trials=16))
    assert piece.exit_code is ExitCode.INCOMPLETE
    assert told(audited(tmp_path, store="c").audits[0]) == told(once)


@pytest.mark.slow
def test_two_workers_stop_where_one_does(tmp_path: Path) -> None:
    once = audited(tmp_path, store="a").audits[0]
    assert told(audited(tmp_path, store="b", options=RunOptions(executor="local", workers=2)).audits[0]) == told(once)


@pytest.mark.parametrize(
    ("override", "verdicts"), [("claims.four.epsilon=40", ["proved", "proved"]), ("claims.one.epsilon=6", ["refuted"])]
)
def test_what_runs_do_not_decide_is_tried_to_the_end(tmp_path: Path, override: str, verdicts: list[str]) -> None:
    """Proofs are; and what theory alone refutes: one record loses 6.573, and the attack does not see more than 6."""
    audit = audited(tmp_path, "audit.runs=48", override).audits[0]
    first = audit.verdicts[0]
    assert [v.verdict for v in audit.verdicts][: len(verdicts)] == verdicts
    assert (audit.settled_after, len(audit.trials)) == (None, 48)
    if verdicts == ["refuted"]:
        assert first.lower == pytest.approx(6.57297, rel=1e-5)
        assert first.p_value is not None
        assert first.p_value > 0.05


def test_several_audits_share_the_level(tmp_path: Path) -> None:
    cells = audited(tmp_path, text=SPEC + "matrix: {claims.four.epsilon: [0.3, 0.4, 0.5]}\n").audits
    alone = audited(tmp_path, "claims.four.epsilon=0.3").audits[0]
    assert alone.settled_after is not None
    assert [v.verdict for audit in cells for v in audit.verdicts] == ["proved", "refuted"] * 3
    stops = [audit.settled_after for audit in cells]
    assert None not in stops
    assert stops == sorted(stops)  # type: ignore[type-var]
    assert stops[0] is not None
    assert stops[0] >= alone.settled_after


@pytest.mark.ci
def test_an_audit_that_stopped_is_decided_among_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an audit of many claims less is a refutation: one that stopped for less could never go on."""
    monkeypatch.setattr(mechanism, "_TOGETHER", 1)
    one, rest = (
        "  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}\n",
        "".join(f"  - {{id: c{i}, kind: approx-dp, epsilon: {4 + i}, delta: 1e-5}}\n" for i in range(10)),
    )
    alone = audited(tmp_path, text=SPEC.replace(one, "")).audits[0]
    texts = {"few": SPEC.replace(one, ""), "many": SPEC.replace(one, rest).replace("name: stopping", "name: many")}
    paths = [tmp_path / f"{name}.yaml" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text.replace("runs: 160", "runs: 64"), encoding="utf-8")
    catalog = load_catalog()
    result = run(load_specs(paths, catalog).specs, catalog, store=Store(tmp_path / "store"))
    few, many = result.audits
    assert [v.verdict for v in few.verdicts] == ["refuted"]
    assert many.settled_after is None
    assert alone.settled_after is not None
    assert few.settled_after is not None
    assert alone.settled_after < few.settled_after < 64
    assert verify(result, catalog) == ()


def edited(result: Result, **changes: object) -> Result:
    return dataclasses.replace(result, audits=(dataclasses.replace(result.audits[0], **changes),))  # type: ignore[arg-type]


def test_an_edited_stop_does_not_follow(tmp_path: Path) -> None:
    result = audited(tmp_path)
    audit = result.audits[0]
    for changes in ({"settled_after": None}, {"settled_after": 16}):
        wrong = [m.what for m in verify(edited(result, **changes), load_catalog())]
        assert wrong == ["settled_after"]
    fewer: Sequence[object] = audit.trials[:16]
    assert verify(edited(result, trials=tuple(fewer), settled_after=16), load_catalog())


def test_the_key_of_a_trial_knows_nothing_of_it(tmp_path: Path) -> None:
    stops = audited(tmp_path, "audit.runs=20", store="a").audits[0]
    ends = audited(tmp_path, "audit.runs=20", "audit.stop=planned", store="a").audits[0]
    assert [t.key for t in stops.trials] == [t.key for t in ends.trials]
    assert {e.kind for e in stops.evidence if e.quantity == "epsilon"} == {"many-run-sequential"}
    assert {e.kind for e in ends.evidence if e.quantity == "epsilon"} == {"many-run"}
    assert lower(stops)[4] <= lower(ends)[4] + 1.0


def test_one_run_has_a_test_of_fixed_size(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        audited(tmp_path, "audit.method=one-run", "audit.canary={space: gradient, count: 16}", "audit.runs=1")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.path == ("audit", "stop")
    assert diagnostic.help == "remove stop, or write method: many-run"


@pytest.mark.parametrize("outcomes", [None, 5, "zz", ((1,),), ((1, 1, -5),), ((1, 1, 10**12),)])
def test_evidence_that_no_trial_wrote_is_no_error_of_the_plugin(tmp_path: Path, outcomes: Json) -> None:
    result = audited(tmp_path, "audit.runs=16")
    first, *others = result.audits[0].trials
    broken = dataclasses.replace(first, evidence=FrozenMap({**first.evidence, "outcomes": outcomes}))
    (mismatch,) = verify(edited(result, trials=(broken, *others)), load_catalog())
    assert mismatch.what == "audit"
    assert mismatch.recomputed.startswith("no conclusions follow from its trials: ")


def test_no_more_runs_are_planned_than_the_test_reads(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        audited(tmp_path, f"audit.runs={MAX_SEQUENTIAL_RUNS + 1}")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.path == ("audit", "runs")
    for runs, possible in ((MAX_SEQUENTIAL_RUNS, True), (MAX_SEQUENTIAL_RUNS + 1, False)):
        statistics = FrozenMap({"coins": "1" * runs, "scores": (1,) * runs})
        evidence = Evidence(
            id="a", kind="many-run-sequential", statistics=statistics, scope=Scope(), method="m", source="s"
        )
        if possible:
            evidence_tests.require_counts(evidence)
        else:
            with pytest.raises(ValueError, match="more than there can be"):
                evidence_tests.require_counts(evidence)
