"""Random allocation as it is drawn, resumed and measured. Statistical tests reject at 1e-6, with fixed seeds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpspec.contract import FrozenMap
from dpspec.testing.backend import small_job
from dpspec.training.device import generator
from dpspec.training.loop.dpsgd import Schedule
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.loop.samplers import (
    Poisson,
    RandomAllocation,
    covariance,
    epoch_of,
    exclusive,
    inclusion_moments,
    independent,
    sampler_of,
)
from dpspec.training.measure.logs import SamplingLog
from dpspec.training.measure.residuals import Residuals


def steps_of(sampler: RandomAllocation, source: torch.Generator, epochs: int) -> np.ndarray[Any, Any]:
    """(epochs, records) each record's step; fails where one is in no batch of an epoch, or in two."""
    found = np.full((epochs, sampler.records), -1)
    for epoch, step in itertools.product(range(epochs), range(sampler.epoch_steps)):
        batch = sampler.draw(source)
        assert bool((batch.diff() > 0).all())
        assert (found[epoch, batch] == -1).all()
        found[epoch, batch] = step
    assert (found >= 0).all()
    return found


def test_every_record_has_one_step_uniformly_and_independently() -> None:
    """Two records in two epochs of three steps: all 81 ways are equally likely."""
    found = steps_of(RandomAllocation(2, 3), generator(0, "test"), 2 * 2430)
    codes = found.reshape(-1, 4) @ 3 ** np.arange(4)
    counts = np.bincount(codes, minlength=81)
    assert float(((counts - 30.0) ** 2).sum()) / 30.0 < chi2.ppf(1 - 1e-6, 80)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**32))
def test_a_record_more_changes_no_other_step(records: int, epoch_steps: int, seed: int) -> None:
    less = steps_of(RandomAllocation(records, epoch_steps), generator(seed, "test"), 3)
    more = steps_of(RandomAllocation(records + 2, epoch_steps), generator(seed, "test"), 3)
    assert np.array_equal(less, more[:, :records])


def sets_of(sampler: RandomAllocation, source: torch.Generator, epochs: int) -> np.ndarray[Any, Any]:
    """(epochs, records, steps) bool, who is where; fails where one is in another number of batches."""
    found = np.zeros((epochs, sampler.records, sampler.epoch_steps), dtype=bool)
    for epoch, step in itertools.product(range(epochs), range(sampler.epoch_steps)):
        batch = sampler.draw(source)
        assert bool((batch.diff() > 0).all())
        found[epoch, batch, step] = True
    assert (found.sum(axis=2) == sampler.batches_per_epoch).all()
    return found


@pytest.mark.parametrize(("steps", "batches"), [(3, 2), (4, 2)])
def test_every_set_of_steps_is_equally_likely_and_independent(steps: int, batches: int) -> None:
    """Two records in an epoch: all pairs of sets."""
    found = sets_of(RandomAllocation(2, steps, batches), generator(0, "test"), 1440)
    codes = found.astype(int) @ 2 ** np.arange(steps) @ np.array([1, 2**steps])
    _, counts = np.unique(codes, return_counts=True)
    ways = {(3, 2): 9, (4, 2): 36}[steps, batches]
    assert len(counts) == ways
    assert float(((counts - 1440 / ways) ** 2).sum()) * ways / 1440 < chi2.ppf(1 - 1e-6, ways - 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(2, 9), st.integers(0, 2**32))
def test_a_record_more_changes_no_other_set(records: int, epoch_steps: int, batches: int, seed: int) -> None:
    batches = min(batches, epoch_steps)
    less = sets_of(RandomAllocation(records, epoch_steps, batches), generator(seed, "test"), 3)
    more = sets_of(RandomAllocation(records + 2, epoch_steps, batches), generator(seed, "test"), 3)
    assert np.array_equal(less, more[:, :records])


def test_one_batch_an_epoch_is_drawn_as_ever() -> None:
    """Runs that were made before there were several are resumed and verified by their bits."""
    sampler, source, same = RandomAllocation(50, 7), generator(3, "test"), generator(3, "test")
    for _ in range(3):
        seed = torch.randint(2**32, (4,), generator=same, dtype=torch.int64).tolist()
        steps = np.random.default_rng(seed).integers(7, size=50, dtype=np.int64)
        for step in range(7):
            assert sampler.draw(source).tolist() == np.flatnonzero(steps == step).tolist()


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6])
def test_an_epoch_goes_on_where_it_stopped(taken: int, batches: int) -> None:
    sampler, source = RandomAllocation(30, 4, batches), generator(5, "test")
    other = RandomAllocation(30, 4, batches)
    for _ in range(taken):
        sampler.draw(source)
    other.restore(sampler.state())
    copy = torch.Generator()
    copy.set_state(source.get_state())
    for _ in range(9):
        assert torch.equal(sampler.draw(source), other.draw(copy))
    sampler.restore({})
    first = RandomAllocation(30, 4, batches)
    assert torch.equal(sampler.draw(generator(1, "test")), first.draw(generator(1, "test")))


