"""A batch may be of any size: a step's memory is that of a chunk, and what it computes is the sum all the same."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop import contributions
from dpspec.training.loop.contributions import RecordsAndCanaries


class Largest(TorchDispatchMode):
    """The bytes of the largest storage that any operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(contributions, "_COPIED", 32 * 1024)


def largest(make_model, rows, batch):
    """The largest tensor of a step on ``batch`` of 4000 rows, whose own storages are looked into, not made."""
    x, y = rows("cnn", 4000)
    parts = RecordsAndCanaries(FlatModel(make_model("cnn"), budget=256 * 1024), x, y)
    state = parts._model.initial()
    parts(state, torch.arange(64), 0.5)  # what is found out once is found
    with Largest() as seen:
        parts(state, torch.arange(batch), 0.5)
    return seen.bytes


@pytest.mark.usefixtures("small_pieces")
def test_memory_does_not_grow_with_the_batch(make_model, rows):
    """But for 16 bytes a record: its index, and its norm."""
    small, large = (largest(make_model, rows, batch) for batch in (256, 4000))
    assert large <= max(small, 4000 * 16)
    assert largest(make_model, rows, 4000) < rows("cnn", 4000)[0].nbytes / 4


@pytest.mark.usefixtures("small_pieces")
def test_the_sum_is_that_of_all(make_model, rows):
    x, y = rows("cnn", 700)
    model = FlatModel(make_model("cnn"))
    drawn = torch.arange(0, 700, 2)
    found = RecordsAndCanaries(model, x, y)(model.initial(), drawn, 0.5)
    gradients = per_example_gradients(model, x[drawn], y[drawn]).double()
    norms = gradients.norm(dim=1)
    clipped = gradients * (0.5 / norms).clamp(max=1.0)[:, None]
    assert torch.allclose(found.sum.double(), clipped.sum(0), rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.norms, norms.clamp(max=0.5), rtol=1e-5)
    empty = RecordsAndCanaries(model, x, y)(model.initial(), drawn[:0], 0.5)
    assert not empty.sum.any()
    assert len(empty.norms) == 0
