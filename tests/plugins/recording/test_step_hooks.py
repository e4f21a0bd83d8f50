"""Steps of optimizers whose class calls the step of its base class."""

import contextlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from support.opacus_training import Training
from torch import nn

from dpspec_recording.watching.step_hooks import attach_step_hooks


class Twice(torch.optim.SGD):
    """Calls the step of its base class, of which torch calls the hooks too if an SGD was made before."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Failing(torch.optim.SGD):
    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise FloatingPointError
        return super().step(closure)


@pytest.fixture(autouse=True)
def _base_class_has_hooks() -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def steps(optimizer: torch.optim.Optimizer) -> list[str]:
    calls: list[str] = []
    attach_step_hooks(optimizer, lambda: calls.append("before"), lambda: calls.append("after"), ExitStack())
    return calls


@pytest.mark.parametrize("kind", [torch.optim.SGD, Twice])
def test_hooks_are_called_once_a_step(kind: Any) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer = kind([parameter], lr=0.1)
    calls = steps(optimizer)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)  # wraps the method of the object
    for _ in range(2):
        optimizer.step()
    assert calls == ["before", "after"] * 2


def test_a_step_that_fails_does_not_hide_the_next_one() -> None:
    optimizer = Failing([nn.Parameter(torch.zeros(1))], lr=0.1)
    calls = steps(optimizer)
    optimizer.fails = True
    with pytest.raises(FloatingPointError):
        optimizer.step()
    optimizer.fails = False
    optimizer.step()
    assert calls == ["before", "before", "after"]


def test_a_step_of_the_base_class_that_fails_does_not_hide_the_outer_one() -> None:
    class Retrying(torch.optim.SGD):
        failures = 1

        def step(self, closure: Any = None) -> Any:
            def once() -> Any:
                self.failures -= 1
                if self.failures >= 0:
                    raise FloatingPointError
                return closure and closure()

            with contextlib.suppress(FloatingPointError):
                super().step(once)
            return super().step(once)

    optimizer = Retrying([nn.Parameter(torch.zeros(1))], lr=0.1)
    calls = steps(optimizer)
    for _ in range(2):
        optimizer.step()
    assert calls == ["before", "after"] * 2


def test_hooks_that_are_attached_within_a_step_see_its_end_and_no_step_of_the_base_class() -> None:
    optimizer = Twice([nn.Parameter(torch.zeros(1))], lr=0.1)
    calls: list[str] = []

    def attach(*_: Any) -> None:
        if not calls:
            calls.append("attached")
            attach_step_hooks(optimizer, lambda: calls.append("before"), lambda: calls.append("after"), ExitStack())

    optimizer.register_step_pre_hook(attach)
    for _ in range(2):
        optimizer.step()
    assert calls == ["attached", "after", "before", "after"]


@pytest.mark.ci
def test_an_optimizer_derived_from_another_one_is_proved(tmp_path: Path) -> None:
    pytest.importorskip("opacus")

    class Derived(Training):
        def make_private(self, model: Any, optimizer: Any, *args: Any, **given: Any) -> None:
            super().make_private(model, Twice(model.parameters(), lr=0.05), *args, **given)

    Derived(epochs=1).run(tmp_path / "run")
    found = checked(tmp_path / "run", epsilon=100.0, delta=1e-5)
    assert (found.verdict, found.run.steps) == ("proved", 10)
