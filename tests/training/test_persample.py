"""Per-example gradients against a plain loop of autograd; chunks, clipping and norms."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
import torch
from torch import nn

from dpspec.training.gradients import flat_model, persample
from dpspec.training.gradients.ghost import PerExample
from dpspec.training.gradients.persample import FlatModel


def one_by_one(model, x, y):
    """The slow obvious way: one backward pass per record."""
    found = []
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        found.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(found)


def norms_of(model, x, y):
    """The norms (b,) of the records' gradients at the model's own parameters."""
    flat = FlatModel(model, device=x.device)
    return flat.norms(flat.initial(), x, y)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_equal_to_a_plain_loop(kind, make_model, rows):
    model = make_model(kind)
    x, y = rows(kind, 23)
    expected = one_by_one(model, x, y)
    got = persample.per_example_gradients(model, x, y)
    assert got.dtype == torch.float32
    assert close(got, expected)
    assert close(norms_of(model, x, y), expected.double().norm(dim=1))


def test_evaluated_at_another_state(kind, make_model, rows):
    model, other = make_model(kind), make_model(kind, seed=5)
    x, y = rows(kind, 4)
    before = flat_model.flatten(model)
    got = persample.per_example_gradients(model, x, y, state=flat_model.flatten(other))
    assert close(got, one_by_one(other, x, y))
    assert torch.equal(flat_model.flatten(model), before)


def test_frozen_parameters_are_constants(make_model, rows):
    model = make_model("mlp")
    model[1].weight.requires_grad_(False)
    x, y = rows("mlp", 7)
    got = persample.per_example_gradients(model, x, y)
    assert got.shape == (7, 63 - 30)
    assert close(got, one_by_one(model, x, y))


def test_buffers_take_part(rows):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))  # a parameter without dimensions
            self.register_buffer("shift", torch.tensor([1.0, -2.0, 0.5]))

        def forward(self, x):
            return self.scale * x[:, :3] + self.shift

    x, y = rows("mlp", 6)
    model = Shifted()
    assert close(persample.per_example_gradients(model, x, y), one_by_one(model, x, y))
    flat = FlatModel(model)
    assert flat.clipped_sum(flat.initial(), x, y, 0.1).sum.shape == (1,)


@pytest.mark.parametrize("budget", [1, 5_000, 10**9])
def test_chunks_do_not_change_the_result(kind, make_model, rows, budget):
    model = make_model(kind)
    x, y = rows(kind, 37)
    chunked = FlatModel(model, budget=budget)
    state = chunked.initial()
    whole = one_by_one(model, x, y)
    assert close(persample.per_example_gradients(chunked, x, y), whole)
    expected = (whole * (0.7 / whole.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    assert close(chunked.clipped_sum(state, x, y, 0.7).sum, expected)


def test_a_budget_of_one_byte_takes_records_one_by_one(make_model, rows):
    x, y = rows("mlp", 5)
    functional = FlatModel(make_model("mlp"), budget=1)
    sizes = [len(next(iter(chunk.values()))) for chunk in functional.gradients(functional.initial(), x, y)]
    assert sizes == [1] * 5


def test_clipping_leaves_small_gradients_alone_and_cuts_large_ones(make_model, rows):
    x, y = rows("mlp", 30)
    model = FlatModel(make_model("mlp"))
    gradients = persample.per_example_gradients(model, x, y)
    norms = gradients.double().norm(dim=1)
    clip = float(norms.median())
    clipped = model.clipped_sum(model.initial(), x, y, clip)
    assert clipped.norms.dtype == torch.float64
    small = norms < clip * (1 - 1e-6)
    assert small.any()
    assert (~small).any()
    assert torch.allclose(clipped.norms[small], norms[small], rtol=1e-6)
    assert torch.allclose(clipped.norms[~small], torch.tensor(clip, dtype=torch.float64), rtol=1e-6)
    assert float(clipped.norms.max()) <= clip
    expected = (gradients.double() * (clip / norms).clamp(max=1.0)[:, None]).sum(0)
    assert torch.allclose(clipped.sum.double(), expected, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_gives_zeros(kind, make_model, rows):
    model = FlatModel(make_model(kind))
    x, y = rows(kind, 0)
    assert persample.per_example_gradients(model, x, y).shape == (0, model.size)
    assert model.norms(model.initial(), x, y).shape == (0,)
    clipped = model.clipped_sum(model.initial(), x, y, 1.0)
    assert torch.equal(clipped.sum, torch.zeros(model.size))
    assert clipped.norms.shape == (0,)
    assert model.squares(model.initial(), x, y).shape == (len(model.layout.names), 0)
    assert list(model.gradients(model.initial(), x, y)) == []


def test_a_broken_record_contributes_nothing(make_model, rows):
    x, y = rows("mlp", 8)
    model = FlatModel(make_model("mlp"))
    state = model.initial()
    healthy = model.clipped_sum(state, x[1:], y[1:], 1.0)
    x[0] = float("nan")
    broken = model.clipped_sum(state, x, y, 1.0)
    assert torch.allclose(broken.sum, healthy.sum, rtol=1e-6, atol=1e-6)
    assert float(broken.norms[0]) == 0.0
    assert torch.allclose(broken.norms[1:], healthy.norms, rtol=1e-6)


def test_rounding_of_chunks_is_small_against_the_clip_norm(make_model, rows):
    x, y = rows("cnn", 64)
    model = make_model("cnn")
    sums = [
        FlatModel(model, budget=b).clipped_sum(flat_model.flatten(model), x, y, 1.0).sum for b in (1, 20_000, 10**9)
    ]
    for a, b in pairwise(sums):
        assert float((a - b).norm()) < 1e-5


def test_squared_norms_are_those_of_each_parameter(make_model, rows):
    model = FlatModel(make_model("cnn"))
    x, y = rows("cnn", 6)
    gradients = one_by_one(make_model("cnn"), x, y).double()
    found = dict(zip(model.layout.names, model.squares(model.initial(), x, y), strict=True))
    assert list(found) == ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "7.weight", "7.bias"]
    for name, part in (("1.weight", gradients[:, 40:44]), ("4.weight", gradients[:, 48 : 48 + 144])):
        assert found[name].dtype == torch.float64
        assert torch.allclose(found[name], part.square().sum(1), rtol=1e-5)
    total = torch.stack(list(found.values())).sum(0).sqrt()
    assert torch.allclose(total, model.norms(model.initial(), x, y), rtol=1e-12)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, "not enough memory: you tried to allocate 9"])
def test_out_of_memory_halves_the_chunks_and_changes_nothing(make_model, rows, monkeypatch, error):
    x, y = rows("cnn", 37)
    model, other = FlatModel(make_model("cnn")), FlatModel(make_model("cnn"))
    state = model.initial()
    expected = other.clipped_sum(state, x, y, 0.3)
    norms, gradients = other.norms(state, x, y), other.rows(state, x, y)
    asked = []

    def scarce(real):
        def found_by(self, parameters, x, y):
            asked.append(len(x))
            found = real(self, parameters, x, y)
            if len(asked) > 1 and len(x) > 4:  # the first chunk fits, and its part of the sum must not count twice
                raise RuntimeError(error) if isinstance(error, str) else error()
            return found

        return found_by

    for name in ("gradients", "squares"):
        monkeypatch.setattr(PerExample, name, scarce(getattr(PerExample, name)))
    model._sizes = dict.fromkeys(("rows", "sums", "norms"), 16)
    got = model.clipped_sum(state, x, y, 0.3)
    assert asked[:4] == [16, 16, 8, 4]
    assert max(asked[3:]) == 4
    assert torch.allclose(got.sum, expected.sum, rtol=1e-5, atol=1e-6)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-6)
    asked.clear()
    assert torch.allclose(model.norms(state, x, y), norms, rtol=1e-6)
    assert torch.allclose(model.rows(state, x, y), gradients, rtol=1e-4, atol=1e-6)
    assert max(asked) == 4  # what has run out once is not tried again


def test_other_errors_are_not_taken_for_a_lack_of_memory(make_model, rows):
    x, y = rows("mlp", 4)
    model = FlatModel(make_model("mlp"))
    with pytest.raises(RuntimeError, match="shape"):
        model.norms(model.initial(), x[:, :5], y)


def test_the_process_gets_its_memory_back(make_model, rows):
    """Neither the graph nor what was caught on the way outlives a call."""

    def tensors():
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    x, y = rows("cnn", 16)
    model = FlatModel(make_model("cnn"))
    state = model.initial()
    model.clipped_sum(state, x, y, 1.0)
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for _ in range(5):
            model.clipped_sum(state, x, y, 1.0)
        assert tensors() <= before
    finally:
        gc.enable()


@pytest.mark.gpu
def test_the_same_on_a_gpu(kind, make_model, rows):
    model = make_model(kind)
    x, y = rows(kind, 23)
    got = persample.per_example_gradients(model, x.cuda(), y.cuda())
    assert got.is_cuda
    assert torch.allclose(got.cpu(), one_by_one(model, x, y), rtol=1e-4, atol=1e-5)
    norms = norms_of(model, x.cuda(), y.cuda())
    assert torch.allclose(norms.cpu(), got.cpu().double().norm(dim=1), rtol=1e-5)
