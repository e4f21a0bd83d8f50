"""Released states are counted, whatever made them: too many, too few, the same twice, and others than the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpspec.contract import FrozenMap
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import StateLog


def told(job):
    log = StateLog()
    NativeTrainer().train(replace(job, observers=(log,)))
    return log, log.evidence(job)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_run_as_declared(make_job, kind):
    job = make_job(options=FrozenMap({"learning_rate": 0.5, "reduction": "mean", "optimizer": {"kind": kind}}))
    _, found = told(job)
    assert found == {"steps": 5, "states": {"still": 0, "apart": 0, "blind": False}}


def test_nothing_released_is_no_evidence(make_job):
    assert StateLog().evidence(make_job()) == {}


def test_states_that_stand_still_and_a_model_that_is_another(make_job):
    job = make_job()
    log, _ = told(job)
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
    _, found = told(make_job(options=FrozenMap({"reduction": "mean", **options})))
    assert found["states"]["blind"]


def test_without_noise_a_model_may_stand_still(make_job):
    _, found = told(make_job(noise_multiplier=0.0, sampling={"scheme": "poisson", "rate": 1e-9}))
    assert found["states"] == {"still": 5, "apart": 0, "blind": True}


def test_a_memory_goes_on(make_job):
    log, _ = told(make_job())
    other = StateLog()
    other.restore(log.state())
    assert (other.steps, other.still) == (5, 0)
    other.released(6, log._last)
    assert other.still == 1
