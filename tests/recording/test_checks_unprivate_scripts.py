"""Scripts that train, or keep, something without noise: none of them is proved and conforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import opacus_training
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import nn
from torch.nn import functional

import dpspec
from dpspec.engine.recorded.checks import MEDDLED
from dpspec.errors import UsageError

Script = Callable[[Training], None]


def recorded(folder: Path, script: Script, *, adjacency: str = "zero-out", **made: Any) -> CheckedRun:
    return opacus_training.recorded(folder, script, asked={"epsilon": 1e4, "adjacency": adjacency}, **made)


def thawed(training: Training) -> None:
    """A layer that was frozen at the beginning is trained by plain descent."""
    training.train()
    with torch.no_grad():
        training.model._module[0].weight.add_(0.1)


def counted(training: Training) -> None:
    training.train()
    training.model._module.counts.add_(torch.tensor([17, 283]))


def kept(training: Training) -> None:
    """The records themselves, as a buffer."""
    training.train()
    training.model._module.register_buffer("memory", torch.randn(300, 6))


def replaced(training: Training) -> None:
    training.train()
    training.model._module[2] = nn.Linear(16, 2)


def meddled(training: Training) -> None:
    """Gradients get something more after the noise."""

    def more(optimizer: Any) -> None:
        for p in optimizer.params:
            p.grad.add_(0.01)

    training.optimizer_.attach_step_hook(more)
    training.train()


def masked(training: Training) -> None:
    """Where a parameter is no number, others are still looked at."""
    with torch.no_grad():
        training.model._module[0].weight[0, 0] = -torch.inf
    training.train()


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose first layer's weight is not trained, with counts beside."""
    made = nn.Sequential

    def frozen_model(*layers: nn.Module) -> nn.Sequential:
        model = made(*layers)
        model.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        model[0].weight.requires_grad_(False)
        return model

    monkeypatch.setattr("support.opacus_training.nn.Sequential", frozen_model)


def test_the_same_training_without_that_is_proved(tmp_path: Path, frozen: None) -> None:
    found = recorded(tmp_path / "run", Training.train)
    assert (found.verdict, found.fine) == ("proved", True)


@pytest.mark.parametrize("script", [thawed, counted, kept, replaced, meddled])
def test_what_gets_no_noise_deviates(tmp_path: Path, frozen: None, script: Script) -> None:
    found = recorded(tmp_path / "run", script)
    assert (found.verdict, found.conformance.status, found.fine) == ("open", "deviates", False)
    assert {c.name for c in found.channels if c.status == "violated"} & {"update-rule", "model-state"}


def plain_backward(training: Training) -> None:
    for x, y in training.loader:
        training.optimizer_.zero_grad()
        functional.cross_entropy(training.model(x), y).backward()
        training.optimizer_.step()


def late_hook(training: Training) -> None:
    """A hook of the inner optimizer, registered after the recorder's, adds the plain sum of what was clipped."""

    def add(*_: object) -> None:
        for p in training.optimizer_.params:
            p.grad += p.summed_grad.view_as(p)

    training.optimizer_.original_optimizer.register_step_pre_hook(add)
    training.train()


@pytest.mark.parametrize(
    ("script", "clipping", "assumption", "words"),
    [
        (masked, "flat", "update", ""),
        (plain_backward, "ghost", "clipping", "without an observed clipping"),
        (late_hook, "flat", "update", MEDDLED),
    ],
)
def test_leaks_without_noise_deviate(
    script: Script, clipping: str, assumption: str, words: str, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run", script, clipping=clipping)
    assert found.status == ("open", "deviates")
    assert any(c.assumption == assumption and c.p_value == 0.0 and words in c.test for c in found.checks)


def test_a_model_that_the_optimizer_does_not_train_is_refused(tmp_path: Path) -> None:
    training = Training()
    training.build()
    with pytest.raises(UsageError, match="4 of its parameters are not in the model"):
        dpspec.record(tmp_path / "run", model=nn.Linear(3, 3), optimizer=training.optimizer_)


def test_an_optimizer_that_has_made_steps_before_leaves_the_claim_open(tmp_path: Path) -> None:
    def stepped(training: Training) -> None:
        training.train()
        training.engine.accountant.history.clear()

    found = opacus_training.recorded(tmp_path / "run", prepare=stepped, optimizer="adamw")
    assert found.verdict == "open"
    assert "its optimizer had made steps when it began" in found.reason


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize("what", ["divisor", "divisor and one", "learning rate"])
def test_a_constant_that_follows_each_batch_is_never_proved(what: str, adjacency: str, tmp_path: Path) -> None:
    """It shows the sizes of batches. For 50 records at rate 0.05, 100 steps of noise 1, epsilon is 4.35 and not the
    3.50 of zero-out."""

    def real(training: Training) -> None:
        for _ in range(2):
            for x, y in training.loader:
                training.optimizer_.zero_grad()
                if what == "learning rate":
                    training.optimizer_.param_groups[0]["lr"] = 1.0 / len(x)
                else:
                    training.optimizer_.expected_batch_size = len(x) + (what != "divisor")
                training.criterion(training.model(x), y).backward()
                training.optimizer_.step()

    found = recorded(tmp_path / "run", real, adjacency=adjacency)
    assert found.verdict == "open"
    assert found.reason.startswith("The channel constants is violated: data-independent-hyperparameters: ")
    assert f"but the {what.partition(' and')[0]} " in found.reason
    assert "the number of records in each batch" in found.reason
    assert next(a.status for a in found.assumptions if a.name == "data-independent-hyperparameters") == "false"


def test_a_schedule_follows_no_batch(tmp_path: Path) -> None:
    def stages(training: Training) -> None:
        for rate in (0.1, 0.05, 0.02):
            training.optimizer_.param_groups[0]["lr"] = rate
            training.train()

    found = recorded(tmp_path / "run", stages)
    assert found.verdict == "open"
    assert "lr of parameter group 0 changed before step 21" in found.reason
    asked = Question(delta=1e-5, epsilon=1e4, public=("learning_rate",))
    assert check_run(tmp_path / "run", asked).verdict == "proved"


def test_the_assumptions_of_shuffled_batches_are_named(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", Training.train, poisson=False)
    assert {"one-record", "order", "released-model"} <= {a.name for a in found.assumptions}
