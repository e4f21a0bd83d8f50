"""Right answers are counted by split, in chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.contract import LoadedData
from dpspec.training.measure import scores
from dpspec.training.measure.scores import right_answers


@pytest.fixture
def identity():
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    return model


@pytest.mark.parametrize("chunk", [1, 2, 1024])
def test_right_answers_of_each_split(identity, monkeypatch, chunk):
    monkeypatch.setattr(scores, "_CHUNK", chunk)
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    y = np.array([0, 1, 0])
    data = LoadedData(train_x=x, train_y=y, test_x=x[:1], test_y=y[:1])
    assert right_answers(identity, data) == {"train": {"right": 2, "records": 3}, "test": {"right": 1, "records": 1}}
    assert set(right_answers(identity, LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0]))) == {"train"}
