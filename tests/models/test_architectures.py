"""Every model kind: parameters are counted right, weights depend on the seed alone, odd data are refused."""

from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from dpspec.contract import Facts, FrozenMap, ModelFactory
from dpspec.engine.preparing.prepare import check, prepare
from dpspec.language.load import from_document, load_specs
from dpspec.models.architectures import MODELS, Transformer
from dpspec.registry.loader import load_catalog

CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("linear", {}, (7,)),
    ("linear", {"bias": False}, (1, 8, 8)),
    ("mlp", {}, (1, 8, 8)),
    ("mlp", {"hidden": [5, 3], "activation": "tanh"}, (30,)),
    ("cnn-small", {}, (1, 8, 8)),
    ("cnn-small", {"channels": [4, 6, 5], "activation": "tanh"}, (3, 11, 9)),
    ("lenet5", {}, (1, 28, 28)),
    ("lenet5", {"activation": "relu"}, (3, 32, 32)),
    ("resnet20", {}, (3, 8, 8)),
    ("resnet20", {"groups": 4, "activation": "tanh"}, (1, 9, 11)),
    ("wide-resnet-16-4", {"groups": 8}, (1, 8, 9)),
    ("transformer", {}, (9,)),
    ("transformer", {"width": 6, "heads": 3, "layers": 2, "hidden": 5}, (1,)),
]

#: Kinds that take texts are given ids below this.
VOCABULARY = 11


def _factory(kind: str, options: dict[str, Any], shape: tuple[int, ...], classes: int = 10) -> ModelFactory:
    module, name = next(m.factory for m in MODELS if m.kind == kind).split(":")
    vocabulary = VOCABULARY if kind == "transformer" else None
    facts = Facts(records=50, features=prod(shape), classes=classes, shape=shape, vocabulary=vocabulary)
    made: ModelFactory = getattr(import_module(module), name)(FrozenMap(options), facts)
    return made


@pytest.mark.parametrize(("kind", "options", "shape"), CASES)
def test_counts_and_shapes(kind: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    factory = _factory(kind, options, shape, 10)
    module = factory.build(3)
    assert factory.parameters() == sum(p.numel() for p in module.parameters())
    assert all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())
    assert not list(module.buffers())
    scores = module(torch.zeros(4, *shape))
    assert scores.shape == (4, 10)
    assert torch.isfinite(scores).all()


def test_known_sizes() -> None:
    assert _factory("lenet5", {}, (1, 28, 28)).parameters() == 61_706
    assert _factory("lenet5", {}, (1, 32, 32)).parameters() == 61_706
    assert _factory("linear", {}, (1, 8, 8)).parameters() == 650
    assert _factory("mlp", {"hidden": [64]}, (1, 8, 8)).parameters() == 4810
    # As published for the originals, whose batch normalisation has as many weights: 0.27 and 2.7 million.
    assert _factory("resnet20", {}, (3, 32, 32)).parameters() == 269_722
    assert _factory("wide-resnet-16-4", {}, (3, 32, 32)).parameters() == 2_748_890


def test_weights_do_not_follow_the_default_dtype() -> None:
    factory, before = _factory("cnn-small", {}, (1, 8, 8)), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert {p.dtype for p in factory.build(0).parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (400,)), ("cnn-small", (4, 20, 20))])
def test_weights_have_the_law_of_torchs_own(kind: str, shape: tuple[int, ...]) -> None:
    """Uniform on +-1/sqrt(fan in): the standard deviation is that over sqrt(3)."""
    module = _factory(kind, {}, shape).build(5)
    with torch.random.fork_rng(devices=[]):
        for own in module.children():
            if not isinstance(own, torch.nn.Linear | torch.nn.Conv2d):
                continue
            weight = own.weight.detach().clone()
            own.reset_parameters()
            assert weight.abs().max() <= weight[0].numel() ** -0.5
            assert weight.std() == pytest.approx(float(own.weight.detach().std()), rel=0.1)
            assert weight.mean().abs() < 0.1 * weight.std()


def test_residual_blocks_add_what_goes_past_them() -> None:
    """With convolutions of zeros the shortcuts alone are left: every second pixel, then zeros for new channels."""
    module = _factory("resnet20", {}, (3, 9, 8)).build(0)
    blocks = [inner for inner in module if type(inner).__name__ == "Sum"]
    assert len(blocks) == 9
    x = torch.rand(2, 16, 9, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for block in blocks:
            for parameter in block.body.parameters():
                parameter.zero_()
        first, second = blocks[0](x), blocks[3](x)
    assert torch.equal(first, x)
    assert second.shape == (2, 32, 5, 4)
    assert torch.equal(second[:, :16], x[:, :, ::2, ::2])
    assert not second[:, 16:].any()


@pytest.mark.parametrize(
    ("kind", "options", "shape", "message"),
    [
        ("lenet5", {}, (1, 8, 8), r"lenet5 needs images .* of 28 x 28 or 32 x 32, got records \(1, 8, 8\)"),
        ("lenet5", {}, (784,), "lenet5 needs images"),
        ("lenet5", {}, (28, 28), "lenet5 needs images"),
        ("lenet5", {}, (1, 28, 32), "lenet5 needs images"),
        ("cnn-small", {}, (64,), "cnn-small needs images .* of at least 8 x 8"),
        ("cnn-small", {}, (1, 7, 8), "cnn-small needs images"),
        ("cnn-small", {"channels": [1, 1, 1, 1]}, (1, 8, 8), "images of 1 x 1 are too small for pooling"),
        ("resnet20", {}, (3, 32, 7), r"resnet20 needs images .* of at least 8 x 8, got records \(3, 32, 7\)"),
        ("wide-resnet-16-4", {}, (64,), r"wide-resnet-16-4 needs images .*, got records \(64,\)"),
    ],
)
def test_data_that_do_not_fit(kind: str, options: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _factory(kind, options, shape)


FACTS = Facts(records=9, features=6, classes=3, shape=(6,), vocabulary=11)

SMALL = FrozenMap({"width": 8, "heads": 2, "layers": 2, "hidden": 5})


def test_padding_is_neither_attended_to_nor_averaged_over() -> None:
    model = Transformer(SMALL, FACTS).build(1)
    x = torch.tensor([[4, 7, 2, 0, 0, 0]])
    expected = model(x)
    with torch.no_grad():
        model[0].tokens.weight[0] = 5.0
        model[0].positions.weight[3:] = -3.0
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert not torch.allclose(model(torch.tensor([[7, 4, 2, 0, 0, 0]])), expected, atol=1e-3)
    assert torch.isfinite(model(torch.zeros(1, 6))).all()


@pytest.mark.rounding
def test_attention_is_that_of_torch() -> None:
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
