"""Code of a script that runs within an optimizer's step is named, in the recording and in the proof."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training

from dpspec.recording.watching.recognised import is_opacus


class Scaled(float):
    """Its negation is another number."""

    def __neg__(self) -> float:
        return -2.0 * float(self)


class State(defaultdict[Any, Any]):
    """Could run code at each access."""


class Gradient(torch.Tensor):
    """Could run code in each operation."""


def recorded(folder: Path, setup: Callable[[Any], None], each: Callable[[Any], None] | None = None) -> CheckedRun:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        inner = training.optimizer_.original_optimizer
        setup(inner)
        with training.recorder(folder):
            training.train(None if each is None else lambda _: each(inner))
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def replaced(optimizer: Any) -> None:
    original = optimizer._init_group
    optimizer._init_group = lambda *args: original(*args)


def of_another_float(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = Scaled(0.05)


def with_another_state(optimizer: Any) -> None:
    optimizer.state = State(dict)


def with_another_gradient(optimizer: Any) -> None:
    def hook(*_: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad = p.grad.as_subclass(Gradient)

    optimizer.register_step_pre_hook(hook)


def nothing(optimizer: Any) -> None:
    """Leave the optimizer as it is."""


def hooked(optimizer: Any) -> None:
    """A hook that runs once, after that of the recorder."""
    handle = optimizer.register_step_pre_hook(lambda *_: handle.remove())


@pytest.mark.parametrize(
    ("setup", "each", "name"),
    [
        (replaced, None, "method _init_group of this optimizer"),
        (of_another_float, None, "option lr of class Scaled"),
        (with_another_state, None, "optimizer.state of class State"),
        (with_another_gradient, None, "gradient of class Gradient"),
        (nothing, hooked, "a hook that was registered since the step before"),
    ],
)
def test_the_proof_assumes_that_such_code_reads_no_record(
    setup: Callable[[Any], None], each: Callable[[Any], None] | None, name: str, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run", setup, each)
    assumed = {one.name: one.text for one in found.assumptions}
    assert (found.verdict, "update-rule" in found.audit.recording.assumes) == ("proved", True)  # type: ignore[union-attr]
    assert name in assumed["update-rule"]


def test_a_method_that_is_replaced_on_the_class_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.optim.SGD._init_group
    monkeypatch.setattr(torch.optim.SGD, "_init_group", lambda *args: original(*args))
    found = recorded(tmp_path / "run", nothing)
    assert "method _init_group of SGD" in found.reason or any(
        "method _init_group of SGD" in one.text for one in found.assumptions
    )


def test_the_optimizers_of_torch_run_no_such_code(tmp_path: Path) -> None:
    def numpy_rate(optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = np.float64(0.05)
        optimizer.register_step_pre_hook(lambda *_: None)
        torch.optim.lr_scheduler.StepLR(optimizer, 100)

    found = recorded(tmp_path / "run", numpy_rate)
    assert (found.verdict, "update-rule" in {one.name for one in found.assumptions}) == ("proved", False)


def test_a_class_that_takes_the_name_of_another_is_its_own(tmp_path: Path) -> None:
    taken = type("SGD", (torch.optim.SGD,), {"__module__": "torch.optim.sgd"})
    found = recorded(tmp_path / "run", lambda optimizer: setattr(optimizer, "__class__", taken))
    assert "update-rule" in found.audit.recording.assumes  # type: ignore[union-attr]
    name = "UniformWithReplacementSampler"
    assert not is_opacus(type(name, (), {"__module__": "opacus.utils.uniform_sampler"})(), name)
