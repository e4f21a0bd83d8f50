"""``training.loss`` from the spec to the run: names, options, refusals with their place, and keys of trials."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import dpspec
from dpspec.contract import Json
from dpspec.engine.preparing.prepare import prepare
from dpspec.errors import PluginError, SpecError
from dpspec.language.blocks import bundle
from dpspec.language.load import from_document
from dpspec.registry import loader
from dpspec.registry.loader import load_catalog, use_project
from dpspec.registry.project import project_files

SPEC: dict[str, Json] = {
    "dpspec": 1,
    "name": "loss",
    "mechanism": {
        "kind": "group",
        "steps": 12,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "poisson", "rate": 0.2},
    },
    "data": {"kind": "synthetic", "records": 60, "features": 5, "classes": 3},
    "model": {"kind": "linear"},
    "audit": {"method": "one-run", "canary": {"count": 10}},
}

PARTS = """
import numpy as np
from torch.nn.functional import cross_entropy
import dpspec

@dpspec.loss("focal")
def focal(outputs, targets, *, gamma: float = 2.0):
    losses = cross_entropy(outputs, targets, reduction="none")
    return (1.0 - (-losses).exp()) ** gamma * losses

@dpspec.dataset("houses", target="real")
def houses(*, records: int = 60):
    x = np.random.default_rng(0).normal(size=(records, 5))
    return x, x @ np.arange(5) / 4

@dpspec.loss("absolute")
def absolute(outputs, targets):
    return (outputs[:, 0] - targets).abs()

@dpspec.loss("batch-mean")
def batch_mean(outputs, targets):
    return cross_entropy(outputs, targets)

@dpspec.loss("broken")
def broken(outputs, targets):
    return outputs.no_such_method()
