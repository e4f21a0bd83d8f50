"""Datasets that make windows or copies when they are read, and honest ones."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.rules.duplicate_records import DuplicateRecords
from dpspec_recording.rules.paired_records import PairedRecords

GENERATOR = torch.Generator().manual_seed(1)
SERIES = torch.randn(520, 3, generator=GENERATOR)
TEXT = torch.randint(0, 60, (520,), generator=GENERATOR)
BASE = TensorDataset(torch.randn(50, 12, generator=GENERATOR), torch.arange(50) % 2)
MODEL = torch.nn.Linear(12, 2)


def caution(rule: Any, dataset: Dataset[Any], group_size: int = 1) -> str:
    rule.start(RuleSetup(model=MODEL, loader=DataLoader(dataset, batch_size=5)))
    rule.stop()
    return str(type(rule).caution(rule.facts(), RuleRun(own_loop=False, steps=10, delta=1e-5, group_size=group_size)))


class Windows(Dataset[Any]):
    """Windows of 20 values that begin at every ``step``-th."""

    def __init__(self, values: Any, step: int, form: str = "pair") -> None:
        self.values, self.step, self.form = values, step, form

    def __len__(self) -> int:
        return (len(self.values) - 20) // self.step

    def __getitem__(self, index: int) -> Any:
        start = index * self.step
        window, target = self.values[start : start + 20], self.values[start + 20]
        return {"pair": (window, target), "single": window, "named": {"input_ids": window, "label": target}}[self.form]


@pytest.mark.parametrize(("step", "in_rows"), [(1, 20), (5, 4), (20, 0)])
@pytest.mark.parametrize("form", ["pair", "single", "named"])
@pytest.mark.parametrize("values", [SERIES, SERIES[:, 0], TEXT, TEXT.numpy()], ids=["steps", "series", "text", "array"])
def test_windows_that_are_cut_when_they_are_read_overlap(values: Any, form: str, step: int, in_rows: int) -> None:
    data = Windows(values, step, form)
    assert (f"a value is in up to {in_rows} rows" in caution(PairedRecords(), data)) is (in_rows > 0)
    assert caution(DuplicateRecords(), data) == ""


def test_windows_of_a_subset_are_those_of_the_loader() -> None:
    data = Windows(SERIES[:, 0], 1)
    disjoint = Subset(data, range(0, 500, 20))
    assert caution(PairedRecords(), disjoint) == ""
    some = Subset(data, torch.randperm(500)[:400].tolist())
    assert "a value is in up to 20 rows" in caution(PairedRecords(), some)


class Copies(Dataset[Any]):
    """Several indices for each record, with another augmentation at each reading."""

    def __init__(self, copies: int, form: str) -> None:
        self.base, self.copies, self.form = BASE, copies, form

    def __len__(self) -> int:
        return self.copies * len(self.base)

    def __getitem__(self, index: int) -> Any:
        x, y = self.base[index // self.copies if self.form == "neighbors" else index % len(self.base)]
        x = x.flip(0) if random.random() < 0.5 else x
        return x + 0.1 * torch.randn_like(x) + float(np.random.normal()), y


@pytest.mark.parametrize("form", ["neighbors", "passes"])
@pytest.mark.parametrize("copies", [2, 4])
def test_augmented_copies_at_several_indices_are_counted(copies: int, form: str) -> None:
    data = Copies(copies, form)
    state = torch.get_rng_state(), random.getstate()
    found = caution(DuplicateRecords(), data)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert f"dataset[i + {1 if form == 'neighbors' else 50}]" in found
    assert f"--group-size {copies}" in found
    assert caution(DuplicateRecords(), data, group_size=copies) == ""
    assert caution(PairedRecords(), data) == ""


class Function(Dataset[Any]):
    """A record by a function of its index."""

    def __init__(self, function: Any) -> None:
        self.function, self.base = function, BASE

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def _of_its_index(index: int) -> Tensor:
    return torch.randn(12, generator=torch.Generator().manual_seed(index))


HONEST = {
    "one index for each record": lambda index: _of_its_index(index) + 0.1 * torch.randn(12),
    "no record at all": lambda index: torch.randn(12),
    "padding": lambda index: torch.cat([torch.zeros(100), _of_its_index(index)]),
    "a common row": lambda index: (torch.arange(30), _of_its_index(index)),
    "few values": lambda index: (_of_its_index(index)[:2] > 0.0).long(),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_datasets_have_no_copies_or_windows(name: str) -> None:
    assert caution(DuplicateRecords(), Function(HONEST[name])) == ""
    assert caution(PairedRecords(), Function(HONEST[name])) == ""


def test_datasets_that_cannot_be_read_are_not_tested() -> None:
    def fails(index: int) -> Any:
        raise OSError

    for data in (Function(fails), Function(lambda index: "text")):
        assert caution(DuplicateRecords(), data) == ""
        assert caution(PairedRecords(), data) == ""
