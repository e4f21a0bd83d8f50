"""Rows of the dataset that a step reads outside of its batch: anchors are found, public ones and chunks are not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from support.public_mistakes.parts import OpacusTraining, OwnLoop
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.step_replay.facts import ROWS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci]


def reads_rows(folder: Path) -> bool:
    """Whether a replayed step read rows of the dataset outside of its batch, which leaves the claim open."""
    found = checked(folder, epsilon=100.0)
    replays = found.run.fact(Replays)
    assert replays is not None
    assert replays.replayed >= 1.0
    assumption = found.assumption("unmixed-batches")
    is_asked = "rows of the dataset outside of the batch" in assumption.text
    assert (assumption.status == "unchecked") is is_asked
    assert [*replays.origins] == ([ROWS] if is_asked else [])
    return is_asked


def private(x: Tensor) -> Tensor:
    return x[:30].clone()


def view(x: Tensor) -> Tensor:
    return x[:30]


def public(x: Tensor) -> Tensor:
    return torch.randn(30, x.shape[1])


@pytest.mark.parametrize(("make", "is_found"), [(private, True), (view, True), (public, False)])
def test_anchors_of_a_custom_loop(make: Callable[[Tensor], Tensor], is_found: bool, tmp_path: Path) -> None:
    loop = OwnLoop()
    anchors = make(loop.x)

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = torch.func.functional_call(loop.model, parameters, (x[None],))
        return cross_entropy(outputs - torch.func.functional_call(loop.model, parameters, (anchors,)).mean(0), y[None])

    per_record = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    with loop.recorder(tmp_path / "run") as run:
        for _ in range(3):
            drawn = loop.poisson()
            values = {name: p.detach() for name, p in loop.model.named_parameters()}
            gradients = list(per_record(values, loop.x[drawn], loop.y[drawn]).values())
            loop.step(run, drawn, *loop.clipped(gradients), loop.noise())
    assert reads_rows(tmp_path / "run") is is_found


def test_chunks_of_the_dataset_are_read_at_the_drawn_rows_alone(tmp_path: Path) -> None:
    loop = OwnLoop()
    chunks = [chunk.clone() for chunk in loop.x.split(50)]
    with loop.recorder(tmp_path / "run") as run:
        for _ in range(3):
            drawn = loop.poisson()
            places = [drawn[drawn // 50 == number] - 50 * number for number in range(len(chunks))]
            picked = [chunk[place] for chunk, place in zip(chunks, places, strict=True)]
            values = {name: p.detach() for name, p in loop.model.named_parameters()}
            rows = loop._rows(values, torch.cat(picked) + 0.0 * loop.x[drawn], loop.y[drawn])
            loop.step(run, drawn, *loop.clipped(list(rows.values())), loop.noise())
    assert not reads_rows(tmp_path / "run")


@pytest.mark.parametrize(("make", "is_found"), [(private, True), (public, False)])
def test_anchors_of_a_training_with_opacus(make: Any, is_found: bool, tmp_path: Path) -> None:
    training = OpacusTraining()
    anchors = make(training.data.tensors[0])
    weights = torch.randn(20, 2)
    for x, y in training.recorded(tmp_path / "run", 1):
        scores = (anchors @ weights).mean(0).expand(len(x), 2)  # of two further classes
        training.step(training.criterion(torch.cat([training.model(x), scores], 1), y))
    assert reads_rows(tmp_path / "run") is is_found
