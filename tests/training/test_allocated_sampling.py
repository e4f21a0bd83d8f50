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
from dpspec.testing.jobs import small_job
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.loop.samplers import (
    Poisson,
    RandomAllocation,
    covariance,
    drawn_shares,
    epoch_of,
    exclusive,
    independent,
    sampler_of,
)
from dpspec.training.loop.schedule import Schedule
from dpspec.training.measure.logs import SamplingLog
from dpspec.training.measure.residuals import Residuals
from dpspec.training.seeds import generator


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
    found = steps_of(RandomAllocation(2, 3), generator(0, "test"), 2 * 8100)
    codes = found.reshape(-1, 4) @ 3 ** np.arange(4)
    counts = np.bincount(codes, minlength=81)
    assert float(((counts - 100.0) ** 2).sum()) / 100.0 < chi2.ppf(1 - 1e-6, 80)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**32))
def test_a_record_more_changes_no_other_step(records: int, epoch_steps: int, seed: int) -> None:
    less = steps_of(RandomAllocation(records, epoch_steps), generator(seed, "test"), 3)
    more = steps_of(RandomAllocation(records + 2, epoch_steps), generator(seed, "test"), 3)
    assert np.array_equal(less, more[:, :records])


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6])
def test_an_epoch_goes_on_where_it_stopped(taken: int) -> None:
    sampler, source, other = RandomAllocation(30, 4), generator(5, "test"), RandomAllocation(30, 4)
    for _ in range(taken):
        sampler.draw(source)
    other.restore(sampler.state())
    copy = torch.Generator()
    copy.set_state(source.get_state())
    for _ in range(9):
        assert torch.equal(sampler.draw(source), other.draw(copy))
    sampler.restore({})
    first = RandomAllocation(30, 4)
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


@pytest.mark.parametrize("chosen", [range(8), range(0, 8, 3), [0], [1, 2, 9]])
def test_the_variance_of_inclusions_is_what_is_drawn(chosen: Any) -> None:
    schedule = Schedule.of(PHASES, 2000)
    steps = np.isin(np.arange(10), list(chosen))
    drawn, source = np.zeros(2000), generator(4, "test")
    for at, phase in enumerate(schedule):
        batch = phase.sampler.draw(source)
        drawn[batch.numpy()] += steps[at]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    parts = zip(schedule.phases, np.split(steps, ends), strict=True)
    known = sum(float(drawn_shares(phase.sampler, part)[1].sum()) for phase, part in parts)
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
