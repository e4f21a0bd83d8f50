"""The recorder leaves a training as it is: each weight, and the next random numbers of torch, NumPy and Python."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaigns.honest_recordings import cases
from support.public_mistakes.parts import FEATURES, OpacusTraining, OwnLoop, dataset
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim.optimizer import register_optimizer_step_post_hook

import dpspec

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]

Train = Callable[[Path], Any]

#: Honest recordings of the campaign, by what may differ: clipping, batches, operations, and optimizers.
RECORDINGS = (
    *(f"opacus, clipping {name}, sgd, batches of 7" for name in ("flat", "per_layer", "adaptive", "ghost")),
    *("opacus, convolutions, dropout, group norm", "opacus, embedding and recurrent layer", "opacus, adam fused"),
    *("opacus, recomputed activations", "opacus, bfloat16 autocast", "opacus, augmentation", "opacus, 2 workers"),
    *("opacus, functorch gradients", "opacus, expanded weights"),
)

MATRIX = torch.linalg.qr(torch.randn(FEATURES, 12, generator=torch.Generator().manual_seed(3)))[0]
PROJECTION = MATRIX @ MATRIX.T

#: Maps of the noisy gradient of the first layer.
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "half": lambda gradient: gradient * 0.5,
    "mask": lambda gradient: gradient * (PROJECTION[:16] > 0.0),
    "projection": lambda gradient: gradient @ PROJECTION,
    "spectral norm": lambda gradient: gradient / torch.linalg.matrix_norm(gradient, 2),
}


def mapped(change: Callable[[Tensor], Tensor]) -> Train:
    def train(folder: Path) -> None:
        loop = OwnLoop()
        for run, drawn in loop.recorded(folder, 6):
            norms, total = loop.clipped(loop.rows(drawn))
            noise = loop.noise()
            gradient = [(t + n) / 30.0 for t, n in zip(total, noise, strict=True)]
            loop.step(run, drawn, norms, total, noise, gradient=[change(gradient[0]), *gradient[1:]])

    return train


def clipped_again(folder: Path) -> None:
    """The loop clips the sum again as a whole, to a constant."""
    loop = OwnLoop()
    for run, drawn in loop.recorded(folder, 6):
        norms, total = loop.clipped(loop.rows(drawn))
        factor = (4.0 / torch.cat([t.reshape(-1) for t in total]).norm()).clamp_max(1.0)
        loop.step(run, drawn, norms, [t * factor for t in total], loop.noise())


def microbatches(folder: Path) -> None:
    """One record at a time, with augmentation and dropout by three generators."""
    loop = OwnLoop(rate=0.02)
    for run, drawn in loop.recorded(folder, 3):
        rows: list[list[Tensor]] = []
        for index in drawn.tolist():
            x = loop.x[index, None] + 0.1 * random.random() + 0.1 * np.random.rand()
            loss = cross_entropy(dropout(loop.model(x), 0.2), loop.y[index, None])
            rows.append(list(torch.autograd.grad(loss, loop.parameters)))
        stacked = [torch.stack(parts) for parts in zip(*rows, strict=True)] or loop.rows(drawn)
        loop.step(run, drawn, *loop.clipped(stacked), loop.noise())


def by_loss(loss: Callable[[nn.Module, Tensor], Tensor]) -> Train:
    """Train with Opacus, with a further term of the loss of each record."""

    def train(folder: Path) -> None:
        training = OpacusTraining(inner=lambda model: torch.optim.Adam(model.parameters(), lr=0.01), batch=20)
        for x, y in training.recorded(folder, 1):
            outputs = training.model(x)
            training.step((cross_entropy(outputs, y, reduction="none") + loss(training.plain, outputs)).mean())
            with torch.no_grad():  # between steps
                training.plain[0].weight /= torch.linalg.svdvals(training.plain[0].weight).max().clamp_min(1.0)

    return train


@torch.no_grad()
def penalty(model: nn.Module, outputs: Tensor) -> Tensor:
    """Numbers of the weights that the loss multiplies."""
    weight = model[0].weight
    values = torch.linalg.eigvalsh(weight @ weight.T).sum() + torch.linalg.cond(weight)
    return torch.linalg.matrix_norm(weight, "nuc") + torch.linalg.norm(weight, 2) + values


LOSSES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "spectra in the loss": lambda model, outputs: penalty(model, outputs) * outputs.square().sum(1) * 1e-3,
    "product": lambda model, outputs: outputs.sigmoid().prod(1),
    "numbers of NumPy": lambda model, outputs: outputs.sum(1) * float(np.random.rand()),
}


def shuffled(folder: Path) -> None:
    """Another loader shuffles in the block, as for an evaluation."""
    training = OpacusTraining(loader={"shuffle": True})
    others = torch.utils.data.DataLoader(dataset(40), batch_size=20, shuffle=True)
    for x, y in training.recorded(folder, 1):
        training.step(cross_entropy(training.model(x), y) + 0.0 * sum(len(b) for b, _ in others))


FORMS: dict[str, Train] = {
    **{name: train for name, train in cases(1).items() if name in RECORDINGS},
    **{f"map: {name}": mapped(change) for name, change in MAPS.items()},
    **{f"loss: {name}": by_loss(loss) for name, loss in LOSSES.items()},
    "clipped again": clipped_again,
    "microbatches": microbatches,
    "shuffled": shuffled,
}


class Unrecorded:
    """In the place of a recorder."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> "Unrecorded":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def weights() -> Iterator[list[Tensor]]:
    """The weights after each step of an optimizer."""
    found: list[Tensor] = []
    hook = register_optimizer_step_post_hook(
        lambda optimizer, *_: found.extend(p.detach().clone() for g in optimizer.param_groups for p in g["params"])
    )
    try:
        yield found
    finally:
        hook.remove()


def trained(train: Train, folder: Path) -> tuple[list[Tensor], tuple[float, ...]]:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    with weights() as found:
        train(folder)
    return found, (float(torch.rand(())), float(np.random.rand()), random.random())


def test_each_form_is_a_recording_of_the_campaign() -> None:
    assert set(RECORDINGS) <= FORMS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_the_recorder_changes_no_weight_and_no_random_number(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, numbers = trained(FORMS[name], tmp_path / "run")
    monkeypatch.setattr(dpspec, "record", Unrecorded)
    unrecorded, expected = trained(FORMS[name], tmp_path / "none")
    assert numbers == expected
    assert len(recorded) == len(unrecorded) > 0
    assert all(map(torch.equal, recorded, unrecorded))
