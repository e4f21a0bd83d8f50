"""The flat vector follows ``parameters()`` and comes back unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpspec.training.gradients.flat_model import Layout, flatten, load, places, trained


def test_order_and_round_trip(kind, make_model):
    model = make_model(kind)
    vector = flatten(model)
    assert torch.equal(vector, torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert len(vector) == Layout.of(model).size
    load(model, vector * 2)
    assert torch.equal(flatten(model), vector * 2)


def test_flattening_copies(make_model):
    model = make_model("linear")
    flatten(model).zero_()
    assert float(flatten(model).abs().sum()) > 0


def test_views_share_memory_and_batches_flatten(make_model):
    layout = Layout.of(make_model("mlp"))
    vector = torch.arange(float(layout.size))
    views = layout.unflatten(vector)
    views["1.bias"].fill_(-1.0)
    assert (vector == -1).sum() == 5
    stacked = layout.flatten({name: torch.stack([v, v]) for name, v in views.items()}, leading=1)
    assert torch.equal(stacked, torch.stack([vector, vector]))


def test_rows_split_into_views(make_model):
    layout = Layout.of(make_model("mlp"))
    rows = torch.arange(2.0 * layout.size).view(2, -1)
    named = layout.split(rows)
    assert {name: tuple(part.shape[1:]) for name, part in named.items()} == dict(
        zip(layout.names, layout.shapes, strict=True)
    )
    assert torch.equal(layout.flatten(named, leading=1), rows)
    named["1.bias"].fill_(-1.0)
    assert (rows == -1).sum() == 10


def test_places_are_those_of_tied_parameters_too():
    body = nn.Linear(2, 2)
    model = nn.Sequential(body, body, nn.Linear(2, 2, bias=False))
    model[2].weight = body.weight
    model.register_buffer("shift", torch.zeros(1))
    found = places(model)
    assert set(found) == {"shift", "0.weight", "0.bias", "2.weight"}
    assert found["2.weight"] is found["0.weight"]
    assert trained(model) == {"0.weight": "0.weight", "0.bias": "0.bias", "2.weight": "0.weight"}


def test_frozen_parameters_stay(make_model):
    model = make_model("linear")
    model.bias.requires_grad_(False)
    bias = model.bias.clone()
    load(model, torch.zeros(18))
    assert torch.equal(model.bias, bias)
    assert not model.weight.any()


def test_wrong_sizes_are_refused(make_model):
    with pytest.raises(ValueError, match="21 parameters"):
        load(make_model("linear"), torch.zeros(20))
    with pytest.raises(ValueError, match="no trainable parameters"):
        Layout.of(nn.ReLU())
