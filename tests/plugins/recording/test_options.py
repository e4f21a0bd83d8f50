"""Options that change during a training: accepted if a known scheduler or the user vouches for them, else open."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run
from support.opacus_training import Training, recorded, scheduled
from support.plain_loop import plain_loop
from support.schedules import PRIVATE_SCHEDULES, SCHEDULES
from torch.optim import lr_scheduler, swa_utils

from dpspec_recording.folder.events import OptionChange
from dpspec_recording.watching.options import OptionWatch

Script = Callable[[Training], None]
Before = Callable[[Training, int, torch.Tensor], None]

DELTA, CONSTANTS = 1e-5, "data-independent-hyperparameters"


def loop(training: Training, before: Before, epochs: int = 2) -> None:
    """Each step: backward, ``before`` with the number of the step and its records, then the step."""
    number = 0
    for _ in range(epochs):
        for x, y in training.loader:
            number += 1
            training.private.zero_grad()
            training.criterion(training.model(x), y).backward()
            before(training, number, x)
            training.private.step()


def looping(before: Before) -> Script:
    """The script of :func:`loop` with ``before``."""
    return lambda training: loop(training, before)


def group(training: Training) -> dict[str, Any]:
    return training.private.param_groups[0]


# Scripts that let records decide an option.


@looping
def decayed(training: Training, number: int, x: torch.Tensor) -> None:
    """The weight decay of one step is a feature of a record: the parameters shrink by it."""
    group(training)["weight_decay"] = abs(float(x[0, 0])) if number == 5 else 0.0


def hooked(training: Training) -> None:
    """The same in a hook before the inner step, undone by a hook after it."""
    inner, seen = training.private.original_optimizer, [0.0]
    inner.register_step_pre_hook(lambda *_: group(training).__setitem__("weight_decay", seen[0]))
    inner.register_step_post_hook(lambda *_: group(training).__setitem__("weight_decay", 0.0))
    loop(training, lambda training, number, x: seen.__setitem__(0, abs(float(x[0, 0]))))


@looping
def averaged(training: Training, number: int, x: torch.Tensor) -> None:
    group(training)["betas"] = (0.9, 0.9 + 0.01 * float(torch.sigmoid(x[0, 0])))


def plateau(training: Training) -> None:
    """The training loss, which got no noise, decides when the rate falls."""
    schedule = lr_scheduler.ReduceLROnPlateau(training.private, patience=0, factor=0.5)
    loop(training, lambda training, number, x: schedule.step(number * 1.0))


def edited(make: Callable[[Any], Any], edit: Callable[[Any, Training, int, torch.Tensor], object]) -> Script:
    """The script of a known scheduler, which ``edit`` gets before each of its steps."""

    def script(training: Training) -> None:
        schedule = make(training.private)

        def before(training: Training, number: int, x: torch.Tensor) -> None:
            edit(schedule, training, number, x)
            schedule.step()

        loop(training, before)

    return script


def sneak(schedule: Any, training: Training, number: int, x: torch.Tensor) -> None:
    """A change right before a known scheduler multiplies the rate."""
    if number == 5:
        group(training)["lr"] += 0.01 * float(x[0, 0])


def jumped(training: Training) -> None:
    """The epoch of a known scheduler follows the records."""
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(training.private, 50)
    loop(training, lambda training, number, x: schedule.step(10.0 * float(torch.sigmoid(x[0, 0]))))


def rescaled(training: Training) -> None:
    """A function that a known scheduler calls changes another option."""

    def scale(step: int) -> float:
        group(training)["weight_decay"] = 0.01 * step
        return 1.0

    schedule = lr_scheduler.LambdaLR(training.private, scale)
    training.train(each=lambda _: schedule.step())


def paced(training: Training) -> None:
    """A scheduler steps after each physical batch: their number follows the number of drawn records."""
    schedule = lr_scheduler.ExponentialLR(training.private, 0.99)
    training.physical = 16
    training.train(each=lambda _: schedule.step())


class Own(lr_scheduler.LRScheduler):
    """A scheduler of the script with unknown inputs."""

    def get_lr(self) -> list[float]:
        return [0.1 / (1.0 + self.last_epoch) for _ in self.optimizer.param_groups]


@looping
def clipped(training: Training, number: int, x: torch.Tensor) -> None:
    norms = sum(p.grad_sample.flatten(1).square().sum(1) for p in training.private.params).sqrt()
    training.private.max_grad_norm = float(norms.median())


@looping
def louder(training: Training, number: int, x: torch.Tensor) -> None:
    training.private.noise_multiplier = 1.1 + 0.01 * abs(float(x[0, 0]))


@looping
def divided(training: Training, number: int, x: torch.Tensor) -> None:
    training.private.expected_batch_size = 30.0 + abs(float(x[0, 0]))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "option", "public"),
    [
        (decayed, "weight_decay", "weight_decay"),
        (averaged, "betas[1]", "betas"),
        (plateau, "lr", "learning_rate"),
        (jumped, "lr", "learning_rate"),
        (scheduled(Own), "lr", "learning_rate"),
        (edited(lambda o: lr_scheduler.ExponentialLR(o, 0.99), sneak), "lr", "learning_rate"),
        (rescaled, "weight_decay", "weight_decay"),
        (paced, "lr", "learning_rate"),
        (clipped, "", "clip_norm"),
        (louder, "", "noise_multiplier"),
        (divided, "", "divisor"),
    ],
)
def test_options_that_no_known_scheduler_set_are_open(script: Script, option: str, public: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script, optimizer="adamw" if script is averaged else "sgd")
    channel, other = ("update-rule", "constants") if option else ("constants", "update-rule")
    assert (found.verdict, found.exit_code, found.channel(channel).status) == ("open", 1, "open")
    assert found.channel(other).status != "open"
    of_group = f"{option} of parameter group 0 " if option else f"{public} "
    assert f"{of_group}changed before step " in found.reason
    assert f"--public {public}" in found.reason
    # no replay knows the clip norm that the script reads of its batch
    for given in ({"public": (public,)}, {"assume": (channel,)}):
        accepted = Question(delta=DELTA, epsilon=1e3, accept=("not-replayed",), **given)
        assert check_run(tmp_path / "run", accepted).verdict == "proved"


@pytest.mark.ci
def test_an_option_that_hooks_change_around_the_step_is_another_update(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", hooked).channel("update-rule").status == "violated"


@pytest.mark.family
@pytest.mark.parametrize(("option", "value"), [("clip_norm", 2.2), ("divisor", 55.0)])
def test_a_loop_that_changes_a_constant_is_open(option: str, value: float, tmp_path: Path) -> None:
    plain_loop(tmp_path / "run", eighth={option: value})
    found, vouched = (
        check_run(tmp_path / "run", Question(delta=DELTA, epsilon=1e3, accept=("not-replayed",), public=public))
        for public in ((), (option,))
    )
    assert (found.verdict, found.channel("constants").status, option in found.reason) == ("open", "open", True)
    assert (vouched.verdict, vouched.channel("constants").status) == ("proved", "assumed")


# Honest schedules.


def two_groups(optimizer: Any) -> None:
    params = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = params[:2]
    optimizer.original_optimizer.add_param_group({"params": params[2:], "lr": 0.01, "weight_decay": 0.1})


SCHEDULERS = {**SCHEDULES, "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=5)}


@pytest.mark.family
@pytest.mark.parametrize(
    ("name", "inside"), [("SWALR", False), ("CyclicLR", False), ("LambdaLR", True), ("SequentialLR", True)]
)
def test_schedulers_of_torch_are_accepted(name: str, inside: bool, tmp_path: Path) -> None:
    """Made before the block or within it, for two parameter groups; the honest campaign has the others."""
    made = []

    def prepare(training: Training) -> None:
        two_groups(training.private)
        made.extend([] if inside else [SCHEDULERS[name](training.private)])

    def script(training: Training) -> None:
        schedule = made[0] if made else SCHEDULERS[name](training.private)
        training.train(each=lambda _: schedule.step())

    found = recorded(tmp_path / "run", script, prepare=prepare, optimizer="adamw", epochs=1)
    assert (found.verdict, found.channel("update-rule").status) == ("proved", "verified"), found.reason
    assert name in found.run.options.schedulers
    calling = name in ("LambdaLR", "MultiplicativeLR", "CyclicLR")
    assert ("calls functions of the script" in found.assumption(CONSTANTS).text) is calling


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_a_scheduler_after_each_pass_over_physical_batches_is_accepted(clipping: str, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        schedule = lr_scheduler.ExponentialLR(training.private, 0.9)
        training.physical, training.epochs = 16, 1
        for _ in range(3):
            training.train()
            schedule.step()

    found = recorded(tmp_path / "run", script, clipping=clipping)
    assert found.channel("update-rule").status == "verified", found.reason


def fractions_of_an_epoch(training: Training) -> None:
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(training.private, 2)
    for epoch in range(3):
        for number, (x, y) in enumerate(training.loader):
            training.step(x, y)
            schedule.step(epoch + number / len(training.loader))


@pytest.mark.ci
def test_a_scheduler_of_fractions_of_an_epoch_is_accepted(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", fractions_of_an_epoch).verdict == "proved"


@pytest.mark.ci
@pytest.mark.parametrize("name", list(PRIVATE_SCHEDULES)[:2])
def test_schedulers_of_opacus_are_accepted(name: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", scheduled(PRIVATE_SCHEDULES[name]))
    assert (found.verdict, found.channel("constants").status) == ("proved", "assumed"), found.reason


@pytest.mark.ci
def test_classes_get_their_methods_back(tmp_path: Path) -> None:
    before = {name: dict(vars(getattr(lr_scheduler, name))) for name in ("LRScheduler", "SequentialLR", "StepLR")}
    recorded(tmp_path / "run")
    for name, kept in before.items():
        assert {key: vars(getattr(lr_scheduler, name))[key] for key in kept} == kept


@pytest.mark.ci
def test_a_step_costs_less_than_a_kilobyte(tmp_path: Path) -> None:
    """With two groups and a rate of each that changes at every step."""
    script = scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.99))
    recorded(tmp_path / "run", script, prepare=lambda training: two_groups(training.private), epochs=5)
    assert (tmp_path / "run" / "public.log").stat().st_size < 50 * 1000


Watching = Callable[..., OptionWatch]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Make watches, and remove them after the test."""
    made = []

    def make(optimizer: Any, private: Any = dict) -> OptionWatch:
        made.append(OptionWatch(optimizer, private, lambda observe: observe()))
        return made[-1]

    yield make
    for one in made:
        one.remove()


