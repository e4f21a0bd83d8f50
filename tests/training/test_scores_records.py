"""Scores of inserted records: all models against a slow likelihood, the last against densities, shadows by hand."""

import copy
from dataclasses import replace
from itertools import product
from math import comb, log

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from dpspec.contract import FrozenMap, LoadedData
from dpspec.contract.attacks import Observed
from dpspec.training.canaries import Records, plant
from dpspec.training.device import derive
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer, run_batched
from dpspec.training.measure import scores as final_scores
from dpspec.training.measure.scores import PathScores, RecordScores, margins, right_answers
from dpspec.training.measure.streamed_gradients import StreamedGradients


class Kept(RecordScores):
    def seen(self, step, phase, previous, residual, known):
        self.saw = getattr(self, "saw", [])
        self.saw.append((previous.clone(), residual.clone(), self.scores.clone()))
        super().seen(step, phase, previous, residual, known)


def audited(make_job, kind, coins, copies, **phase):
    job = make_job(**phase)
    source = np.random.default_rng(3)
    canaries = Records(
        source.normal(size=(len(coins), 6)).astype(np.float32), source.integers(0, 3, size=len(coins)).astype(np.int64)
    )
    rows = plant(job.x, job.y, canaries, copies, coins)
    seen = kind(job, canaries, copies, int(copies.sum()) // 2)
    NativeTrainer().train(replace(job, x=rows.x, y=rows.y, observers=(seen,)))
    return seen, job, canaries


def slow(job, canaries, copies, saw):
    """The scores by dense covariances over all parameters, one canary and one count at a time."""
    phase = job.phases[0]
    clip, sigma = phase["clip_norm"], phase["noise_multiplier"]
    q = phase["sampling"].get("rate", 1.0)
    scores = np.zeros(len(copies))
    for previous, residual, before in saw:
        real = clipped(job, previous, torch.tensor(job.x), torch.tensor(job.y), clip) / clip
        planted = clipped(job, previous, torch.tensor(canaries.x), torch.tensor(canaries.y), clip) / clip
        believed = torch.sigmoid(before).numpy()
        mean = believed * q * copies
        variance = believed * q * copies * (1 - q + q * copies) - mean**2
        for i, k in enumerate(copies):
            others = [j for j in range(len(copies)) if j != i]
            center = sum(mean[j] * planted[j] for j in others)
            covariance = sigma**2 * torch.eye(len(residual), dtype=torch.float64)
            covariance += sum(variance[j] * torch.outer(planted[j], planted[j]) for j in others)
            covariance += q * (1 - q) * (real.T @ real)
            # As the fast routine, look along the canaries alone.
            seen = planted @ (residual.double() - center)
            spread = planted @ covariance @ planted.T
            shift = planted @ planted[i]
            inverse = torch.linalg.inv(spread)
            likelihood = 0.0
            for j in range(int(k) + 1):
                weight = comb(int(k), j) * q**j * (1 - q) ** (int(k) - j)
                exponent = j * shift @ inverse @ seen - 0.5 * j**2 * shift @ inverse @ shift
                likelihood += weight * float(torch.exp(exponent))
            scores[i] += log(likelihood)
    return scores


@pytest.mark.rounding
@pytest.mark.parametrize("sampling", [{"scheme": "poisson", "rate": 0.25}, {"scheme": "full"}])
def test_scores_are_the_slow_likelihood_ratios(make_job, sampling):
    copies = np.array([1, 1, 3, 2])
    seen, job, canaries = audited(make_job, Kept, np.array([1, 0, 1, 0]), copies, sampling=sampling, steps=4)
    untrained = replace(job, model=make_job().model)
    assert np.allclose(seen.scores.numpy(), slow(untrained, canaries, copies, seen.saw), atol=1e-3)


@pytest.mark.parametrize("scheme", [{"scheme": "full"}, {"scheme": "fixed", "batch_size": 30}])
def test_planted_records_score_higher(make_job, scheme):
    coins = np.array([1, 0, 1, 0, 1, 1, 0, 0])
    seen, _, _ = audited(make_job, RecordScores, coins, np.full(8, 2), noise_multiplier=0.05, sampling=scheme, steps=20)
    scores = seen.scores.numpy()
    assert scores[coins == 1].min() > scores[coins == 0].max()
    assert seen.steps == 20


@pytest.mark.ci
def test_likelihood_ratios_are_calibrated(make_job):
    """Calibration: the number of ones among 240 coins is the sum of sigmoid(score), within 5 standard errors."""
    believed, coins = [], []
    for seed in range(12):
        tossed = np.random.default_rng(seed).integers(0, 2, size=20)
        seen, _, _ = audited(make_job, RecordScores, tossed, np.ones(20, dtype=int), seed=seed, steps=8)
        believed.append(torch.sigmoid(seen.scores).numpy())
        coins.append(tossed)
    p, c = np.concatenate(believed), np.concatenate(coins)
    assert abs((c - p).sum()) < 5 * np.sqrt((p * (1 - p)).sum())
    high = p > 0.6
    assert high.sum() > 15
    assert abs((c - p)[high].sum()) < 5 * np.sqrt((p * (1 - p))[high].sum())


def test_no_noise_and_no_gradient_leave_finite_scores(make_job):
    seen, _, _ = audited(
        make_job, RecordScores, np.array([1, 0, 1]), np.array([1, 1, 2]), noise_multiplier=0.0, steps=3
    )
    assert bool(seen.scores.isfinite().all())


def test_margins_are_log_odds(make_job):
    job = make_job()
    model = FlatModel(job.model)
    records = Records(job.x[:5], job.y[:5])
    found = margins(job.model, flat_model.flatten(job.model), records, device="cpu")
    p = torch.softmax(model.logits(model.initial(), torch.tensor(records.x)).double(), 1)
    own = p.gather(1, torch.tensor(records.y).unsqueeze(1)).squeeze(1)
    assert np.allclose(found, torch.logit(own).detach().numpy(), atol=1e-5)


def some(count: int) -> Records:
    source = np.random.default_rng(3)
    x = source.normal(size=(count, 6)).astype(np.float32)
    return Records(3 * x, source.integers(0, 3, size=count).astype(np.int64))


def clipped(job, state, x, y, clip=1.0):
    model = FlatModel(job.model)
    rows = torch.cat(list(model.gradients(state, x, y))).double()
    return rows * (clip / rows.norm(dim=1).clamp_min(clip)).unsqueeze(1)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "streamed"])
