"""Layers without per-example gradients are named, with what to use instead."""

from __future__ import annotations

import pytest
from torch import nn

from dpspec.training.coupling import problems, require_uncoupled
from dpspec.training.persample import FlatModel


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(4), ("BatchNorm1d", "GroupNorm", "LayerNorm")),
        (nn.BatchNorm2d(4), ("BatchNorm2d", "GroupNorm")),
        (nn.SyncBatchNorm(4), ("SyncBatchNorm", "GroupNorm")),
        (nn.InstanceNorm1d(4, track_running_stats=True), ("InstanceNorm1d", "track_running_stats=False")),
        (nn.Dropout(0.5), ("Dropout", "generator")),
        (nn.LSTM(4, 4), ("LSTM", "LSTMCell")),
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
