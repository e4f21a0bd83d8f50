"""Values that a script computes from all records between steps, and that the next steps read."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun
from support.opacus_training import Training, recorded
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax
from torch.utils.data import DataLoader

from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.step_replay.calls import Pauses, StepCalls
from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.facts import DATASET
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.origins import SumOrigins
from dpspec_recording.step_replay.trace import StepTrace

pytest.importorskip("opacus")

RECORDS, WIDTH, BATCH = 50, 6, 7


def origins(x: Tensor, *parameters: Tensor) -> SumOrigins:
    return SumOrigins(parameters, Pauses(), [x])


def is_moved(found: SumOrigins, step: Callable[[Tensor, Tensor], Tensor], computed: Tensor) -> bool:
    """Whether the sum of a step moves with values that the script computed of the dataset or of earlier batches."""
    batch, trace = torch.randn(BATCH, WIDTH), StepTrace()
    trace.start()
    total = step(batch, computed)
    trace.stop()
    found.steps.clear()
    drawn = DrawnRecords((), torch.arange(BATCH), RECORDS)
    found.note(TracedStep(trace, [batch], {id(batch)}, drawn=drawn), [total])
    return found.steps[DATASET] > 0


def moves(compute: Callable[[Tensor], Tensor], step: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """The same of what it computes now."""
    x, weight = torch.randn(RECORDS, WIDTH), torch.ones(WIDTH)
    found = origins(x, weight)
    found.between.start()
    computed = compute(x)
    found.between.stop()
    return is_moved(found, step, computed)


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
    found = origins(x)
    assert not found.choose_step(2)
    found.between.start()
    kept = [x.mean(0)]
    found.between.stop()
    assert [step for step in range(2, 40) if found.choose_step(step)] == [2, 4, 8, 16, 32]
    kept.clear()
    found.between.of_dataset.forget_released()
    assert not found.choose_step(64)


def test_calls_within_a_step_are_followed_from_its_batch():
    found, table = origins(torch.randn(RECORDS, WIDTH)), torch.zeros(3, WIDTH)
    calls = StepCalls()
    calls.observe = found.between.of_dataset.follow_call
    earlier = torch.randn(BATCH + 1, WIDTH)
    found.between.of_dataset.add([earlier])
    calls.start()
    table[1] = earlier.square().mean(0)
    public = torch.zeros_like(earlier) + 1.0
    calls.stop()
    for computed, moved in ((table, True), (public, False)):
        assert is_moved(found, lambda batch, computed: centered(batch, computed[1]), computed) == moved


def test_physical_batches_of_one_loaded_batch_are_no_earlier_batch():
    found = origins(torch.randn(RECORDS, WIDTH))
    parts = torch.randn(2 * BATCH - 1, WIDTH).tensor_split(2)

    def is_dataset(batch: Tensor) -> bool:
        trace = StepTrace()
        trace.start()
        total = batch.sum(0) + parts[1].sum(0)
        trace.stop()
        found.steps.clear()
        found.note(TracedStep(trace, [batch], {id(batch)}), [total])
        return found.steps[DATASET] > 0

    found.between.load([parts[0]._base])
    assert not is_dataset(parts[0])
    assert is_dataset(torch.randn(BATCH, WIDTH))  # another batch, which the loader did not return
    following = torch.randn(BATCH, WIDTH)
    found.between.load([following])
    assert is_dataset(following)


def test_a_tensor_without_a_memory_ends_the_search_alone(monkeypatch):
    x = torch.randn(RECORDS, WIDTH)
    found = origins(x)
    found.between.start()
    monkeypatch.setattr("dpspec_recording.step_replay.followed_values.written_by", None)
    assert x.mean(0).shape == (WIDTH,)
    found.between.stop()
    assert not found.between.of_dataset.is_followed
    assert not found.choose_step(2)


def of_dataset(found: CheckedRun) -> int:
    """The number of steps whose sum depends on values that the script computed."""
    replays = found.run.fact(Replays)
    assert replays is not None
    return replays.origins.get(DATASET, 0)


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
    assert (of_dataset(found) > 0, assumption.status) == (True, "unchecked")
    assert "from all records or from earlier batches" in assumption.text


@pytest.mark.ci
@pytest.mark.parametrize(("compute", "loss"), [(of_public_rows, shifted), (logged, plain)])
def test_statistics_of_public_rows_and_logs_leave_nothing_open(tmp_path: Path, compute, loss) -> None:
    found = recorded(tmp_path / "run", EachEpoch(compute, loss))
    assert (of_dataset(found), found.assumption("unmixed-batches").status) == (
        0,
        "declared",
    )


@pytest.mark.ci
@pytest.mark.parametrize("is_read", [True, False])
def test_a_statistic_of_the_batches_of_an_epoch_leaves_the_claim_open(tmp_path: Path, is_read: bool) -> None:
    found = recorded(tmp_path / "run", OfBatches(weighted if is_read else logged_only))
    status = "unchecked" if is_read else "declared"
    assert (of_dataset(found) > 0, found.assumption("unmixed-batches").status) == (
        is_read,
        status,
    )


def weighted(losses: Tensor, statistic: Tensor) -> Tensor:
    return losses * torch.sigmoid(statistic - losses.detach())


def logged_only(losses: Tensor, statistic: Tensor) -> Tensor:
    return losses
