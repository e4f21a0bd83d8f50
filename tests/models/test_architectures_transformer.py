"""The transformer: padding changes nothing, order does; texts are refused by what computes with features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.canaries import KINDS, make

from dpspec.contract import Facts, FrozenMap
from dpspec.engine.preparing.prepare import check, prepare
from dpspec.language.load import from_document, load_specs
from dpspec.models.architectures import Transformer
from dpspec.registry.loader import load_catalog

FACTS = Facts(records=9, features=6, classes=3, shape=(6,), vocabulary=11)

SMALL = FrozenMap({"width": 8, "heads": 2, "layers": 2, "hidden": 5})


def test_padding_is_neither_attended_to_nor_averaged_over() -> None:
    """A text in a longer record has the same scores, though what stands for padding could be anything."""
    model = Transformer(SMALL, FACTS).build(1)
    x = torch.tensor([[4, 7, 2, 0, 0, 0]])
    expected = model(x)
    with torch.no_grad():
        model[0].tokens.weight[0] = 5.0
        model[0].positions.weight[3:] = -3.0
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert not torch.allclose(model(torch.tensor([[7, 4, 2, 0, 0, 0]])), expected, atol=1e-3)
    assert torch.isfinite(model(torch.zeros(1, 6))).all()


def test_attention_is_that_of_torch() -> None:
    """Against torch's own encoder layer with the same weights, normalisation first."""
    ours = Transformer(SMALL, FACTS).build(2)[0].layers[0].double()
    options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 5, **options).double()
    pairs = {
        "self_attn.in_proj_weight": ours.packed.weight,
        "self_attn.in_proj_bias": ours.packed.bias,
        "self_attn.out_proj.weight": ours.attended.weight,
        "self_attn.out_proj.bias": ours.attended.bias,
        "linear1.weight": ours.inner.weight,
        "linear1.bias": ours.inner.bias,
        "linear2.weight": ours.outer.weight,
        "linear2.bias": ours.outer.bias,
        "norm1.weight": ours.before_attention.weight,
        "norm1.bias": ours.before_attention.bias,
        "norm2.weight": ours.before_dense.weight,
        "norm2.bias": ours.before_dense.bias,
    }
    theirs.load_state_dict({name: t.detach() for name, t in pairs.items()})
    x = torch.randn(3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] + [True] * 5])
    found, expected = ours(x, (~hidden).double()), theirs(x, src_key_padding_mask=hidden)
    assert torch.allclose(found[~hidden], expected[~hidden], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "facts", "said"),
    [
        ({}, Facts(records=9, features=6, classes=3, shape=(6,)), "needs records of token ids"),
        ({}, Facts(records=9, features=6, classes=3, shape=(2, 3), vocabulary=11), "needs records of token ids"),
        ({"width": 5}, FACTS, r"width must be a multiple of heads \(2\), got 5"),
    ],
)
def test_refused(options: dict[str, Any], facts: Facts, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Transformer(FrozenMap(options), facts)


CATALOG = load_catalog()


def document(**changes: Any) -> dict[str, Any]:
    sampling = {"scheme": "poisson", "rate": 0.1}
    mechanism = {"kind": "group", "noise_multiplier": 2.0, "clip_norm": 1.0, "sampling": sampling, "steps": 3}
    claims = [{"id": "one", "kind": "approx-dp", "epsilon": 4.0, "delta": 1e-5}]
    whole: dict[str, Any] = {"dpspec": 1, "name": "texts", "mechanism": mechanism, "claims": claims}
    return {**whole, "data": {"kind": "synthetic-tokens"}, "model": {"kind": "transformer"}, **changes}


def test_what_computes_with_features_is_refused_where_it_is_named() -> None:
    assert check(from_document(document(), CATALOG), CATALOG) == ()
    kinds = [kind for kind, offered in CATALOG.models.items() if offered.distribution == "dpspec"]
    for kind in kinds:
        found = check(from_document(document(model={"kind": kind}), CATALOG), CATALOG)
        if kind == "transformer":
            assert found == ()
            continue
        (one,) = found
        assert (one.code, one.path) == ("model-mismatch", ("model",))
        assert f"{kind} computes with features, and the records are ids of 50 tokens" in one.message


@pytest.mark.parametrize("kind", ["rero", "modelmix", "per-instance", "preprocessing"])
def test_mechanisms_that_compute_with_features_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(CATALOG.mechanisms[kind].provider.example)
    (example,) = load_specs([tmp_path / "s.yaml"], CATALOG).specs
    changed = {**example.to_json(), "data": {"kind": "synthetic-tokens"}, "model": {"kind": "transformer"}}
    prepared = prepare(from_document(changed, CATALOG), CATALOG)
    assert ("unsupported", ("data", "kind")) in [(one.code, one.path) for one in prepared.diagnostics]


@pytest.mark.parametrize("kind", KINDS)
def test_planted_texts_are_texts(kind: str) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 11, (50, 6)).astype(np.float32), random.integers(0, 3, 50)
    if kind == "least-variance":
        with pytest.raises(ValueError, match="texts have no directions"):
            make(kind, 3, x, y, 3, 1, vocabulary=11)
        return
    canaries = make(kind, 3, x, y, 3, 1, vocabulary=11)
    assert canaries.x.dtype == np.float32
    assert canaries.x.shape == (3, 6)
    assert (canaries.x == canaries.x.astype(int)).all()
    assert canaries.x.min() >= 0
    assert canaries.x.max() <= 10


def test_random_texts_use_every_token_alike() -> None:
    """6000 draws of ten ids: a chi-square of 9 degrees stays below 40 but for 8 in a million times."""
    x, y = np.zeros((2, 6), dtype=np.float32), np.zeros(2, dtype=np.int64)
    ids = make("noise", 1000, x, y, 3, 1, vocabulary=11).x.astype(int)
    counts = np.bincount(ids.ravel(), minlength=11)
    assert counts[0] == 0
    assert ((counts[1:] - 600) ** 2 / 600).sum() < 40