@pytest.mark.parametrize("count", [1, 5])
def test_one_full_batch_by_enumerating_all_coins(make_job, monkeypatch, count: int, stored: bool) -> None:
    """One step at rate 1: the last model is Gaussian given the coins, with means that are known.

    Of one canary the score is the log ratio of two densities. Of five the marginal ratio over 32 coins is met as far as
    sums of four other canaries are normal and, without stored gradients, as far as they overlap equally.
    """
    monkeypatch.setattr(final_scores, "_UNSURE", 0.0)
    monkeypatch.setattr(final_scores, "MOST_STORED", 5 if stored else 0)
    monkeypatch.setattr(final_scores, "_ROUNDS", 1)
    job = make_job(steps=1, noise_multiplier=4.0, clip_norm=1.0, sampling={"scheme": "full"})
    job = replace(job, options=FrozenMap({**job.options, "learning_rate": 1e-3}))
    canaries, copies = some(count), np.full(count, 3)  # of two, the square and the double are equal
    first = flat_model.flatten(job.model)
    rng = np.random.default_rng(5)
    real = clipped(job, first, torch.tensor(job.x), torch.tensor(job.y)).sum(0).numpy()
    effects = 3 * clipped(job, first, torch.tensor(canaries.x), torch.tensor(canaries.y)).numpy()
    total = real + rng.integers(0, 2, count) @ effects + 4.0 * rng.normal(size=len(real))
    scorer = PathScores(job, canaries, copies, count)
    found = scorer(first, first - (1e-3 / job.expected_batch_size * torch.from_numpy(total)).float()).numpy()
    every = np.array(list(product((0, 1), repeat=count)))
    logs = -0.5 * ((total - real - every @ effects) ** 2).sum(1) / 16.0
    wanted = [logsumexp(logs[every[:, i] == 1]) - logsumexp(logs[every[:, i] == 0]) for i in range(count)]
    assert found == pytest.approx(wanted, abs=0.02 if count == 1 else 0.05 if stored else 0.1)


