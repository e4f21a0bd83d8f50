"""What is computed of one device stays there: CUDA's kernels for two numbers take none from the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpspec.contract import FrozenMap, Phase
from dpspec.training.loop.schedule import Schedule
from dpspec_per_instance.observers import RecordView, step_score
from dpspec_per_instance.trials import RunSetup

#: A device on which torch's CPU build computes shapes alone. It stands for one that the CPU's numbers are not on.
AWAY = torch.device("meta")


class Devices(TorchDispatchMode):
    """Notes which operations meet tensors of two devices; whoever asks for a number gets 0."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        places = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if len(places) > 1:
            self.mixed.add(func.overloadpacket.__name__)
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0
        return func(*args, **(kwargs or {}))


@pytest.mark.ci
@pytest.mark.parametrize("sampling", [{"scheme": "poisson", "rate": 0.3}, {"scheme": "full"}])
def test_a_steps_score_is_computed_where_the_model_is(sampling):
    options = FrozenMap({"steps": 1, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling})
    (phase,) = Schedule.of(Phase.all_of(options), 20)
    view = RecordView(gradient=torch.ones(5, device=AWAY), products=torch.ones(19, dtype=torch.float64, device=AWAY))
    with Devices() as devices:
        step_score(view, torch.ones(5, device=AWAY), phase)
    assert devices.mixed == set()


def test_a_score_at_hand():
    """l = ln(1 - q + q e^s), s = (<g, x> |g|^2 - |g|^4 / 2) / v with one record alone, v = deviation^2 |g|^2."""
    options = FrozenMap(
        {"steps": 1, "noise_multiplier": 2.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.3}}
    )
    (phase,) = Schedule.of(Phase.all_of(options), 20)
    view = RecordView(gradient=torch.tensor([0.6, 0.8]), products=torch.zeros(0, dtype=torch.float64))
    shift = (1.0 * 0.6 + 2.0 * 0.8 - 0.5) / 4.0
    expected = float(torch.tensor(0.7 + 0.3 * torch.e**shift, dtype=torch.float64).log())
    assert step_score(view, torch.tensor([1.0, 2.0]), phase) == pytest.approx(expected, rel=1e-6)


class Trained:
    """A trainer that notes how it is asked to train."""

    def __init__(self) -> None:
        self.alone: list[object] = []
        self.together = 0

    def train(self, job: Job) -> None:
        self.alone.append(job.resumable)

    def train_many(self, jobs: list[Job]) -> None:
        self.together += len(jobs)


@dataclass(frozen=True)
class Job:
    resumable: object = None


@pytest.mark.parametrize(
    ("device", "parameters", "alone"),
    [("cpu", 20_000, 0), ("cpu", 20_001, 2), ("cuda", 20_001, 0), ("cuda:1", 1_000_001, 2), ("cuda", None, 0)],
)
def test_runs_of_large_models_are_trained_alone_and_resumed(device: str, parameters: int | None, alone: int) -> None:
    trainer = Trained()
    facts = SimpleNamespace(parameters=parameters)
    context = SimpleNamespace(device=device, facts=facts, trainer=trainer, resumable=lambda index: f"folder {index}")
    setup = RunSetup(inputs=FrozenMap(), context=context)  # type: ignore[arg-type]
    setup.train([Job(), Job()], [3, 4])  # type: ignore[list-item]
    assert trainer.alone == ["folder 3", "folder 4"][:alone]
    assert trainer.together == 2 - alone
