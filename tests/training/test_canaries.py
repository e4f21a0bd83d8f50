"""Directions are orthonormal; canaries arrive in the released models with the clip norm's length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpspec.contract import GradientCanaries
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.contributions import RecordsAndCanaries
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import SamplingLog
from dpspec.training.measure.observers import ProjectionObserver


@pytest.mark.parametrize(("parameters", "count"), [(63, 1), (63, 10), (63, 63), (100, 7)])
def test_orthonormal_and_projected(parameters, count):
    blocks = SignBlocks(parameters, count, seed=3)
    dense = blocks.directions(torch.arange(count))
    assert dense.shape == (count, parameters)
    assert torch.allclose(dense @ dense.T, torch.eye(count), atol=1e-6)
    assert bool((dense != 0).sum(1).eq(parameters // count).all())
    vector = torch.randn(parameters, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(blocks.project(vector), dense @ vector, atol=1e-6)
    assert torch.equal(blocks.directions(torch.tensor([count - 1, 0])), dense[[count - 1, 0]])


def test_the_seed_decides_and_the_global_generator_does_not():
    torch.manual_seed(0)
    first = SignBlocks(50, 5, seed=3).directions(torch.arange(5))
    torch.manual_seed(1)
    assert torch.equal(first, SignBlocks(50, 5, seed=3).directions(torch.arange(5)))
    assert not torch.equal(first, SignBlocks(50, 5, seed=4).directions(torch.arange(5)))


def test_signs_are_balanced_and_blocks_scattered():
    dense = SignBlocks(20_000, 2, seed=0).directions(torch.arange(2))
    positive = int((dense > 0).sum())
    assert abs(positive - 10_000) < 4.9 * 20_000**0.5 / 2  # 1e-6, two-sided
    head = int((dense[0, :10_000] != 0).sum())
    assert abs(head - 5_000) < 4.9 * (10_000 / 8) ** 0.5  # hypergeometric: half the binomial variance


@pytest.mark.parametrize("count", [0, 51])
def test_no_more_directions_than_parameters(count):
    with pytest.raises(ValueError, match=r"within 1..50"):
        SignBlocks(50, count, seed=0)


def test_groups_own_their_directions():
    blocks = SignBlocks(30, 5, seed=0)
    groups = CanaryGroups.planted(blocks, torch.tensor([True, False, True, False, False]), 3, 10.0)
    assert groups.count == 6
    assert groups.owner.tolist() == [0, 0, 0, 2, 2, 2]
    gradients = groups.gradients(torch.tensor([5, 0]))
    assert torch.equal(gradients, 10.0 * blocks.directions(torch.tensor([2, 0])))
    protocol: GradientCanaries = groups
    assert protocol.count == 6


def test_groups_that_make_no_sense():
    blocks = SignBlocks(30, 5, seed=0)
    with pytest.raises(ValueError, match=r"0..4"):
        CanaryGroups(blocks, torch.tensor([5]), 1.0)
    with pytest.raises(ValueError, match="norm"):
        CanaryGroups(blocks, torch.tensor([0]), 0.0)
    with pytest.raises(ValueError, match="at least one member"):
        CanaryGroups.planted(blocks, torch.ones(5, dtype=torch.bool), 0, 1.0)


def test_nothing_planted_is_allowed(make_job):
    blocks = SignBlocks(63, 5, seed=0)
    empty = CanaryGroups.planted(blocks, torch.zeros(5, dtype=torch.bool), 2, 10.0)
    assert empty.count == 0
    NativeTrainer().train(make_job(canaries=empty))


@pytest.mark.parametrize("chunk", [1, 1024])
def test_canaries_are_clipped_with_the_rest(make_model, rows, chunk):
    x, y = rows("mlp", 10)
    model = FlatModel(make_model("mlp"))
    blocks = SignBlocks(63, 7, seed=0)
    canaries = CanaryGroups(blocks, torch.tensor([4, 4, 1]), 10.0)
    part = RecordsAndCanaries(model, x, y, canaries)
    part._chunk = chunk
    assert part.records == 13
    state = model.initial()
    both = part(state, torch.tensor([0, 3, 9, 10, 11, 12]), 0.5)
    real = part(state, torch.tensor([0, 3, 9]), 0.5)
    added = both.sum - real.sum
    assert torch.allclose(blocks.project(added), torch.tensor([0, 0.5, 0, 0, 1.0, 0, 0]), atol=1e-6)
    assert float(added.norm()) == pytest.approx((0.5**2 + 1.0**2) ** 0.5, rel=1e-5)
    assert torch.equal(both.norms[:3], real.norms)
    assert torch.allclose(both.norms[3:], torch.tensor(0.5, dtype=torch.float64), rtol=1e-6)
    last = part(state, torch.tensor([12]), 0.5)
    assert torch.allclose(last.sum, 0.5 * blocks.directions(torch.tensor([1]))[0], atol=1e-6)


def test_gradients_of_the_wrong_shape_are_refused(make_job):
    class Short:
        count = 4

        def gradients(self, indices):
            return torch.ones(len(indices), 62)

    with pytest.raises(ValueError, match=r"shape \(4, 63\), got \(4, 62\)"):
        NativeTrainer().train(make_job(canaries=Short(), sampling={"scheme": "full"}))


@pytest.mark.parametrize("clip_norm", [0.2, 3.0])
def test_groups_show_in_the_released_models(make_job, clip_norm):
    """Without noise and with everything drawn, a group of k adds exactly k clip norms to its own projection."""
    blocks = SignBlocks(63, 9, seed=1)
    present = torch.tensor([True, False, True, True, False, False, True, False, True])
    groups = CanaryGroups.planted(blocks, present, 4, 10 * clip_norm)
    job = make_job(canaries=groups, noise_multiplier=0.0, clip_norm=clip_norm, sampling={"scheme": "full"}, steps=6)
    seen = ProjectionObserver(job, blocks)
    log = SamplingLog(40 + 20)
    NativeTrainer().train(replace(job, observers=(seen, log)))
    assert log.sizes == [60] * 6
    assert torch.allclose(seen.projections, (4.0 * present).expand(6, 9), atol=2e-4)
    assert torch.allclose(seen.squares, torch.tensor(16.0 * 5, dtype=torch.float64), rtol=1e-3)
