"""Values that a script computes from all records between steps, and that the next steps read."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.opacus_training import Training, recorded
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax
from torch.utils.data import DataLoader

from dpspec_recording.probes.replays import Replays
from dpspec_recording.step_replay.calls import Pauses, StepCalls
from dpspec_recording.step_replay.carried_values import CarriedValues
from dpspec_recording.step_replay.dataset_values import DatasetValues, sums_move
from dpspec_recording.step_replay.trace import StepTrace

pytest.importorskip("opacus")

RECORDS, WIDTH, BATCH = 50, 6, 7


def moves(compute: Callable[[Tensor], Tensor], step: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether the sum of a step moves with what the script computed of the dataset before."""
    x, weight = torch.randn(RECORDS, WIDTH), torch.ones(WIDTH)
    values = DatasetValues([x], [weight])
    follows = CarriedValues([weight], Pauses(), values)
    follows.start()
    computed = compute(x)
    batch = torch.randn(BATCH, WIDTH)
    follows.stop()
    trace = StepTrace()
    trace.start()
    total = step(batch, computed)
    trace.stop()
    return sums_move(trace, [total], values.read_by(trace, {id(batch)}, (BATCH, RECORDS)))


def centered(batch: Tensor, computed: Tensor) -> Tensor:
    return (batch - computed).square().sum(0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.mean(0),
        lambda x: torch.stack([x[i] for i in range(9)]).median(0).values,
        lambda x: torch.zeros(WIDTH).add_(x.sum(0)),
        lambda x: x @ torch.randn(WIDTH, WIDTH).softmax(1)[0] @ torch.randn(RECORDS),
    ],
    ids=["mean", "median", "written", "number"],
)
def test_a_statistic_of_the_dataset_is_followed(compute):
    assert moves(compute, centered)


def test_values_that_no_step_reads_or_no_record_decides_are_none():
    assert not moves(lambda x: x.mean(0), lambda batch, computed: batch.sum(0) + 0 * computed)
    assert not moves(lambda x: torch.randn(WIDTH), centered)
    assert not moves(torch.zeros_like, lambda batch, computed: (batch - computed[0]).sum(0))


def test_labels_of_the_batch_and_tables_of_all_records_are_other_tests():
    assert not moves(lambda x: x[:BATCH].clone(), centered)
    assert not moves(lambda x: 2.0 * x, lambda batch, computed: (batch - computed[:BATCH]).sum(0))


def test_one_step_in_each_doubling_is_traced_while_values_exist():
    x = torch.randn(RECORDS, WIDTH)
    values = DatasetValues([x], [])
    follows = CarriedValues([], Pauses(), values)
    assert not values.ask_for_trace(2)
    follows.start()
    kept = [x.mean(0)]
    follows.stop()
    assert [step for step in range(2, 40) if values.ask_for_trace(step)] == [2, 4, 8, 16, 32]
    kept.clear()
    values.forget_released()
    assert not values.ask_for_trace(64)


def test_calls_within_a_step_are_followed_from_its_batch():
    values, table = DatasetValues([torch.randn(RECORDS, WIDTH)], []), torch.zeros(3, WIDTH)
    calls = StepCalls()
    calls.observe = values.follow_call
    batch, earlier = torch.randn(BATCH, WIDTH), torch.randn(BATCH + 1, WIDTH)
    values.add([earlier])
    calls.start()
    table[1] = earlier.square().mean(0)
    public = torch.zeros_like(earlier) + 1.0
    calls.stop()
    for computed, is_moved in ((table, True), (public, False)):
        trace = StepTrace()
        trace.start()
        total = centered(batch, computed[1])
        trace.stop()
        assert sums_move(trace, [total], values.read_by(trace, {id(batch)}, (BATCH, RECORDS))) == is_moved


