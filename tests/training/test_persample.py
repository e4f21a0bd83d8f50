"""Per-example gradients against a plain loop of autograd; chunks, clipping and norms."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from dpspec.training import flat, persample
from dpspec.training.persample import FlatModel


def one_by_one(model, x, y):
    """The slow obvious way: one backward pass per record."""
    found = []
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        found.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(found)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_equal_to_a_plain_loop(kind, make_model, rows):
    model = make_model(kind)
    x, y = rows(kind, 23)
    expected = one_by_one(model, x, y)
    got = persample.per_example_gradients(model, x, y)
    assert got.dtype == torch.float32
    assert close(got, expected)
    assert close(persample.per_example_norms(model, x, y), expected.double().norm(dim=1))


def test_evaluated_at_another_state(kind, make_model, rows):
    model, other = make_model(kind), make_model(kind, seed=5)
    x, y = rows(kind, 4)
    before = flat.flatten(model)
    got = persample.per_example_gradients(model, x, y, state=flat.flatten(other))
    assert close(got, one_by_one(other, x, y))
    assert torch.equal(flat.flatten(model), before)


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
    assert persample.clipped_sum(model, x, y, 0.1).shape == (1,)


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


def test_no_factor_lets_a_norm_exceed_the_clip_norm():
    norms = torch.rand(100_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 5
    for clip in (0.1, 1.0, 1 / 3, 4.999):
        factors = persample.clip_factors(norms, clip, torch.float32)
        assert bool((norms * factors <= clip).all())
        assert bool((factors[norms <= clip] == 1).all())
        assert bool((norms * factors >= torch.minimum(norms, torch.tensor(clip)) * (1 - 2e-7)).all())


def test_norms_are_summed_in_float64():
    # A million entries of 1 after one of 1e4: float32 sums of squares would lose the small ones.
    row = torch.ones(1, 1_000_001)
    row[0, 0] = 1e4
    assert float(persample.norms_of({"a": row})) == pytest.approx((1e8 + 1e6) ** 0.5, rel=1e-12)
    huge = {"a": torch.full((2, 3), 3e38), "b": torch.full((2, 1), 1.0)}
    assert persample.norms_of(huge).isfinite().all()


def test_an_empty_batch_gives_zeros(kind, make_model, rows):
    model = FlatModel(make_model(kind))
    x, y = rows(kind, 0)
    assert persample.per_example_gradients(model, x, y).shape == (0, model.size)
    assert persample.per_example_norms(model, x, y).shape == (0,)
    clipped = model.clipped_sum(model.initial(), x, y, 1.0)
    assert torch.equal(clipped.sum, torch.zeros(model.size))
    assert clipped.norms.shape == (0,)


def test_a_broken_record_contributes_nothing(make_model, rows):
    x, y = rows("mlp", 8)
    model = FlatModel(make_model("mlp"))
    state = model.initial()
    healthy = model.clipped_sum(state, x[1:], y[1:], 1.0)
    x[0] = float("nan")
    broken = model.clipped_sum(state, x, y, 1.0)
    assert torch.allclose(broken.sum, healthy.sum, rtol=1e-6, atol=1e-7)
    assert float(broken.norms[0]) == 0.0
    assert torch.equal(broken.norms[1:], healthy.norms)


def test_rounding_of_chunks_is_small_against_the_clip_norm(make_model, rows):
    x, y = rows("cnn", 64)
    model = make_model("cnn")
    sums = [FlatModel(model, budget=b).clipped_sum(flat.flatten(model), x, y, 1.0).sum for b in (1, 20_000, 10**9)]
    for a, b in pairwise(sums):
        assert float((a - b).norm()) < 1e-5


@pytest.mark.gpu
def test_the_same_on_a_gpu(kind, make_model, rows):
    model = make_model(kind)
    x, y = rows(kind, 23)
    got = persample.per_example_gradients(model, x.cuda(), y.cuda())
    assert got.is_cuda
    assert torch.allclose(got.cpu(), one_by_one(model, x, y), rtol=1e-2, atol=1e-3)
