"""Runs at once are the runs alone: the same batches and noise to the last bit, sums and models up to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.seen_run import SeenRun

from dpspec.contract import Cancelled, FrozenMap
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.native import NativeTrainer, run_batched
from dpspec.training.measure.scores import ProjectionObserver

RUNS = 5


def jobs_of(make_job, make_model, **changes):
    return [
        make_job(**{"model": make_model("mlp", seed=run), "seed": run, "observers": (SeenRun(),), **changes})
        for run in range(RUNS)
    ]


def same(together, alone):
    for name in ("indices", "noise"):
        pairs = zip(getattr(together, name), getattr(alone, name), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    for a, b in zip(together.norms, alone.norms, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-12)
    for a, b in zip(together.states, alone.states, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def compare(jobs):
    finals = run_batched(jobs)
    assert finals.shape == (RUNS, 63)
    for job, final in zip(jobs, finals, strict=True):
        alone = replace(job, observers=(SeenRun(),))
        NativeTrainer().train(alone)
        same(job.observers[0], alone.observers[0])
        assert torch.equal(job.observers[0].states[-1], final)


COSINE = {"learning_rate": 0.1, "reduction": "mean", "schedule": {"kind": "cosine"}}
FIXED = {"steps": 3, "clip_norm": 0.1, "sampling": {"scheme": "fixed", "batch_size": 4}}


@pytest.mark.parametrize(
    ("phases", "optimizer"),
    [
        *(
            ([{"sampling": sampling}], None)
            for sampling in (
                {"scheme": "poisson", "rate": 0.25},
                {"scheme": "fixed", "batch_size": 9},
                {"scheme": "full"},
                {"scheme": "shuffled", "batch_size": 17},
                {"scheme": "poisson", "rate": 0.01},
                {"scheme": "poisson", "rate": 1e-12},
            )
        ),
        ([{"clipping": {"scheme": "per-layer"}}], None),
        ([{"clipping": {"scheme": "truncated", "coordinate_bound": 0.02}}], None),
        ([{"noise": "laplace"}, {"noise": "laplace", **FIXED}], {"kind": "momentum", "nesterov": True}),
        ([{"noise": "laplace"}, {"noise": "laplace", **FIXED}], {"kind": "adam"}),
    ],
)
def test_every_run_is_its_own(make_job, make_model, phases, optimizer):
    first = make_job(clip_norm=0.3).phases[0]
    changes = {"options": FrozenMap({**COSINE, "optimizer": optimizer})} if optimizer else {}
    compare(jobs_of(make_job, make_model, phases=tuple(FrozenMap({**first, **p}) for p in phases), **changes))


def test_rows_canaries_and_observers_of_its_own(make_job, make_model):
    directions, jobs = SignBlocks(63, 20, seed=0), []
    for run, job in enumerate(jobs_of(make_job, make_model, clip_norm=0.5)):
        canaries = CanaryGroups.planted(directions, torch.arange(20) < 3 * run, 1, 10.0)
        job = replace(job, x=job.x[run:], y=job.y[run:], canaries=canaries)
        jobs.append(replace(job, observers=(SeenRun(), ProjectionObserver(job, directions))))
    jobs[2] = replace(jobs[2], canaries=None)
    run_batched(jobs)
    for job in jobs:
        alone = replace(job, observers=(SeenRun(), ProjectionObserver(replace(job, observers=()), directions)))
        NativeTrainer().train(alone)
        same(job.observers[0], alone.observers[0])
        assert torch.allclose(job.observers[1].projections, alone.observers[1].projections, atol=1e-3)


def test_broken_records_count_as_nothing(make_job, make_model):
    jobs = jobs_of(make_job, make_model, sampling={"scheme": "full"})
    x = jobs[0].x.copy()
    x[3] = np.nan
    x[7] = np.inf
    compare([replace(job, x=x if run % 2 else job.x) for run, job in enumerate(jobs)])


def test_progress_and_stopping(make_job, make_model):
    told = []
    jobs = jobs_of(make_job, make_model, progress=lambda done, total: told.append((done, total)))
    jobs[3] = replace(jobs[3], cancelled=lambda: len(told) >= 2)
    with pytest.raises(Cancelled):
        run_batched(jobs)
    assert told == [(1, 5), (2, 5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 2.0},
        {"options": FrozenMap({"learning_rate": 0.4, "reduction": "mean"})},
        {"expected_batch_size": 3.0},
        {"model": torch.nn.Linear(6, 3)},
    ],
)
def test_jobs_that_do_not_fit_together(make_job, changes):
    with pytest.raises(ValueError, match="must have the same kind of model, phases"):
        run_batched([make_job(), make_job(**changes)])
