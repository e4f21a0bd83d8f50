"""Frozen weights into which adapters are merged, and taken out again, differ by rounding; other changes do not."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run, checked
from support.opacus_training import FEATURES, SECRET, PrivateTraining
from support.plain_loop import plain_loop, rebuilt
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpspec_recording.observers.model_state.model_state import CHANGED, ModelStateFacts
from dpspec_recording.watching.module_values import ModuleValues
from dpspec_recording.watching.rounding import BlockSums

pytestmark = pytest.mark.filterwarnings("ignore")


def weights(kind: torch.dtype = torch.float32, size: int = 700) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 255, 256, 700])
@pytest.mark.parametrize("length", [1e-3, 0.3, 1.0])
def test_values_that_are_added_and_subtracted_leave_rounding(kind: torch.dtype, size: int, length: float) -> None:
    original = weights(kind, size)
    sums, value = BlockSums(original), original.clone()
    for seed in range(4):
        merged = length * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(kind)
        value.add_(merged).sub_(merged)
    assert size == 1 or not torch.equal(value, original)
    assert sums.differ_by_rounding(value)


def last(value: Tensor) -> Tensor:
    value[-1] *= 1.001
    return value


def scaled(value: Tensor) -> Tensor:
    return value * (1.0 + 1e-4)


def moved(value: Tensor) -> Tensor:
    """A step of a small learning rate."""
    return value + 1e-5 * torch.randn(len(value), generator=torch.Generator().manual_seed(2))


def exchanged(value: Tensor) -> Tensor:
    value[[3, 4]] = value[[4, 3]]
    return value


@pytest.mark.parametrize(
    "change", [last, scaled, moved, exchanged, Tensor.double, Tensor.half, lambda value: value[1:]]
)
def test_other_changes_are_no_rounding(change: Callable[[Tensor], Tensor]) -> None:
    """Random factors hide a change of one coordinate by a thousandth in one of ten cases, so twelve sums are compared:

    a correct implementation fails with probability 1e-12.
    """
    original = weights()
    assert not all(BlockSums(original).differ_by_rounding(change(original.clone())) for _ in range(12))


def test_integers_have_no_rounding() -> None:
    assert not BlockSums.is_kept(weights(torch.int64))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("change", "found"), [("merged", "coarse"), ("trained", "coarse"), ("moved", "buffers")])
def test_rounding_of_half_precision_may_hold_a_training(kind: torch.dtype, change: str, found: str) -> None:
    """Adapters that are merged ten times, a step of a small learning rate, and one of a large one."""
    model = nn.Linear(40, 30, bias=False).to(kind).requires_grad_(False)
    state, weight, generator = ModuleValues(model, []), model.weight.data, torch.Generator().manual_seed(3)
    step = torch.randn(weight.shape, generator=generator).to(kind)
    for _ in range(10 if change == "merged" else 0):
        weight.add_(0.1 * step).sub_(0.1 * step)
    weight.add_({"merged": 0.0, "trained": 1e-3, "moved": 1.0}[change] * step)
    names = state.changed()
    assert {name for name in ("buffers", "rounded", "coarse") if names[name]} == {found}


@pytest.mark.ci
def test_a_change_by_rounding_of_half_precision_is_asked(tmp_path: Path) -> None:
    plain_loop(tmp_path / "run")
    rounded = ModelStateFacts(buffers=(), state=(), attributes=(), rounded=(), coarse=("base.weight",), unread=())
    changed = rebuilt(tmp_path / "run", tmp_path / "changed", end={"model_state": dataclasses.asdict(rounded)})
    asked: dict[str, Any] = {"epsilon": 100.0, "accept": ("not-replayed",)}  # no record moves the sums of this loop
    before, after = (checked(folder, **asked) for folder in (tmp_path / "run", changed))
    assert (before.verdict, after.status) == ("proved", ("open", "no-deviation-found"))
    assert "base.weight changed by no more than rounding in half precision" in after.reason
    assert checked(changed, assume=("model-state",), **asked).verdict == "proved"


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of rank 2, and a frozen buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.head = nn.Linear(16, 2)
        self.register_buffer("scale", torch.ones(1))
        self.merged = False

    def forward(self, x: Tensor) -> Tensor:
        adapted = 0.0 if self.merged else self.up(self.down(x))
        return self.head(torch.tanh(self.base(x) + adapted))  # type: ignore[no-any-return]

    @torch.no_grad()
    def merge(self, *, sign: float) -> None:
        self.base.weight += sign * self.up.weight @ self.down.weight
        self.merged = sign > 0.0


class AdapterTraining(PrivateTraining):
    epochs, noise, clip = 2, 1.0, 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        torch.manual_seed(SECRET)
        x = torch.randn(200, FEATURES)
        model = Adapted()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.5)
        self.make_private(model, optimizer, DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20))

    @property
    def adapted(self) -> Any:
        return self.model._module


def evaluated(training: AdapterTraining) -> None:
    training.adapted.merge(sign=1.0)
    training.model.eval()
    training.model(torch.zeros(1, FEATURES))
    training.model.state_dict()
    training.model.train()
    training.adapted.merge(sign=-1.0)


def merged_once(training: AdapterTraining) -> None:
    if not training.adapted.merged:
        training.adapted.merge(sign=1.0)
        training.adapted.merged = False


@torch.no_grad()
def scaled_buffer(training: AdapterTraining) -> None:
    training.adapted.scale.mul_(1.0 + 2.0**-23)


@torch.no_grad()
def trained_frozen_layer(training: AdapterTraining) -> None:
    training.adapted.base.weight.add_(1e-5 * torch.randn_like(training.adapted.base.weight))


@pytest.mark.ci
@pytest.mark.parametrize("change", [evaluated, merged_once, scaled_buffer, trained_frozen_layer])
def test_adapters_that_are_merged_and_taken_out_are_proved(change: Any, tmp_path: Path) -> None:
    training = AdapterTraining(tmp_path / "run")
    with training.recorder():
        training.train(each=change)
    run = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    if change is evaluated:
        assert run.fine
        assert "base.weight changed by rounding alone" in run.assumption("model-state").text
    else:
        assert CHANGED.title in run.rejected
