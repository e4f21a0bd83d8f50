"""Words that version 0.3 renamed: specs with old words load with a warning, and results of version 1 are read."""

from __future__ import annotations

from pathlib import Path

from dpspec.contract.diagnostics import rename, rename_in_result, with_old_words
from dpspec.language.load import Loaded, from_document, load_specs
from dpspec.registry.loader import load_catalog

SPEC = """\
dpspec: 1
name: renamed
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.01}, steps: 10}
data: {kind: digits}
model: {kind: linear}
claims: [{kind: approx-dp, epsilon: 9.0, delta: 1e-5}]
audit:
  method: one-run
  canary: {space: gradient, count: 100}
  expect: EXPECT
  TWIN: false
"""


def load(text: str, tmp_path: Path, *overrides: str) -> Loaded:
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    return load_specs([tmp_path / "spec.yaml"], load_catalog(), overrides)


def test_old_words_of_a_spec_are_accepted_with_a_located_warning(tmp_path: Path) -> None:
    old = load(SPEC.replace("EXPECT", "conforms-within").replace("TWIN", "twin"), tmp_path)
    new = load(SPEC.replace("EXPECT", "no-deviation-found").replace("TWIN", "canary_free_run"), tmp_path)
    assert new.diagnostics == ()
    assert [(d.code, d.severity, d.span.line if d.span else 0) for d in old.diagnostics] == [
        ("renamed-word", "warning", 10),
        ("renamed-word", "warning", 11),
    ]
    assert old.diagnostics[0].message == "'conforms-within' is now called 'no-deviation-found'"
    assert old.specs[0].document == new.specs[0].document
    assert old.specs[0].digest == new.specs[0].digest


def test_old_words_in_a_list_are_replaced() -> None:
    document = {"training": {"public_constants": True, "assume": ["x", "fresh-noise"]}}
    warnings = rename(document)
    assert document == {"training": {"data_independent_hyperparameters": True, "assume": ["x", "independent-noise"]}}
    expected = [(("training", "public_constants"), True), (("training", "assume", 1), False)]
    assert [(warning.path, warning.at_key) for warning in warnings] == expected


def test_digests_and_trials_are_those_of_the_old_words(tmp_path: Path) -> None:
    (spec,) = load(SPEC.replace("EXPECT", "deviates").replace("TWIN", "canary_free_run"), tmp_path).specs
    assert with_old_words(spec.document)["audit"]["twin"] is False
    audit = load_catalog().mechanisms["group"].provider
    from dpspec.registry.foreign_code import resolve

    inputs = resolve(audit.audit)().trial_inputs(spec)  # type: ignore[operator]
    assert "canary_free_run" not in inputs["audit"]
    assert inputs["split"]["twin"] is False


def test_a_resolved_document_with_old_words_is_rebuilt(tmp_path: Path) -> None:
    (spec,) = load(SPEC.replace("EXPECT", "no-deviation-found").replace("TWIN", "canary_free_run"), tmp_path).specs
    assert from_document(with_old_words(spec.document), load_catalog(), spec.directory) == spec


def test_an_old_word_next_to_the_new_one_is_an_error(tmp_path: Path) -> None:
    text = SPEC.replace("EXPECT", "deviates").replace("  TWIN: false\n", "  twin: true\n  canary_free_run: false\n")
    assert [d.code for d in load(text, tmp_path).diagnostics] == ["unknown-key"]


def test_words_of_a_result_are_translated_in_their_places_only() -> None:
    check = {"assumption": "contribution", "test": "contribution", "note": "fresh-noise"}
    channel = {"name": "contribution", "status": "tested", "sources": ["fresh-noise", "x"], "assumes": []}
    finding = {"quantity": "twin", "assumptions": [{"name": "public-constants", "status": "declared"}]}
    document = {"name": "contribution", "audit": {"expect": "conforms-within", "twin": False}}
    data = {"conformance": {"status": "conforms-within"}, "checks": [check], "channels": [channel]}
    found = rename_in_result({**data, "findings": [finding], "document": document})
    assert found["conformance"] == {"status": "no-deviation-found"}
    assert found["checks"] == [{**check, "assumption": "sensitivity"}]
    assert found["channels"] == [{**channel, "sources": ["independent-noise", "x"]}]
    assert found["findings"][0]["assumptions"][0]["name"] == "data-independent-hyperparameters"
    assert found["document"] == {
        "name": "contribution",
        "audit": {"expect": "no-deviation-found", "canary_free_run": False},
    }
