"""Numbers of Python in the operations of a step, which may follow from numbers that the script read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from support.opacus_training import Training
from support.public_mistakes.parts import OwnLoop
from torch.nn.functional import cross_entropy

from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.python_numbers import PythonNumbers
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, tensors_in


def traced(
    loss: Callable[[torch.Tensor, int], Any], sizes: tuple[int, ...], *, ignores_reads: bool = True
) -> Iterator[TracedStep]:
    """Steps whose loss gets a batch and the number of the step."""
    for number, size in enumerate(sizes):
        batch, trace = torch.randn(size, 4), StepTrace()
        trace.ignores_reads = ignores_reads
        trace.start()
        loss(batch, number)
        trace.stop()
        yield TracedStep(trace, [batch], {id(batch)})


def noted(loss: Callable[[torch.Tensor, int], Any], sizes: tuple[int, ...]) -> tuple[PythonNumbers, list[bool]]:
    """The numbers after steps, and whether all numbers of each are known."""
    numbers = PythonNumbers()
    return numbers, [not numbers.note(step).unknown for step in traced(loss, sizes)]


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, _: x / (0.1 + float(x.std())),
        lambda x, _: x * x.mean().item(),
        lambda x, _: (x - float(x.max())).exp(),
        lambda x, _: (x.mean().item(), x * (3.0 / x.std().item())),
        lambda x, _: x * min(1.0, 0.9 / x.std().item()),
        lambda x, _: x * torch.tensor(x.mean().item()),
    ],
)
def test_a_replay_continues_with_the_function_of_the_number_that_it_reads(loss: Callable[[torch.Tensor, int], Any]):
    torch.manual_seed(1)
    numbers = PythonNumbers()
    for step in traced(loss, (30,) * 8):
        step.trace.followed = numbers.note(step)
    assert not step.trace.followed.unknown
    assert step.trace.followed.uses
    other = step.batch[0] * 1.5 + 0.1
    final = tensors_in(step.trace.operations[-1].results)
    (repeated,) = step.trace.replay([(step.batch[0], other)], final)
    last = loss(other, 0)
    torch.testing.assert_close(repeated, last[-1] if isinstance(last, tuple) else last)


@pytest.mark.parametrize(
    ("loss", "varying"),
    [
        (lambda x, _: (x.mean().item(), x * 0.5), 0),  # read for a log
        (lambda x, step: (x.mean().item(), x * 0.9**step), 3),  # a schedule
        (lambda x, _: (x.mean().item(), x * (1.0 / len(x))), 0),  # a mean over the batch
        (lambda x, _: (x * 0.5).sum().item(), 0),
        (lambda x, step: x * torch.tensor(0.9**step).exp().item(), 3),  # of a parameter
        (lambda x, step: x * (0.5**step / float(x.std())), 3),  # with another factor at each step
    ],
)
def test_schedules_means_and_logs_follow_from_no_read(loss: Callable[[torch.Tensor, int], Any], varying: int) -> None:
    assert noted(loss, (30, 24, 37, 31))[0].varying == varying


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
    numbers, _ = noted(loss, (30,) * 4)
    assert numbers.testing == testing
    assert [line.partition(":")[0] for line in numbers.tested_at] == ["test_python_numbers.py"] * bool(testing)


@pytest.mark.parametrize(
    ("loss", "is_known"),
    [
        (lambda x, _: (x.mean().item(), x * 0.5), True),
        (lambda x, _: (x.sum(1).numpy().mean(), x.mean().item(), x / len(x)), True),
        (lambda x, _: x * torch.from_numpy(x.numpy().mean(0)), False),
        (lambda x, _: x * (x.mean().item() > 0.0), False),  # another truth value at some steps
        (lambda x, _: x * 2.0 if x.mean().item() > 0.0 else x + 2.0, False),
        (lambda x, _: x[: 2 + round(abs(100.0 * x.mean().item())) % 9], False),
        (lambda x, _: x * math.sin(x.mean().item()), False),
        (lambda x, step: (x.mean().item(), x * 0.9**step), False),  # a schedule, or a function of the number
        (lambda x, _: (x.mean().item(), bool(x.sum() > 99.0), x * 0.5), True),  # replays test the condition
        (lambda x, _: ((x - x).sum().item(), x * 0.5), False),  # the same number at each step
    ],
)
def test_the_numbers_after_a_read_are_constants_or_the_step_is_not_followed(loss, is_known: bool):
    torch.manual_seed(1)
    numbers, known = noted(loss, (30, 24, 37, 31))
    assert known == [False, *[True] * 3] if is_known else not all(known)
    assert numbers.followed == sum(known)
    assert is_known or not numbers.followed or numbers.may_branch


def clipped(factor: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor, int], Any]:
    """A loss that adds up the records, one by one, times a factor of each."""

    def total(x: torch.Tensor, _: int) -> torch.Tensor:
        added = torch.zeros_like(x[0])
        for index in range(len(x)):
            record = x[index] * 2.0
            added = added + record * factor(record)
        return added * 0.25

    return total


def skipping(record: torch.Tensor) -> float:
    return 0.0 if record.norm().item() > 1e9 else 1.0


@pytest.mark.parametrize(
    "factor",
    [
        lambda record: min(1.0, 3.0 / record.norm().item()),
        lambda record: min(1.0, 3.0 / (float(record.norm()) + 1e-6)),
        lambda record: (record.norm().item(), 0.5)[1],
        lambda record: 3.0 / record.norm() if bool(record.norm() > 3.0) else record.new_ones(()),
        lambda record: 3.0 / record.norm() if record.norm().item() > 3.0 else record.new_ones(()),
        skipping,
    ],
)
def test_a_loop_over_records_is_followed(factor: Callable[[torch.Tensor], Any]) -> None:
    torch.manual_seed(1)
    loss, numbers = clipped(factor), PythonNumbers()
    for step in traced(loss, (30, 24, 37, 31), ignores_reads=False):
        trace = step.trace
        trace.followed = numbers.note(step)
    assert not trace.followed.unknown
    (value,) = step.batch
    final, count = tensors_in(trace.operations[-1].results), 0
    for row in range(len(value)):
        other = value.clone()
        other[row] *= 0.5 + row / 10
        try:
            (repeated,) = trace.replay([(value, other)], final)
        except AbstainError:  # the record takes the other branch
            continue
        count += 1
        torch.testing.assert_close(repeated, loss(other, 0))
    assert count >= len(value) / 2
    assert not trace.branches


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


def by_record(scaled: Callable[[OwnLoop, list[torch.Tensor]], list[torch.Tensor]]) -> Callable[..., None]:
    """A step that adds up the scaled gradients of its records, one by one."""

    def step(loop: OwnLoop, run: Any) -> None:
        drawn = loop.poisson()
        rows, norms = loop.rows(drawn), list[float]()
        total = [torch.zeros_like(p) for p in loop.parameters]
        for record in range(len(drawn)):
            clipped = scaled(loop, [row[record] for row in rows])
            norms.append(float(torch.cat([part.flatten() for part in clipped]).norm()))
            total = [before + part for before, part in zip(total, clipped, strict=True)]
        loop.step(run, drawn, torch.tensor(norms), total, loop.noise())

    return step


def norm_of(gradient: list[torch.Tensor]) -> float:
    return torch.cat([part.flatten() for part in gradient]).norm().item()


def by_factor(loop: OwnLoop, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    factor = min(1.0, loop.clip / (norm_of(gradient) + 1e-6))
    return [part * factor for part in gradient]


def by_squares(loop: OwnLoop, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    norm = sum(part.norm(2).item() ** 2 for part in gradient) ** 0.5
    return [part * min(1.0, loop.clip / (norm + 1e-6)) for part in gradient]


def by_branch(loop: OwnLoop, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    norm = norm_of(gradient)
    return [part * (loop.clip / norm) for part in gradient] if norm > loop.clip else [part * 1.0 for part in gradient]


def by_nothing(loop: OwnLoop, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part * 1.0 for part in gradient]


def by_too_large_factor(loop: OwnLoop, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part * min(3.0, 3.0 * loop.clip / norm_of(gradient)) for part in gradient]


def by_batch(loop: OwnLoop, run: Any) -> None:
    """The factor of all records is from the norm of their mean gradient."""
    drawn = loop.poisson()
    rows = loop.rows(drawn)
    norm = norm_of([row.mean(0) for row in rows])
    factor = min(1.0, loop.clip / norm)
    loop.step(run, drawn, torch.full((len(drawn),), loop.clip), [factor * row.sum(0) for row in rows], loop.noise())


def guarded(loop: OwnLoop, run: Any) -> None:
    """A step whose records have a large mean is skipped."""
    drawn = loop.poisson()
    norms, total = loop.clipped(loop.rows(drawn))
    kept = 0.0 if loop.x[drawn].mean().item() > 0.0 else 1.0
    loop.step(run, drawn, norms * kept, [part * kept for part in total], loop.noise())


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("step", "clip", "status"),
    [
        (by_record(by_factor), 0.5, ("proved", "no-deviation-found")),
        (by_record(by_squares), 0.5, ("proved", "no-deviation-found")),
        (by_record(by_branch), 0.5, ("proved", "no-deviation-found")),
        (by_record(by_nothing), 5.0, ("open", "no-deviation-found")),  # no record shows whether the loop clips
        (by_record(by_factor), 5.0, ("open", "no-deviation-found")),
        (by_record(by_too_large_factor), 0.5, ("open", "deviates")),
        (by_batch, 0.5, ("open", "deviates")),
        (guarded, 0.5, ("open", "no-deviation-found")),
    ],
)
def test_a_loop_that_clips_by_numbers_is_replayed(step: Callable[..., None], clip: float, status, tmp_path: Path):
    loop = OwnLoop(clip=clip)
    with loop.recorder(tmp_path / "run") as run:
        for _ in range(12):
            step(loop, run)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.status == status, found.reason


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("weigh", "options", "status"),
    [
        (lambda loss: 0.5, {}, ("proved", "no-deviation-found")),
        (lambda loss: 1.0 / (0.1 + loss), {}, ("open", "deviates")),  # a record changes the weights of others
        (lambda loss: loss > 0.69, {}, ("open", "no-deviation-found")),
        (torch.tensor, {}, ("open", "deviates")),
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
    ("temperature", "status", "words"),
    [
        (lambda scores, _: 0.1 + float(scores.detach().std()), ("open", "deviates"), "changes the results of other"),
        (lambda _, step: 1.0 + 0.9**step, ("open", "no-deviation-found"), "read numbers for logs after the step"),
        (lambda *_: 2.0, ("proved", "no-deviation-found"), "a number that the script read of it"),
    ],
)
def test_a_temperature_of_the_batch_is_no_proof(temperature, status, words, tmp_path: Path) -> None:
    training = Scaled()
    training.temperature = temperature
    training.run(tmp_path / "run")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.status == status
    assert words in " ".join(run_page(found, 300).split())
