"""Evidence of canaries over measured steps, also if real gradients align with the canaries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.phases import phase_of
from torch import nn

from dpspec import json_records
from dpspec.contract import FrozenMap, TrainingJob
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.canary_contributions import PlantedSums
from dpspec.stats.conformance.measurement import Abstention
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.contributions import Sample
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import canary_sums
from dpspec.training.measure.scores import ProjectionObserver

MOMENTUM = FrozenMap({"learning_rate": 0.1, "reduction": "mean", "optimizer": {"kind": "momentum", "momentum": 0.5}})


@pytest.mark.ci
@pytest.mark.rounding
@pytest.mark.parametrize("options", [None, MOMENTUM])
def test_some_steps_are_measured_and_the_others_left_out(make_job, options):
    directions = SignBlocks(63, 20, seed=0)
    job = make_job(steps=50, noise_multiplier=1.5, sampling={"scheme": "poisson", "rate": 0.25})
    job = job if options is None else replace(job, options=options)
    every, some = ProjectionObserver(job, directions), ProjectionObserver(job, directions, looks=6)
    NativeTrainer().train(replace(job, observers=(every, some)))
    looked = some.looked.nonzero().squeeze(1)
    assert looked.tolist() == [0, 10, 20, 29, 39, 49]
    assert every.looked.all()
    assert every.steps == some.steps == 50
    for name in ("squares", "spread", "rounding", "projections"):
        mine, all_of_them = getattr(some, name), getattr(every, name)
        assert torch.equal(mine[looked], all_of_them[looked])
        assert not mine[~some.looked].any()
    scale, whole = some.noise_scale(), every.noise_scale()
    assert (scale.degrees, whole.degrees) == (43 * 6, 43 * 50)
    outside = (every.squares - every.projections.double().square().sum(1)).sqrt() + every.rounding
    assert scale.statistic == pytest.approx(float(outside[looked].square().sum()) / 1.5**2)


def test_planted_records_are_expected_in_the_observed_steps(make_job):
    """A record's expectation is its contribution without noise at rate 1: one clip norm per observation."""
    directions, coins = SignBlocks(63, 4, seed=0), np.array([1, 0, 1, 0])
    canaries = CanaryGroups(directions, torch.tensor([0, 2]), norm=10.0)
    job = make_job(steps=50, noise_multiplier=0.0, sampling={"scheme": "full"}, canaries=canaries)
    seen = ProjectionObserver(job, directions, looks=6)
    NativeTrainer().train(replace(job, observers=(seen,)))
    sums = json_records.write(canary_sums(seen, job, np.ones(4, dtype=np.int64), coins))
    assert sums["draws"] == pytest.approx(6.0)
    (_, _, absent, nothing, _), (_, _, present, added, _) = sums["moments"]
    assert (absent, present) == (2, 2)
    assert (nothing, added) == pytest.approx((0.0, 12.0), abs=0.02)


LOST = FrozenMap({"learning_rate": 1e-9, "reduction": "sum"})


@pytest.mark.ci
@pytest.mark.rounding
@pytest.mark.parametrize("options", [LOST, MOMENTUM])
def test_a_planted_record_that_is_lost_in_rounding_is_no_deviation(make_job, options, monkeypatch):
    """At a learning rate of 1e-9 no update changes a float32 parameter, and the check reports that."""
    directions, coins = SignBlocks(63, 60, seed=0), np.arange(60) % 2
    canaries = CanaryGroups(directions, torch.from_numpy(np.flatnonzero(coins)), norm=10.0)
    sampling = {"scheme": "poisson", "rate": 0.5}
    job = replace(make_job(steps=150, noise_multiplier=0.5, sampling=sampling, canaries=canaries), options=options)
    seen = ProjectionObserver(job, directions)
    NativeTrainer().train(replace(job, observers=(seen,)))

    def planted():
        return canary_sums(seen, job, np.ones(60, dtype=np.int64), coins)

    found = canary_contributions.test([planted()])
    assert isinstance(found, Abstention) == (options is LOST)
    assert isinstance(found, Abstention) or (found.p_value > 1e-3 and found.detectable is not None)
    monkeypatch.setattr("dpspec.training.measure.residuals.MAX_ROUNDING", float("inf"))
    careless = canary_contributions.test([replace(planted(), rounding=0.0)])
    assert (careless.p_value <= 1e-6) == (options is LOST)


@pytest.mark.ci
def test_sums_along_directions_have_the_stated_variance(make_job):
    directions, coins = SignBlocks(63, 60, seed=0), np.arange(60) % 2
    canaries = CanaryGroups(directions, torch.from_numpy(np.flatnonzero(coins)), norm=10.0)
    sampling = {"scheme": "poisson", "rate": 0.25}
    job = make_job(steps=200, noise_multiplier=0.5, sampling=sampling, canaries=canaries)
    seen = ProjectionObserver(job, directions, looks=100)
    NativeTrainer().train(replace(job, observers=(seen,)))
    written = json_records.write(canary_sums(seen, job, np.ones(60, dtype=np.int64), coins))
    assert written["inclusion"] == pytest.approx(100 * 0.25 * 0.75)
    assert written["outside"] == pytest.approx(100 * 0.25 + float(seen.spread.sum()) / 63)
    sums = seen.projections.double().sum(0).numpy()
    for coin, variance in ((0, written["outside"]), (1, written["outside"] + written["inclusion"])):
        # Within 4.4 standard errors of a variance estimated from 30 sums.
        assert 1 / 2.2 < sums[coins == coin].var(ddof=1) / variance < 2.2


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
    seed: int, rate: float = 0.1, steps: int = 40, *, logged: bool = False, estimated: int | None = None
) -> tuple[ProjectionObserver, np.ndarray, np.ndarray, PlantedSums]:
    rng = np.random.default_rng(seed)
    sizes, coins = np.repeat((1, 2), GROUPS // 2), rng.integers(0, 2, GROUPS)
    directions = SignBlocks(PARAMETERS, GROUPS, seed=seed)
    phase = phase_of("poisson", steps, 0.1, rate=rate) if rate < 1.0 else phase_of("full", steps, 0.1)
    job = TrainingJob(
        x=rng.standard_normal((RECORDS, 20)).astype(np.float32),
        y=rng.integers(0, 2, RECORDS),
        model=Radial(),
        phases=(phase,),
        options=FrozenMap({"learning_rate": 1e-4, "reduction": "mean"}),
        expected_batch_size=rate * RECORDS,
        device="cpu",
        seed=seed,
        canaries=CanaryGroups(directions, torch.from_numpy(np.repeat(np.arange(GROUPS), sizes * coins)), 10.0),
    )
    sample = None if estimated is None else Sample(estimated, seed)
    watcher = ProjectionObserver(job, directions, drawn=logged, sample=sample)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    found = canary_sums(watcher, job, sizes, coins)
    assert found is not None
    return watcher, sizes, coins, found


@pytest.mark.ci
def test_honest_runs_of_such_a_model_conform() -> None:
    """By Welch's test alone half of such runs are below 0.01, and some below 1e-6; with the steps none is below 0.1."""
    runs = [trained(1000 * number + 17)[-1] for number in range(4)]
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
    assert trained(4, steps=3, logged=True)[-1].by_step is None
