"""Replays of a private discriminator whose generator steps between the private steps, and of the generator."""

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
from dpspec_recording.observers.sensitivity.replays import Replays

Change = Callable[[Tensor], Tensor]

#: The number of fakes of a generator's loss.
FAKES = 12


def unchanged(batch: Tensor) -> Tensor:
    return batch


def mixed(batch: Tensor) -> Tensor:
    return 0.7 * batch + 0.3 * batch[torch.randperm(len(batch))]


def standardized(batch: Tensor) -> Tensor:
    return (batch - batch.mean(0)) / (batch.std(0) + 1e-3)


LossOf = Callable[["Discriminator", Tensor], Tensor]


class Discriminator(PrivateTraining):
    """A discriminator of records and a generator, which take turns.

    midst: another optimizer steps also after the batch was "loaded", or after its forward pass ("passed").
    loss_of: of the generator, from this object and the batch; None for fakes in the number of the records.
    """

    noise, clip = 2.0, 1.0

    def __init__(self, change: Change, *, midst: str = "", loss_of: LossOf | None = None) -> None:
        self.change, self.midst, self.loss_of = change, midst, loss_of
        torch.seed()
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.records = torch.randn(120, 6)
        self.mean = self.records.mean(0)
        loader = DataLoader(TensorDataset(self.records), batch_size=20)
        self.make_private(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
        self.generator = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
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
                loss = softplus(-self.model(fake)).mean() if self.loss_of is None else self.loss_of(self, batch)
                self.step_other(loss, "")
        return check_run(folder, Question(delta=1e-3, epsilon=100.0))


@pytest.mark.ci
def test_a_step_that_begins_after_the_generators_is_replayed(tmp_path: Path) -> None:
    found = Discriminator(unchanged).train(tmp_path / "run")
    replays = found.run.fact(Replays)
    assert replays is not None
    assert (found.conformance.status, replays.replayed >= 2) == ("no-deviation-found", True)


@pytest.mark.ci
@pytest.mark.parametrize("change", [mixed, standardized])
def test_a_discriminator_that_mixes_records_deviates(change: Change, tmp_path: Path) -> None:
    found = Discriminator(change).train(tmp_path / "run")
    assert found.conformance.status == "deviates"
    assert any("other records' outputs" in check.test and check.p_value == 0.0 for check in found.checks)


@pytest.mark.ci
@pytest.mark.parametrize("midst", ["passed", "loaded"])
def test_a_step_in_whose_midst_another_optimizer_steps_is_replayed(midst: str, tmp_path: Path) -> None:
    found = Discriminator(mixed, midst=midst).train(tmp_path / "run")
    assert found.conformance.status == "deviates"
    assert any("other records' outputs" in check.test and check.p_value == 0.0 for check in found.checks)


def of_fakes(gan: Discriminator, _: Tensor) -> Tensor:
    return softplus(-gan.model(gan.generate(FAKES))).mean()


def of_a_mean(gan: Discriminator, batch: Tensor) -> Tensor:
    return of_fakes(gan, batch) + (gan.generate(FAKES).mean(0) - batch.mean(0)).square().mean()


def of_an_earlier_mean(gan: Discriminator, batch: Tensor) -> Tensor:
    return of_fakes(gan, batch) + (gan.generate(FAKES).mean(0) - gan.mean).square().mean()


def of_real_scores(gan: Discriminator, batch: Tensor) -> Tensor:
    return (gan.model(gan.generate(FAKES)).mean() - gan.model(batch).mean()).square()


def of_a_logged_loss(gan: Discriminator, batch: Tensor) -> Tensor:
    with torch.no_grad():
        assert float(gan.model(batch).mean()) < 1e9
    return of_fakes(gan, batch)


def cautions(gan: Discriminator, folder: Path) -> str:
    """The caution of the rule, or "" without one."""
    rules = gan.train(folder).audit.recording.rules
    return next((rule.text for rule in rules if rule.name == "second-optimizer"), "")


@pytest.mark.ci
@pytest.mark.parametrize("loss_of", [of_fakes, of_a_logged_loss])
@pytest.mark.parametrize("midst", ["", "loaded"])
def test_a_generator_that_reads_the_private_model_alone_gets_no_caution(
    loss_of: LossOf, midst: str, tmp_path: Path
) -> None:
    assert not cautions(Discriminator(unchanged, loss_of=loss_of, midst=midst), tmp_path / "run")


@pytest.mark.parametrize(
    ("loss_of", "words"),
    [
        (of_a_mean, "its gradients moved with other records in the batch"),
        pytest.param(of_real_scores, "its gradients moved with other records", marks=pytest.mark.family),
        pytest.param(of_an_earlier_mean, "read tensors of shape 6: do these", marks=pytest.mark.family),
        pytest.param(None, "more rows in larger batches", marks=pytest.mark.family),
    ],
)
def test_a_generator_that_reads_records_or_their_number_is_named(
    loss_of: LossOf | None, words: str, tmp_path: Path
) -> None:
    assert words in cautions(Discriminator(unchanged, loss_of=loss_of), tmp_path / "run")


@pytest.mark.ci
def test_steps_at_times_that_a_loss_decides_are_named(tmp_path: Path) -> None:
    class Deciding(Discriminator):
        number = 0

        def step_other(self, loss: Tensor, when: str) -> None:
            super().step_other(loss, when)
            self.number += not when
            with torch.no_grad():
                score = float(self.model(self.records[:20]).mean())
            if not when and score < 1e9 and self.number % 3 == 0:
                self.private.zero_grad()
                super().step_other(of_fakes(self, self.records), when)

    assert "do numbers that the script read decide when" in cautions(
        Deciding(unchanged, loss_of=of_fakes), tmp_path / "run"
    )