def test_streamed_products_are_those_of_the_matrix_of_clipped_gradients(make_job) -> None:
    """Two models, more records than a chunk, and a record without a finite gradient, which counts as zero."""
    job, canaries = make_job(), some(1500)
    canaries.x[7] = np.inf
    x, y = torch.tensor(canaries.x), torch.tensor(canaries.y)
    model, first = FlatModel(job.model), flat_model.flatten(job.model)
    streamed, rows = StreamedGradients(model, x, y), torch.zeros(1500, len(first), dtype=torch.float64)
    for weight, state in ((2.0, first), (3.0, 0.5 * first)):
        streamed.add(state, weight, 0.7)
        rows += weight * clipped(job, state, x, y, 0.7).nan_to_num(0.0)
    rng = np.random.default_rng(0)
    direction, weights = (torch.tensor(rng.normal(size=size), dtype=torch.float32) for size in (len(first), 1500))
    assert torch.allclose(streamed.times(direction).double(), rows @ direction.double(), atol=1e-4)
    assert torch.allclose(streamed.transposed(weights).double(), rows.T @ weights.double(), atol=1e-3)
    assert (streamed.norms >= rows.norm(dim=1) - 1e-5).all()
    assert streamed.norms[7] == 0.0


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_how_far_one_unit_in_each_step_moves_the_model(make_job, momentum: float) -> None:
    """A sum in step t moves the last model by rate / divisor * (1 + m + ... + m^(T - t))."""
    steps, job = 7, make_job(steps=7)
    optimizer = {"optimizer": {"kind": "momentum", "momentum": momentum}} if momentum else {}
    job = replace(job, options=FrozenMap({**job.options, **optimizer}))
    scorer = PathScores(job, some(2), np.array([1, 1]), 1)
    weights = [sum(momentum**j for j in range(steps - t + 1)) for t in range(1, steps + 1)]
    rate = float(job.options["learning_rate"]) / job.expected_batch_size
    assert scorer._scale(steps) == pytest.approx(rate * float(np.mean(weights)))


@pytest.mark.ci
def test_scores_separate_planted_records_from_others(make_job) -> None:
    """20 canaries in 20 steps at rate .3, five runs: mean rank of inserted canaries; random ranks give .5 +- .06."""
    ranks = []
    for seed in range(5):
        job = make_job(steps=20, noise_multiplier=0.5, sampling={"scheme": "poisson", "rate": 0.3})
        job = replace(job, seed=seed)
        canaries, copies = some(20), np.ones(20, dtype=np.int64)
        coins = np.random.default_rng(seed).permutation(np.arange(20) % 2)
        scorer, first = PathScores(job, canaries, copies, 10), flat_model.flatten(job.model)
        rows = plant(job.x, job.y, canaries, copies, coins)
        NativeTrainer().train(replace(job, x=rows.x, y=rows.y))
        scores = scorer(first, flat_model.flatten(job.model)).numpy()
        ranks.append(np.mean(scores[coins == 1][:, None] > scores[coins == 0][None, :]))
    assert np.mean(ranks) > 0.7


def test_a_model_that_diverged_says_nothing(make_job) -> None:
    job = make_job(steps=3)
    scorer, first = PathScores(job, some(4), np.ones(4, dtype=np.int64), 2), flat_model.flatten(job.model)
    assert not scorer(first, torch.full_like(first, torch.inf)).any()


