"""Numbers of Python in the operations of a step, which may follow from numbers that the script read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from support.opacus_training import Training
from torch.nn.functional import cross_entropy

from dpspec_recording.step_replay.python_numbers import PythonNumbers
from dpspec_recording.step_replay.trace import StepTrace


def noted(loss: Callable[[torch.Tensor, int], Any], sizes: tuple[int, ...] = (30, 30, 30, 30)) -> tuple[int, int, int]:
    """Of steps whose loss gets a batch and the number of the step: varying, reading and testing ones."""
    numbers, reading = PythonNumbers(), 0
    for step, size in enumerate(sizes):
        batch, trace = torch.randn(size, 4), StepTrace()
        trace.ignores_reads = True
        trace.start()
        loss(batch, step)
        trace.stop()
        reading += numbers.note(trace, [batch])[0]
    return numbers.varying, reading, numbers.testing


@pytest.mark.parametrize(
    ("loss", "reading"),
    [
        (lambda x, _: x / (0.1 + float(x.std())), 2),
        (lambda x, _: x * x.mean().item(), 2),
        (lambda x, _: (x - float(x.max())).exp(), 2),
        (lambda x, _: (x.mean().item(), x * (3.0 / x.std().item())), 2),
        (lambda x, step: x * (0.5**step / float(x.std())), 0),  # with another factor at each step
    ],
)
def test_a_number_that_follows_from_a_read_one_is_found(loss: Callable[[torch.Tensor, int], Any], reading: int) -> None:
    assert noted(loss)[:2] == (3, reading)


@pytest.mark.parametrize(
    ("loss", "varying"),
    [
        (lambda x, _: (x.mean().item(), x * 0.5), 0),  # read for a log
        (lambda x, step: (x.mean().item(), x * 0.9**step), 3),  # a schedule
        (lambda x, _: (x.mean().item(), x * (1.0 / len(x))), 0),  # a mean over the batch
        (lambda x, _: (x * 0.5).sum().item(), 0),
        (lambda x, step: x * torch.tensor(0.9**step).exp().item(), 3),  # of a parameter
    ],
)
def test_schedules_means_and_logs_are_none(loss: Callable[[torch.Tensor, int], Any], varying: int) -> None:
    assert noted(loss, (30, 24, 37, 31))[:2] == (varying, 0)


@pytest.mark.parametrize(
    ("loss", "testing"),
    [
        (lambda x, _: bool(x.mean() > 0.0), 4),
        (lambda x, _: torch.equal(x, x + 1.0), 4),
        (lambda x, _: (x.isfinite().all() and x * 0.5, x.sum() > 0.0), 4),
        (lambda x, _: x.mean().item() > 0.0, 0),  # no condition, but a number
        (lambda x, step: bool(torch.tensor(step) > 2), 0),  # of the step
    ],
)
def test_conditions_on_the_batch_are_counted(loss: Callable[[torch.Tensor, int], Any], testing: int) -> None:
    assert noted(loss)[2] == testing


@pytest.mark.parametrize(
    ("loss", "is_logged"),
    [
        (lambda x, _: (x.mean().item(), x * 0.5), True),
        (lambda x, _: (x.sum(1).numpy().mean(), x.mean().item(), x / len(x)), True),
        (lambda x, _: x * x.mean().item(), False),
        (lambda x, _: x / (0.1 + float(x.std())), False),
        (lambda x, _: x * torch.tensor(x.mean().item()), False),
        (lambda x, _: x * torch.from_numpy(x.numpy().mean(0)), False),
        (lambda x, _: x * (x.mean().item() > 0.0), False),  # another truth value at some steps
        (lambda x, _: x * 2.0 if x.mean().item() > 0.0 else x + 2.0, False),
        (lambda x, _: x[: 2 + round(abs(100.0 * x.mean().item())) % 9], False),
        (lambda x, step: (x.mean().item(), x * 0.9**step), False),  # a schedule, or a function of the number
        (lambda x, _: (x.mean().item(), bool(x.sum() > 99.0), x * 0.5), True),  # replays test the condition
        (lambda x, _: ((x - x).sum().item(), x * 0.5), False),  # the same number at each step
    ],
)
def test_numbers_that_no_later_operation_uses_are_logged(loss: Callable[[torch.Tensor, int], Any], is_logged: bool):
    torch.manual_seed(1)
    numbers, found = PythonNumbers(), []
    for step, size in enumerate((30, 24, 37, 31)):
        batch, trace = torch.randn(size, 4), StepTrace()
        trace.ignores_reads = True
        trace.start()
        loss(batch, step)
        trace.stop()
        found.append(numbers.note(trace, [batch])[1])
    assert found == [False, *[True] * 3] if is_logged else not all(found)
    assert numbers.logging == sum(found)
    assert is_logged or not numbers.logging or numbers.may_be_used


class Reading(Training):
    """Each step reads its loss before the step; ``weigh`` makes a weight of it."""

    weigh: Callable[[float], Any]
    limit, losses = 1e9, "mean"

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        loss = cross_entropy(self.model(x), y, reduction=self.losses)
        if x.abs().max() > self.limit:
            loss = loss / loss
        (loss * self.weigh(loss.item())).backward()
        self.private.step()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("weigh", "options", "status"),
    [
        (lambda loss: 0.5, {}, ("proved", "no-deviation-found")),
        (lambda loss: 1.0 / (0.1 + loss), {}, ("open", "no-deviation-found")),
        (lambda loss: loss > 0.69, {}, ("open", "no-deviation-found")),
        (torch.tensor, {}, ("open", "no-deviation-found")),
        (lambda loss: 0.5, {"limit": 20.0}, ("open", "no-deviation-found")),  # another branch with other records
        (lambda loss: 0.5, {"losses": "sum"}, ("open", "no-deviation-found")),  # of another reduction than declared
    ],
)
def test_a_loss_that_is_read_before_the_step_is_proved_if_no_operation_uses_it(
    weigh, options, status, tmp_path: Path
) -> None:
    training = Reading()
    training.weigh = weigh
    vars(training).update(options)
    training.run(tmp_path / "run")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.status == status
    asks = "a number that the script read of it" in " ".join(run_page(found, 300).split())
    assert asks or status[0] == "open"


class Scaled(Training):
    """The logits are divided by ``temperature`` of them and the step."""

    temperature: Callable[[torch.Tensor, int], float]
    number = 0

    def step(self, x: Any, y: Any) -> None:
        self.number += 1
        self.private.zero_grad()
        scores = self.model(x)
        (scores.argmax(1) == y).float().mean().item()  # for a log
        cross_entropy(scores / self.temperature(scores, self.number), y).backward()
        self.private.step()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("temperature", "is_open", "words"),
    [
        (lambda scores, _: 0.1 + float(scores.detach().std()), True, "follows from one that the script read"),
        (lambda _, step: 1.0 + 0.9**step, True, "read numbers for logs after the step"),
        (lambda *_: 2.0, False, "a number that the script read of it"),
    ],
)
def test_a_temperature_of_the_batch_leaves_the_claim_open(temperature, is_open, words, tmp_path: Path) -> None:
    training = Scaled()
    training.temperature = temperature
    training.run(tmp_path / "run")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.status == ("open" if is_open else "proved", "no-deviation-found")
    assert words in " ".join(run_page(found, 300).split())
