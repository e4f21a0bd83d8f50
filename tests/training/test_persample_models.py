"""Every model kind that comes with dpspec: gradients, norms and clipped sums of each record as computed alone."""

from __future__ import annotations

from importlib import import_module
from math import prod

import pytest
import torch
from torch import nn

from dpspec.contract import Facts, FrozenMap
from dpspec.models.providers import MODELS
from dpspec.training.gradients.flat_model import record_by_record
from dpspec.training.gradients.persample import FlatModel, per_example_gradients

#: Texts have ids below this.
VOCABULARY = 7

#: Tried in this order: kinds say themselves which data they take.
_FACTS = [(shape, classes) for shape in ((3, 8, 9), (1, 28, 28), (12,)) for classes in (3, 2)]


def built(kind):
    """A small module of a kind, the shape of its records, and its classes."""
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


def one_by_one(model, x, y):
    found = []
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(found)


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_exactly_the_gradients_of_each_record(kind):
    """In float64, where they agree to ten digits."""
    model, shape, classes = built(kind)
    model = model.double()
    x, y = records(kind, shape, classes, torch.float64)
    expected = one_by_one(model, x, y)
    flat = FlatModel(model)
    assert torch.allclose(flat.rows(flat.initial(), x, y), expected, rtol=1e-9, atol=1e-10)
    assert torch.allclose(flat.norms(flat.initial(), x, y), expected.norm(dim=1), rtol=1e-10)


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_to_the_accuracy_of_float32(kind):
    """Relative to each record's norm. Rounding may take a ReLU of a single record across its kink, of two hardly."""
    model, shape, classes = built(kind)
    x, y = records(kind, shape, classes, torch.float32)
    expected = one_by_one(model, x, y)
    norms = expected.double().norm(dim=1)
    flat = FlatModel(model)
    got = per_example_gradients(flat, x, y)
    assert got.dtype == torch.float32
    errors = (got - expected).double().norm(dim=1) / norms
    assert int((errors > 1e-5).sum()) <= 1
    assert float(errors.max()) < 0.05
    found = flat.norms(flat.initial(), x, y)
    assert torch.allclose(found, got.double().norm(dim=1), rtol=1e-5)
    clip = float(norms.median())
    clipped = flat.clipped_sum(flat.initial(), x, y, clip)
    wanted = (got.double() * (clip / got.double().norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    assert float((clipped.sum.double() - wanted).norm()) < 1e-5 * clip * len(x)
    assert float(clipped.norms.max()) <= clip


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_all_parameters_have_rules_and_need_no_vmap(kind):
    """Which is what makes them fast; whoever adds a layer without one finds out here."""
    model, shape, classes = built(kind)
    assert record_by_record(model)
    flat = FlatModel(model)
    flat.norms(flat.initial(), *records(kind, shape, classes, torch.float32))
    assert flat._examples.covered == set(flat.layout.names)


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_a_look_is_norms_and_predictions_of_the_same_pass(kind, monkeypatch):
    """In chunks of any size, and of no records."""
    model, shape, classes = built(kind)
    model = model.double()
    x, y = records(kind, shape, classes, torch.float64)
    flat = FlatModel(model)
    state = flat.initial()
    assert flat.chunk(state, x, y) & (flat.chunk(state, x, y) - 1) == 0
    for size in (1, 3, 64):
        monkeypatch.setitem(flat._sizes, False, size)
        norms, predicted = flat.look(state, x, y)
        assert torch.allclose(norms, flat.norms(state, x, y), rtol=1e-12)
        assert torch.equal(predicted, flat.logits(state, x).argmax(dim=1))
    norms, predicted = flat.look(state, x[:0], y[:0])
    assert norms.shape == predicted.shape == (0,)
