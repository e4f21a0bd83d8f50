"""Code of a script that Opacus' own methods would run in a step: the recorder finds it, or stops with a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.opacus_training import Training, recorded

from dpspec.engine.recorded import checks


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


@pytest.mark.parametrize(
    ("change", "test"),
    [
        (skip_check_of_the_instance, "changes of the summed gradient outside of clipping"),
        (noise_of_the_instance, checks.REPLACED),
        (multiplier_of_a_class, None),
    ],
)
def test_code_that_changes_the_sum_or_the_noise_is_found(change: Any, test: str | None, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", prepare=change)
    assert found.verdict == "open"
    assert test is None or any(name.startswith(test) for name in found.rejected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (secure_mode_of_a_class, "secure_mode of the optimizer is of class Mode"),
        (parameters_of_a_class, "param_groups holds other classes than dict and list"),
    ],
)
def test_the_recorder_stops_at_code_that_it_cannot_observe(change: Any, message: str, tmp_path: Path) -> None:
    training = Training().build()
    change(training)
    with pytest.warns(RuntimeWarning, match=message), training.recorder(tmp_path / "run"):
        training.train()
