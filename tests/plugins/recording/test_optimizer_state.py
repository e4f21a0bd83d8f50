"""The state of the inner optimizer, and recomputed updates."""

import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from campaigns.honest_recordings import OPTIMIZERS
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training, recorded
from support.plain_loop import plain_loop
from torch import nn

from dpspec_recording.observers.update_rule.optimizer_state import OptimizerState
from dpspec_recording.watching.optimizer_updates import AuditedUpdates

Between = Callable[[torch.optim.Optimizer], None]


class Custom(torch.optim.SGD):
    """A custom optimizer."""


def momentum(optimizer: torch.optim.Optimizer) -> None:
    """Return a value without noise, as a leak would add."""
    for state in optimizer.state.values():
        if isinstance(state.get("momentum_buffer"), torch.Tensor):
            state["momentum_buffer"] += 0.01


def nothing(optimizer: torch.optim.Optimizer) -> None:
    """Read, and left alone."""
    str(optimizer.state_dict())


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))


def trained(folder: Path, kind: Callable[..., torch.optim.Optimizer], between: Between, **options: float) -> CheckedRun:
    """A plain loop that reports each step; ``between`` acts before the step."""
    plain_loop(folder, make=partial(kind, **options), before=between)
    return check_run(folder, Question(delta=1e-5, epsilon=100.0, accept=("not-replayed",)))


def reloaded(optimizer: torch.optim.Optimizer) -> None:
    """Kept and brought back."""
    optimizer.load_state_dict(optimizer.state_dict())


def frozen(optimizer: torch.optim.Optimizer) -> None:
    """After the first step the first layer is trained no more."""
    if optimizer.state:
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][-1:]


@pytest.mark.family
@pytest.mark.parametrize(
    ("kind", "options", "between"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}, nothing),  # adds to gradients in place
        (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}, nothing),
        (torch.optim.SGD, {"momentum": 0.9}, reloaded),
    ],
)
def test_torch_optimizers_whose_state_is_left_alone(kind, options, between, tmp_path):
    found = trained(tmp_path / "run", kind, between, **options)
    assert found.verdict == "proved"
    rule = found.channel("update-rule")
    status, text = rule.status, rule.text
    assert status in ("tested", "verified")
    assert "state" not in text
    assert "none of torch's" not in text


@pytest.mark.ci
def test_which_parameters_are_trained_is_an_option(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torch.optim.SGD, frozen, momentum=0.9)
    assert (found.verdict, found.channel("update-rule").status) == ("open", "open")
    assert "parameters of parameter group 0 changed before step 2" in found.reason
    asked = Question(delta=1e-5, epsilon=100.0, public=("parameters",), accept=("not-replayed",))
    assert check_run(tmp_path / "run", asked).verdict == "proved"


def test_a_change_of_the_state_leaves_the_claim_open(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torch.optim.SGD, momentum, momentum=0.9)
    assert (found.verdict, found.exit_code, found.channel("update-rule").status) == ("open", 1, "open")
    assert "the optimizer's state (such as momentum) was changed before 19 of its steps" in found.reason


@pytest.mark.ci
def test_an_accumulator_that_was_filled_is_no_fresh_one(tmp_path: Path) -> None:
    def filled(*args: object, **options: object) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adagrad(*args, **options)  # type: ignore[arg-type]
        for state in optimizer.state.values():
            state["sum"].view(-1)[0] += 1.0
        return optimizer

    found = trained(tmp_path / "run", filled, nothing)
    assert (found.verdict, found.channel("released-model").status) == ("open", "open")


@pytest.mark.ci
def test_an_optimizer_of_ones_own_is_named(tmp_path: Path) -> None:
    rule = trained(tmp_path / "run", Custom, nothing).channel("update-rule")
    assert (rule.status, "assumes update-rule" in rule.text) == ("assumed", True)
    found = check_run(tmp_path / "run", Question(delta=1e-5))
    text = found.assumption("update-rule").text
    assert "test_optimizer_state.Custom, whose updates are not recomputed, steps with the noisy" in text


@pytest.mark.ci
def test_the_optimizer_inside_opacus_is_observed(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        inner = training.private.original_optimizer
        inner.param_groups[0]["momentum"] = 0.9
        inner.register_step_post_hook(lambda *_: momentum(inner))
        training.train()

    found = recorded(tmp_path / "run", script)
    assert (found.verdict, found.channel("update-rule").status) == ("open", "open")


def momentum_inside(optimizer: torch.optim.Optimizer) -> None:
    """The parameters move as they should, and the leak enters the momentum."""

    def hook(*_: Any) -> None:
        for state in optimizer.state.values():
            state["momentum_buffer"] += 0.01
        handle.remove()

    handle = optimizer.register_step_post_hook(hook)
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]


def stepped(optimizer: torch.optim.Optimizer, between: Between | None, trained: list[Any], steps: int = 4) -> list[int]:
    """Return the findings over random steps; ``between`` runs after the observation of each step."""
    updates = AuditedUpdates(optimizer, trained)
    for _ in range(steps):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.randn_like(p)
        updates.before_step(audited=True)
        if between is not None:
            between(optimizer)
        optimizer.step()
        updates.after_step()
    return counts(updates)


def counts(updates: AuditedUpdates) -> list[int]:
    """Return all updates, the recomputed ones, those with another result, and those that cannot be recomputed."""
    assert updates.is_recomputed
    return [updates.steps, updates.recomputed, updates.different, updates.failed]


def with_momentum() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_momentum_that_changes_inside_a_step() -> None:
    model, optimizer = with_momentum()
    updates = AuditedUpdates(optimizer, list(model.parameters()))
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    updates.before_step(audited=True)
    momentum_inside(optimizer)
    optimizer.step()
    updates.after_step()
    assert counts(updates) == [1, 1, 1, 0]


def test_parameters_of_no_group_must_not_move() -> None:
    model, other = network(), nn.Parameter(torch.ones(3))

    def elsewhere(_: torch.optim.Optimizer) -> None:
        other.data.add_(1.0)

    optimizer = torch.optim.Adam(model.parameters())
    assert stepped(optimizer, elsewhere, [*model.parameters(), other])[2] >= 2


KINDS = {
    **OPTIMIZERS,
    "sgd foreach, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True, maximize=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True, weight_decay=0.1),
    "adam fused, amsgrad": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
}


@pytest.mark.family
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_honest_updates_are_equal(name: str, kind: torch.dtype) -> None:
    model = network().to(kind)
    optimizer = KINDS[name](model.parameters())
    if "fused" in name and kind is torch.bfloat16:  # these kernels round differently at another address
        assert not AuditedUpdates(optimizer, []).is_recomputed
        return
    steps, recomputed, different, failed = stepped(optimizer, None, list(model.parameters()), steps=12)
    assert (steps, different, failed) == (12, 0, 0)
    assert recomputed >= 2


def test_state_is_compared_after_audited_steps_only() -> None:
    model, optimizer = with_momentum()
    updates, state = AuditedUpdates(optimizer, list(model.parameters())), OptimizerState()
    training: Any = types.SimpleNamespace(optimizer=optimizer, audits=types.SimpleNamespace())
    state.start(training)
    for audited in (True, False, False, True, False):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        training.audits.audited = audited
        state.before_update()
        updates.before_step(audited=audited)
        optimizer.step()
        updates.after_step()
        state.after_update()
        momentum(optimizer)
    facts = state.facts()
    assert facts is not None
    assert facts.restated == 2  # the fifth step ended unaudited
    assert counts(updates) == [5, 2, 0, 0]
