"""What an optimizer remembers: changed between its steps or not, and whose optimizer it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import nn

import dpspec
from dpspec.recording.watching.optimizer_state import OptimizerState

Between = Callable[[torch.optim.Optimizer], None]


class Lookalike(torch.optim.SGD):
    """Somebody's own."""


def momentum(optimizer: torch.optim.Optimizer) -> None:
    """What a leak would add: something that got no noise."""
    for state in optimizer.state.values():
        if isinstance(state.get("momentum_buffer"), torch.Tensor):
            state["momentum_buffer"] += 0.01


def nothing(optimizer: torch.optim.Optimizer) -> None:
    """Read, and left alone."""
    str(optimizer.state_dict())


def trained(folder: Path, kind: Callable[..., torch.optim.Optimizer], between: Between, **options: float) -> CheckedRun:
    """A loop of one's own that tells all it does."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 2))
    sizes = [p.numel() for p in model.parameters()]
    optimizer = kind(model.parameters(), lr=0.1, **options)
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


def update_rule(found: CheckedRun) -> tuple[str, str]:
    """The status of the update rule's channel, and what it says."""
    return next((one.status, one.text) for one in found.channels if one.name == "update-rule")


def threads(optimizer: torch.optim.Optimizer) -> None:
    """Sums are made in other orders from now on."""
    torch.set_num_threads(1 + torch.get_num_threads() % 2)


def layout(optimizer: torch.optim.Optimizer) -> None:
    """The same numbers, at other places of memory."""
    for state in optimizer.state.values():
        if isinstance(buffer := state.get("momentum_buffer"), torch.Tensor) and buffer.ndim == 2:
            state["momentum_buffer"] = buffer.t().contiguous().t()


def reloaded(optimizer: torch.optim.Optimizer) -> None:
    """Kept and brought back."""
    optimizer.load_state_dict(optimizer.state_dict())


def frozen(optimizer: torch.optim.Optimizer) -> None:
    """After the first step the first layer is trained no more."""
    if optimizer.state:
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][-2:]


def swapped(optimizer: torch.optim.Optimizer) -> None:
    """Two numbers change places: all sums and squares stay as they are."""
    for state in optimizer.state.values():
        first = state["momentum_buffer"].view(-1)
        first[:2] = first[:2].flip(0)


def early(optimizer: torch.optim.Optimizer) -> None:
    """Momentum before the first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state.setdefault(parameter, {"momentum_buffer": torch.ones_like(parameter)})


def hooked(optimizer: torch.optim.Optimizer) -> None:
    """A hook that comes after that of the recorder, before the same step."""
    if not optimizer.state:
        optimizer.register_step_pre_hook(lambda *_: momentum(optimizer))


class Hooked(torch.optim.SGD):
    """A hook that was there before the recorder's, after the same step."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.register_step_post_hook(lambda *_: momentum(self))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    ],
)
def test_torch_optimizers_whose_state_is_left_alone(
    kind: type[torch.optim.Optimizer], options: dict[str, float], tmp_path: Path
) -> None:
    found = trained(tmp_path / "run", kind, nothing, **options)
    assert found.verdict == "proved"
    status, text = update_rule(found)
    assert status in ("tested", "verified")
    assert "state" not in text
    assert "none of torch's" not in text


def test_momentum_that_is_changed_between_steps_is_no_proof(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torch.optim.SGD, momentum, momentum=0.9)
    assert (found.verdict, found.exit_code) == ("open", 1)
    status, text = update_rule(found)
    assert status == "open"
    assert "the optimizer's state (such as momentum) was changed before 19 of its steps" in text
    assert "was changed before 19 of its steps" in found.reason


