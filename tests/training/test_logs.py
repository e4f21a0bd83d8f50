"""Logs equal those of simple loops over whole runs, and resume from their state."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.phases import phase_of
from support.seen_run import SeenRun

from dpspec.contract import FrozenMap
from dpspec.stats.conformance.evidence import write_run
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import StateLog
from dpspec.training.measure.run_evidence import RunLogs, reported_evidence
from dpspec.training.measure.scores import ProjectionObserver


@pytest.fixture
def two_phases(make_job):
    return make_job(phases=(phase_of("poisson", 12, rate=0.3), phase_of("poisson", 9, 2.0, 0.5, rate=0.5)))


def test_sampling_is_counted_per_phase(two_phases):
    logs, whole = RunLogs(two_phases), SeenRun()
    NativeTrainer().train(replace(two_phases, observers=(whole, *logs.observers)))
    found = write_run(reported_evidence(logs))["sampling_log"]
    members = np.zeros((21, 40), dtype=int)
    for step, batch in enumerate(whole.indices):
        members[step, batch] = 1
    for phase, (start, end) in zip(found["batches"], [(0, 12), (12, 21)], strict=True):
        some = members[start:end]
        assert phase["steps"] == end - start
        assert phase["total"] == some.sum()
        assert phase["squares"] == (some.sum(1) ** 2).sum()
        assert phase["spread"] == (some.sum(0) ** 2).sum()
        for lag, common, chances in phase["overlaps"]:
            steps = [t for t in range(start, end) if t >= lag]
            assert common == sum(int((members[t] & members[t - lag]).sum()) for t in steps)
            assert chances == sum(int(members[t - lag].sum()) for t in steps)
    assert {lag for phase in found["batches"] for lag, *_ in phase["overlaps"]} == {1, 2, 3, 4}
    assert found["repeats"] == 0


def test_noise_is_kept_in_a_few_places_and_in_all_moments(two_phases):
    logs, whole = RunLogs(two_phases), SeenRun()
    NativeTrainer().train(replace(two_phases, observers=(whole, *logs.observers)))
    found = write_run(reported_evidence(logs))["noise_log"]
    noise = np.stack(whole.noise).astype(np.float64) / np.repeat([1.0, 1.0], [12, 9])[:, None]
    assert found["degrees"] == 21 * 63
    assert found["statistic"] == pytest.approx((noise**2).sum(), rel=1e-5)
    gram = np.triu(noise @ noise.T, 1)
    assert abs(found["pair"]) == pytest.approx(np.abs(gram).max(), rel=1e-5)
    lag = found["lag"]["lag"]
    assert found["lag"]["products"] == pytest.approx(np.trace(noise @ noise.T, lag), rel=1e-5)


def test_norms_are_compared_with_the_clip_norm_of_their_step(make_job):
    """The records are clipped at 0.25, so that the largest contribution has one clip norm."""
    logs = RunLogs(job := make_job(steps=3, clip_norm=0.25, sampling={"scheme": "full"}))
    NativeTrainer().train(replace(job, observers=logs.observers))
    assert write_run(reported_evidence(logs))["internal"]["norm_log"]["largest"] == pytest.approx(1.0, rel=1e-5)


def test_laplace_noise_is_not_compared_with_a_gaussian(make_job):
    job = make_job(phases=tuple(FrozenMap({**phase, "noise": "laplace"}) for phase in make_job().phases))
    logs = RunLogs(job)
    watcher = ProjectionObserver(job, SignBlocks(63, 5, seed=0))
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher, *logs.observers)))
    assert "noise_log" not in write_run(reported_evidence(logs))
    assert watcher.log.rows == []


@pytest.mark.rounding
def test_the_residual_log_measures_noise_alone(make_job):
    """Near full batches, free directions contain the noise alone, without the canaries."""
    directions = SignBlocks(63, 20, seed=0)
    canaries = CanaryGroups.planted(directions, torch.arange(20) < 10, 3, 10.0)
    job = make_job(steps=60, canaries=canaries, sampling={"scheme": "full"}, noise_multiplier=1.5)
    watcher, whole = ProjectionObserver(job, directions), SeenRun()
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher, whole)))
    noise = np.stack(whole.noise).astype(np.float64)
    log = watcher.log
    assert len(log.rows) == 60
    assert np.allclose(log.coordinates, (noise**2).sum(0) / 1.5**2, rtol=1e-3)
    layers, start = {name: (total, size) for (name, size), total in zip(log.parts, log.layers, strict=True)}, 0
    assert log.seen == 60
    for name, parameter in job.model.named_parameters():
        part = (noise[:, start : start + parameter.numel()] ** 2).sum(1) / 1.5**2
        assert layers[name] == pytest.approx((part.sum(), parameter.numel()), rel=1e-2)
        start += parameter.numel()
    assert np.array(log.variances) == pytest.approx(1.5**2)
    basis = directions.directions(torch.arange(20)).numpy().astype(np.float64)
    free = noise - noise @ basis.T @ basis
    assert np.allclose(np.stack(log.rows), free, atol=1e-3)
    drift, pull, rounding = np.array(log.along).T
    assert abs(drift.sum()) < 5 * 1.5 * 60**0.5
    assert pull.min() > 1.0
    assert 0.0 < rounding.max() < 1e-3


@pytest.mark.ci
def test_canaries_that_turn_away_count_as_sampled_records(make_job):
    directions = SignBlocks(63, 20, seed=0)
    canaries = CanaryGroups(directions, torch.arange(20).repeat_interleave(3), 10.0, spread=0.7, seed=3)
    job = make_job(steps=50, canaries=canaries, sampling={"scheme": "full"}, noise_multiplier=1e-3)
    watcher = ProjectionObserver(job, directions)
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    drift, pull, _ = np.array(watcher.log.along).sum(0)
    assert abs(drift) < 1e-2 * pull


@pytest.mark.family
@pytest.mark.rounding
@pytest.mark.parametrize("stop", [0, 5, 8, 12, 18])
def test_logs_go_on_where_they_were(make_job, stop):
    """Within a phase of Poisson samples, an epoch of shuffled batches, and one of random allocation."""
    shuffled, allocated = phase_of("shuffled", 7, batch_size=16), phase_of("random-allocation", 8, epoch_steps=4)
    job = make_job(phases=(phase_of("poisson", 6, rate=0.3), shuffled, allocated))
    directions = SignBlocks(63, 5, seed=0)

    def observers():
        logs, watcher = RunLogs(job), ProjectionObserver(job, directions)
        watcher.keep_log(job)
        return (watcher, *logs.observers)

    seen, states = observers(), SeenRun()
    NativeTrainer().train(replace(job, observers=(states, *seen)))
    early, late = observers(), observers()
    for observer in early:
        states.replay(observer, 0, stop)
    for one, other in zip(early, late, strict=True):
        if stop:
            other.restore({key: value.copy() for key, value in one.state().items()})
        states.replay(other, stop, 21)
    for one, other in zip(seen, late, strict=True):
        mine, theirs = one.state(), other.state()
        assert set(mine) == set(theirs)
        for key in mine:
            assert np.array_equal(mine[key], theirs[key]), key
    assert seen[1].evidence() == late[1].evidence() is not None


def logged(job):
    log = StateLog()
    NativeTrainer().train(replace(job, observers=(log,)))
    return log, log.evidence(job)


@pytest.mark.rounding
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_run_as_declared(make_job, kind):
    job = make_job(options=FrozenMap({"learning_rate": 0.5, "reduction": "mean", "optimizer": {"kind": kind}}))
    _, found = logged(job)
    assert found == {"steps": 5, "states": {"still": 0, "apart": 0, "blind": False}}


def test_states_that_stand_still_and_a_model_that_is_another(make_job):
    job = make_job()
    log, _ = logged(job)
    log.released(6, flat_model.flatten(job.model))
    assert log.evidence(job)["states"]["still"] == 1
    with torch.no_grad():
        next(job.model.parameters()).add_(1e-6)
    assert log.evidence(job) == {"steps": 6, "states": {"still": 1, "apart": 1, "blind": False}}


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 1e-9},
        {"learning_rate": 0.5, "schedule": {"kind": "linear", "final": 0.0}, "optimizer": {"kind": "adam", "eps": 1e9}},
    ],
)
def test_what_rounding_may_keep_as_it_is_is_not_tested(make_job, options):
    _, found = logged(make_job(options=FrozenMap({"reduction": "mean", **options})))
    assert found["states"]["blind"]


def test_without_noise_a_model_may_stand_still(make_job):
    _, found = logged(make_job(noise_multiplier=0.0, sampling={"scheme": "poisson", "rate": 1e-9}))
    assert found["states"] == {"still": 5, "apart": 0, "blind": True}
