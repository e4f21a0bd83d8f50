"""Attacks on trainings in two processes, beyond those of ``tests/recording``, and trainings that are killed."""

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import fsdpoptimizer_fast_gradient_clipping as fsdp_optimizer
from support.checked_runs import Question, check_run
from support.jobs import RankedJobs
from support.ranks import Ranked, reduced
from torch import distributed

from dpspec.errors import DpspecError

pytestmark = pytest.mark.filterwarnings("ignore")


def is_proved(folder: Path) -> bool:
    with contextlib.suppress(DpspecError):
        result = check_run(folder, Question(delta=1e-5, epsilon=50.0))
        return result.fine and result.verdict == "proved"
    return False


def one_less_and_one_more(training: Ranked, rank: int) -> None:
    for x, y in training.loader:
        more = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
        training.step(*(more if rank else (x[1:], y[1:])))


def second_sum(optimizer: Any, original: Any) -> None:
    original(optimizer)
    for p in optimizer.params:
        bare = p.summed_grad.clone().view_as(p)
        distributed.all_reduce(bare)
        p.grad += 0.001 * bare


def recorded_windows_apart(training: Ranked, rank: int) -> None:
    block, step = contextlib.ExitStack(), 0
    for _ in range(3):
        for x, y in training.loader:
            step += 1
            if step == 1 + rank:
                block.enter_context(training.recorder())
            if step == 9 + rank:
                block.close()
            training.step(x, y)


def opposite_noise(training: Ranked, rank: int) -> None:
    generator = torch.Generator().manual_seed(5)

    def noise(std: float, reference: Any, **_: Any) -> Any:
        part = torch.normal(0.0, std, size=(len(reference) // 2, *reference.shape[1:]), generator=generator)
        return torch.cat([part, -part])

    fsdp_optimizer._generate_noise = noise


def a_term_outside_of_the_criterion(training: Ranked, rank: int) -> None:
    def step(x: Any, y: Any) -> None:
        training.private.zero_grad()
        training.criterion(training.model(x), y).backward()
        training.model.disable_hooks()
        (0.1 * torch.nn.functional.cross_entropy(training.model(x), y)).backward()
        training.model.enable_hooks()
        training.private.step()

    training.step = step


@pytest.mark.parametrize(
    "made",
    [
        {"within": one_less_and_one_more},
        {"prepare": reduced(second_sum)},
        {"loop": recorded_windows_apart},
        {"prepare": opposite_noise, "sharded": True},
        {"prepare": a_term_outside_of_the_criterion, "sharded": True},
    ],
)
def test_an_attack_is_not_proved(made: dict[str, Any], tmp_path: Path) -> None:
    Ranked(tmp_path / "run", epochs=2, **made).run()
    assert not is_proved(tmp_path / "run")


@pytest.mark.ci
@pytest.mark.parametrize("sharded", [False, True])
def test_a_killed_rank_is_not_proved(sharded: bool, tmp_path: Path) -> None:
    def train(training: Ranked, rank: int) -> None:
        if rank == 1:
            threading.Thread(target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL))).start()
        training.train()

    Ranked(tmp_path / "run", epochs=200, sharded=sharded, within=train).run()
    assert not is_proved(tmp_path / "run")


@pytest.mark.ci
def test_killed_jobs_are_not_proved_over_too_few_steps(tmp_path: Path) -> None:
    """The accountant in the checkpoint counts the steps of the released model. A proof over fewer steps is wrong."""
    jobs = RankedJobs(tmp_path)
    for _ in range(2):
        jobs.run(epochs=200, after=(random.randrange(2), random.uniform(0.0, 3.0)))
    assert jobs.run() == [0, 0]
    counted = sum(steps for *_, steps in torch.load(jobs.file, weights_only=False)["accountant"]["history"])
    assert not is_proved(jobs.folder) or check_run(jobs.folder, Question(delta=1e-5)).run.steps >= counted
