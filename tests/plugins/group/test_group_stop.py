"""``stop: e-value``: many runs end when all claims are decided, by a test that is valid at any stopping time."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpspec_group
from dpspec.contract.events import Event, Noticed
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode, SpecError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.stats.attacks.sequential import MOST_RUNS
from dpspec_group.options import MOST_SEQUENTIAL_RUNS

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
audit: {method: many-run, canary: {space: gradient}, runs: 160, seed: 3, stop: e-value}
"""


@pytest.fixture(autouse=True, scope="module")
def _short_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpspec_group, "_TOGETHER", 16)
        yield


def audited(
    tmp_path: Path,
    *overrides: str,
    store: str = "store",
    options: RunOptions | None = None,
    events: list[Event] | None = None,
    text: str = SPEC,
) -> Result:
    path = tmp_path / "stopping.yaml"
    path.write_text(text, encoding="utf-8")
    catalog = load_catalog()
    loaded = load_specs([path], catalog, overrides)
    assert loaded.ok, loaded.diagnostics
    listeners = [] if events is None else [events.append]
    return run(loaded.specs, catalog, store=Store(tmp_path / store), options=options, listeners=listeners)


def values_of(audit: AuditResult) -> object:
    return (audit.verdicts, audit.findings, audit.evidence, audit.checks, audit.planned_trials, len(audit.trials))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    return audited(tmp_path_factory.mktemp("stopped"), events=events), events


@pytest.mark.ci
def test_a_run_ends_at_the_first_chunk_that_decides_its_claims(tmp_path, stopped):
    result, events = stopped
    (audit,) = result.audits
    assert [v.verdict for v in audit.verdicts] == ["proved", "refuted"]
    assert audit.planned_trials == len(audit.trials) < 160
    assert len(audit.trials) % 16 == 0
    assert {e.kind for e in audit.evidence if e.quantity == "epsilon"} == {"many-run-sequential"}
    assert result.complete
    assert result.exit_code is ExitCode.OK
    notices = [event.message for event in events if isinstance(event, Noticed)]
    assert f"stopped after {len(audit.trials)} of 160 trials, which decide all privacy claims" in notices
    assert verify(result, load_catalog()) == ()
    if len(audit.trials) > 16:
        shorter = audited(tmp_path, f"audit.runs={len(audit.trials) - 16}", store="other").audits[0]
        assert shorter.verdicts[1].p_value is not None
        assert shorter.verdicts[1].p_value > 0.05


@pytest.mark.ci
def test_stored_trials_and_limits_do_not_change_the_result(tmp_path, stopped):
    once = stopped[0].audits[0]
    whole = audited(tmp_path, "audit.stop=planned", store="b").audits[0]
    assert len(whole.trials) == 160
    assert {e.kind for e in whole.evidence if e.quantity == "epsilon"} == {"many-run"}
    assert values_of(audited(tmp_path, store="b").audits[0]) == values_of(once)
    assert [t.key for t in whole.trials][: len(once.trials)] == [t.key for t in once.trials]
    piece = audited(tmp_path, store="c", options=RunOptions(max_trials=16))
    assert piece.exit_code is (ExitCode.OK if len(once.trials) == 16 else ExitCode.INCOMPLETE)
    assert values_of(audited(tmp_path, store="c").audits[0]) == values_of(once)


@pytest.mark.ci
def test_proved_claims_are_tested_to_the_end(tmp_path: Path) -> None:
    audit = audited(tmp_path, "audit.runs=48", "claims.four.epsilon=40", "claims.four.expect=proved").audits[0]
    assert [v.verdict for v in audit.verdicts] == ["proved", "proved"]
    assert audit.planned_trials == len(audit.trials) == 48


@pytest.mark.ci
def test_several_audits_share_the_level(tmp_path: Path) -> None:
    result = audited(tmp_path, text=SPEC + "matrix: {claims.four.epsilon: [0.3, 0.5]}\n")
    assert [v.verdict for audit in result.audits for v in audit.verdicts] == ["proved", "refuted"] * 2
    alone = audited(tmp_path, "claims.four.epsilon=0.3").audits[0]
    assert len(alone.trials) <= len(result.audits[0].trials) < 160
    assert verify(result, load_catalog()) == ()


@pytest.mark.ci
def test_a_result_with_fewer_trials_than_decide_does_not_follow(stopped):
    result, _ = stopped
    audit = result.audits[0]
    for changes in ({"planned_trials": 160}, {"trials": audit.trials[:16]}, {"notes": ()}):
        edited = dataclasses.replace(result, audits=(dataclasses.replace(audit, **changes),))
        assert verify(edited, load_catalog())


@pytest.mark.parametrize(
    ("overrides", "path", "help_text"),
    [
        (
            ("audit.method=one-run", "audit.canary={space: gradient, count: 16}", "audit.runs=1"),
            ("audit", "stop"),
            "remove stop, or write method: many-run",
        ),
        ((f"audit.runs={MOST_RUNS + 1}",), ("audit", "runs"), "remove stop, or write fewer runs"),
    ],
)
def test_stops_that_no_test_supports_are_refused(tmp_path, overrides, path, help_text):
    with pytest.raises(SpecError) as caught:
        audited(tmp_path, *overrides)
    assert MOST_SEQUENTIAL_RUNS == MOST_RUNS
    assert [(d.path, d.help) for d in caught.value.diagnostics] == [(path, help_text)]
