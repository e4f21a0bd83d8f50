"""Sparse canaries against the dense sum; near-identical members against geometry."""

from __future__ import annotations

import math

import pytest
import torch

from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.contributions import RecordsAndCanaries, SparseCanaries, clipped_sparse_sum


class Dense:
    """The same canaries for a loop that knows nothing of sparseness."""

    def __init__(self, canaries):
        self.count, self.gradients = canaries.count, canaries.gradients


@pytest.mark.parametrize("spread", [0.0, 0.4])
@pytest.mark.parametrize("clip_norm", [0.3, 20.0])
def test_sparse_sums_are_dense_sums(make_model, rows, clip_norm, spread):
    x, y = rows("mlp", 10)
    model = FlatModel(make_model("mlp"))
    canaries = CanaryGroups(SignBlocks(63, 9, seed=1), torch.tensor([0, 0, 3, 8, 8, 8]), 10.0, spread=spread, seed=2)
    assert isinstance(canaries, SparseCanaries)
    assert not isinstance(Dense(canaries), SparseCanaries)
    state, batch = model.initial(), torch.tensor([1, 5, 10, 11, 13, 14])
    sparse, dense = (RecordsAndCanaries(model, x, y, c)(state, batch, clip_norm) for c in (canaries, Dense(canaries)))
    assert torch.allclose(sparse.sum, dense.sum, atol=1e-5)
    assert torch.allclose(sparse.norms, dense.norms, rtol=1e-6)
    assert float(sparse.norms.max()) <= clip_norm


def test_nothing_and_what_is_not_finite_add_nothing(make_model):
    class Broken:
        count = 2

        def sparse(self, indices):
            values = torch.tensor([[1.0, 2.0], [math.inf, 1.0]])
            return torch.tensor([[0, 1], [1, 2]])[indices], values[indices]

        def gradients(self, indices):
            raise AssertionError("the sparse form is there")

    state = torch.zeros(5)
    empty = clipped_sparse_sum(Broken(), state, torch.tensor([], dtype=torch.int64), 1.0)
    assert torch.equal(empty.sum, state)
    assert len(empty.norms) == 0
    both = clipped_sparse_sum(Broken(), state, torch.tensor([0, 1]), 1.0)
    assert torch.allclose(both.sum, torch.tensor([1.0, 2.0, 0, 0, 0]) / 5**0.5)
    assert both.norms.tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("parameters", [60, 65])
@pytest.mark.parametrize("spread", [0.1, 1.2])
def test_members_are_turned_by_the_angle_each_its_own_way_within_their_support(parameters, spread):
    """Blocks of 12 and of 13: an odd block leaves one coordinate unturned."""
    blocks = SignBlocks(parameters, 5, seed=0)
    groups = CanaryGroups(blocks, torch.tensor([2] * 4 + [4]), 10.0, spread=spread, seed=3)
    unit = groups.gradients(torch.arange(5)) / 10.0
    assert torch.allclose(unit.norm(dim=1), torch.ones(5), atol=1e-6)
    shared = blocks.directions(torch.tensor([2, 2, 2, 2, 4]))
    assert torch.allclose((unit * shared).sum(1), torch.full((5,), math.cos(spread)), atol=1e-6)
    others = blocks.directions(torch.tensor([0, 1, 3]))
    assert torch.equal(unit @ others.T, torch.zeros(5, 3))
    pairs = [float((unit[i] - unit[j]).norm()) for i in range(4) for j in range(i)]
    assert min(pairs) > 0.1 * math.sin(spread)
    assert not torch.allclose(
        unit, CanaryGroups(blocks, groups.owner, 10.0, spread=spread, seed=4).gradients(torch.arange(5)) / 10.0
    )


def test_a_spread_that_makes_no_sense():
    with pytest.raises(ValueError, match="angle"):
        CanaryGroups(SignBlocks(30, 5, seed=0), torch.tensor([0]), 1.0, spread=1.6)
    with pytest.raises(ValueError, match="60 parameters"):
        CanaryGroups(SignBlocks(30, 30, seed=0), torch.tensor([0]), 1.0, spread=0.1)
