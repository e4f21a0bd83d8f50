"""A model that cannot be trained as the spec asks ends as an error of the spec, at ``model``, with the way out."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
from support import unfit_models

from dpspec.contract import Facts, FrozenMap, ModelError
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import ExitCode, SpecError
from dpspec.language.load import load_specs
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


def told(tmp_path: Path, kind: str, backend: str = "native") -> str:
    """What is wrong with the spec, in one line with its place."""
    path = tmp_path / "unfit.yaml"
    path.write_text(SPEC.format(kind=kind, backend=backend), encoding="utf-8")
    catalog = unfit_models.offered(load_catalog())
    loaded = load_specs([path], catalog, ())
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
        (
            "dropping",
            "the model has no per-example gradients: layer '1' (Dropout) uses torch's global generator, so the "
            "run's seed would not determine it; remove it: DP-SGD's noise already regularizes",
        ),
        (
            "toonarrow",
            "the model rejects a record of shape [6]: layer '0' (Linear): mat1 and mat2 shapes cannot be multiplied "
            "(1x6 and 9x8); build the model for `facts.shape`, or change the `shape` of the data",
        ),
        (
            "unflat",
            "the model returns [1, 1, 3] for one record, but training needs one number for each of 3 classes, [1, 3]; "
            "end the model with a Flatten and a layer with `facts.classes` outputs",
        ),
        (
            "fewclasses",
            "the model returns [1, 2] for one record, but training needs one number for each of 3 classes, [1, 3]; "
            "end the model with a Flatten and a layer with `facts.classes` outputs",
        ),
    ],
)
def test_what_is_wrong_is_told_at_the_model_with_the_way_out(tmp_path: Path, kind: str, message: str) -> None:
    assert told(tmp_path, kind) == message


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="needs opacus")
def test_dropout_is_refused_with_opacus_too(tmp_path: Path) -> None:
    assert "layer '1' (Dropout) uses torch's global generator" in told(tmp_path, "dropping", "opacus")


def test_a_layer_that_looks_at_values_is_named(tmp_path: Path) -> None:
    message = told(tmp_path, "asking")
    assert message.startswith(
        "the model has no per-example gradients: layer '1' (_Asks) uses an operation that "
        "torch.func.vmap does not support; use tensor operations without .item() and branches on values: vmap: "
    )


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="needs opacus")
def test_a_positional_embedding_with_opacus_leads_to_the_native_backend(tmp_path: Path) -> None:
    assert told(tmp_path, "positional", "opacus") == (
        "Opacus computes 6 of the 4 per-example gradients of parameter '0.table.weight', for example because a "
        "positional embedding is used once for the whole batch; use training.backend: native, which supports such "
        "layers"
    )


def test_a_model_that_fits_is_left_alone_and_draws_nothing() -> None:
    import torch

    facts = Facts(records=4, features=6, classes=3, shape=(6,))
    before = torch.random.get_rng_state()
    check_model(unfit_models.Positional(FrozenMap(), facts), facts)
    assert torch.equal(before, torch.random.get_rng_state())


def test_texts_are_whole_numbers() -> None:
    from torch import nn

    class Texts(unfit_models.Factory):
        def module(self, features: int, classes: int) -> nn.Module:
            return nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(4 * features, classes))

    facts = Facts(records=4, features=5, classes=2, shape=(5,), vocabulary=11)
    check_model(Texts(FrozenMap(), facts), facts)
    with pytest.raises(ModelError, match=r"layer '0' \(Embedding\): Expected"):
        check_model(Texts(FrozenMap(), facts), dataclasses.replace(facts, vocabulary=None))
