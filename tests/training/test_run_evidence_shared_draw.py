"""A model that turns its real gradients to whatever was planted shares their draw among all planted groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.canary_contributions import PlantedSums
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.contributions import Sample
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import canary_sums
from dpspec.training.measure.scores import ProjectionObserver

PARAMETERS, GROUPS, RECORDS = 300, 150, 200


class Radial(nn.Module):
    """Logits grow with the distance from the first model: every gradient points away from it, or towards it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(PARAMETERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far = 50.0 * (self.weights.square().sum() + 1e-12).sqrt() * x[:, 0]
        return torch.stack([far, -far], 1)


def trained(
    seed: int, rate: float = 0.1, steps: int = 40, *, told: bool = False, estimated: int | None = None
) -> tuple[ProjectionObserver, np.ndarray, np.ndarray, PlantedSums]:
    """An honest run: who looked at it, the groups' sizes and coins, and what it tells of them."""
    rng = np.random.default_rng(seed)
    sizes, coins = np.repeat((1, 2), GROUPS // 2), rng.integers(0, 2, GROUPS)
    directions = SignBlocks(PARAMETERS, GROUPS, seed=seed)
    sampling = {"scheme": "poisson", "rate": rate} if rate < 1.0 else {"scheme": "full"}
    phase = {"steps": steps, "noise_multiplier": 0.1, "clip_norm": 1.0, "sampling": sampling}
    job = TrainingJob(
        x=rng.standard_normal((RECORDS, 20)).astype(np.float32),
        y=rng.integers(0, 2, RECORDS),
        model=Radial(),
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 1e-4, "reduction": "mean"}),
        expected_batch_size=rate * RECORDS,
        device="cpu",
        seed=seed,
        canaries=CanaryGroups(directions, torch.from_numpy(np.repeat(np.arange(GROUPS), sizes * coins)), 10.0),
    )
    sample = None if estimated is None else Sample(estimated, seed)
    watcher = ProjectionObserver(job, directions, drawn=told, sample=sample)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    found = canary_sums(watcher, job, sizes, coins)
    assert found is not None
    return watcher, sizes, coins, found


def test_honest_runs_of_such_a_model_conform() -> None:
    """By Welch's test alone half of such runs are below 0.01, and some below 1e-6; with the steps none is below 0.1."""
    runs = [trained(1000 * number + 17)[-1] for number in range(8)]
    alone = [canary_contributions.test([replace(one, by_step=None)]).p_value for one in runs]
    together = [canary_contributions.test([one]).p_value for one in runs]
    assert min(alone) < 0.01
    assert min(together) > 0.1


@pytest.mark.parametrize("estimated", [None, 40])
def test_products_are_those_of_the_totals(estimated: int | None) -> None:
    watcher, sizes, coins, found = trained(3, steps=6, estimated=estimated)
    assert found.by_step is not None
    totals = [
        watcher.projections[:, (sizes == size) & (coins == coin)].double().sum(1).numpy()
        for size in (1, 2)
        for coin in (0, 1)
    ]
    expected = np.cov(totals) * 5
    for i, row in enumerate(found.by_step.products):
        assert row == pytest.approx(expected[i, : i + 1], rel=1e-9)


def test_nothing_is_shared_where_no_draw_is_left_to_chance() -> None:
    assert trained(4, steps=1)[-1].by_step is None
    assert trained(4, rate=1.0, steps=3)[-1].by_step is None
    assert trained(4, steps=3, told=True)[-1].by_step is None
