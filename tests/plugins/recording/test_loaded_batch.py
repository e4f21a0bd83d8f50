"""Replays that begin with the batch of the loader: what a script computes from it before the model's forward pass."""

import copy
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from support.opacus_training import Training
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from dpspec.contract.findings import Check
from dpspec_recording.judge.sentences import confirmations
from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED, SUM_MOVED, Replays
from dpspec_recording.step_replay.loaded_batch import comes_from, note_batches
from dpspec_recording.step_replay.measure import _change_in_any_order
from dpspec_recording.step_replay.trace import StepTrace

Loss = Callable[[Any, Tensor, Tensor], Tensor]


class Prepared(Training):
    """Each step computes its loss by a function of the model and the loaded batch."""

    loss: Loss

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        self.loss(self.model, x, y).backward()
        self.private.step()


def checks_of(folder: Path, loss: Loss) -> tuple[dict[str, Check], bool]:
    """The checks of a recorded training, and whether it ends with the same bits without a recorder."""
    kind = type("PreparedByTheScript", (Prepared,), {"loss": staticmethod(loss)})
    recorded_weights, weights = kind(epochs=1).run(folder), kind(epochs=1).run()
    checks = {check.test: check for check in checked(folder, epsilon=100.0).tests}
    return checks, all(torch.equal(*pair) for pair in zip(recorded_weights, weights, strict=True))


def smoothed_by_the_batch(y: Tensor) -> Tensor:
    return 0.9 * one_hot(y, 2) + 0.1 * torch.bincount(y, minlength=2) / max(1, len(y))


def batch_prior(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), smoothed_by_the_batch(y))


def class_weights(model: Any, x: Tensor, y: Tensor) -> Tensor:
    weights = len(y) / (1.0 + torch.bincount(y, minlength=2))
    return cross_entropy(model(x), y, weights)


def nearest_neighbors(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(torch.softmax(-torch.cdist(x, x), 1) @ x), y)


