"""Layers without per-example gradients are named, with what to use instead."""

from __future__ import annotations

import pytest
from torch import nn

from dpspec.training.gradients.flat_model import problems, record_by_record, require_uncoupled
from dpspec.training.gradients.persample import FlatModel


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(4), ("BatchNorm1d", "GroupNorm", "LayerNorm")),
        (nn.BatchNorm2d(4), ("BatchNorm2d", "GroupNorm")),
        (nn.SyncBatchNorm(4), ("SyncBatchNorm", "GroupNorm")),
        (nn.InstanceNorm1d(4, track_running_stats=True), ("InstanceNorm1d", "track_running_stats=False")),
        (nn.Dropout(0.5), ("Dropout", "generator")),
        (nn.LSTM(4, 4, 2, dropout=0.5), ("LSTM", "dropout=0")),
    ],
)
def test_named_with_a_replacement(layer, words):
    (found,) = problems(nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer)))
    assert "'1.0'" in found
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.Dropout(0.0), nn.Conv2d(1, 4, 3)]
)
def test_uncoupled_layers_pass(layer):
    assert problems(nn.Sequential(layer)) == ()


def test_all_of_them_at_once():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout())
    with pytest.raises(ValueError, match=r"'0' \(BatchNorm1d\).*'2' \(Dropout\)"):
        require_uncoupled(model)
    with pytest.raises(ValueError, match="BatchNorm1d"):
        FlatModel(model)


def test_a_bare_layer_has_no_name():
    assert problems(nn.BatchNorm1d(4))[0].startswith("BatchNorm1d mixes")


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (nn.Linear(2, 2), True),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten()), True),
        (nn.Flatten(0), False),
        (nn.BatchNorm1d(2), False),
        (nn.Dropout(0.0), False),
        (nn.Softmax(dim=0), False),
        (Mixing(2, 2), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(Mixing(2, 2))), False),
    ],
)
def test_only_known_layers_are_taken_to_work_record_by_record(layer, known):
    assert record_by_record(layer) is known


@pytest.mark.parametrize("where", ["hook", "before", "replaced"])
def test_layers_that_were_tampered_with_are_not_known(where):
    layer = nn.Linear(2, 2)
    match where:
        case "hook":
            layer.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
        case "before":
            layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(0),))
        case _:
            layer.forward = lambda x: x - x.mean(0)
    assert not record_by_record(nn.Sequential(layer))
