"""Every built-in model trained on a pretended GPU: as on the CPU."""

from dataclasses import replace

import pytest
import torch
from support.gpu_cases import job_of
from support.pretend_gpu import pretend_gpu

from dpspec.contract import TrainingJob
from dpspec.models.architectures import MODELS
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import NativeTrainer, run_batched

#: Relative to the largest parameter. On a GPU convolutions of many positions, and sums over what is planted, are
#: computed in another order.
TOLERANCE = 1e-6


def trained(job: TrainingJob, device: str) -> torch.Tensor:
    NativeTrainer().train(replace(job, device=device))
    return flat_model.flatten(job.model)


@pytest.mark.family
@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_every_model(kind: str) -> None:
    expected = trained(job_of(kind), "cpu")
    with pretend_gpu() as machine:
        found = trained(job_of(kind), "cuda")
    assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())
    assert machine.account.coarse == {}, "products of less than float32"


def test_runs_together() -> None:
    jobs = [job_of("mlp", seed=seed) for seed in (1, 2, 3)]
    expected = run_batched(jobs)
    with pretend_gpu():
        found = run_batched([replace(job, device="cuda") for job in jobs]).cpu()
    assert torch.equal(found, expected)
