"""Scripts that train, or keep, something without noise: none of them is proved and conforms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import nn
from torch.nn import functional

import dpspec
from dpspec.engine.recorded.checks import MEDDLED
from dpspec.errors import UsageError

Script = Callable[[Training, Any], None]


def recorded(folder: Path, script: Script, *, adjacency: str = "zero-out", **made: Any) -> CheckedRun:
    """What is said of a training that ``script`` runs inside the block."""
    training = Training(**made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        parts = {"model": training.model, "optimizer": training.optimizer_, "loader": training.loader}
        with dpspec.record(folder, engine=training.engine, **parts):
            script(training, training.model._module)
    return check_run(folder, Question(delta=1e-5, epsilon=1e4, adjacency=adjacency))  # type: ignore[arg-type]


def sound(training: Training, module: Any) -> None:
    training.train()


def thawed(training: Training, module: Any) -> None:
    """A layer that was frozen at the beginning is trained by plain descent."""
    training.train()
    with torch.no_grad():
        module[0].weight.add_(0.1)


def counted(training: Training, module: Any) -> None:
    training.train()
    module.counts.add_(torch.tensor([17, 283]))


def kept(training: Training, module: Any) -> None:
    """The records themselves, as a buffer."""
    training.train()
    module.register_buffer("memory", torch.randn(300, 6))


def replaced(training: Training, module: Any) -> None:
    training.train()
    module[2] = nn.Linear(16, 2)


def meddled(training: Training, module: Any) -> None:
    """Gradients get something more after the noise."""

    def more(optimizer: Any) -> None:
        for p in optimizer.params:
            p.grad.add_(0.01)

    training.optimizer_.attach_step_hook(more)
    training.train()


def masked(training: Training, module: Any) -> None:
    """Where a parameter is no number, others are still looked at."""
    with torch.no_grad():
        module[0].weight[0, 0] = -torch.inf
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
    found = recorded(tmp_path / "run", sound)
    assert (found.verdict, found.fine) == ("proved", True)


@pytest.mark.parametrize("script", [thawed, counted, kept, replaced, meddled])
def test_what_gets_no_noise_deviates(tmp_path: Path, frozen: None, script: Script) -> None:
    found = recorded(tmp_path / "run", script)
    assert (found.verdict, found.conformance.status, found.fine) == ("open", "deviates", False)
    assert {c.name for c in found.channels if c.status == "violated"} & {"update-rule", "model-state"}


def test_a_parameter_that_is_no_number_hides_no_other(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", masked)
    assert not found.fine
    assert any(c.assumption == "update" and c.p_value == 0.0 for c in found.checks)


def test_a_model_that_the_optimizer_does_not_train_is_refused(tmp_path: Path) -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
    with pytest.raises(UsageError, match="4 of its parameters are not in the model"):
        dpspec.record(tmp_path / "run", model=nn.Linear(3, 3), optimizer=training.optimizer_)


def test_ghost_clipping_without_its_criterion_clips_nothing(tmp_path: Path) -> None:
    def plain(training: Training, module: Any) -> None:
        for x, y in training.loader:
            training.optimizer_.zero_grad()
            functional.cross_entropy(training.model(x), y).backward()
            training.optimizer_.step()

    found = recorded(tmp_path / "run", plain, clipping="ghost")
    assert found.conformance.status == "deviates"
    assert any("without an observed clipping" in c.test and c.p_value == 0.0 for c in found.checks)


def test_an_optimizer_that_has_made_steps_before_leaves_the_claim_open(tmp_path: Path) -> None:
    training = Training(optimizer="adamw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        parts = {"model": training.model, "optimizer": training.optimizer_, "loader": training.loader}
        training.train()
        training.engine.accountant.history.clear()
        with dpspec.record(tmp_path / "run", engine=training.engine, **parts):
            training.train()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e4))
    assert found.verdict == "open"
    assert "its optimizer had made steps when it began" in found.reason


def test_a_divisor_that_is_the_size_of_each_batch_tells_how_many_records_there_are(tmp_path: Path) -> None:
    def real(training: Training, module: Any) -> None:
        for x, y in training.loader:
            training.optimizer_.zero_grad()
            training.optimizer_.expected_batch_size = len(x)
            training.criterion(training.model(x), y).backward()
            training.optimizer_.step()

    found = recorded(tmp_path / "run", real, adjacency="add-remove")
    assert found.verdict == "open"
    assert "the divisor is the number of records in each batch" in found.reason


def test_what_is_assumed_of_contributions_is_named(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", sound, poisson=False)
    assert {"one-record", "order", "released-model"} <= {a.name for a in found.assumptions}


@pytest.mark.parametrize("what", ["divisor", "divisor and one", "learning rate"])
def test_a_constant_that_follows_each_batch_is_proved_for_no_neighbours(what: str, tmp_path: Path) -> None:
    """It shows how large batches were. For 50 records at rate 0.05, 100 steps of noise 1, epsilon is 4.35 and not 3.50
    where one is put to nothing."""

    def real(training: Training, module: Any) -> None:
        for _ in range(2):
            for x, y in training.loader:
                training.optimizer_.zero_grad()
                if what == "learning rate":
                    training.optimizer_.param_groups[0]["lr"] = 1.0 / len(x)
                else:
                    training.optimizer_.expected_batch_size = len(x) + (what != "divisor")
                training.criterion(training.model(x), y).backward()
                training.optimizer_.step()

    found = recorded(tmp_path / "run", real, adjacency="zero-out")
    assert found.verdict == "open"
    assert found.reason.startswith("The channel constants is violated: data-independent-hyperparameters: ")
    assert f"but the {what.partition(' and')[0]} " in found.reason
    assert "the number of records in each batch" in found.reason
    assert next(a.status for a in found.assumptions if a.name == "data-independent-hyperparameters") == "false"


def test_a_schedule_follows_no_batch(tmp_path: Path) -> None:
    def stages(training: Training, module: Any) -> None:
        for rate in (0.1, 0.05, 0.02):
            training.optimizer_.param_groups[0]["lr"] = rate
            training.train()

    found = recorded(tmp_path / "run", stages)
    assert found.verdict == "open"
    assert "lr of parameter group 0 changed before step 21" in found.reason
    asked = Question(delta=1e-5, epsilon=1e4, public=("learning_rate",))
    assert check_run(tmp_path / "run", asked).verdict == "proved"


def test_a_hook_that_changes_gradients_once_they_were_seen_is_no_proof(tmp_path: Path) -> None:
    """Registered after the recorder, on the inner optimizer: it adds the plain sum of what was clipped."""
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with training.recorder(tmp_path / "run"):

            def add(*_: object) -> None:
                for p in training.optimizer_.params:
                    p.grad += p.summed_grad.view_as(p)

            training.optimizer_.original_optimizer.register_step_pre_hook(add)
            training.train()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert (found.verdict, found.exit_code, found.conformance.status) == ("open", 1, "deviates")
    (meddled,) = (one for one in found.checks if one.test.startswith(MEDDLED))
    assert (meddled.p_value, meddled.measured) == (0.0, found.run.steps)
