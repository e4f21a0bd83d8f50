"""A model that cannot be trained as the spec asks is an error of the spec; initial weights are part of every proof."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import unfit_models
from support.specs import document, spec_of, written

from dpspec.contract import Facts, FrozenMap
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.preparing.trial_keys import TrialKeys, code_in
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode, PluginError, SpecError
from dpspec.language.load import from_document, load_specs
from dpspec.models.architectures import Linear
from dpspec.registry.loader import load_catalog
from dpspec.training.gradients.flat_model import check_model

SPEC = """\
dpspec: 1
name: unfit
mechanism:
  {{kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {{scheme: poisson, rate: 0.1}}, steps: 2}}
data: {{kind: synthetic, records: 40, features: 6, classes: 3}}
model: {{kind: {kind}}}
training: {{backend: {backend}, learning_rate: 0.1}}
threat_model: {{access: final-model}}
claims: [{{id: one, kind: approx-dp, epsilon: 5.0, delta: 1e-4}}]
audit: {{method: one-run, canary: {{space: input, kind: mislabelled, count: 10}}, seed: 1}}
"""


def error_of(tmp_path: Path, kind: str, backend: str = "native") -> str:
    catalog = unfit_models.offered(load_catalog())
    loaded = load_specs([written(tmp_path, SPEC.format(kind=kind, backend=backend))], catalog)
    assert loaded.ok, loaded.diagnostics
    with pytest.raises(SpecError) as raised:
        run(loaded.specs, catalog, store=Store(tmp_path / "store"), device="cpu")
    assert raised.value.exit_code is ExitCode.INVALID_SPEC
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "model-mismatch"
    assert diagnostic.path == ("model",)
    assert diagnostic.span is not None
    assert diagnostic.span.line == 6
    return diagnostic.message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dropping", "layer '1' (Dropout) applies dropout with torch's global generator"),
        ("toonarrow", "the model rejects a record of shape [6]: layer '0' (Linear): "),  # and torch's own words
        ("unflat", "the model returns [1, 1, 3] for one record, but training needs one number for each of 3 classes"),
        ("fewclasses", "the model returns [1, 2] for one record, but training needs one number for each of 3 classes"),
        ("asking", "layer '1' (_Asks) uses an operation that torch.func.vmap does not support"),
    ],
)
def test_errors_are_located_at_the_model(tmp_path: Path, kind: str, message: str) -> None:
    assert message in error_of(tmp_path, kind)


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="needs opacus")
def test_a_positional_embedding_with_opacus_leads_to_the_native_backend(tmp_path: Path) -> None:
    message = error_of(tmp_path, "positional", "opacus")
    assert message.startswith("Opacus computes 6 of the 4 per-example gradients of parameter '0.table.weight'")
    assert "use training.backend: native" in message


def test_a_model_that_fits_is_left_alone_and_draws_nothing() -> None:
    import torch

    facts = Facts(records=4, features=6, classes=3, shape=(6,))
    before = torch.random.get_rng_state()
    check_model(unfit_models.Positional(FrozenMap(), facts), facts)
    assert torch.equal(before, torch.random.get_rng_state())


CATALOG = load_catalog()

NAME = "public-initial-weights"

DOCUMENT = document(
    mechanism={"steps": 3},
    data={"records": 60, "features": 8},
    audit={"method": "one-run", "canary": {"space": "gradient", "kind": "orthogonal", "count": 9}},
)


def weights(seed: int, features: int = 8) -> dict[str, torch.Tensor]:
    facts = Facts(records=1, features=features, classes=2, shape=(features,))
    return dict(Linear(FrozenMap({}), facts).build(seed).state_dict())


def spec(folder: Path, path: str | None = "w.safetensors"):
    model = {"kind": "linear"} | ({} if path is None else {"initial": {"path": path}})
    return from_document(DOCUMENT | {"model": model}, CATALOG, str(folder))


def audited(folder: Path, store: Path, path: str | None = "w.safetensors", **options: Any):
    (audit,) = run([spec(folder, path)], CATALOG, store=Store(store), options=RunOptions(**options)).audits
    return audit


def key(folder: Path, path: str | None) -> str:
    made = prepare(spec(folder, path), CATALOG)
    inputs = made.trial_inputs()
    return TrialKeys(inputs, made.facts, made.revisions, code_in(made.makers)).of((0,), 0)


def test_equal_files_make_equal_keys_and_others_other_ones(tmp_path: Path) -> None:
    for name, seed in (("w.safetensors", 1), ("again.safetensors", 1), ("other.safetensors", 2)):
        save_file(weights(seed), tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    save_file(weights(1), tmp_path / "elsewhere" / "w.safetensors")
    first = key(tmp_path, "w.safetensors")
    assert first == key(tmp_path, "again.safetensors") == key(tmp_path, "elsewhere/w.safetensors")
    assert len({first, key(tmp_path, "other.safetensors"), key(tmp_path, None)}) == 3
    save_file(weights(2), tmp_path / "w.safetensors")
    assert key(tmp_path, "w.safetensors") == key(tmp_path, "other.safetensors")


@pytest.mark.ci
def test_every_proof_names_the_assumption(tmp_path: Path) -> None:
    save_file(weights(1), tmp_path / "w.safetensors")
    audit = audited(tmp_path, tmp_path / "a")
    assert audit.verdicts[0].verdict == "proved"
    proof = audit.findings[audit.verdicts[0].upper_finding]
    assert [a.status for a in proof.assumptions if a.name == NAME] == ["declared"]
    upper = [f for f in audit.findings if f.bound == "upper" and f.scope.pipeline == "declared"]
    assert all(NAME in {a.name for a in f.assumptions} for f in upper)
    drawn = audited(tmp_path, tmp_path / "a", None)
    assert not any(a.name == NAME for f in drawn.findings for a in f.assumptions)
    assert drawn.trials[0].key != audit.trials[0].key
    assert drawn.trials[0].evidence != audit.trials[0].evidence


def test_verify_reads_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(weights(1), path)
    result = run([spec(tmp_path)], CATALOG, store=Store(tmp_path / "a"))
    assert verify(result, CATALOG, directory=str(tmp_path)) == ()
    save_file(weights(2), path)
    changed = verify(result, CATALOG, directory=str(tmp_path))
    assert any("facts" in m.what and m.differs for m in changed)
    path.unlink()
    (gone,) = verify(result, CATALOG, directory=str(tmp_path))
    assert gone.what == "initial weights"
    assert not gone.differs
    assert gone.claims == ("one",)
    # No spec of drawn weights becomes one of fine-tuning by an edit of its facts.
    drawn = run([spec(tmp_path, None)], CATALOG, store=Store(tmp_path / "a"))
    (audit,) = drawn.audits
    edited = dataclasses.replace(audit, facts=dataclasses.replace(audit.facts, initial_weights="0" * 64))
    found = verify(dataclasses.replace(drawn, audits=(edited,)), CATALOG, directory=str(tmp_path))
    assert any(m.differs for m in found)


@pytest.mark.parametrize(
    ("features", "code", "said"),
    [(None, "data-unreadable", "no such file"), (9, "model-mismatch", "'1.weight' is F32 [2, 9] and must be")],
)
def test_errors_stand_at_the_path(features: int | None, code: str, said: str, tmp_path: Path) -> None:
    if features is not None:
        save_file(weights(1, features), tmp_path / "w.safetensors")
    text = """\
