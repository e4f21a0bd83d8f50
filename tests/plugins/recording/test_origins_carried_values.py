"""Values that a script computes from one batch and that the next step reads, and honest states of a script."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.opacus_training import Training, recorded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.step_replay.facts import BATCH_BEFORE

pytest.importorskip("opacus")
pytestmark = pytest.mark.ci

WIDTH = 2
GENERATOR = torch.Generator().manual_seed(3)
PUBLIC = torch.randn(8, WIDTH, generator=GENERATOR)


class Stateful:
    """A script whose loss reads ``state``: ``loss`` of this object, a training and a batch, and ``after`` each step."""

    def __init__(self, loss: Any, after: Any = lambda *_: None, **state: Any) -> None:
        self.loss, self.after = loss, after
        vars(self).update(deepcopy(state))

    def __call__(self, training: Training) -> None:
        for x, y in training.loader:
            training.private.zero_grad()
            outputs = training.model(x)
            losses = cross_entropy(outputs, y, reduction="none")
            self.loss(self, outputs, losses).backward()
            training.private.step()
            with torch.no_grad():
                self.after(self, training, x, outputs.detach(), losses.detach())


def contrast(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    return (losses + (outputs @ state.queue.T).logsumexp(1)).mean()


def enqueue(state: Any, training: Training, x: Tensor, outputs: Tensor, losses: Tensor) -> None:
    state.queue = torch.cat([outputs, state.queue])[:8]


def write(state: Any, training: Training, x: Tensor, outputs: Tensor, losses: Tensor) -> None:
    state.queue[: len(outputs)] = outputs[: len(state.queue)]


def by_mean(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    return (losses * (losses.detach() / state.mean)).mean()


def update_mean(state: Any, training: Training, x: Tensor, outputs: Tensor, losses: Tensor) -> None:
    state.mean = 0.9 * state.mean + 0.1 * losses.mean()


def within_the_loss(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    loss = (losses / state.mean).mean()
    state.mean = losses.detach().mean()
    return loss


def update_teacher(state: Any, training: Training, *_: Any) -> None:
    for old, new in zip(state.teacher.parameters(), training.model.parameters(), strict=True):
        old.mul_(0.9).add_(new, alpha=0.1)


def distilled(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    return (losses + (outputs - state.teacher(PUBLIC_ROW).detach()).square().sum(1)).mean()


def by_noisy_gradient(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    return (losses * state.scale).mean()


def read_noisy_gradient(state: Any, training: Training, *_: Any) -> None:
    state.scale = 1.0 / (1.0 + training.model._module[0].weight.grad.norm())


def masked(state: Any, outputs: Tensor, losses: Tensor) -> Tensor:
    if state.mask is None:
        state.mask = torch.ones_like(outputs[:1])
    return (losses + (outputs * state.mask).sum(1)).mean()


PUBLIC_ROW = torch.randn(1, 6, generator=GENERATOR)
CARRYING = {
    "a queue": lambda: Stateful(contrast, enqueue, queue=PUBLIC),
    "a queue that the script writes": lambda: Stateful(contrast, write, queue=PUBLIC),
    "a running mean of the loss": lambda: Stateful(by_mean, update_mean, mean=torch.tensor(0.7)),
    "the mean of the last loss": lambda: Stateful(within_the_loss, mean=torch.tensor(0.7)),
}
HONEST = {
    "a public queue": lambda: Stateful(contrast, queue=PUBLIC),
    "a logged running mean": lambda: Stateful(lambda _, __, losses: losses.mean(), update_mean, mean=torch.tensor(0.7)),
    "an average of the weights": lambda: Stateful(
        distilled, update_teacher, teacher=nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    ),
    "a scale of the noisy gradient": lambda: Stateful(by_noisy_gradient, read_noisy_gradient, scale=torch.tensor(1.0)),
    "a kept mask of a shape": lambda: Stateful(masked, mask=None),
}


def carrying(script: Any, folder: Path, **given: Any) -> tuple[int, str, str]:
    found = recorded(folder / "run", script, epochs=1, **given)
    assumption = found.assumption("unmixed-batches")
    return found.run.fact(Replays).origins.get(BATCH_BEFORE, 0), assumption.status, assumption.text


@pytest.mark.parametrize("name", CARRYING)
def test_values_of_the_batch_before_leave_the_claim_open(name: str, tmp_path: Path) -> None:
    steps, status, text = carrying(CARRYING[name](), tmp_path)
    assert (steps > 0, status) == (True, "unchecked")
    assert "from the batch before" in text


@pytest.mark.parametrize("name", HONEST)
def test_honest_states_leave_nothing_open(name: str, tmp_path: Path) -> None:
    assert carrying(HONEST[name](), tmp_path)[:2] == (0, "declared")


@pytest.mark.parametrize("clipping", ["per_layer", "adaptive", "ghost"])
def test_each_clipping_carries_nothing(clipping: str, tmp_path: Path) -> None:
    assert carrying(Training.train, tmp_path, clipping=clipping)[:2] == (0, "declared")


@pytest.mark.parametrize("physical", [None, 12])
def test_physical_batches_carry_nothing(physical: int | None, tmp_path: Path) -> None:
    assert carrying(Training.train, tmp_path, physical=physical)[:2] == (0, "declared")