def mixup(model: Any, x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(len(x))
    outputs = model(0.7 * x + 0.3 * x[order])
    return 0.7 * cross_entropy(outputs, y) + 0.3 * cross_entropy(outputs, y[order])


def normalized_weights(model: Any, x: Tensor, y: Tensor) -> Tensor:
    weights = torch.exp(x[:, 0])
    weights = weights / weights.sum()
    return (cross_entropy(model(x), y, reduction="none") * weights).sum()


@pytest.mark.family
@pytest.mark.parametrize("loss", [batch_prior, class_weights, nearest_neighbors, mixup, normalized_weights])
def test_records_that_mix_before_the_forward_pass_are_found(loss: Loss, tmp_path: Path) -> None:
    checks, equal_weights = checks_of(tmp_path / "run", loss)
    assert (checks[OTHERS_MOVED.title].p_value, equal_weights) == (0.0, True)


class LatePrior(Training):
    """The labels are smoothed by the batch from step 21 on."""

    steps = 0

    def step(self, x: Any, y: Any) -> None:
        self.steps += 1
        self.private.zero_grad()
        labels: Any = smoothed_by_the_batch(y) if self.steps > 20 else y
        self.criterion(self.model(x), labels).backward()
        self.private.step()


@pytest.mark.ci
def test_records_that_mix_late_before_the_forward_pass_are_found(tmp_path: Path) -> None:
    LatePrior(epochs=3).run(tmp_path / "run")
    checks = {check.test: check for check in checked(tmp_path / "run", epsilon=100.0).tests}
    assert checks[OTHERS_MOVED.title].p_value == 0.0


def sorted_records(model: Any, x: Tensor, y: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return cross_entropy(model(x[order]), y[order])


def augmented(model: Any, x: Tensor, y: Tensor) -> Tensor:
    flipped = torch.where(torch.rand(len(x), 1) < 0.5, -x, x)
    return cross_entropy(model(flipped + 0.1 * torch.randn_like(x)), y)


def scaled_in_place(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x.mul_(2.0).sub_(0.5)), y)


class ShiftsItsInput(Training):
    """The model writes into its input."""

    def module(self) -> nn.Module:
        class Shift(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.sub_(1.0)

        return nn.Sequential(Shift(), super().module())


@pytest.mark.ci
@pytest.mark.parametrize("workers", [0, 1])
def test_a_model_that_writes_into_its_input_is_replayed_with_the_loaded_values(workers: int, tmp_path: Path) -> None:
    ShiftsItsInput(workers=workers).run(tmp_path / "run")
    checks = {check.test: check for check in checked(tmp_path / "run", epsilon=100.0).tests}
    assert (checks[SUM_MOVED.title].p_value, checks[OTHERS_MOVED.title].p_value) == (1.0, 1.0)


def logged_before(model: Any, x: Tensor, y: Tensor) -> Tensor:
    positive_share = y.float().mean().item()
    return cross_entropy(model(x), y) + 0.0 * int(positive_share > 2.0)


def through_numpy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(torch.from_numpy(x.numpy() * 0.5)), y)


def cut_to_the_longest(model: Any, x: Tensor, y: Tensor) -> Tensor:
    kept = (x[:, 0] > -10.0).nonzero()[:, 0]
    return cross_entropy(model(x[kept]), y[kept])


HONEST = [sorted_records, augmented, scaled_in_place, logged_before, through_numpy, cut_to_the_longest]


@pytest.mark.family
@pytest.mark.parametrize("loss", HONEST)
def test_steps_that_prepare_each_record_by_itself_are_replayed_and_stay_equal(loss: Loss, tmp_path: Path) -> None:
    checks, equal_weights = checks_of(tmp_path / "run", loss)
    assert (checks[SUM_MOVED.title].p_value, checks[OTHERS_MOVED.title].p_value, equal_weights) == (1.0, 1.0, True)


def weighted_by_a_number(model: Any, x: Tensor, y: Tensor) -> Tensor:
    positive_share = y.float().mean().item()
    weights = torch.tensor([positive_share, 1.0 - positive_share])
    return (weights[y] * cross_entropy(model(x), y, reduction="none")).mean()


def weighted_by_numpy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    positive_share = float(y.numpy().mean())
    weights = torch.tensor([positive_share, 1.0 - positive_share])
    return (weights[y] * cross_entropy(model(x), y, reduction="none")).mean()


@pytest.mark.ci
@pytest.mark.parametrize("loss", [weighted_by_a_number, weighted_by_numpy])
def test_a_number_of_the_batch_that_the_loss_uses_is_asked(loss: Loss, tmp_path: Path) -> None:
    """The first step is replayed from its forward pass on, which the number precedes; no other step counts."""
    checks_of(tmp_path / "run", loss)
    found = checked(tmp_path / "run", epsilon=100.0)
    end = found.run.end
    assert end is not None
    replays = end.of(Replays)
    assert replays is not None
    tried, replayed = replays.tried, replays.replayed
    assert (replayed, tried > 5) == (1, True)
    confirmed = " ".join(confirmations(found.run, 1, ()))
    assert f"only 1 of {tried:.0f} chosen steps was replayed to test this (" in confirmed


@pytest.mark.ci
def test_batches_that_are_fetched_ahead_are_replayed_from_the_forward_pass(tmp_path: Path) -> None:
    training = Training().build()
    with training.recorder(tmp_path / "run"):
        for _ in range(training.epochs):
            for x, y in list(training.loader):
                training.step(x, y)
    checks = {check.test: check for check in checked(tmp_path / "run", epsilon=100.0).tests}
    assert (checks[SUM_MOVED.title].p_value, checks[OTHERS_MOVED.title].p_value) == (1.0, 1.0)


def _loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(8.0), torch.arange(8)), batch_size=4, **options)


def test_only_this_thread_and_this_process_note_batches_and_the_loader_gets_its_function_back() -> None:
    noted: list[int] = []
    loader, workers = _loader(), _loader(num_workers=1)
    originals = loader.collate_fn, workers.collate_fn
    with ExitStack() as undo:
        for each_loader in (loader, workers, object()):
            note_batches(each_loader, lambda _, records: noted.append(records), undo)
        assert copy.copy(loader.collate_fn) is originals[0]
        iterator = iter(loader)
        next(iterator)
        thread = threading.Thread(target=lambda: list(loader))
        thread.start()
        thread.join()
        assert (noted, workers.collate_fn) == ([4], originals[1])
    next(iterator)
    assert (noted, loader.collate_fn) == ([4], originals[0])


def test_a_tensor_comes_from_the_batch_by_operations() -> None:
    batch, other = torch.randn(4, 3), torch.randn(4, 3)
    trace = StepTrace()
    trace.start()
    derived, unrelated = nn.functional.relu(batch)[:, 1:], other * 2.0
    trace.stop()
    assert comes_from(trace, [derived], [batch])
    assert comes_from(trace, [batch], [batch])
    assert not comes_from(trace, [unrelated], [batch])


def test_rows_in_another_order_do_not_change_but_mixed_ones_do() -> None:
    rows = torch.randn(50, 2, 4, generator=torch.Generator().manual_seed(1))
    moved = rows[torch.randperm(50, generator=torch.Generator().manual_seed(2))]
    moved[7] += 3.0
    assert _change_in_any_order(moved, rows) < 1e-12
    moved[8] += 3e-3
    assert _change_in_any_order(moved, rows) > 1e-5
