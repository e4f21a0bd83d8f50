"""The contribution of the real records that an adversary expects: exactly, or from a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import expm1

import numpy as np
import pytest
import torch
from support.seen_run import SeenRun
from torch import Tensor

from dpspec.contract.attacks import Records
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop.contributions import Estimated, Population, Sample, estimated, population
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.loop.samplers import FixedSize, Poisson
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.scores import RecordScores
from dpspec.training.measure.update_statistics import ResidualLog

#: Gradients of no more than one clip norm; the first two are the same, which Poisson batches do not keep apart.
CLIPPED = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.1, -0.3], [0.0, 0.0]], dtype=torch.float64)


def of(places: tuple[int, ...]) -> Estimated:
    some = CLIPPED[list(places)]
    factor = len(CLIPPED) / len(places)
    n, sampled = len(CLIPPED), float(some.square().sum())
    return Estimated(factor * some.sum(0), n, factor * n, sampled=sampled, places=torch.tensor(places), factor=factor)


def differences(q: float, size: int) -> Iterator[tuple[float, Tensor]]:
    """Every batch against every estimate: the probability, and the batch's sum less the estimated mean."""
    estimates = [of(places).mean(Poisson(5, q)) for places in combinations(range(5), size)]
    for coins in product((0, 1), repeat=5):
        chance = float(np.prod([q if coin else 1.0 - q for coin in coins])) / len(estimates)
        drawn = (torch.tensor(coins, dtype=torch.float64).unsqueeze(1) * CLIPPED).sum(0)
        yield from ((chance, drawn - estimate) for estimate in estimates)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("q", [0.1, 0.4])
def test_sum_and_spread_are_without_bias(q: float, size: int) -> None:
    """Over all samples there are, and all batches: the exact mean, and the exact squared distance."""
    samples = [of(places) for places in combinations(range(5), size)]
    assert torch.allclose(torch.stack([one.sum for one in samples]).mean(0), CLIPPED.sum(0))
    exact = sum(chance * float(rest.square().sum()) for chance, rest in differences(q, size))
    found = [float(one.spread(Poisson(5, q))) for one in samples]
    assert float(np.mean(found)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("q", "size"), [(0.1, 2), (0.4, 2), (0.4, 3), (0.8, 4), (0.9, 5)])
def test_charged_variance_bounds_every_exponential_moment(q: float, size: int) -> None:
    """E exp(l X) <= exp(V (e^l - 1 - l)) with the charged V, as Freedman's inequality asks, along many directions."""
    assert size >= q * 5
    one = of(tuple(range(size)))
    charged = q * (1.0 - q) * one.squares + q * q * one.within
    chances, rests = zip(*differences(q, size), strict=True)
    angles = torch.linspace(0.0, 2.0 * torch.pi, 37, dtype=torch.float64)
    along = torch.stack(rests) @ torch.stack([angles.cos(), angles.sin()])
    weights = torch.tensor(chances, dtype=torch.float64)
    assert torch.allclose(weights @ along, torch.zeros(37, dtype=torch.float64), atol=1e-12)
    assert float((weights @ along.square()).max()) <= charged
    for scale in (0.1, 0.5, 1.0, 2.0, 4.0):
        assert float((weights @ torch.exp(scale * along)).max()) <= np.exp(charged * (expm1(scale) - scale))


def test_samples_are_drawn_anew_and_without_replacement() -> None:
    sample = Sample(40, seed=7)
    first, again, other = sample.at(1, 100), sample.at(1, 100), sample.at(2, 100)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.unique(), first)
    assert (len(first), int(first[0]) >= 0, int(first[-1]) < 100) == (40, True, True)
    assert not torch.equal(first, Sample(40, seed=8).at(1, 100))
    assert not torch.equal(first, sample.at(1, 100, 1))
    counts = torch.stack([torch.bincount(sample.at(step, 100), minlength=100) for step in range(1000)]).sum(0)
    # Each of the hundred is drawn Binomial(1000, 0.4) times: six deviations either way.
    assert int(counts.min()) > 400 - 6 * 15.5
    assert int(counts.max()) < 400 + 6 * 15.5


def watched(make_job, sample: Sample | None, steps: int, **changes) -> Residuals:
    job = make_job(steps=steps, **changes)
    watcher = Residuals(job, sample=sample)
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    return watcher


def test_a_sample_of_all_records_measures_what_asking_them_does(make_job) -> None:
    """Along the update itself, whichever way that turns, and with no chance to charge for."""
    asked, sampled = (watched(make_job, sample, 12) for sample in (None, Sample(40, 3)))
    assert asked.log is not None
    assert sampled.log is not None
    assert sampled.log.along == asked.log.along
    assert sampled.log.variances == asked.log.variances


def drift(watcher: Residuals) -> float:
    """The mean of residuals along the expected updates, in deviations of it."""
    assert watcher.log is not None
    along = np.array(watcher.log.along)[:, 0]
    return float(along.mean() / (along.std(ddof=1) / np.sqrt(len(along))))


def test_estimates_show_no_drift_along_another_one(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along itself an estimate is too long, by its own error; along one that was made apart it is not."""

    def mean_drift() -> float:
        runs = (watched(make_job, Sample(16, seed), 60, seed=seed, noise_multiplier=0.05) for seed in range(2))
        return float(np.mean([drift(run) for run in runs]))

    # The mean of two runs deviates by 0.71.
    assert abs(mean_drift()) < 2.9
    add = ResidualLog.add
    monkeypatch.setattr(ResidualLog, "add", lambda log, step, *given: add(log, step, *given[:-1]))
    assert mean_drift() < -3.0


def test_a_resumed_run_sees_the_same(make_job) -> None:
    job, kept = make_job(steps=12), SeenRun()
    NativeTrainer().train(replace(job, observers=(kept,)))
    whole, half, other = (Residuals(job, sample=Sample(16, 3)) for _ in range(3))
    for watcher in (whole, half, other):
        watcher.keep_log(job)
    for step, state in enumerate(kept.states):
        whole.released(step, state)
        if step == 7:
            other.restore(half.state())
        (half if step < 7 else other).released(step, state)
    mine, theirs = whole.state(), other.state()
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_covariance_of_what_a_sample_leaves_open_is_without_bias(make_job, make_model, rows) -> None:
    q, (x, y) = 0.5, rows("mlp", 4)
    job = make_job(x=x.numpy(), y=y.numpy())
    canaries = rows("mlp", 2, seed=5)
    watcher = RecordScores(job, Records(canaries[0].numpy(), canaries[1].numpy()), np.array([1, 1]), 1)
    model, clip = watcher.model, next(iter(watcher.schedule)).clip
    state = model.initial()
    phase = replace(next(iter(watcher.schedule)), sampler=Poisson(4, q))
    planted = torch.cat(list(watcher._clipped(state, *canaries, phase)))
    real = torch.cat(list(watcher._clipped(state, x, y, phase)))
    samples = [torch.tensor(places) for places in combinations(range(4), 3)]
    found = [
        watcher._sampling(state, planted, phase, estimated(model, state, x, y, places, clip, phase.clip_norm))
        for places in samples
    ]
    products = (planted @ real.T).double()
    whole = products @ products.T
    # The batch's q (1 - q), and at most q^2 (n / s - 1) for the sample: what it leaves out, taken about 0.
    assert torch.allclose(torch.stack(found).mean(0), (q * (1 - q) + q * q / 3.0) * whole, rtol=1e-5)
    assert torch.allclose(watcher._sampling(state, planted, phase), q * (1 - q) * whole, rtol=1e-5)


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