def test_the_object_of_an_earlier_value_is_a_change(watching: Watching) -> None:
    """Other code restores the object that a scheduler has replaced."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    group, watch = optimizer.param_groups[0], watching(optimizer)
    kept = group["lr"]
    watch.read()
    watch.changes()
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    optimizer.step()
    scheduler.step()
    group["lr"] = kept
    watch.read()
    assert watch.changes()["lr"] == OptionChange("", (kept,))


def test_a_metric_in_place_of_an_epoch_is_no_schedule(watching: Watching) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    watch = watching(optimizer)
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)
    watch.read()
    watch.changes()
    for epoch, by in ((0.5, "CosineAnnealingWarmRestarts"), (1.5, "CosineAnnealingWarmRestarts"), (0.7, "")):
        optimizer.step()
        scheduler.step(epoch)
        watch.read()
        assert watch.changes()["lr"].by == by


def test_a_rate_in_a_tensor_may_change_in_place(watching: Watching) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=torch.tensor(0.5))
    watch = watching(optimizer)
    watch.read()
    watch.changes()
    optimizer.param_groups[0]["lr"].mul_(0.5)
    watch.read()
    assert watch.changes() == {"lr": OptionChange("", (0.25,))}


def test_a_tensor_in_a_tuple_may_change_in_place(watching: Watching) -> None:
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.5)
    optimizer.param_groups[0]["betas"] = torch.tensor(0.5), 0.75
    watch = watching(optimizer)
    watch.read()
    watch.changes()
    optimizer.param_groups[0]["betas"][0].mul_(0.5)
    watch.read()
    assert watch.changes() == {"betas[0]": OptionChange("", (0.25,))}


def test_a_parameter_that_changes_its_group_is_a_change(watching: Watching) -> None:
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.5)
    watch = watching(optimizer)
    watch.read()
    watch.changes()
    one, other = optimizer.param_groups
    other["params"].insert(0, one["params"].pop())
    watch.read()
    assert list(watch.changes()) == ["parameters"]


def test_options_that_stay_are_not_read_again(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5))
    watch.read()
    assert list(watch.changes())
    monkeypatch.setattr(watch, "_read", None)
    watch.read()
    assert not watch.changes()
