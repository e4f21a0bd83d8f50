"""Accuracy counts right answers, in chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.contract import LoadedData
from dpspec.training.measure.scores import accuracy, right_answers


@pytest.fixture
def identity():
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    return model


@pytest.mark.parametrize("chunk", [1, 2, 1024])
def test_counts(identity, chunk):
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 2]], dtype=np.float32)
    assert accuracy(identity, x, np.array([0, 1, 2, 0]), chunk=chunk) == 0.75


def test_at_another_state(identity):
    x = np.array([[1, 0, 0]], dtype=np.float32)
    assert accuracy(identity, x, np.array([1]), state=torch.eye(3)[[1, 0, 2]].flatten()) == 1.0


def test_no_records(identity):
    with pytest.raises(ValueError, match="no records"):
        accuracy(identity, np.zeros((0, 3), dtype=np.float32), np.zeros(0, dtype=np.int64))


def test_right_answers_of_each_split(identity):
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    y = np.array([0, 1, 0])
    data = LoadedData(train_x=x, train_y=y, test_x=x[:1], test_y=y[:1])
    assert right_answers(identity, data) == {"train": {"right": 2, "records": 3}, "test": {"right": 1, "records": 1}}
    assert set(right_answers(identity, LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0]))) == {"train"}
