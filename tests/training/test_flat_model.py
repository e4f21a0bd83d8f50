"""Models as functions of a flat vector, and layers that couple records."""

import pytest
import torch
from torch import nn

from dpspec.training.gradients.flat_model import (
    Layout,
    flatten,
    load,
    places,
    record_by_record,
    require_uncoupled,
    trained,
)


def test_order_and_round_trip(make_model):
    model = make_model("cnn")
    vector = flatten(model)
    assert torch.equal(vector, torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert len(vector) == Layout.of(model).size
    load(model, vector * 2)
    assert torch.equal(flatten(model), vector * 2)


def test_places_are_those_of_tied_parameters_too():
    body = nn.Linear(2, 2)
    model = nn.Sequential(body, body, nn.Linear(2, 2, bias=False))
    model[2].weight = body.weight
    model.register_buffer("shift", torch.zeros(1))
    found = places(model)
    assert set(found) == {"shift", "0.weight", "0.bias", "2.weight"}
    assert found["2.weight"] is found["0.weight"]
    assert trained(model) == {"0.weight": "0.weight", "0.bias": "0.bias", "2.weight": "0.weight"}


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="21 parameters"):
        load(nn.Linear(6, 3), torch.zeros(20))
    with pytest.raises(ValueError, match="no trainable parameters"):
        Layout.of(nn.ReLU())


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(4), ("(BatchNorm1d) mixes the records", "GroupNorm", "LayerNorm")),
        (nn.BatchNorm2d(4), ("BatchNorm2d", "GroupNorm")),
        (nn.SyncBatchNorm(4), ("SyncBatchNorm", "GroupNorm")),
        (nn.InstanceNorm1d(4, track_running_stats=True), ("InstanceNorm1d", "track_running_stats=False")),
        (nn.Dropout(0.5), ("Dropout", "generator")),
        (nn.MultiheadAttention(3, 1, dropout=0.1), ("(MultiheadAttention) applies dropout",)),
        (nn.Embedding(3, 3, max_norm=1.0), ("(Embedding) modifies its table",)),
        (nn.Embedding(3, 3, scale_grad_by_freq=True), ("(Embedding) modifies its table",)),
        (nn.LSTM(3, 3), ("(LSTM) executes all steps in one operation", "torch.nn.RNNCell, GRUCell or LSTMCell")),
    ],
)
def test_named_with_a_replacement(layer, words):
    with pytest.raises(ValueError, match="no per-example gradients") as caught:
        require_uncoupled(nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer)))
    for word in ("'1.0'", *words):
        assert word in str(caught.value)


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


def tampered(where):
    layer = nn.Linear(2, 2)
    match where:
        case "hook":
            layer.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
        case "before":
            layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(0),))
        case _:
            layer.forward = lambda x: x - x.mean(0)
    return nn.Sequential(layer)


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (nn.Linear(2, 2), True),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten()), True),
        (nn.Flatten(0), False),
        (nn.BatchNorm1d(2), False),
        (nn.Dropout(0.0), False),
        (nn.Softmax(dim=0), False),
        (tampered("hook"), False),
        (tampered("before"), False),
        (tampered("replaced"), False),
        (Mixing(2, 2), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(Mixing(2, 2))), False),
    ],
)
def test_only_known_layers_are_taken_to_work_record_by_record(layer, known):
    assert record_by_record(layer) is known