@pytest.fixture
def identity():
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    return model


@pytest.mark.parametrize("chunk", [1, 2, 1024])
def test_right_answers_of_each_split(identity, monkeypatch, chunk):
    monkeypatch.setattr(final_scores, "_CHUNK", chunk)
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    y = np.array([0, 1, 0])
    data = LoadedData(train_x=x, train_y=y, test_x=x[:1], test_y=y[:1])
    assert right_answers(identity, data) == {"train": {"right": 2, "records": 3}, "test": {"right": 1, "records": 1}}
    assert set(right_answers(identity, LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0]))) == {"train"}


def observed(job, canaries: Records, copies: np.ndarray, last: torch.Tensor) -> Observed:
    """Return the observation of a model at ``last`` (P,) that ``job`` trained on the real records alone."""
    first = flat_model.flatten(job.model)
    before, after = (margins(job.model, state, canaries, device="cpu") for state in (first, last))
    return Observed(
        canaries=canaries,
        copies=copies,
        before=before,
        after=after,
        ask=lambda records: (before, after),
        first=first.numpy().copy(),
        last=last.numpy().copy(),
        coins=np.full(len(copies), -1, dtype=np.int8),
        unit=1.0,
        many=False,
        planted=int(copies.sum()) // 2,
        job=replace(job, model=copy.deepcopy(job.model)),
    )


def test_what_they_are_by_hand(make_job) -> None:
    job, canaries, copies = make_job(steps=6), some(10), np.repeat([1, 3], 5)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    odds, coins = final_scores.shadow_log_odds(seen, 8)
    assert (coins.sum(0) == 4).all()
    assert (coins[:4] + coins[4:] == 1).all()
    runs = []
    for place, tossed in enumerate(coins):
        rows = plant(job.x, job.y, canaries, copies, tossed)
        runs.append(replace(job, x=rows.x, y=rows.y, seed=derive(place, "shadow run")))
    wanted = np.stack([margins(job.model, state, canaries, device="cpu") for state in run_batched(runs)])
    assert odds == pytest.approx(wanted, abs=1e-4)


def test_the_score_is_the_distance_in_common_deviations(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_scores, "SHADOWS", 8)
    job, canaries, copies = make_job(steps=6), some(10), np.ones(10, dtype=np.int64)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    odds, _ = final_scores.shadow_log_odds(seen, 8)
    deviation = np.sqrt(odds.var(axis=0, ddof=1).mean())
    assert final_scores.shadow(seen) == pytest.approx((seen.after - odds.mean(0)) / deviation)


@pytest.mark.ci
def test_scores_use_no_coin_and_change_nothing(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any coins, any seed and any trained model in the job."""
    monkeypatch.setattr(final_scores, "SHADOWS", 4)
    job, canaries, copies = make_job(steps=4), some(8), np.ones(8, dtype=np.int64)
    seen = observed(job, canaries, copies, flat_model.flatten(job.model) + 0.1)
    before = flat_model.flatten(seen.job.model).clone()
    scores = final_scores.shadow(seen)
    assert torch.equal(before, flat_model.flatten(seen.job.model))
    other = copy.deepcopy(seen.job.model)
    flat_model.load(other, before + 1.0)
    for changed in (
        replace(seen, coins=np.arange(8, dtype=np.int8) % 2),
        replace(seen, job=replace(seen.job, seed=77)),
        replace(seen, job=replace(seen.job, model=other)),
    ):
        assert np.array_equal(final_scores.shadow(changed), scores)


def test_models_that_diverge_leave_finite_scores(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_scores, "SHADOWS", 2)
    job = make_job(steps=3)
    job = replace(job, options=FrozenMap({**job.options, "learning_rate": 1e38}))
    seen = observed(job, some(4), np.ones(4, dtype=np.int64), flat_model.flatten(job.model))
    assert np.isfinite(final_scores.shadow(seen)).all()
