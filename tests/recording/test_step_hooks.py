"""The recorder's hooks run next to the step, or the step counts as not compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.opacus_training import Training, recorded

from dpspec.recording.watching.step_hooks import StepHooks


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_hooks_of_the_script_run_outside_of_the_recorder_s() -> None:
    of, seen = optimizer(), []
    early = of.register_step_pre_hook(lambda *_: seen.append("early"))  # type: ignore[func-returns-value]
    hooks = StepHooks(of, lambda: seen.append("before"), lambda: seen.append("after"))
    of.register_step_pre_hook(lambda *_: seen.append("pre"))  # type: ignore[func-returns-value]
    of.register_step_post_hook(lambda *_: seen.append("post"))  # type: ignore[func-returns-value]
    of.step()
    assert seen == ["early", "pre", "before", "after", "post"]
    early.remove()
    of.step()
    assert seen[5:] == ["pre", "before", "after", "post"]
    assert (hooks.ordered, hooks.disordered) == (True, 0)
    hooks.remove()
    of.step()
    assert seen[9:] == ["pre", "post"]


def test_a_hook_may_remove_itself_during_a_step() -> None:
    of, seen = optimizer(), []
    hooks = StepHooks(of, lambda: seen.append("before"), lambda: seen.append("after"))

    def once(*_: Any) -> None:
        seen.append("once")
        handle.remove()

    handle = of.register_step_pre_hook(once)
    of.step()
    of.step()
    assert seen == ["once", "before", "after", "before", "after"]
    assert hooks.disordered == 0


def test_a_step_without_the_recorder_s_hook_before_it_is_found() -> None:
    of: Any = optimizer()
    hooks = StepHooks(of, lambda: None, lambda: None)
    kept, of._optimizer_step_pre_hooks = of._optimizer_step_pre_hooks, {}
    of.step()
    of._optimizer_step_pre_hooks = kept
    assert (hooks.ordered, hooks.disordered) == (False, 1)
    of.step()
    assert (hooks.ordered, hooks.disordered) == (True, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_is_put_between_the_recorder_s_and_the_step_is_found(when: str) -> None:
    of: Any = optimizer()
    hooks = StepHooks(of, lambda: None, lambda: None)
    post = of.register_step_post_hook(lambda *_: None)
    if when == "before":
        of._optimizer_step_pre_hooks.last.append(lambda *_: None)
        of.step()
    else:  # as a closure, it runs inside the step
        of.step(lambda: of._optimizer_step_post_hooks.move_to_end(post.id, last=False))
    assert (hooks.ordered, hooks.disordered) == (False, 1)


@pytest.mark.parametrize("adds", [0.0, 1.0])
def test_hooks_registered_again_before_each_step_do_not_hide_an_edit(adds: float, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        optimizer, kept = training.optimizer_, list[torch.Tensor]()

        def edit(*_: Any) -> None:
            kept[:] = [p.grad.clone() for p in optimizer.params]
            for p in optimizer.params:
                p.grad.add_(adds * p.summed_grad)

        def restore(*_: Any) -> None:
            for p, grad in zip(optimizer.params, kept, strict=True):
                p.grad.copy_(grad)

        inner = optimizer.original_optimizer
        for x, y in training.loader:
            optimizer.zero_grad()
            training.criterion(training.model(x), y).backward()
            handles = [inner.register_step_pre_hook(edit), inner.register_step_post_hook(restore)]
            optimizer.step()
            for handle in handles:
                handle.remove()

    found = recorded(tmp_path / "run", script)
    status = {one.name: one.status for one in found.channels}["update-rule"]
    assert (status == "violated") is bool(adds)
    assert status != "open"