def test_a_tensor_without_a_memory_ends_the_search_alone(monkeypatch):
    x = torch.randn(RECORDS, WIDTH)
    values = DatasetValues([x], [])
    follows = CarriedValues([], Pauses(), values)
    follows.start()
    monkeypatch.setattr("dpspec_recording.step_replay.dataset_values.written_by", None)
    assert x.mean(0).shape == (WIDTH,)
    follows.stop()
    assert not values.is_followed
    assert not values.ask_for_trace(2)


class OfBatches:
    """A training whose loss reads a statistic of the batches of the epoch before."""

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, training: Training) -> None:
        statistic = torch.tensor(0.7)
        for _ in range(3):
            kept = []
            for x, y in training.loader:
                training.private.zero_grad()
                losses = cross_entropy(training.model(x), y, reduction="none")
                self.loss(losses, statistic).mean().backward()
                training.private.step()
                kept.append(losses.detach())
            statistic = torch.cat(kept).median()


class EachEpoch:
    """A training whose loss reads what the script computes before each epoch."""

    def __init__(self, compute, loss):
        self.compute, self.loss = compute, loss

    def __call__(self, training: Training) -> None:
        for _ in range(3):
            with torch.no_grad():
                computed = self.compute(training)
            for x, y in training.loader:
                training.private.zero_grad()
                self.loss(training.model(x), y, computed).mean().backward()
                training.private.step()


def records_of(training: Training) -> tuple[Tensor, ...]:
    return tuple(training.loader.dataset.tensors)


def mean_prediction(training: Training) -> Tensor:
    return softmax(training.model(records_of(training)[0]), 1).mean(0).log()


def centroids_of_loader(training: Training) -> Tensor:
    pairs = [(training.model(x), y) for x, y in DataLoader(training.loader.dataset, batch_size=100)]
    outputs, labels = map(torch.cat, zip(*pairs, strict=True))
    return torch.stack([outputs[labels == number].mean(0) for number in range(2)])


def of_public_rows(training: Training) -> Tensor:
    x, _ = records_of(training)
    return softmax(training.model(torch.randn(40, x.shape[1])), 1).mean(0).log()


def logged(training: Training) -> Tensor:
    return mean_prediction(training)  # the loss does not read it


def shifted(outputs: Tensor, labels: Tensor, prior: Tensor) -> Tensor:
    return cross_entropy(outputs + prior, labels, reduction="none")


def near(outputs: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    return (outputs - centroids[labels]).square().sum(1)


def plain(outputs: Tensor, labels: Tensor, _: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


@pytest.mark.ci
@pytest.mark.parametrize(("compute", "loss"), [(mean_prediction, shifted), (centroids_of_loader, near)])
def test_statistics_of_all_records_in_the_loss_leave_the_claim_open(tmp_path: Path, compute, loss) -> None:
    found = recorded(tmp_path / "run", EachEpoch(compute, loss))
    assumption = found.assumption("unmixed-batches")
    assert (found.run.fact(Replays).computing > 0, assumption.status) == (True, "unchecked")
    assert "from all records or from earlier batches" in assumption.text


@pytest.mark.ci
@pytest.mark.parametrize(("compute", "loss"), [(of_public_rows, shifted), (logged, plain)])
def test_statistics_of_public_rows_and_logs_leave_nothing_open(tmp_path: Path, compute, loss) -> None:
    found = recorded(tmp_path / "run", EachEpoch(compute, loss))
    assert (found.run.fact(Replays).computing, found.assumption("unmixed-batches").status) == (0, "declared")


@pytest.mark.ci
@pytest.mark.parametrize("is_read", [True, False])
def test_a_statistic_of_the_batches_of_an_epoch_leaves_the_claim_open(tmp_path: Path, is_read: bool) -> None:
    found = recorded(tmp_path / "run", OfBatches(weighted if is_read else logged_only))
    status = "unchecked" if is_read else "declared"
    assert (found.run.fact(Replays).computing > 0, found.assumption("unmixed-batches").status) == (is_read, status)


def weighted(losses: Tensor, statistic: Tensor) -> Tensor:
    return losses * torch.sigmoid(statistic - losses.detach())


def logged_only(losses: Tensor, statistic: Tensor) -> Tensor:
    return losses
