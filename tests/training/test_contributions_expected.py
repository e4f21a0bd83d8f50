"""What an adversary who knows the data expects of a step, against all batches that there are."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop.contributions import Population, population
from dpspec.training.loop.samplers import FixedSize, Poisson


def test_expected_update_is_rate_times_the_clipped_sum(make_model, rows):
    x, y = rows("mlp", 30)
    model, other = make_model("mlp"), FlatModel(make_model("mlp", seed=3))
    gradients = per_example_gradients(model, x, y)
    by_hand = 0.3 * (gradients * (0.5 / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    flat, sampler = FlatModel(model), Poisson(30, 0.3)
    assert torch.allclose(population(flat, flat.initial(), x, y, 0.5).mean(sampler), by_hand, atol=1e-5)
    moved = population(flat, other.initial(), x, y, 0.5).mean(sampler)
    assert torch.allclose(moved, population(other, other.initial(), x, y, 0.5).mean(sampler), atol=1e-6)
    assert not torch.allclose(moved, by_hand, atol=1e-2)


@pytest.mark.parametrize("records", [4, 6])
def test_mean_and_spread_are_exact(records):
    """Against all batches that there are, each with its probability; records beyond the fourth are planted."""
    clipped = torch.tensor([[1.0, 0.5], [0.8, 0.0], [0.1, -0.3], [0.9, 0.4]], dtype=torch.float64)
    known = Population(clipped.sum(0), float(clipped.square().sum()))
    padded = torch.cat([clipped, torch.zeros(records - 4, 2, dtype=torch.float64)])
    batches = [batch for size in range(records + 1) for batch in combinations(range(records), size)]
    sums = torch.stack([padded[list(batch)].sum(0) for batch in batches])
    sizes = torch.tensor([len(batch) for batch in batches])
    for sampler, weights in (
        (Poisson(records, 0.3), 0.3**sizes * 0.7 ** (records - sizes)),
        (FixedSize(records, 3), (sizes == 3).double() / (sizes == 3).sum()),
    ):
        assert torch.allclose(known.mean(sampler), weights.double() @ sums)
        distance = (sums - weights.double() @ sums).square().sum(1)
        assert known.spread(sampler) == pytest.approx(float(weights.double() @ distance), rel=1e-6)
