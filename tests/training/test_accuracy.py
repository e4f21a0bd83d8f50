"""Accuracy counts right answers, in chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.training.accuracy import accuracy


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