PHASES = (
    {
        "steps": 8,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "random-allocation", "epoch_steps": 4},
    },
    {"steps": 2, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.3}},
)


def test_the_log_counts_whole_epochs_and_goes_on_within_one() -> None:
    schedule = Schedule.of(PHASES, 20)
    epochs = [epoch_of(phase.sampler) for phase in schedule.phases]
    assert epochs == [4, 1]
    for fault in range(2):
        source, logs = generator(2, "test"), [SamplingLog(20, [8, 2], [4], epoch_steps=epochs) for _ in range(2)]
        for step, phase in enumerate(schedule, start=1):
            batch = phase.sampler.draw(source)
            if fault and step == 6:  # one record is left out, and another comes again
                batch = torch.cat([batch[1:], torch.tensor([int(logs[0].sizes[4] == 0)])])
            logs[0].sampled(step, batch)
            logs[1].sampled(step, batch)
            again = SamplingLog(20, [8, 2], [4], epoch_steps=epochs)
            again.restore(logs[1].state())
            logs[1] = again
        assert logs[0].astray == logs[1].astray
        assert logs[0].astray[1] == 0
        assert bool(logs[0].astray[0]) == bool(fault)
        assert logs[0].together is not None
        assert logs[1].together is not None
        assert logs[0].together.sums(0) == logs[1].together.sums(0)
        assert logs[0].together.sums(0).looked == 1


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("chosen", [range(8), range(0, 8, 3), [0], [1, 2, 9]])
def test_the_variance_of_inclusions_is_what_is_drawn(chosen: Any, batches: int) -> None:
    sampling = {**PHASES[0]["sampling"], "batches_per_epoch": batches}  # type: ignore[dict-item]
    schedule = Schedule.of([{**PHASES[0], "sampling": sampling}, PHASES[1]], 2000)
    steps = np.isin(np.arange(10), list(chosen))
    drawn, source = np.zeros(2000), generator(4, "test")
    for at, phase in enumerate(schedule):
        batch = phase.sampler.draw(source)
        drawn[batch.numpy()] += steps[at]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    parts = zip(schedule.phases, np.split(steps, ends), strict=True)
    shares = [inclusion_moments(phase.sampler, part) for phase, part in parts]
    mean, known = (sum(float(share[i].sum()) for share in shares) for i in (0, 1))
    assert abs(float(drawn.mean()) - mean) < 5.0 * max(known, 1e-9) ** 0.5 / 2000**0.5
    assert abs(float(drawn.var()) - known) < 5.0 * max(known, 1e-9) * (3.0 / 2000) ** 0.5 * 2.0


def test_what_is_taken_for_granted_of_it() -> None:
    sampler = sampler_of({"scheme": "random-allocation", "epoch_steps": 5}, 20)
    assert sampler == RandomAllocation(20, 5)
    assert (sampler.inclusion, covariance(sampler)) == (0.2, 0.0)
    assert independent(sampler)
    assert not exclusive(sampler)
    assert (epoch_of(sampler), epoch_of(Poisson(20, 0.2))) == (5, 1)
    with pytest.raises(ValueError, match="epoch_steps"):
        RandomAllocation(20, 0)
    for batches in (0, 6):
        with pytest.raises(ValueError, match=f"batches_per_epoch must be within 1..5, got {batches}"):
            RandomAllocation(20, 5, batches)
    several = sampler_of({"scheme": "random-allocation", "epoch_steps": 5, "batches_per_epoch": 2}, 20)
    assert several == RandomAllocation(20, 5, 2)
    assert several.inclusion == 0.4
    with pytest.raises(ValueError, match="whole number of epochs of 4, got 7"):
        Schedule.of([{**PHASES[0], "steps": 7}], 20)


def test_residuals_along_what_was_seen_are_taken_at_the_first_step_of_an_epoch() -> None:
    """At later steps the past tells of the batch, so that sums along earlier residuals are no martingale."""
    options = FrozenMap({"learning_rate": 0.1, "optimizer": {"kind": "sgd"}, "reduction": "mean"})
    job = small_job(options=options, steps=12, sampling={"scheme": "random-allocation", "epoch_steps": 4})
    watcher = Residuals(job)
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    assert watcher.log is not None
    assert (watcher.log.seen, watcher.log.steps, watcher.log.hidden) == (12, 3, 0)