@pytest.mark.parametrize("between", [threads, layout, reloaded])
def test_state_that_only_looks_otherwise(between: Between, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        assert trained(tmp_path / "run", torch.optim.SGD, between, momentum=0.9).verdict == "proved"
    finally:
        torch.set_num_threads(before)


def test_which_parameters_are_trained_is_an_option(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torch.optim.SGD, frozen, momentum=0.9)
    assert (found.verdict, update_rule(found)[0]) == ("open", "open")
    assert "parameters of parameter group 0 changed before step 2" in found.reason
    asked = Question(delta=1e-5, epsilon=100.0, public=("parameters",))
    assert check_run(tmp_path / "run", asked).verdict == "proved"


@pytest.mark.parametrize(
    ("kind", "between"),
    [(torch.optim.SGD, swapped), (torch.optim.SGD, early), (torch.optim.SGD, hooked), (Hooked, nothing)],
)
def test_whatever_is_changed_at_whatever_moment_is_seen(
    kind: type[torch.optim.Optimizer], between: Between, tmp_path: Path
) -> None:
    found = trained(tmp_path / "run", kind, between, momentum=0.9)
    assert (found.verdict, update_rule(found)[0]) == ("open", "open")


def test_an_accumulator_that_was_filled_is_no_fresh_one(tmp_path: Path) -> None:
    def filled(*args: object, **options: object) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adagrad(*args, **options)  # type: ignore[arg-type]
        for state in optimizer.state.values():
            state["sum"].view(-1)[0] += 1.0
        return optimizer

    found = trained(tmp_path / "run", filled, nothing)
    status = next(one.status for one in found.channels if one.name == "released-model")
    assert (found.verdict, status) == ("open", "open")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([True, False]),
        torch.tensor([1.0 + 2.0j, 0.0]).conj(),
        torch.ones(4).to(torch.float8_e4m3fn),
        torch.zeros(3, dtype=torch.uint16),
        torch.eye(3).to_sparse(),
        torch.zeros(0),
        torch.zeros(3, device="meta"),
        -(10**400),
        float("nan"),
    ],
)
def test_whatever_may_be_remembered_is_looked_at(value: object) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.state[parameter] = {"value": value}
    watch = OptimizerState(optimizer)
    watch.before_step()
    watch.after_step()
    watch.before_step()
    assert watch.restated == 0


def test_an_optimizer_of_ones_own_is_named(tmp_path: Path) -> None:
    status, text = update_rule(trained(tmp_path / "run", Lookalike, nothing))
    assert status == "assumed"
    assert "assumes update-rule" in text
    found = check_run(tmp_path / "run", Question(delta=1e-5))
    text = next(one.text for one in found.assumptions if one.name == "update-rule")
    assert "test_optimizer_state.Lookalike, whose updates are not recomputed, steps with the noisy" in text


def test_the_optimizer_inside_that_of_opacus_is_looked_at(tmp_path: Path) -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        inner = training.optimizer_.original_optimizer
        for group in inner.param_groups:
            group["momentum"] = 0.9
        with training.recorder(tmp_path / "run"):
            inner.register_step_post_hook(lambda *_: momentum(inner))
            training.train()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.verdict == "open"
    assert update_rule(found)[0] == "open"


def entry(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state["memory"] = {"rows": torch.randn(2)}  # type: ignore[index]


def names(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["param_names"] = ["0.5", "1.25"]


def option(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["note"] = 0.5


@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (entry, "optimizer.state[memory]"),
        (names, "optimizer.param_groups[0].param_names"),
        (option, "optimizer.param_groups[0].note"),
    ],
)
def test_entries_that_the_optimizer_does_not_use_are_open(leak: Between, name: str, tmp_path: Path) -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        inner = training.optimizer_.original_optimizer
        with training.recorder(tmp_path / "run"):
            training.train()
            torch.optim.lr_scheduler.StepLR(inner, 100)
            leak(inner)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    text = next(one.text for one in found.channels if one.name == "model-state" and one.status == "open")
    assert (found.verdict, name in text) == ("open", True)


def test_any_state_is_told_apart() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    watch = OptimizerState(optimizer)
    states: list[object] = [
        {"step": 1, "buffers": [torch.ones(2), {"deep": (torch.ones(1), None, "text")}]},
        {"step": 2, "buffers": [torch.ones(2), {"deep": (torch.ones(1), None, "text")}]},
        {"step": 2, "buffers": [torch.ones(2), {"deep": (torch.zeros(1), None, "text")}]},
        {"step": 2},
        {},
        {"step": torch.tensor(float("nan"))},
    ]
    watch.before_step()
    for state in states:
        optimizer.state[parameter] = state
        watch.after_step()
        watch.before_step()
    assert watch.restated == 0
    for state in states:
        optimizer.state[parameter] = state
        watch.before_step()
        watch.after_step()
    assert watch.restated == len(states)
