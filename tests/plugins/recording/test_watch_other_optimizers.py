"""Replays of a private discriminator whose generator steps between the private steps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import PrivateTraining
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec_recording.probes.replays import Replays

Change = Callable[[Tensor], Tensor]


def unchanged(batch: Tensor) -> Tensor:
    return batch


def mixed(batch: Tensor) -> Tensor:
    return 0.7 * batch + 0.3 * batch[torch.randperm(len(batch))]


def standardized(batch: Tensor) -> Tensor:
    return (batch - batch.mean(0)) / (batch.std(0) + 1e-3)


class Discriminator(PrivateTraining):
    """A discriminator of records and a generator, which take turns.

    midst: another optimizer steps also after the batch was "loaded", or after its forward pass ("passed").
    """

    noise, clip = 2.0, 1.0

    def __init__(self, change: Change, *, midst: str = "") -> None:
        self.change, self.midst = change, midst
        torch.seed()
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        loader = DataLoader(TensorDataset(torch.randn(200, 6)), batch_size=20)
        self.make_private(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
        self.generator = nn.Linear(3, 6)
        self.other = torch.optim.Adam(self.generator.parameters(), lr=0.01)

    def generate(self, count: int) -> Tensor:
        made: Tensor = self.generator(torch.randn(count, 3))
        return made

    def step_other(self, loss: Tensor, when: str) -> None:
        if when in ("", self.midst):
            self.other.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.other.step()

    def train(self, folder: Path) -> CheckedRun:
        with dpspec.record(folder, model=self.model, optimizer=self.private, loader=self.loader, engine=self.engine):
            for (batch,) in self.loader:
                self.private.zero_grad()
                changed = self.change(batch)
                self.step_other(self.generate(5).square().mean(), "loaded")
                loss = softplus(-self.model(changed)).mean()
                self.step_other(self.generate(5).square().mean(), "passed")
                fake = self.generate(len(batch))
                (loss + softplus(self.model(fake.detach())).mean()).backward()
                self.private.step()
                self.private.zero_grad()
                self.step_other(softplus(-self.model(fake)).mean(), "")
        return check_run(folder, Question(delta=1e-3, epsilon=100.0))


@pytest.mark.ci
def test_a_step_that_begins_after_the_generators_is_replayed(tmp_path: Path) -> None:
    found = Discriminator(unchanged).train(tmp_path / "run")
    replays = found.run.fact(Replays)
    assert replays is not None
    assert (found.conformance.status, replays.replayed >= 2) == ("no-deviation-found", True)


@pytest.mark.parametrize("change", [mixed, pytest.param(standardized, marks=pytest.mark.family)])
def test_a_discriminator_that_mixes_records_deviates(change: Change, tmp_path: Path) -> None:
    found = Discriminator(change).train(tmp_path / "run")
    assert found.conformance.status == "deviates"
    assert any("other records' outputs" in check.test and check.p_value == 0.0 for check in found.checks)


@pytest.mark.parametrize("midst", ["passed", pytest.param("loaded", marks=pytest.mark.family)])
def test_a_step_whose_records_came_before_another_optimizers_is_not_replayed(midst: str, tmp_path: Path) -> None:
    replays = Discriminator(mixed, midst=midst).train(tmp_path / "run").run.fact(Replays)
    assert replays is not None
    assert replays.failure == "another optimizer steps between its forward pass and its sum"
    assert (replays.replayed <= 1, replays.tried > 1) == (True, True)  # the first step begins with the forward pass
