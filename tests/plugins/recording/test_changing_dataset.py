"""Datasets whose values change during the training, and honest ones: augmentation, caches, unchanged values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.rules.changing_dataset import ChangedValues, ChangingDataset

RECORDS = 60
X = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(1))
RUN = RuleRun(own_loop=False, steps=10, delta=1e-5)


class Records(Dataset[Any]):
    """Returns ``function(self, i)``."""

    def __init__(self, function: Any, **attributes: Any) -> None:
        self.function, self.x = function, X.clone()
        vars(self).update(attributes)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.function(self, index)


def labeled(data: Any, index: int) -> Any:
    return data.x[index], data.labels[index]


def cached(data: Any, index: int) -> Any:
    if not data.filled[index]:
        data.cache[index], data.filled[index] = 2.0 * data.x[index], True
    return data.cache[index]


def cached_in_a_list(data: Any, index: int) -> Any:
    if data.cache[index] is None:
        data.cache[index] = 2.0 * data.x[index]
    return data.cache[index]


def augmented(data: Any, index: int) -> Any:
    return data.x[index] + torch.randn(4)


def facts(dataset: Any, change: Callable[[Any], None]) -> ChangedValues:
    """The facts of a training that reads all records, and changes the dataset in its middle."""
    rule = ChangingDataset()
    rule.start(RuleSetup(model=nn.Identity(), loader=DataLoader(dataset)))
    for half in (range(RECORDS // 2), range(RECORDS // 2, RECORDS)):
        for index in half:
            dataset[index % len(dataset)]
        change(dataset)
    rule.stop()
    return rule.facts()


def relabel(data: Any) -> None:
    data.labels = torch.arange(RECORDS) % 3


def relabel_in_place(data: Any) -> None:
    data.labels[:] = 1


def reweight(data: Any) -> None:
    data.weights *= 1.0 + np.arange(RECORDS)


def clean_one_in_three(data: Any) -> None:
    data.labels = [label if index % 3 else 9 for index, label in enumerate(data.labels)]


def relabel_tensors(data: Any) -> None:
    data.tensors = (data.tensors[0], torch.ones(RECORDS))


def relabel_records(data: Any) -> None:
    for index, (x, _) in enumerate(data):
        data[index] = (x, 5)


def grow(data: Any) -> None:
    data.inner.labels[3:] = -1


ZEROS = torch.zeros(RECORDS)
CHANGING = {
    "labels": (lambda: Records(labeled, labels=ZEROS), relabel, "Records.labels"),
    "labels in place": (lambda: Records(labeled, labels=ZEROS.clone()), relabel_in_place, "Records.labels"),
    "weights of NumPy": (lambda: Records(augmented, weights=np.ones(RECORDS)), reweight, "Records.weights"),
    "some labels of a list": (
        lambda: Records(labeled, labels=[0] * RECORDS),
        clean_one_in_three,
        "Records.labels",
    ),
    "a TensorDataset": (lambda: TensorDataset(X, ZEROS), relabel_tensors, "TensorDataset.tensors[1]"),
    "a list of records": (lambda: [(row, 0) for row in X], relabel_records, "list.records"),
    "a nested dataset": (
        lambda: Records(augmented, inner=Records(labeled, labels=ZEROS.clone())),
        grow,
        "Records.inner.labels",
    ),
}


def leave(data: Any) -> None:
    """Change nothing."""


def write_the_same(data: Any) -> None:
    data.labels = data.labels.clone()


def count_epochs(data: Any) -> None:
    data.epoch += 1


HONEST = {
    "nothing changes": (lambda: TensorDataset(X, ZEROS), leave),
    "augmentation": (lambda: Records(augmented), leave),
    "equal labels in a new tensor": (lambda: Records(labeled, labels=ZEROS), write_the_same),
    "the number of the epoch": (lambda: Records(augmented, epoch=0), count_epochs),
    "a cache with flags": (
        lambda: Records(cached, cache=torch.zeros(RECORDS, 4), filled=torch.zeros(RECORDS, dtype=torch.bool)),
        leave,
    ),
    "a cache with a list of flags": (
        lambda: Records(cached, cache=torch.zeros(RECORDS, 4), filled=[False] * RECORDS),
        leave,
    ),
    "a cache of None": (lambda: Records(cached_in_a_list, cache=[None] * RECORDS), leave),
    "a cache of NaN": (
        lambda: Records(cached, cache=torch.full((RECORDS, 4), torch.nan), filled=np.zeros(RECORDS, dtype=bool)),
        leave,
    ),
    "texts": (lambda: Records(labeled, labels=["a"] * RECORDS), leave),
    "one record": (lambda: [(X[0], 1)], leave),
}


@pytest.mark.parametrize("name", CHANGING)
def test_values_that_change_are_found(name: str) -> None:
    make, change, attribute = CHANGING[name]
    found = facts(make(), change)
    assert found.attribute == attribute
    assert 0 < found.changed <= found.compared == RECORDS
    assert f"rows of {attribute} have other values" in ChangingDataset.caution(found, RUN)


@pytest.mark.parametrize("name", HONEST)
def test_honest_datasets_get_no_caution(name: str) -> None:
    make, change = HONEST[name]
    found = facts(make(), change)
    assert found == ChangedValues()
    assert ChangingDataset.caution(found, RUN) == ""


def test_the_dataset_of_a_subset_is_compared() -> None:
    data = Records(labeled, labels=ZEROS)
    rule = ChangingDataset()
    rule.start(RuleSetup(model=nn.Identity(), loader=DataLoader(Subset(data, range(9)))))
    relabel(data)
    rule.stop()
    assert rule.facts().changed > 0


def test_the_dataset_stays_as_it_is() -> None:
    data = Records(cached, cache=torch.zeros(RECORDS, 4), filled=[False] * RECORDS)
    facts(data, leave)
    assert torch.equal(data.cache, 2.0 * X)
    assert all(data.filled)


def test_a_training_without_a_dataset_has_no_facts() -> None:
    rule = ChangingDataset()
    rule.start(RuleSetup(model=nn.Identity()))
    rule.stop()
    assert rule.facts() == ChangedValues()
