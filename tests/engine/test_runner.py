"""An audit from its spec to its verdicts, and controls that a certified bound refutes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from support import counting

from dpspec.contract import Diagnostic, Spec
from dpspec.contract.events import Event, TrialFinished, TrialsPlanned
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.results.diff import diff
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import controls_decided_by_theory, run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import ExitCode, NothingToRunError, PluginError, SpecError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog


@pytest.fixture
def load(tmp_path: Path) -> Any:
    return functools.partial(counting.load, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def audited(specs: tuple[Spec, ...], store: Store, **options: object) -> Result:
    return run(specs, counting.catalog(), store=store, **options)  # type: ignore[arg-type]


def test_an_audit_from_spec_to_verdicts(load: Any, store: Store) -> None:
    told: list[Event] = []
    result = audited(load(), store, listeners=[told.append])
    (audit,) = result.audits
    assert [(v.claim, v.verdict, v.expected) for v in audit.verdicts] == [
        ("held", "proved", True),
        ("broken", "refuted", True),
    ]
    assert audit.conformance.status == "no-deviation-found"
    assert counting.RAN == [0, 1, 2, 3, 4]
    assert result.exit_code == ExitCode.OK
    assert [e for e in told if isinstance(e, TrialsPlanned)] == [
        TrialsPlanned(audit="coin", total=5, stored=0, seconds=0.0)
    ]
    assert [e.index for e in told if isinstance(e, TrialFinished)] == [0, 1, 2, 3, 4]
    counting.RAN.clear()
    again = audited(load(), store)
    assert counting.RAN == []
    assert diff(result, again) == ()
    assert again.audits[0].trials == audit.trials


@pytest.mark.parametrize(
    ("override", "trained"),
    [
        ("claims.held.epsilon=1.2", []),
        ("audit.confidence=0.99", []),
        ("description=other", []),
        ("claims.broken.expect=open", []),
        ("audit.runs=7", [5, 6]),
        ("audit.seed=4", [0, 1, 2, 3, 4]),
        ("mechanism.epsilon=1.1", [0, 1, 2, 3, 4]),
    ],
)
def test_what_trials_read_decides_which_are_trained_again(
    load: Any, store: Store, override: str, trained: list[int]
) -> None:
    audited(load(), store)
    counting.RAN.clear()
    audited(load(override), store)
    assert trained == counting.RAN


def test_nothing_to_run(store: Store) -> None:
    with pytest.raises(NothingToRunError):
        audited((), store)


def test_a_kind_that_is_gone_is_a_plugin_error(load: Any, store: Store) -> None:
    specs = load()
    from dpspec.contract.catalog import Catalog

    with pytest.raises(PluginError, match="counting"):
        run(specs, Catalog(), store=store)


def test_errors_of_all_specs_are_told_before_any_work(load: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpspec.contract import Diagnostic

    def refuse(self: object, spec: Spec, facts: object) -> list[Diagnostic]:
        return [Diagnostic(code="bad-value", message="no", path=("mechanism", "epsilon"))]

    monkeypatch.setattr(counting.CountingAudit, "check", refuse)
    with pytest.raises(SpecError) as caught:
        audited(load() + load("name=other"), store)
    assert [d.span is not None and d.span.line for d in caught.value.diagnostics] == [3, 3]
    assert counting.RAN == []


ROOT = Path(__file__).parents[2]

SPEC = """\
dpspec: 1
name: controlled
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 4}
data: {kind: synthetic, pattern: blobs, records: 60, features: 40, classes: 2}
model: {kind: linear}
claims:
  - {id: true-one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}
  - CONTROL
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 20}, seed: 3}
"""

#: Four full batches with noise multiplier 1 are one Gaussian mechanism of noise 1/2: epsilon at delta 1e-5 is 9.997.
LOW = "{id: low, kind: approx-dp, epsilon: 9.99, delta: 1e-5, expect: refuted}"


def warnings(tmp_path: Path, control: str, spec: str = SPEC) -> list[Diagnostic]:
    file = tmp_path / "spec.yaml"
    file.write_text(spec.replace("CONTROL", control), encoding="utf-8")
    catalog = load_catalog()
    loaded = load_specs([file], catalog)
    assert not loaded.diagnostics
    return [found for one in loaded.specs for found in controls_decided_by_theory(prepare(one, catalog), catalog)]


@pytest.mark.parametrize(
    "control",
    [
        LOW.replace("expect", "refuted_by: attack, expect"),
        LOW.replace("expect", "refuted_by: any, expect"),
        LOW.replace("9.99", "10.01"),
        LOW.replace("refuted}", "[refuted, open]}"),
        "{id: low, kind: metric, name: accuracy, at_least: 1.0, expect: refuted}",
    ],
    ids=["by-attack", "any-written", "not-below", "not-a-control", "metric"],
)
def test_other_claims_get_no_warning(tmp_path, control):
    assert warnings(tmp_path, control) == []


def test_a_spec_without_an_audit_gets_no_warning(tmp_path):
    assert warnings(tmp_path, LOW, SPEC[: SPEC.index("audit:")]) == []


def test_bounds_that_need_rows_give_no_warning(tmp_path):
    """The control of this example is false, but its bounds hold for the rows at hand."""
    file = ROOT / "specs" / "preprocessing" / "dedup-side-channel.yaml"
    text = file.read_text(encoding="utf-8").replace("refuted_by: attack, ", "")
    assert warnings(tmp_path, "", text) == []
