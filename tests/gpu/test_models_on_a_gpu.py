"""Every built-in model, clipping and optimizer trained on a pretended GPU: as on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.gpu_cases import job_of
from support.pretend_gpu import pretend_gpu

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.models.architectures import MODELS
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import NativeTrainer, run_batched
from dpspec.training.measure.run_evidence import RunLogs

#: Relative to the largest parameter. On a GPU convolutions of many positions, and sums over what is planted, are
#: computed in another order.
TOLERANCE = 1e-6


def trained(job: TrainingJob, device: str) -> torch.Tensor:
    NativeTrainer().train(replace(job, device=device))
    return flat_model.flatten(job.model)


@pytest.mark.parametrize("kind", [model.kind for model in MODELS])
def test_every_model(kind: str) -> None:
    expected = trained(job_of(kind), "cpu")
    with pretend_gpu() as machine:
        found = trained(job_of(kind), "cuda")
    assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())
    assert machine.account.coarse == {}, "products of less than float32"


@pytest.mark.parametrize(
    "changes",
    [
        {"clipping": {"scheme": "truncated", "coordinate_bound": 0.1}},
        {"noise": "laplace"},
        {"sampling": {"scheme": "shuffled", "batch_size": 2}},
        {"sampling": {"scheme": "truncated-poisson", "rate": 0.8, "max_batch": 3}},
        {"options": FrozenMap({"learning_rate": 0.5, "reduction": "sum", "optimizer": {"kind": "adam"}})},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values())[:40],
)
def test_every_way_to_train(changes: dict[str, object]) -> None:
    expected = trained(job_of("mlp", **changes), "cpu")
    with pretend_gpu():
        assert torch.equal(trained(job_of("mlp", **changes), "cuda"), expected)


def test_runs_together() -> None:
    jobs = [job_of("mlp", seed=seed) for seed in (1, 2, 3)]
    expected = run_batched(jobs)
    with pretend_gpu():
        found = run_batched([replace(job, device="cuda") for job in jobs]).cpu()
    assert torch.equal(found, expected)


def test_logs_say_the_same() -> None:
    kept = []
    for device in ("cpu", "cuda"):
        with pretend_gpu():
            job = job_of("mlp", steps=5, device=device)
            logs = RunLogs(job)
            NativeTrainer().train(replace(job, observers=logs.observers))
            kept.append([log.state() for log in logs.observers])
    for one, other in zip(*kept, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
