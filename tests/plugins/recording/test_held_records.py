"""Steps that read records of the dataset outside of their batch, and honest steps that read other tables."""

import random
from typing import Any

import pytest
import torch
from support.replayed_steps import CLIP, opacus_trace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpspec_recording.step_replay.held_records import DrawnRecords, HeldRecords, _equal_columns
from dpspec_recording.step_replay.measure import StepReplay, measure
from dpspec_recording.step_replay.trace import StepTrace

pytest.importorskip("opacus")

RECORDS, WIDTH = 60, 6
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(RECORDS, WIDTH, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
PUBLIC = torch.randn(RECORDS, WIDTH, generator=GENERATOR)
EDGES = torch.rand(RECORDS, RECORDS, generator=GENERATOR).softmax(1)
DRAWN = torch.randperm(RECORDS, generator=GENERATOR)[:16]


class Reading(nn.Module):
    """Classifies a record by its features and a context (b, 6) that a function computes."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.context, self.out = context, nn.Sequential(nn.Linear(2 * WIDTH, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.context(x, index)], 1))


def replayed(context: Any, features: Tensor = X, *, known: bool = True) -> StepReplay:
    """Replay a step on 16 of 60 records. known: whether the recorder knows the drawn indices and the dataset."""

    def loss(model: Any, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return cross_entropy(model(x, index), y)

    torch.manual_seed(2)
    model = Reading(context)
    batch = [features[DRAWN].clone(), Y[DRAWN], DRAWN.clone()]
    trace, sums, outputs, gradients = opacus_trace(model, loss, batch)
    drawn = DrawnRecords((X[DRAWN], Y[DRAWN]), DRAWN, RECORDS) if known else None
    rows = {"outputs": outputs, "gradients": gradients}
    return measure(
        trace, batch, sums, CLIP, **rows, drawn=drawn, randomness=random.Random(3), trained=[*model.parameters()]
    )


def class_means(table: Tensor) -> Any:
    return lambda x, index: (x[:, None] - torch.stack([table[c == Y].mean(0) for c in (0, 1)])).square().mean(1)


def retrieved(table: Tensor, labels: Tensor) -> Any:
    values = torch.cat([table[:, 1:], labels[:, None].float()], 1)
    return lambda x, index: (x @ table.T).softmax(1) @ values


COPY, TRANSPOSED = X.clone(), X.t()
STANDARDIZED = (X - 0.3) / 1.7
BANK = X.clone()
READING_ALL = {
    "the tensor of the dataset": lambda x, index: EDGES[index] @ X,
    "a copy": lambda x, index: EDGES[index] @ COPY,
    "an alias in another shape": lambda x, index: EDGES[index] @ TRANSPOSED.T,
    "a copy in another precision": lambda x, index: (EDGES.double()[index] @ X.double()).float(),
    "a precise copy made before": (lambda table: lambda x, index: (EDGES[index].double() @ table).float())(X.double()),
    "a standardized copy": lambda x, index: EDGES[index] @ STANDARDIZED,
    "some columns": (lambda table: lambda x, index: (EDGES[index] @ table).repeat(1, 3))(X[:, 1:3].clone()),
    "joined with labels": (lambda table: lambda x, index: (EDGES[index] @ table)[:, 1:])(
        torch.cat([X, Y[:, None].float()], 1)
    ),
    "a copy in half precision": (lambda table: lambda x, index: EDGES[index] @ table.float())(X.half()),
    "a list of records": (lambda rows: lambda x, index: EDGES[index] @ torch.stack(rows))([row.clone() for row in X]),
    "means of classes": class_means(X),
    "retrieval": retrieved(X, Y),
    "a nearest neighbor": lambda x, index: X[torch.cdist(x, X).topk(2, largest=False).indices[:, 1]],
    "labels of all": lambda x, index: x * Y.float().mean(),
    "a largest value of all": lambda x, index: x / X.abs().amax(0),
    "a bank that the step writes": lambda x, index: (BANK.mul_(0.5), EDGES[index] @ BANK)[1],
}
HONEST = {
    "a public table": lambda x, index: EDGES[index] @ PUBLIC,
    "its own row by index": lambda x, index: X[index] - 0.5,
    "its own row of a copy": lambda x, index: COPY[index],
    "public prototypes": lambda x, index: (x @ PUBLIC[:4].T).softmax(1) @ PUBLIC[:4],
    "public constants": lambda x, index: (x - PUBLIC.mean(0)) / PUBLIC.std(0),
    "a public table by label": lambda x, index: PUBLIC[:2][(x[:, 0] > 0).long()],
    "a table of numbers": lambda x, index: x + torch.arange(float(RECORDS))[:WIDTH],
}


@pytest.mark.family
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READING_ALL)
def test_steps_that_read_all_records_are_found(name: str) -> None:
    replay = replayed(READING_ALL[name])
    assert replay.abstained == ""
    assert replay.mixes_records, replay


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["the tensor of the dataset", "a copy", "an alias in another shape", "retrieval"])
def test_unknown_indices_leave_the_search_by_value(name: str) -> None:
    assert replayed(READING_ALL[name], known=False).mixes_records


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_that_changes_its_records_is_searched_by_index() -> None:
    """The batch has augmented records, and the forward pass reads those of the dataset."""
    augmented = X + 0.1 * PUBLIC
    assert replayed(READING_ALL["the tensor of the dataset"], augmented).mixes_records
    assert not replayed(HONEST["its own row by index"], augmented).mixes_records


@pytest.mark.family
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", HONEST)
def test_honest_steps_leave_other_rows(name: str, known: bool) -> None:
    replay = replayed(HONEST[name], known=known)
    assert replay.abstained == ""
    assert (replay.outputs_moved, replay.gradients_moved) == (0.0, 0.0)
    assert not replay.is_large


@pytest.mark.filterwarnings("ignore")
def test_a_logged_loss_over_all_records_does_not_hide_the_batch() -> None:
    """The number changes with the record, so the replay of the batch alone counts."""

    def logged(x: Tensor, index: Tensor) -> Tensor:
        assert X.square().mean().item() > 0.0
        return x

    replay = replayed(logged)
    assert replay.abstained == ""
    assert 0.0 < replay.sum_moved <= 2.0 + 1e-6


def test_a_replaced_record_is_replaced_in_each_alias() -> None:
    table = torch.randn(8, 5)
    first, transposed, trace = table[2:6].clone(), table.t(), StepTrace()
    trace.start()
    result = torch.cat([table.reshape(-1), transposed.reshape(-1), first.reshape(-1)])
    trace.stop()
    held = HeldRecords(trace, [first], [first])
    other = first.clone()
    other[1] = 7.0
    replay = trace.replay([(first, other)], [result], held.memory([1], [other]))[0]
    assert int((replay == 7.0).sum()) == 15
    assert not bool((table == 7.0).any())


def test_equal_records_are_not_replaced_for_each_other() -> None:
    table = torch.randn(8, 5)
    table[3] = table[2]
    first, trace = table[:6].clone(), StepTrace()
    trace.start()
    table.sum()
    trace.stop()
    held = HeldRecords(trace, [first], [first])
    assert bool(held)
    assert held.memory([2, 3], [first + 1.0]) == {}
    assert len(held.memory([1], [first + 1.0])) == 1


def test_a_scaled_column_of_records_is_found_with_its_factor_and_summand() -> None:
    records = X.double()
    table = torch.stack([3.0 - 2.5 * records[:, 4], PUBLIC[:, 0].double(), records[:, 1]], 1)
    found = _equal_columns(table, records, rounding=1e-9)
    assert [columns[:2] for columns in found] == [(0, 4), (2, 1)]
    assert [columns[2:] for columns in found] == [pytest.approx((-2.5, 3.0)), pytest.approx((1.0, 0.0), abs=1e-12)]
