"""Public and private batches mixed: steps of another optimizer, and gradients that are added after the noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.facts_only import alarms, run_with, said
from support.opacus_training import PrivateTraining
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

import dpspec
from dpspec import json_records
from dpspec.errors import UsageError
from dpspec_recording.observers.rules import RuleFact, RuleFacts, Rules
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradientFacts, NoisyGradients
from dpspec_recording.observers.update_rule.public_steps import PublicFacts, PublicSteps
from dpspec_recording.observers.update_rule.second_optimizer import OtherOptimizer, OtherOptimizers, ReplayedGradients
from dpspec_recording.public_data import PublicData
from dpspec_recording.step_replay.facts import MapFacts

Loss = Callable[["Mixed", Tensor, Tensor], Tensor]

pytestmark = pytest.mark.filterwarnings("ignore")


def labelled(count: int) -> TensorDataset:
    x = torch.randn(count, 6)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Mixed(PrivateTraining):
    """A training whose script adds the loss of public batches to private steps."""

    noise, clip = 2.0, 1.0

    def __init__(self, extra: Loss | None = None, mode: str = "hooks") -> None:
        """extra: a further loss of the model, from the private batch. mode: of Opacus' gradients."""
        torch.seed()
        self.extra, self.records, self.public = extra, labelled(160), labelled(60)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        self.make_private(model, sgd, DataLoader(self.records, batch_size=20), mode)
        self.other = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.public_loader = DataLoader(self.public, batch_size=12, drop_last=True, shuffle=True)

    def losses(self, public: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = cross_entropy(self.model(public[0]), public[1])
        return loss if self.extra is None else loss + self.extra(self, *batch)

    def step_publicly(self, batch: tuple[Tensor, Tensor]) -> None:
        """A public step after a private one."""
        self.step(*batch)
        self.private.zero_grad()
        self.losses(next(iter(self.public_loader)), batch).backward()  # type: ignore[no-untyped-call]
        self.other.step()
        self.private.zero_grad()

    def step_with_public_gradient(self, batch: tuple[Tensor, Tensor]) -> None:
        """A private step with a public gradient after its noise."""
        self.private.zero_grad()
        self.criterion(self.model(batch[0]), batch[1]).backward()
        if self.private.pre_step():
            self.model.disable_hooks()
            loss = self.losses(next(iter(self.public_loader)), batch)
            gradients = torch.autograd.grad(loss, list(self.model.parameters()))
            self.model.enable_hooks()
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad += 0.1 * gradient
            self.private.original_optimizer.step()

    def train_mixed(self, folder: Path, step: str, public: Any) -> CheckedRun:
        with self.recorder(folder, public=public):
            for batch in self.loader:
                getattr(self, step)(batch)
        return check_run(folder, Question(delta=1e-3, epsilon=100.0))


def of_the_batch(mixed: Mixed, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(mixed.model(x), y)


def of_a_record(mixed: Mixed, x: Tensor, y: Tensor) -> Tensor:
    x, y = mixed.records.tensors
    return cross_entropy(mixed.model(x[7:8]), y[7:8])


STEPS = ["step_publicly", "step_with_public_gradient"]


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("step", [*reversed(STEPS)])
def test_public_data_is_a_post_processing(step: str, mode: str, tmp_path: Path) -> None:
    mixed = Mixed(mode=mode)
    found = mixed.train_mixed(tmp_path / "run", step, mixed.public_loader)
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    assert not found.audit.recording.rules
    assert "none of its rows is a record" in found.assumption("public-data").text


@pytest.mark.ci
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["dataset", "tensors"])
def test_datasets_and_tensors_are_declared_too(kind: str, step: str, tmp_path: Path) -> None:
    mixed = Mixed()
    public = mixed.public if kind == "dataset" else list(mixed.public.tensors)
    assert mixed.train_mixed(tmp_path / "run", step, public).verdict == "proved"


@pytest.mark.ci
@pytest.mark.parametrize("extra", [of_the_batch, of_a_record])
@pytest.mark.parametrize(("step", "mode"), [*((step, "hooks") for step in STEPS), (STEPS[1], "ghost")])
def test_a_public_loss_that_also_reads_a_record_is_found(step: str, extra: Loss, mode: str, tmp_path: Path) -> None:
    mixed = Mixed(extra, mode)
    assert mixed.train_mixed(tmp_path / "run", step, mixed.public_loader).verdict != "proved"


@pytest.mark.ci
@pytest.mark.parametrize("step", STEPS)
def test_without_a_declaration_it_is_not_proved(step: str, tmp_path: Path) -> None:
    assert Mixed().train_mixed(tmp_path / "run", step, None).verdict != "proved"


@pytest.mark.ci
def test_writes_besides_public_steps_still_deviate(tmp_path: Path) -> None:
    class Writing(Mixed):
        def step_publicly(self, batch: tuple[Tensor, Tensor]) -> None:
            super().step_publicly(batch)
            with torch.no_grad():
                next(self.model.parameters()).add_(0.01)

    mixed = Writing()
    found = mixed.train_mixed(tmp_path / "run", "step_publicly", mixed.public_loader)
    assert "parameter changes outside the DP optimizer" in found.rejected


def test_public_data_with_private_records_is_refused(tmp_path: Path) -> None:
    mixed = Mixed()
    x, y = mixed.public.tensors
    copied = TensorDataset(torch.cat([x, mixed.records.tensors[0][3:5]]), torch.cat([y, y[:2]]))
    with pytest.raises(UsageError, match="2 rows of the private dataset"):
        PublicData(DataLoader(copied, batch_size=4), mixed.loader)
    for public in (mixed.loader, mixed.records, Subset(mixed.records, [5])):
        with pytest.raises(UsageError, match="has records of the private dataset"):
            PublicData(public, mixed.loader)
    with pytest.raises(UsageError, match="public= has a int"):
        dpspec.record(tmp_path / "run", model=mixed.model, optimizer=mixed.private, loader=mixed.loader, public=3)


def test_tensors_of_public_rows_are_known_by_value() -> None:
    private, public = labelled(50), labelled(40)
    data = PublicData(public, DataLoader(private, batch_size=5))
    x, y = public.tensors
    assert data.is_compared
    assert data.others([x, y, x[3], x[[1, 5, 2]].clone(), y[[1, 5, 2]].clone()]) == []
    foreign = [torch.randn(3, 6), private.tensors[0][:3], torch.cat([x[:2], private.tensors[0][:1]])]
    assert [tensor.data_ptr() for tensor in data.others(foreign)] == [tensor.data_ptr() for tensor in foreign]
    labels = torch.ones(7, dtype=torch.long)
    assert data.others([x[:5], labels])[0] is labels


def test_a_batch_with_a_private_record_is_not_noted() -> None:
    private, public = labelled(50), labelled(40)
    data = PublicData(DataLoader(public, batch_size=4), DataLoader(private, batch_size=5))
    augmented = 2.0 * public.tensors[0][:4]
    assert data.note([augmented]) == [augmented]
    assert data.others([augmented]) == []
    assert data.note([torch.cat([augmented, private.tensors[0][:1]])]) == []


@pytest.mark.parametrize("is_copied", [False, True])
def test_public_rows_that_nearly_equal_records_are_asked_about(is_copied: bool) -> None:
    records = torch.randn(60, 20)
    public = records[:20] + 0.01 * torch.randn(20, 20) if is_copied else torch.randn(20, 20)
    labels = torch.zeros(60, dtype=torch.long)
    private = DataLoader(TensorDataset(records, labels), batch_size=5)
    data = PublicData(TensorDataset(public, labels[:20]), private)
    facts = PublicFacts(
        is_declared=True, is_compared=data.is_compared, inspected=data.inspected, near_copies=data.near_copies, steps=0
    )
    assert facts.comparison.startswith("none of its rows is a record")
    assert ("16 of 16 inspected ones nearly equal one: copies with noise?" in facts.comparison) is is_copied


@pytest.mark.parametrize(("public", "is_alarm"), [(5, False), (0, True)])
def test_public_steps_are_counted_unless_replays_find_their_gradients_public(public: int, is_alarm: bool) -> None:
    replayed = ReplayedGradients(
        steps=5, moved=0, sizes=2, follows_size=False, public=public, unknown="", reads=False, varying=False, failure=""
    )
    optimizer = OtherOptimizer(name="SGD", inside=2, outside=0, steps=40, is_regular=True, replayed=replayed)
    facts = json_records.write(OtherOptimizers(optimizers=(optimizer,), readers=(), before_steps=0))
    rules = RuleFacts(by_rule=({"second-optimizer": RuleFact(facts=facts)},))
    steps = PublicFacts(is_declared=True, is_compared=True, steps=40)
    run = run_with({PublicSteps: steps, Rules: rules})
    assert ("unverified-public-steps" in alarms(PublicSteps, steps, run)) is is_alarm


@pytest.mark.parametrize("inputs", ["300 x 20, 300", ""])
def test_the_question_about_an_added_gradient_names_the_declaration_of_public_data(inputs: str) -> None:
    """A map that reads no further tensor has no public batch to declare."""
    maps = MapFacts(explained=0, by_all=0, replayed=3, moved=0, public=0, inputs=inputs)
    noisy = NoisyGradientFacts(compared=50, changed=50, scaled=0, explained=0)
    run = run_with({GradientMap: maps, NoisyGradients: noisy})
    (asked,) = GradientMap.judge(maps, run)
    assert said(asked) == ("gradient-map", True)
    assert ("declare a public batch by public= of dpspec.record" in asked.text) == bool(inputs)
