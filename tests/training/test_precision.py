"""Full float32 inside, and the process as it was before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpspec.training.device import full_precision
from dpspec.training.gradients.persample import FlatModel


def settings():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.is_autocast_enabled("cpu"),
    )


@pytest.fixture
def careless():
    """A process that allows everything."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("careless")
def test_nothing_is_rounded_inside_and_all_comes_back():
    before = settings()
    with full_precision(torch.device("cpu")):
        assert settings() == ("highest", False, True, False, False)
    assert settings() == before
    with pytest.raises(KeyError), full_precision(torch.device("cpu")):
        raise KeyError
    assert settings() == before


@pytest.mark.usefixtures("careless")
def test_gradients_are_float32_whatever_the_process_allows(make_model, rows):
    x, y = rows("mlp", 5)
    model = make_model("mlp")
    flat = FlatModel(model)
    before = settings()
    got = flat.rows(flat.initial(), x, y)
    clipped = flat.clipped_sum(flat.initial(), x, y, 1.0)
    assert flat.logits(flat.initial(), x).dtype == got.dtype == clipped.sum.dtype == torch.float32
    assert settings() == before
    with torch.autocast("cpu", enabled=False):
        loss = nn.functional.cross_entropy(model(x[:1]), y[:1])
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert torch.allclose(got[0], expected, rtol=1e-5, atol=1e-6)  # bfloat16 has three digits
