"""Per-example gradients, norms and clipped sums compared with one backward pass per record."""

from importlib import import_module
from math import prod

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.layers import Net, one_by_one
from torch import nn
from torch.nn import functional

from dpspec.contract import Facts, FrozenMap
from dpspec.models.architectures import MODELS
from dpspec.training.gradients import persample
from dpspec.training.gradients.clipping import Clipper
from dpspec.training.gradients.ghost import PerExample
from dpspec.training.gradients.persample import FlatModel


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_buffers_take_part(rows):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))  # a parameter without dimensions
            self.register_buffer("shift", torch.tensor([1.0, -2.0, 0.5]))

        def forward(self, x):
            return self.scale * x[:, :3] + self.shift

    x, y = rows("mlp", 6)
    model = Shifted()
    assert close(persample.per_example_gradients(model, x, y), one_by_one(model, x, y))
    flat = FlatModel(model)
    assert flat.clipped_sum(flat.initial(), x, y, 0.1).sum.shape == (1,)


@pytest.mark.parametrize("size", [1, 4, 64])
def test_chunks_do_not_change_the_result(kind, make_model, rows, size):
    model = make_model(kind)
    x, y = rows(kind, 37)
    chunked = FlatModel(model)
    chunked._sizes = dict.fromkeys(("rows", "sums", "norms"), size)
    state = chunked.initial()
    whole = one_by_one(model, x, y)
    assert close(persample.per_example_gradients(chunked, x, y), whole)
    expected = (whole * (0.7 / whole.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    assert close(chunked.clipped_sum(state, x, y, 0.7).sum, expected)
    assert size > 1 or [len(some) for some in chunked.gradients(state, x, y)] == [1] * 37


def test_an_empty_batch_gives_zeros(kind, make_model, rows):
    model = FlatModel(make_model(kind))
    x, y = rows(kind, 0)
    assert persample.per_example_gradients(model, x, y).shape == (0, model.size)
    assert [found.shape for found in model.look(model.initial(), x, y)] == [(0,), (0,)]
    clipped = model.clipped_sum(model.initial(), x, y, 1.0)
    assert torch.equal(clipped.sum, torch.zeros(model.size))
    assert clipped.norms.shape == (0,)
    assert list(model.gradients(model.initial(), x, y)) == []


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, "not enough memory: you tried to allocate 9"])
def test_out_of_memory_halves_the_chunks_and_changes_nothing(make_model, rows, monkeypatch, error):
    x, y = rows("cnn", 37)
    model, other = FlatModel(make_model("cnn")), FlatModel(make_model("cnn"))
    state = model.initial()
    expected = other.clipped_sum(state, x, y, 0.3)
    norms, gradients = other.look(state, x, y)[0], other.rows(state, x, y)
    asked = []

    def scarce(real):
        def found_by(self, parameters, x, y):
            asked.append(len(x))
            found = real(self, parameters, x, y)
            if len(asked) > 1 and len(x) > 4:  # the first chunk fits, and its part of the sum must not count twice
                raise RuntimeError(error) if isinstance(error, str) else error()
            return found

        return found_by

    for name in ("gradients", "squares"):
        monkeypatch.setattr(PerExample, name, scarce(getattr(PerExample, name)))
    model._sizes = dict.fromkeys(("rows", "sums", "norms"), 16)
    got = model.clipped_sum(state, x, y, 0.3)
    assert asked[:4] == [16, 16, 8, 4]
    assert max(asked[3:]) == 4
    assert torch.allclose(got.sum, expected.sum, rtol=1e-5, atol=1e-6)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-6)
    asked.clear()
    assert torch.allclose(model.look(state, x, y)[0], norms, rtol=1e-6)
    assert torch.allclose(model.rows(state, x, y), gradients, rtol=1e-4, atol=1e-6)
    assert max(asked) == 4  # what has run out once is not tried again


#: Texts have ids below this.
VOCABULARY = 7

#: Tried in this order: kinds say themselves which data they take.
_FACTS = [(shape, classes) for shape in ((3, 8, 9), (1, 28, 28), (12,)) for classes in (3, 2)]


def built(kind):
    module, name = next(model.factory for model in MODELS if model.kind == kind).split(":")
    for shape, classes in _FACTS:
        vocabulary = VOCABULARY if kind == "transformer" else None
        facts = Facts(records=50, features=prod(shape), classes=classes, shape=shape, vocabulary=vocabulary)
        try:
            return getattr(import_module(module), name)(FrozenMap({}), facts).build(1), shape, classes
        except ValueError:
            continue
    raise AssertionError(f"no data for {kind}")


