"""Records that occur several times in a dataset, found through the wrappers of torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import RECORDS, Training
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import dpspec
from dpspec.recording.recognized import largest_multiplicity


def numbered(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


BASE, TENSOR = numbered(10), torch.arange(10)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (BASE, 1),
        (Subset(BASE, [1, 2, 3]), 1),
        (Subset(BASE, [1, 2, 1, 1]), 3),
        (Subset(BASE, [9, -1]), 2),
        (ConcatDataset([BASE, numbered(10)]), 1),
        (ConcatDataset([BASE, BASE, BASE]), 3),
        (ConcatDataset([TensorDataset(TENSOR), TensorDataset(TENSOR)]), 2),
        (ConcatDataset([Subset(BASE, [0, 1]), Subset(BASE, [2, 3])]), 1),
        (ConcatDataset([Subset(BASE, [0, 1]), Subset(BASE, [1, 3])]), 2),
        (Subset(ConcatDataset([BASE, numbered(5), BASE]), [0, 3, 15, 10]), 2),
        (Subset(Subset(BASE, [4, 4, 5]), [0, 1, 0, 2]), 3),
        (Subset(BASE, []), 1),
        (Endless(), 1),
        (None, 1),
    ],
)
def test_the_multiplicity_is_that_of_the_most_frequent_record(dataset: Any, expected: int) -> None:
    assert largest_multiplicity(dataset) == expected


def test_random_nestings_agree_with_the_records_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        dataset: Any = numbered(7)
        for _ in range(3):
            size = len(dataset)
            chosen = torch.randint(0, size, (size,), generator=generator).tolist()
            other = Subset(dataset, torch.randperm(size, generator=generator)[: size // 2 + 1].tolist())
            dataset = ConcatDataset([Subset(dataset, chosen), other])
        counts = Counter(int(dataset[i][0]) for i in range(len(dataset)))
        assert largest_multiplicity(dataset) == max(counts.values())


def checked(folder: Path, group_size: int) -> CheckedRun:
    question = Question(delta=1e-5, epsilon=1e4, group_sizes=(group_size,))
    return check_run(folder, question)


@pytest.mark.filterwarnings("ignore")
def test_a_claim_about_single_records_names_the_group_size(tmp_path: Path) -> None:
    training = Training()
    training.build()
    data: Any = training.loader.dataset
    twice = Subset(data, [*range(RECORDS // 2), *range(RECORDS // 2)])
    loader = DPDataLoader.from_data_loader(DataLoader(twice, batch_size=30))
    parts: Any = {"model": training.model, "optimizer": training.optimizer_, "loader": loader}
    with dpspec.record(tmp_path / "run", engine=training.engine, **parts):
        training.loader = loader
        training.train()
    single, pair = checked(tmp_path / "run", 1), checked(tmp_path / "run", 2)
    assert (single.verdict, pair.verdict) == ("open", "proved")
    assert "a record occurs 2 times in the dataset of the loader: use --group-size 2" in single.reason
    assert next(c.status for c in single.channels if c.name == "sensitivity") == "violated"
