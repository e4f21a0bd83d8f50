"""Replayed updates match for public constants in every job, and differ if a constant depends on the records."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import dependent
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.contract.providers import Cancelled
from dpspec.stats.conformance import table
from dpspec.stats.conformance.evidence import RunEvidence, write_run
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import replayed_step

PHASE = {"steps": 30, "noise_multiplier": 1.0, "clip_norm": 0.7, "sampling": {"scheme": "poisson", "rate": 0.2}}


def job(records: int = 90, seed: int = 0, **changes: Any) -> TrainingJob:
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    made = TrainingJob(
        x=(2.0 + rng.standard_normal((records, 6)) * np.geomspace(0.1, 3.0, 6)).astype(np.float32),
        y=rng.integers(0, 3, records),
        model=model,
        phases=(FrozenMap(PHASE),),
        options=FrozenMap({"learning_rate": 0.1, "reduction": "mean"}),
        expected_batch_size=18.0,
        device="cpu",
        seed=seed,
    )
    return replace(made, **changes)


def checks(found: Any) -> list[Any]:
    made = table.checks([FrozenMap(PHASE)], [FrozenMap(write_run(RunEvidence(replayed=found)))])
    return [one for one in made if one.assumption == "data-independent-hyperparameters"]


@pytest.mark.rounding
@given(
    records=st.integers(4, 60),
    seed=st.integers(0, 2**32 - 1),
    clip=st.floats(1e-3, 1e3),
    rate=st.floats(1e-3, 30.0),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    reduction=st.sampled_from(["mean", "sum"]),
    scheme=st.sampled_from(
        [{"scheme": "poisson", "rate": 0.1}, {"scheme": "full"}, {"scheme": "fixed", "batch_size": 2}]
    ),
)
def test_a_right_job_is_never_rejected(records, seed, clip, rate, optimizer, reduction, scheme):
    options = {"learning_rate": rate, "reduction": reduction, "optimizer": {"kind": optimizer, "weight_decay": 0.1}}
    options["schedule"] = {"kind": "cosine", "warmup": 5}
    phase = FrozenMap({**PHASE, "clip_norm": clip, "sampling": scheme})
    made = job(records, seed, options=FrozenMap(options), phases=(phase,))
    found = replayed_step(NativeTrainer(), made)
    assert found is not None
    (check,) = checks(found)
    assert check.p_value == 1.0
    assert found.random < 1e-4


@pytest.mark.rounding
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "backend", [dependent.Divisor, dependent.Normalisation, dependent.ClipNorm, dependent.LearningRate]
)
def test_every_constant_from_the_records_is_rejected(backend: type, seed: int) -> None:
    (check,) = checks(replayed_step(backend(), job(seed=seed)))
    assert (check.p_value, check.observed) == (0.0, "measured")
    assert check.measured > 2 * check.detectable


def test_the_distance_is_that_of_sums_of_clipped_gradients() -> None:
    """The oracle: a divisor of n instead of 18 gives u(A) = S(A) / n(A), in closed form from the right updates."""
    made = job(records=32)
    right: list[torch.Tensor] = []
    for first in range(4):
        alone = job(records=32)
        phase = FrozenMap({**PHASE, "steps": 1, "noise_multiplier": 0.0, "sampling": {"scheme": "full"}})
        before = flat_model.flatten(alone.model).clone()
        NativeTrainer().train(replace(alone, x=alone.x[first::4], y=alone.y[first::4], phases=(phase,)))
        right.append(18.0 * (flat_model.flatten(alone.model) - before).double())
    difference = (right[0] + right[1] - right[2] - right[3]) * (1 / 16 - 1 / 8)
    expected = float(difference.norm() / sum(one.norm() / 8 for one in right))
    found = replayed_step(dependent.Divisor(), made)
    assert found is not None
    assert found.apart == pytest.approx(expected, rel=1e-3)
    assert found.records == 32


def test_the_job_is_left_as_it_was() -> None:
    made = job()
    before = flat_model.flatten(made.model).clone()
    replayed_step(NativeTrainer(), made)
    assert torch.equal(before, flat_model.flatten(made.model))


def test_what_is_random_without_noise_is_not_tested() -> None:
    class Shaken:
        def train(self, job: TrainingJob) -> None:
            shaken = np.random.default_rng(job.seed).standard_normal(job.x.shape)
            NativeTrainer().train(replace(job, x=(job.x + shaken).astype(np.float32)))

    (check,) = checks(replayed_step(Shaken(), job()))
    assert (check.p_value, check.detectable) == (1.0, None)
    assert "not tested: a step without noise is not always the same" in check.remark


@pytest.mark.ci
def test_sums_of_half_precision_are_no_dependence() -> None:
    """Gradients that are added up in bfloat16, record by record, are another sum in another order."""

    class Half:
        def train(self, job: TrainingJob) -> None:
            before = flat_model.flatten(job.model).clone()
            total = torch.zeros(len(before), dtype=torch.bfloat16)
            for place in range(len(job.x)):
                flat_model.load(job.model, before)
                NativeTrainer().train(replace(job, x=job.x[place : place + 1], y=job.y[place : place + 1]))
                total += (flat_model.flatten(job.model) - before).bfloat16()
            flat_model.load(job.model, before + total.float())

    (check,) = checks(replayed_step(Half(), job()))
    assert check.p_value == 1.0


@pytest.mark.rounding
def test_what_rounding_hides_is_not_tested() -> None:
    made = job(options=FrozenMap({"learning_rate": 1e-6, "reduction": "mean"}))
    (check,) = checks(replayed_step(dependent.Divisor(), made))
    assert (check.p_value, check.detectable) == (1.0, None)
    assert "not tested: the rounding" in check.remark


def test_a_backend_that_refuses_such_a_step_and_three_records_are_not_tested() -> None:
    class Refusing:
        def train(self, job: TrainingJob) -> None:
            raise RuntimeError("no noise is not allowed here")

    assert replayed_step(Refusing(), job()) is replayed_step(NativeTrainer(), job(records=3)) is None


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_missing_memory_ends_the_trial_instead_of_its_evidence(error):
    class Starved:
        def train(self, job):
            raise error

    with pytest.raises(type(error)):
        replayed_step(Starved(), job())
    assert checks(None) == []


def test_what_moves_the_model_whatever_the_records_are_is_no_dependence() -> None:
    """Weights that decay in the backend's own way; on top of it a divisor from the records is still seen."""

    class Decaying:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def train(self, job: TrainingJob) -> None:
            before = flat_model.flatten(job.model).clone()
            self.inner.train(job)
            flat_model.load(job.model, flat_model.flatten(job.model) - 0.01 * before)

    (check,) = checks(replayed_step(Decaying(NativeTrainer()), job()))
    assert check.p_value == 1.0
    assert check.detectable is not None
    (check,) = checks(replayed_step(Decaying(dependent.Divisor()), job()))
    assert check.p_value == 0.0


def test_a_cancelled_audit_stops() -> None:
    with pytest.raises(Cancelled):
        replayed_step(NativeTrainer(), job(cancelled=lambda: True))