"""


def spec_of(loss: Json, **blocks: Json) -> dpspec.Spec:
    document = {key: block for key, block in {**SPEC, **blocks}.items() if block is not None}
    training = {**document.get("training", {}), "loss": loss}
    return from_document({**document, "training": training}, load_catalog())


def refused(loss: Json, **blocks: Json) -> dict[str, str]:
    try:
        errors = prepare(spec_of(loss, **blocks), load_catalog()).diagnostics
    except (SpecError, PluginError) as error:
        errors = error.diagnostics
    return {".".join(map(str, d.path)): d.message for d in errors}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loader, "_project", ())
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
    monkeypatch.chdir(tmp_path)
    use_project(project_files([tmp_path]))
    return tmp_path


def test_a_name_is_a_kind_with_its_defaults():
    loss = spec_of("cross-entropy").training["loss"]
    assert loss == spec_of({"kind": "cross-entropy", "label_smoothing": 0}).training["loss"]
    assert dict(loss) == {"kind": "cross-entropy", "label_smoothing": 0.0}
    assert dict(spec_of("squared-error").training["loss"]) == {"kind": "squared-error"}


def test_the_schema_for_editors_accepts_the_same_losses():
    validator = Draft202012Validator(bundle(load_catalog()))
    fitting = ("squared-error", {"kind": "cross-entropy", "label_smoothing": 0.1})
    wrong = ("other", 3, {"label_smoothing": 0.1}, {"kind": "squared-error", "label_smoothing": 0.1})
    for backend in ({}, {"backend": "opacus"}):
        valid = [validator.is_valid({**SPEC, "training": {**backend, "loss": loss}}) for loss in (*fitting, *wrong)]
        assert valid == [True, True, False, False, False, False]


def test_errors_have_their_place():
    assert "did you mean 'squared-error'" in refused("squared-eror")["training.loss"]
    assert "did you mean 'squared-error'" in refused({"kind": "squared-eror"})["training.loss.kind"]
    foreign_key = refused({"kind": "squared-error", "label_smoothing": 0.1})
    assert "unknown key" in foreign_key["training.loss.label_smoothing"]
    smoothed = refused({"kind": "cross-entropy", "label_smoothing": 1.5})
    assert "at most 1" in smoothed["training.loss.label_smoothing"]
    assert "must be a map" in refused(3)["training.loss"]
    assert "missing key 'kind'" in refused({})["training.loss"]
    composition = {"kind": "composition", "releases": [{"name": "a", "kind": "gaussian", "sigma": 1.0}]}
    message = refused("squared-error", mechanism=composition, audit=None)["training.loss"]
    assert message == "'composition' does not train with training.loss"


@pytest.mark.recorder
def test_the_loss_of_a_recorded_run_is_refused(tmp_path):
    recorded = refused("squared-error", training={"backend": "recorded", "run": str(tmp_path)})
    assert "'recorded' does not train with training.loss" in recorded["training.loss"]


@pytest.mark.ci
def test_a_run_with_another_loss_conforms_and_has_other_keys_but_equal_bounds():
    results = [dpspec.run({**SPEC, "training": {"loss": loss}}) for loss in ("cross-entropy", "squared-error")]
    first, second = (result.audits[0] for result in results)
    assert {audit.conformance.status for audit in (first, second)} == {"no-deviation-found"}
    assert {t.key for t in first.trials}.isdisjoint(t.key for t in second.trials)
    bounds = [[(f.quantity, f.value) for f in audit.findings if f.rigor == "certified"] for audit in (first, second)]
    assert bounds[0] == bounds[1]
    assert bounds[0]


@pytest.mark.ci
def test_a_loss_of_the_project_is_checked_keyed_and_trained(project):
    assert "one value for the batch" in refused("batch-mean")["training.loss"]
    assert "broken() fails at " in refused("broken")["training.loss"]
    assert "parts.py:26: AttributeError" in refused("broken")["training.loss"]
    prepared = prepare(spec_of({"kind": "focal", "gamma": 1}), load_catalog())
    assert prepared.makers["loss"]["code"]
    path = project / "audit.yaml"
    path.write_text(json.dumps({**SPEC, "training": {"loss": {"kind": "focal", "gamma": 1}}}))
    (audit,) = dpspec.run(path).audits
    assert audit.conformance.status == "no-deviation-found"


REGRESSION: dict[str, Json] = {"data": {"kind": "houses"}, "model": {"kind": "mlp", "hidden": [4]}}


@pytest.mark.ci
@pytest.mark.parametrize("loss", [{"kind": "huber", "threshold": 0.5}, "absolute"])
def test_a_run_on_real_targets_conforms_with_the_bounds_of_classes(project, loss):
    audits = [
        dpspec.run({**SPEC, **blocks}, store=project / "store").audits[0]
        for blocks in ({**REGRESSION, "training": {"loss": loss}}, {})
    ]
    assert [audit.conformance.status for audit in audits] == ["no-deviation-found"] * 2
    values = [[f.value for f in audit.findings if f.bound == "upper" and f.rigor == "certified"] for audit in audits]
    assert values[0] == values[1] != []
    assert [any(f.quantity == "accuracy" for f in audit.findings) for audit in audits] == [False, True]
    if loss == "absolute":
        many = {"method": "many-run", "runs": 16, "canary": {"count": 1}}
        blocks = {**REGRESSION, "training": {"loss": loss}, "audit": many}
        (audit,) = dpspec.run({**SPEC, **blocks}, store=project / "store").audits
        assert audit.conformance.status == "no-deviation-found"


@pytest.mark.ci
def test_real_targets_are_refused_where_classes_are_needed(project):
    def errors(loss: Json = "huber", **blocks: Json) -> dict[str, str]:
        return refused(loss, **{**REGRESSION, **blocks})

    assert errors() == {}
    assert errors("cross-entropy")["training.loss"] == "cross-entropy is not a loss for real-valued targets"
    assert refused("huber")["training.loss"] == "huber is not a loss for classes"
    (default,) = prepare(from_document({**SPEC, **REGRESSION}, load_catalog()), load_catalog()).diagnostics
    assert default.message == "cross-entropy, the default, is not a loss for real-valued targets"
    records = {"method": "one-run", "canary": {"space": "input", "kind": "duplicate", "count": 4}}
    assert "need classes" in errors(audit=records)["audit.canary.space"]
    metric = [{"id": "useful", "kind": "metric", "name": "accuracy", "at_least": 0.5, "expect": "supported"}]
    assert errors(claims=metric)["claims.0.name"] == "real-valued targets have no accuracy"
    classes = prepare(from_document({**SPEC, "claims": metric}, load_catalog()), load_catalog()).diagnostics
    assert [(d.path, d.help.partition(",")[0]) for d in classes if d.code == "unsupported"] == [
        (("claims", 0, "name"), "add split: {test: 0.2} to data")
    ]
    per_record = {**SPEC["mechanism"], "kind": "per-instance"}
    assert (
        "trains on classes" in errors(mechanism=per_record, audit={"method": "many-run", "runs": 4})["mechanism.kind"]
    )
    assert "batch_mean() fails at" in errors("batch-mean")["training.loss"]