dpspec: 1
name: tuned
mechanism: {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 3}
data: {kind: synthetic, records: 60, features: 8}
model:
  kind: linear
  initial: {path: w.safetensors}
claims: [{id: one, kind: approx-dp, epsilon: 4.0, delta: 1e-5}]
"""
    loaded = spec_of(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        prepare(loaded, CATALOG)
    (one,) = caught.value.diagnostics
    assert (one.code, one.path) == (code, ("model", "initial", "path"))
    assert said in one.message
    assert one.span is not None
    assert (one.span.line, one.span.column) == (7, 19)


@pytest.mark.parametrize("declared", [1, 10_000_000])
def test_a_model_must_have_the_declared_number_of_parameters(tmp_path, declared, monkeypatch):
    """A smaller number was accepted, a larger one ended in an IndexError."""
    monkeypatch.setattr(unfit_models.Factory, "parameters", lambda self: declared)
    path = written(tmp_path, SPEC.format(kind="positional", backend="native"))
    catalog = unfit_models.offered(load_catalog())
    foreign = dataclasses.replace(catalog.models["positional"], distribution="dpspec-unfit")
    catalog = dataclasses.replace(catalog, models={**catalog.models, "positional": foreign})
    message = rf"parameters\(\) returns {declared}, and the module of build\(\) has \d+ trainable parameters"
    with pytest.raises(PluginError, match=message):
        run(load_specs([path], catalog).specs, catalog, store=Store(tmp_path / "store"), device="cpu")


def test_a_metric_that_the_mechanism_does_not_measure_is_an_error_before_the_training(tmp_path: Path) -> None:
    text = SPEC.format(kind="linear", backend="native").replace(
        "claims: [", "claims: [{id: small, kind: metric, name: loss, at_most: 1.0}, "
    )
    (spec,) = load_specs([written(tmp_path, text)], load_catalog()).specs
    (problem,) = [d for d in prepare(spec, load_catalog()).diagnostics if "'loss'" in d.message]
    assert (problem.severity, problem.path) == ("error", ("claims", 0, "name"))
    assert problem.help == "measured are: accuracy"


def test_a_scheme_that_the_backend_does_not_support_is_located(tmp_path: Path) -> None:
    text = SPEC.format(kind="linear", backend="opacus").replace("{scheme: poisson, rate: 0.1}", "SCHEME")
    for scheme, supported in (("{scheme: random-allocation, epoch_steps: 2}", False), ("{scheme: full}", True)):
        loaded = load_specs([written(tmp_path, text.replace("SCHEME", scheme))], load_catalog())
        assert loaded.ok, loaded.diagnostics
        found = [one for one in prepare(loaded.specs[0], load_catalog()).diagnostics if one.path[-1] == "scheme"]
        assert [one.path for one in found] == ([] if supported else [("mechanism", "sampling", "scheme")])
        for diagnostic in found:
            assert diagnostic.message == "backend 'opacus' does not support the sampling scheme 'random-allocation'"
            assert diagnostic.help == "use one of fixed, full, poisson, shuffled, or another backend"
