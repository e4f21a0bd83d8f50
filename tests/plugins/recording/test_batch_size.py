"""Replays of a step at the batch size of another one: they measure whether the loss is a sum or a mean."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked, run_page
from support.opacus_training import recorded
from support.plain_loop import rebuilt
from support.replayed_steps import CLIP, Loss, features, mean_loss, mlp, opacus_trace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpspec_recording.judge.recorded_run import read_run
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.step_replay.batch_size import SizeEffect, size_effect, sized_step
from dpspec_recording.step_replay.trace import AbstainError

pytest.importorskip("opacus")
pytestmark = pytest.mark.filterwarnings("ignore")


def effect(
    loss: Loss | Sequence[Loss] = mean_loss,
    sizes: tuple[int, int] = (12, 16),
    model: Callable[[], nn.Module] = mlp,
    mode: str = "hooks",
    batches: Callable[[int], Sequence[Tensor]] = features,
) -> SizeEffect:
    """Replay a step at the size of an earlier one. loss: of both steps, or of each."""
    losses = loss if isinstance(loss, Sequence) else (loss, loss)
    steps, traces = [], []
    gradients: list[Tensor] = []
    for function, size in zip(losses, sizes, strict=True):
        trace, sums, _, gradients = opacus_trace(model(), function, batches(size), mode)
        traces.append(trace)
        steps.append(sized_step(trace, size, gradients, sums))
    return size_effect(*steps, traces[-1], gradients, CLIP)


def summed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="sum")


def divided(by: Callable[[Tensor], Any]) -> Loss:
    return lambda model, x, y: summed(model, x, y) / by(y)


def weighed(weight: Any) -> Loss:
    return lambda model, x, y: weight * mean_loss(model, x, y)


def squared(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x)[:, 0], y.float())


def tokens(size: int) -> tuple[Tensor, Tensor]:
    return torch.arange(size * 6).view(size, 6) % 50, torch.arange(size) % 2


MEANS = {
    "a mean": {},
    "more records in the earlier step": {"sizes": (20, 9)},
    "many more records in the earlier step": {"sizes": (40, 9)},
    "functorch": {"mode": "functorch"},
    "expanded weights": {"mode": "ew"},
    "dropout": {"model": lambda: mlp(nn.Dropout(0.4))},
    "group norm": {"model": lambda: mlp(nn.GroupNorm(4, 32))},
    "embedding": {
        "model": lambda: nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 2)),
        "batches": tokens,
    },
    "squared errors": {"loss": squared},
    "losses.mean()": {"loss": lambda model, x, y: cross_entropy(model(x), y, reduction="none").mean()},
    "a sum over len(y)": {"loss": divided(len)},
    "a sum over float(len(y))": {"loss": divided(lambda y: float(len(y)))},
    "a sum over a tensor of the size": {"loss": divided(lambda y: torch.tensor(float(len(y))))},
    "a sum over y.numel()": {"loss": divided(lambda y: y.numel())},
    "another weight at each step": {"loss": [weighed(0.3), weighed(0.7)]},
    "a tensor as weight of each step": {"loss": [weighed(torch.tensor(0.3)), weighed(torch.tensor(0.7))]},
}

OTHERS = {
    "a sum": ({"loss": summed}, 0.0),
    "a sum over a constant": ({"loss": divided(lambda y: 16)}, 0.0),
    "a sum, dropout": ({"loss": summed, "model": lambda: mlp(nn.Dropout(0.4))}, 0.0),
    "a mean, divided again": ({"loss": lambda model, x, y: mean_loss(model, x, y) / len(x)}, -2.0),
    "a sum over the tokens of each batch": ({"loss": [divided(lambda y: 97), divided(lambda y: 131)]}, 0.0),
    "a mean over the square root": ({"loss": divided(lambda y: torch.tensor(float(len(y))).sqrt())}, -0.5),
}


@pytest.mark.family
@pytest.mark.parametrize("name", MEANS)
def test_means_have_gradients_that_fall_with_the_batch_size(name: str) -> None:
    found = effect(**MEANS[name])
    assert found.power == pytest.approx(-1.0, abs=1e-4)
    assert 0.0 < found.sum_moved <= 1.0 + 1e-6


@pytest.mark.family
@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_have_other_powers_of_the_batch_size(name: str) -> None:
    given, power = OTHERS[name]
    assert effect(**given).power == pytest.approx(power, abs=1e-4)


def test_a_sum_without_clipping_moves_further_than_its_omitted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    from opacus.optimizers import DPOptimizer

    def add_up(self: Any) -> None:
        for p in self.params:
            p.summed_grad = p.grad_sample.sum(0)

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", add_up)
    assert effect().sum_moved > 1.5


def centered(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x - x.mean(0)), y)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sizes": (12, 12)}, "different sizes"),
        ({"loss": centered}, "more than a factor"),
        ({"loss": [mean_loss, centered]}, "different operations"),
    ],
)
def test_steps_that_do_not_compare_abstain(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(AbstainError, match=reason):
        effect(**given)


@pytest.mark.family
@pytest.mark.parametrize("physical", [None, 8])
@pytest.mark.parametrize(("given", "declared"), [("mean", "sum"), ("sum", "mean")])
def test_short_runs_with_another_reduction_are_not_proved(given, declared, physical, tmp_path):
    def script(training: Any) -> None:
        training.criterion = nn.CrossEntropyLoss(reduction=given)
        training.train()

    found = recorded(tmp_path / "run", script, reduction=declared, epochs=1, physical=physical)
    assert found.status == ("open", "no-deviation-found")
    assert f"as if the loss were a {given} over the batch" in found.reason


@pytest.mark.ci
def test_a_loss_that_no_replay_tests_is_asked(tmp_path: Path) -> None:
    recorded(tmp_path / "run", reduction="sum", noise=4.0, epochs=1)
    facts = read_run(tmp_path / "run").fact(Replays)
    assert facts is not None
    unsized = {"replays": dataclasses.asdict(dataclasses.replace(facts, sizes=None))}
    found = checked(rebuilt(tmp_path / "run", tmp_path / "other", end=unsized), epsilon=9.0)
    assert found.status == ("proved", "no-deviation-found")
    assert "the loss is a sum" in run_page(found, 80)
