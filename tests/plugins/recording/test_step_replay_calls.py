"""Steps with new calls of torch are replayed: mistakes that begin after the first steps are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import CheckedRun, checked
from support.opacus_training import Training
from support.public_mistakes.parts import OwnLoop, norms_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.step_replay.calls import StepCalls

pytestmark = pytest.mark.filterwarnings("ignore")

Loss = Callable[[Tensor, Tensor], Tensor]


class Late(Training):
    """Another loss from the second of two epochs on."""

    late: Loss

    def step(self, x: Tensor, y: Tensor) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        self.private.zero_grad()
        outputs = self.model(x)
        loss = type(self).late if self.steps > 10 else cross_entropy
        loss(outputs, y).backward()
        self.private.step()


def summed(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(outputs, y, reduction="sum")


def centered(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(outputs - outputs.mean(0), y)


def mixed(outputs: Tensor, y: Tensor) -> Tensor:
    return 0.5 * cross_entropy(outputs, y) + 0.5 * cross_entropy(outputs, y.roll(1))


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(outputs, y, label_smoothing=0.1) + 0.01 * outputs.square().sum(1).mean()


def run_of(folder: Path, loss: Loss) -> CheckedRun:
    type("LateLoss", (Late,), {"late": staticmethod(loss)})().run(folder)
    return checked(folder, epsilon=100.0)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("loss", "status"),
    [
        (summed, ("open", "no-deviation-found")),
        (centered, ("open", "deviates")),
        (mixed, ("open", "deviates")),
        (smoothed, ("proved", "no-deviation-found")),
    ],
)
def test_a_loss_that_begins_late_is_replayed(loss: Loss, status: tuple[str, str], tmp_path: Path) -> None:
    assert run_of(tmp_path / "run", loss).status == status


def late_step(wrong: bool) -> Callable[[OwnLoop, Any, int], None]:
    """From step 15 on a loop clips each tensor, or normalizes each gradient."""

    def step(loop: OwnLoop, run: Any, number: int) -> None:
        drawn = loop.poisson()
        rows = loop.rows(drawn)
        norms = norms_of(rows)
        factors = [(loop.clip / norms.clamp_min(1e-12)).clamp_max(1.0)] * len(rows)
        if number > 15:
            lengths = [row.flatten(1).norm(dim=1) if wrong else norms for row in rows]
            factors = [loop.clip / (length + 0.01) for length in lengths]
        total = [torch.einsum("i,i...", f, row) for f, row in zip(factors, rows, strict=True)]
        loop.step(run, drawn, (norms * factors[0]).clamp_max(loop.clip), total, loop.noise())

    return step


@pytest.mark.ci
@pytest.mark.parametrize("wrong", [True, False])
def test_another_clipping_of_a_custom_loop_that_begins_late_is_replayed(wrong: bool, tmp_path: Path) -> None:
    loop, step = OwnLoop(), late_step(wrong)
    with loop.recorder(tmp_path / "run") as run:
        for number in range(20):
            step(loop, run, number)
    assert (checked(tmp_path / "run", epsilon=100.0).status[1] == "deviates") is wrong


def kinds_of(calls: StepCalls, step: Callable[[], Any], *, replayed: bool) -> bool:
    calls.start()
    step()
    calls.stop()
    calls.end_step(replayed=replayed)
    return calls.are_new


def test_numbers_and_repetitions_are_no_new_calls_but_options_and_zeros_are() -> None:
    calls, x, y = StepCalls(), torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    assert not kinds_of(calls, lambda: 0.0 * cross_entropy(x, y) + x[:2].sum(), replayed=True)
    assert not kinds_of(calls, lambda: [0.0 * cross_entropy(x, y) + x[:3].sum() for _ in range(3)], replayed=False)
    assert kinds_of(calls, lambda: 0.5 * cross_entropy(x, y), replayed=False)
    assert not kinds_of(calls, lambda: 0.5 * cross_entropy(x, y), replayed=True)
    assert kinds_of(calls, lambda: cross_entropy(x, y, reduction="sum"), replayed=False)


def test_calls_that_do_not_return_are_tried_three_times() -> None:
    calls, x = StepCalls(), torch.randn(4)
    kinds_of(calls, lambda: x.norm(), replayed=False)
    assert [kinds_of(calls, lambda: x.sum(), replayed=True) for _ in range(3)] == [True, True, False]
    assert not kinds_of(calls, lambda: x.norm(), replayed=False)


class InDevice(Training):
    """A device of the script begins before the trace and ends in it, and begins in it and ends after the sum."""

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        with torch.device("cpu"):
            loss = self.criterion(self.model(x), y)
        assert self.devices() == self.defaults
        with torch.device("cpu"):
            loss.backward()
            self.private.step()
        assert self.devices() == self.defaults

    defaults = 0

    def devices(self) -> int:
        return sum(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


class WithDefaultDevice(InDevice):
    """The default device is set anew in each step."""

    defaults = 1

    def step(self, x: Any, y: Any) -> None:
        torch.set_default_device("cpu")
        super().step(x, y)
        torch.set_default_device("cpu")


class Center(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CenteredInDevice(InDevice):
    """The model subtracts the mean of the batch."""

    def module(self) -> nn.Module:
        return nn.Sequential(Center(), super().module())


@pytest.mark.ci
@pytest.mark.parametrize("workers", [0, 1])  # a batch of this process is traced before the device begins
@pytest.mark.parametrize("kind", [InDevice, WithDefaultDevice])
def test_steps_in_a_device_of_the_script_are_replayed(kind: type[InDevice], workers: int, tmp_path: Path) -> None:
    try:
        parameters = kind(workers=workers).run(tmp_path / "run")
        randomness = torch.get_rng_state()
        others = kind(workers=workers).run()
        assert _get_current_function_mode_stack() == [] or kind.defaults
    finally:
        torch.set_default_device(None)
    assert _get_current_function_mode_stack() == []
    assert torch.equal(randomness, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(parameters, others, strict=True))
    run = checked(tmp_path / "run", epsilon=100.0)
    assert run.status == ("proved", "no-deviation-found")
    assert run.run.fact(Replays).failure == ""
    assert run.run.fact(Replays).replayed >= 2.0


@pytest.mark.ci
def test_mixed_records_are_found_in_a_device_of_the_script(tmp_path: Path) -> None:
    CenteredInDevice().run(tmp_path / "run")
    assert checked(tmp_path / "run", epsilon=100.0).status == ("open", "deviates")