def records(kind, shape, classes, dtype):
    source = torch.Generator().manual_seed(2)
    if kind == "transformer":
        x = torch.randint(0, VOCABULARY, (4, *shape), generator=source).to(dtype)
        return x, torch.randint(0, classes, (4,), generator=source)
    x = torch.randn(4, *shape, generator=source, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, classes, (4,), generator=source)


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_exactly_the_gradients_of_each_record(kind, monkeypatch):
    """In float64, where they agree to ten digits, in chunks of any size. All layers have a rule and need no vmap."""
    model, shape, classes = built(kind)
    model = model.double()
    x, y = records(kind, shape, classes, torch.float64)
    expected = one_by_one(model, x, y)
    flat = FlatModel(model)
    assert torch.allclose(flat.rows(flat.initial(), x, y), expected, rtol=1e-9, atol=1e-10)
    assert flat._examples.covered == set(flat.layout.names)
    assert flat._examples.together
    for size in (1, 3, 64):
        monkeypatch.setitem(flat._sizes, "norms", size)
        norms, predicted = flat.look(flat.initial(), x, y)
        assert torch.allclose(norms, expected.norm(dim=1), rtol=1e-10)
        assert torch.equal(predicted, flat.logits(flat.initial(), x).argmax(dim=1))


SIZES = st.integers(1, 4)
CLASSES = 3
RECORDS = 5

quick = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def seeded(make, seed):
    """A float64 model whose scales and shifts are no ones and zeros, which would hide mistakes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
    return model


def rows(shape, seed, top=None):
    source = torch.Generator().manual_seed(seed)
    if top is not None:
        return torch.randint(0, top, (RECORDS, *shape), generator=source).double()
    return torch.randn(RECORDS, *shape, generator=source, dtype=torch.float64)


def check(make, x, seed=0):
    """Both precisions, against the loop in the same precision; the model in float64."""
    model = seeded(make, seed)
    y = torch.randint(0, CLASSES, (len(x),), generator=torch.Generator().manual_seed(seed))
    flat, truth = None, one_by_one(model, x, y)
    for dtype, digits in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = model.to(dtype)
        some = x.to(dtype)
        expected = one_by_one(model, some, y)
        flat = FlatModel(model)
        got = flat.rows(flat.initial(), some, y)
        scale = float(expected.abs().max()) + 1e-3
        own = float((expected - truth).abs().max())  # what rounding takes from the loop itself
        assert float((got - expected).abs().max()) <= digits * scale + 4 * own
        norms = expected.double().norm(dim=1)
        clip = float(norms.median()) + 1e-9
        wanted = (expected.double() * (clip / norms.clamp(min=clip))[:, None]).sum(0)
        clipped = flat.clipped_sum(flat.initial(), some, y, Clipper(clip))
        off = max(digits, 2e-7) * (len(x) * clip + 1e-3) + 4 * len(x) * own  # factors are float32
        assert float((clipped.sum.double() - wanted).abs().max()) <= off
        assert float(clipped.norms.max()) <= clip
    return flat


@pytest.mark.parametrize("norm_first", [False, True])
@quick
@given(SIZES, SIZES, st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_transformer_encoder(norm_first, seed, length, heads, each, layers):
    width = 2 * heads * each

    def make():
        options = {"dim_feedforward": 3, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, **options), layers, enable_nested_tensor=False
        )
        return Net(
            lambda m, x: m.head(m.encoder(m.table(x.long())).mean(1)),
            table=nn.Embedding(4, width),
            encoder=encoder,
            head=nn.Linear(width, CLASSES),
        )

    check(make, rows((length,), seed, 4), seed)


def random_in_forward(m, x):
    return functional.dropout(x, 0.5) if m.training else x


def branching(m, x):
    return x if bool((x > 0).any()) else -x


@pytest.mark.parametrize("run", [random_in_forward, branching])
def test_what_vmap_refuses_names_the_layer_that_asked(run):
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), Net(run)), nn.Linear(4, CLASSES))
    flat = FlatModel(model)
    with pytest.raises(ValueError, match=r"layer '1\.1' \(Net\) uses an operation that torch\.func\.vmap"):
        flat.look(flat.initial(), torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))
