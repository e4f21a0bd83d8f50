"""Steps that read a function of all records, and honest tables with as many rows."""

from typing import Any

import pytest
import torch
from support.replayed_steps import opacus_trace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from dpspec_recording.step_replay.dependencies import TracedStep, dependencies
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.origins import RecordTable, centered_distances, covariance_of

pytest.importorskip("opacus")

RECORDS, WIDTH = 200, 6
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(RECORDS, WIDTH, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
DRAWN = torch.randperm(RECORDS, generator=GENERATOR)[:16]
ENCODER = torch.randn(WIDTH, 6, generator=GENERATOR)
EMBEDDINGS, PUBLIC = torch.tanh(X @ ENCODER), torch.tanh(torch.randn(RECORDS, 6, generator=GENERATOR))
SCORES = torch.sigmoid(2.0 * X[:, 0] - X[:, 1])
QUANTILES = (X[:, 0].argsort().argsort() // (RECORDS // WIDTH + 1)).float()
#: Sorted and of few directions: its rows are similar to their neighbors, as no record is.
POSITIONS = torch.stack([(torch.arange(RECORDS) / 10.0**k).sin() for k in range(6)], 1)


class Reading(nn.Module):
    """Classifies a record by its features and a context (b, 6) that a function computes."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.context, self.out = context, nn.Linear(2 * WIDTH, 2)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.context(x, index)], 1))


def attention(table: Tensor) -> Any:
    return lambda x, index: (x @ ENCODER @ table.T).softmax(1) @ table


def reads(context: Any, *, known: bool = True) -> bool:
    def loss(model: Any, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return cross_entropy(model(x, index), y)

    model, batch = Reading(context), [X[DRAWN].clone(), Y[DRAWN], DRAWN.clone()]
    trace, sums, *_ = opacus_trace(model, loss, batch)
    indices = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(2))[:150]
    sample = ((X[indices], Y[indices]), indices) if known else None
    drawn = DrawnRecords((X[DRAWN], Y[DRAWN]), DRAWN, RECORDS, lambda: sample)
    step = TracedStep(trace, batch, {id(tensor) for tensor in (*batch, *model.parameters())}, drawn=drawn)
    return bool(dependencies(step, sums, {"table": RecordTable()}))


READING_ALL = {
    "a bank of embeddings": attention(EMBEDDINGS),
    "a bank of embeddings, transposed": (lambda table: lambda x, i: (x @ ENCODER @ table).softmax(1) @ table.T)(
        EMBEDDINGS.T.contiguous()
    ),
    "labels of the nearest": (lambda labels: lambda x, i: (x @ X.T).softmax(1) @ labels.repeat(1, 3))(
        one_hot(Y, 2).float()
    ),
    "scores of all": lambda x, index: x * SCORES.mean(),
    "quantiles of all that pick rows": lambda x, index: x * ENCODER[QUANTILES.long()].mean(0),  # others are no rows
}
HONEST = {
    "a public bank": attention(PUBLIC),
    "positions": attention(POSITIONS),
    "its own embedding": lambda x, index: EMBEDDINGS[index],
    "its own score": lambda x, index: x * SCORES[index, None],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READING_ALL)
def test_functions_of_all_records_are_found(name: str) -> None:
    assert reads(READING_ALL[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONEST)
def test_honest_tables_are_not(name: str) -> None:
    assert not reads(HONEST[name])


@pytest.mark.filterwarnings("ignore")
def test_without_the_dataset_nothing_is_found() -> None:
    assert not reads(READING_ALL["a bank of embeddings"], known=False)


def test_distances_are_centered_by_rows_and_columns() -> None:
    """Distances without centered rows would be correlated for any two tables with the same distant rows."""
    distances = centered_distances(torch.cat([torch.randn(30, 4, generator=GENERATOR), torch.full((2, 4), 50.0)]))
    assert torch.allclose(distances.sum(0), torch.zeros(32, dtype=torch.double), atol=1e-9)
    assert torch.allclose(distances.sum(1), torch.zeros(32, dtype=torch.double), atol=1e-9)


@pytest.mark.family
@pytest.mark.parametrize("dimensions", [1, 2, 6])
def test_the_limit_holds_for_independent_rows(dimensions: int) -> None:
    """Few dimensions have the heaviest tail: 60 independent pairs stay far below the limit of 20."""
    generator, largest = torch.Generator().manual_seed(dimensions), 0.0
    for _ in range(60):
        rows = torch.randn(2, 60, dimensions, generator=generator, dtype=torch.double)
        first, second = map(centered_distances, rows)
        largest = max(largest, covariance_of(first, second))
    assert largest < 12.0
