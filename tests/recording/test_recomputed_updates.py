"""Code that runs inside ``step()`` and changes the update: recomputed updates differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from torch import nn

import dpspec
from dpspec.engine.recorded.checks import UPDATES
from dpspec.recording.watching.optimizer_state import RecomputedUpdates

Between = Callable[[torch.optim.Optimizer], None]


def move(optimizer: torch.optim.Optimizer, by: float = 0.01) -> None:
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            p.add_(by)


def replaced_method(optimizer: torch.optim.Optimizer) -> None:
    original = type(optimizer)._init_group  # type: ignore[attr-defined]

    def moving(*given: Any) -> Any:
        move(optimizer)
        return original(optimizer, *given)

    optimizer._init_group = moving  # type: ignore[attr-defined]


def late_hook(optimizer: torch.optim.Optimizer) -> None:
    def hook(*_: Any) -> None:
        move(optimizer)
        handle.remove()

    handle = optimizer.register_step_pre_hook(hook)


class Rate(float):
    """Reads as one number and acts as another."""

    def __neg__(self) -> float:
        return -2.0 * float(self)


def float_subclass(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = Rate(0.1)


class Moving(defaultdict):  # type: ignore[type-arg]
    """A state whose lookup moves the parameters."""

    def __getitem__(self, key: Any) -> Any:
        with torch.no_grad():
            key.add_(0.01)
        return super().__getitem__(key)


def state_lookup(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer.state) is not Moving:
        optimizer.state = Moving(dict)


class Adding(torch.Tensor):
    """A gradient that adds more than its values."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = super().__torch_function__(function, types, given, named)  # type: ignore[no-untyped-call]
        if function is torch.Tensor.add_ and type(given[0]) is nn.Parameter:
            with torch._C.DisableTorchFunctionSubclass():
                given[0].add_(0.01)
        return result


def gradient_subclass(optimizer: torch.optim.Optimizer) -> None:
    for p in optimizer.param_groups[0]["params"]:
        p.grad = p.grad.as_subclass(Adding)


def momentum_inside(optimizer: torch.optim.Optimizer) -> None:
    """The parameters move as they should, and the leak enters the momentum."""

    def hook(*_: Any) -> None:
        for state in optimizer.state.values():
            state["momentum_buffer"] += 0.01
        handle.remove()

    handle = optimizer.register_step_post_hook(hook)
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]


def stepped(optimizer: torch.optim.Optimizer, between: Between | None, trained: list[Any], steps: int = 4) -> list[int]:
    """What is found of random steps; ``between`` acts after the observation of each."""
    updates = RecomputedUpdates(optimizer, trained)
    for _ in range(steps):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.randn_like(p)
        updates.before_step()
        if between is not None:
            between(optimizer)
        optimizer.step()
        updates.after_step()
    assert updates.found is not None
    return updates.found


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))


@pytest.mark.parametrize("attack", [replaced_method, late_hook, float_subclass, state_lookup, gradient_subclass])
def test_code_inside_a_step(attack: Between) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps, recomputed, different, failed = stepped(optimizer, attack, list(model.parameters()))
    assert (steps, failed) == (4, 0)
    assert different == recomputed >= 2


def test_momentum_that_changes_inside_a_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    updates = RecomputedUpdates(optimizer, list(model.parameters()))
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    updates.before_step()
    momentum_inside(optimizer)
    optimizer.step()
    updates.after_step()
    assert updates.found == [1, 1, 1, 0]


def test_parameters_of_no_group_must_not_move() -> None:
    model, other = network(), nn.Parameter(torch.ones(3))

    def elsewhere(_: torch.optim.Optimizer) -> None:
        other.data.add_(1.0)

    optimizer = torch.optim.Adam(model.parameters())
    assert stepped(optimizer, elsewhere, [*model.parameters(), other])[2] >= 2


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True, "maximize": True}),
    "sgd fused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True, "weight_decay": 0.1}),
    "adam fused": (torch.optim.Adam, {"fused": True, "amsgrad": True}),
    "adam tensor": (torch.optim.Adam, {"lr": torch.tensor(1e-3)}),
    "adamw foreach": (torch.optim.AdamW, {"foreach": True}),
    **{
        name: (getattr(torch.optim, name), {})
        for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
    },
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_honest_updates_are_equal(name: str, kind: torch.dtype) -> None:
    make, options = KINDS[name]
    model = network().to(kind)
    optimizer = make(model.parameters(), **options)
    if options.get("fused") and kind is torch.bfloat16:  # these kernels round differently at another address
        assert RecomputedUpdates(optimizer, []).found is None
        return
    steps, recomputed, different, failed = stepped(optimizer, None, list(model.parameters()), steps=12)
    assert (steps, different, failed) == (12, 0, 0)
    assert recomputed >= 2


def test_other_classes_are_skipped() -> None:
    class SGD(torch.optim.SGD):
        pass

    SGD.__module__ = "torch.optim.sgd"
    optimizer = SGD(network().parameters(), lr=0.1)
    assert RecomputedUpdates(optimizer, []).found is None


def trained(folder: Path, between: Between, kind: Any = torch.optim.SGD) -> CheckedRun:
    """A plain loop; ``between`` acts before each step."""
    model = network()
    sizes = [p.numel() for p in model.parameters()]
    optimizer = kind(model.parameters(), lr=0.1)
    given = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.1, "records": 200}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:  # type: ignore[arg-type]
        for _ in range(20):
            drawn = (torch.rand(200) < 0.1).nonzero().squeeze(1)
            noise, total = torch.randn(sum(sizes)), torch.zeros(sum(sizes))
            total[0] = 0.5 * len(drawn)
            for p, part in zip(model.parameters(), (total + noise).split(sizes), strict=True):
                p.grad = part.view_as(p) / 20.0
            between(optimizer)
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 0.5))
            run.summed(total)
            run.noised(noise)
            run.stepped()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


@pytest.mark.parametrize("attack", [replaced_method, late_hook, float_subclass])
def test_a_recording_of_such_a_step_is_not_proved(tmp_path: Path, attack: Between) -> None:
    found = trained(tmp_path / "run", attack)
    channel = next(one for one in found.channels if one.name == "update-rule")
    assert channel.status == "violated"
    assert UPDATES in channel.text


def test_a_sound_recording_tests_the_update_rule(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", lambda optimizer: None)
    assert next(one.status for one in found.channels if one.name == "update-rule") == "tested"


def test_a_class_with_the_module_of_torch_is_assumed_by_name(tmp_path: Path) -> None:
    class SGD(torch.optim.SGD):
        pass

    SGD.__module__ = "torch.optim.sgd"
    found = trained(tmp_path / "run", lambda optimizer: None, SGD)
    channel = next(one for one in found.channels if one.name == "update-rule")
    assert channel.status == "assumed"
