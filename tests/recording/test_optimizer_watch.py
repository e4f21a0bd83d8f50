"""Code of a script that Opacus' own methods would run in a step: the recorder finds it, or stops with a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run
from support.opacus_training import Training
from torch import nn

from dpspec.engine.recorded import checks

pytestmark = pytest.mark.filterwarnings("ignore")

Change = Callable[[Training], None]


def leak(training: Training) -> None:
    for p in training.optimizer_.params:
        p.summed_grad.data.add_(1.0)


def skip_check_of_the_instance(training: Training) -> None:
    def check(pop_next: bool = True) -> bool:
        leak(training)
        return False

    training.optimizer_._check_skip_next_step = check


def noise_of_the_instance(training: Training) -> None:
    add_noise = training.optimizer_.add_noise

    def noise() -> None:
        add_noise()
        for p in training.optimizer_.params:
            p.grad.data.add_(1.0)

    training.optimizer_.add_noise = noise


def multiplier_of_a_class(training: Training) -> None:
    class Multiplier(float):
        pass

    training.optimizer_.noise_multiplier = Multiplier(1.1)


def secure_mode_of_a_class(training: Training) -> None:
    class Mode:
        def __bool__(self) -> bool:
            return False

    training.optimizer_.secure_mode = Mode()


def parameters_of_a_class(training: Training) -> None:
    group = training.optimizer_.param_groups[0]
    group["params"] = type("Own", (list,), {})(group["params"])


def trained(change: Change, folder: Path) -> None:
    training = Training()
    training.build()
    change(training)
    with training.recorder(folder):
        training.train()


@pytest.mark.parametrize(
    ("change", "test"),
    [
        (skip_check_of_the_instance, "changes of the summed gradient outside of clipping"),
        (noise_of_the_instance, checks.REPLACED),
    ],
)
def test_code_that_changes_the_sum_or_the_noise_is_found(change: Change, test: str, tmp_path: Path) -> None:
    trained(change, tmp_path / "run")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.verdict == "open"
    assert any(check.test.startswith(test) for check in found.checks if check.p_value <= 1e-9)


def test_a_number_of_a_class_is_an_open_constant(tmp_path: Path) -> None:
    trained(multiplier_of_a_class, tmp_path / "run")
    assert check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0)).verdict == "open"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (secure_mode_of_a_class, "secure_mode of the optimizer is of class Mode"),
        (parameters_of_a_class, "param_groups holds other classes than dict and list"),
    ],
)
def test_the_recorder_stops_at_code_that_it_cannot_observe(change: Change, message: str, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=message):
        trained(change, tmp_path / "run")


class Scaled(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(value, dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        return x * self.scale.float()


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.5])
def test_a_number_in_half_precision_is_watched_by_its_bits(value: float) -> None:
    from dpspec.recording.watching.parameter_watch import ParameterWatch

    model = Scaled(value)
    watch = ParameterWatch(list(model.parameters()))
    assert not watch.moved()
    with torch.no_grad():
        model.scale += 1.0
    assert watch.moved()
