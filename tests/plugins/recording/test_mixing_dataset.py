"""Datasets whose records depend on others, and honest ones: augmentation, caches, public tables."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.observers.sensitivity.mixing_dataset import MixingDataset, MixingFacts, mixed_records

RECORDS = 60
X = torch.randn(RECORDS, 8, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
ARRAY = X.numpy().copy()
PUBLIC = torch.randn(RECORDS, 8, generator=torch.Generator().manual_seed(2))
RUN = RuleRun(own_loop=False, steps=10, delta=1e-5)
SOURCE = np.random.default_rng(3)


class Records(Dataset[Any]):
    """Returns ``function(self, i)``. base: the records. state: what it writes."""

    def __init__(self, function: Any, **attributes: Any) -> None:
        self.function, self.base, self.state = function, TensorDataset(X, Y), dict[Any, Any]()
        vars(self).update(attributes)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.function(self, index)


class OwnGlobal(Records):
    """Reads its own row of a global tensor, and draws from a global generator."""

    def __getitem__(self, index: int) -> Any:
        return X[index] + 0.1 * float(SOURCE.normal()), Y[index]


def pasted(data: Any, index: int) -> Any:
    x, y = data.base[index]
    other, _ = data.base[random.randrange(RECORDS)]
    return torch.cat([x[:5], other[5:]]), y


def cached(data: Any, index: int) -> Any:
    return data.state.setdefault(index, (data.base[index][0] - 0.1) / 0.9)


def lazily_scaled_by_public(data: Any, index: int) -> Any:
    if "mean" not in data.state:
        data.state["mean"] = data.public.mean(0)
    return data.base[index][0] - data.state["mean"]


def with_unused_state(data: Any, index: int) -> Any:
    data.reads += 1
    data.queue.append(data.base[index][0])
    data.mean.add_(data.base[index][0])
    return data.base[index][0] - 0.1


def mosaic(data: Any, index: int) -> Any:
    """Load files of other records in half of the cases, as detection code does."""
    names = [data.names[index]]
    if random.random() < 0.5:
        names += random.choices(data.names, k=3)
    return [FILES[name] for name in names], data.labels[index]


class Nested(Records):
    """A dataset inside another one."""

    def __getitem__(self, index: int) -> Any:
        return self.inner[index], self.inner[(index * 7 + 1) % RECORDS][0]


ROWS = [{"x": row, "y": int(label)} for row, label in zip(X, Y, strict=True)]
FILES = {f"{index}.png": row for index, row in enumerate(X)}
MIXING = {
    "a mosaic of files": lambda: Records(mosaic, names=[*FILES], labels=Y),
    "a pasted patch": lambda: Records(pasted),
    "mixup": lambda: Records(lambda d, i: 0.7 * d.base[i][0] + 0.3 * d.base[int(torch.randint(RECORDS, ()))][0]),
    "a closure": lambda: Records(lambda d, i: d.x[i] + d.x[(i + 1) % RECORDS], x=X),
    "an array": lambda: Records(lambda d, i: torch.from_numpy(d.x[i] - d.x.mean(0)), x=ARRAY),
    "a list": lambda: Records(lambda d, i: d.rows[i]["x"] + d.rows[random.randrange(RECORDS)]["x"], rows=ROWS),
    "targets": lambda: Records(lambda d, i: (d.base[i][0], d.y[i] - d.y.mean()), y=X[:, 1].clone()),
    "a nested dataset": lambda: Nested(None, inner=TensorDataset(X, Y)),
    "a largest value": lambda: Records(lambda d, i: d.x[i] / d.x.abs().amax(0), x=X),
    "its own generator": lambda: Records(
        lambda d, i: d.x[i] + d.x[int(d.source.integers(RECORDS))], x=X, source=np.random.default_rng(1)
    ),
}
HONEST = {
    "tensors": lambda: TensorDataset(X, Y),
    "a list": lambda: ROWS,
    "its own record": lambda: Records(lambda d, i: d.base[i]),
    "augmentation": lambda: Records(lambda d, i: d.base[i][0] + 0.1 * torch.randn(8)),
    "augmentation by NumPy": lambda: Records(lambda d, i: d.x[i] * np.random.rand() + random.random(), x=ARRAY),
    "its own generator": lambda: Records(
        lambda d, i: d.x[i] + d.source.normal(), x=ARRAY, source=np.random.default_rng(1)
    ),
    "public constants": lambda: Records(lambda d, i: (d.x[i] - d.mean) / d.std, x=X, mean=0.1, std=1.2),
    "lazy public constants": lambda: Records(lazily_scaled_by_public, public=PUBLIC),
    "a cache": lambda: Records(cached),
    "a state that is not used": lambda: Records(
        with_unused_state, reads=0, queue=deque[Tensor](maxlen=4), mean=torch.zeros(8)
    ),
    "public prototypes of classes": lambda: Records(lambda d, i: d.x[i] - d.of[int(d.y[i])], x=X, y=Y, of=PUBLIC[:2]),
    "a public table with as many rows": lambda: Records(
        lambda d, i: d.x[i] + d.public[int(10 * abs(float(d.x[i, 0])))], x=X, public=PUBLIC
    ),
    "a public table of tokens": lambda: Records(
        lambda d, i: d.public[d.tokens[i]], tokens=torch.arange(4 * RECORDS).view(RECORDS, 4) % RECORDS, public=PUBLIC
    ),
    "a shuffled order": lambda: Records(lambda d, i: d.base[d.order[i]], order=[*range(RECORDS)][::-1]),
    "a global": lambda: OwnGlobal(None),
    "unknown random numbers": lambda: Records(lambda d, i: d.x[i] + next(d.numbers), x=X, numbers=iter(range(999))),
}


def facts(dataset: Any, reads: int = 3) -> MixingFacts:
    """The facts of a training that reads some records."""
    rule = MixingDataset()
    rule.start(RuleSetup(model=nn.Identity(), loader=DataLoader(dataset)))
    for index in range(reads):
        dataset[index]
    rule.stop()
    return rule.facts()


@pytest.mark.parametrize("name", MIXING)
def test_records_that_depend_on_others_are_found(name: str) -> None:
    found = facts(MIXING[name]())
    assert 0 < found.mixed <= found.read
    assert found.mixed == found.read or name == "a mosaic of files"
    assert f"{found.read} records that were read again" in MixingDataset.caution(found, RUN)


@pytest.mark.family
@pytest.mark.parametrize("name", HONEST)
def test_honest_datasets_get_no_caution(name: str) -> None:
    found = facts(HONEST[name]())
    assert found.mixed == 0
    assert MixingDataset.caution(found, RUN) == ""


@pytest.mark.parametrize("name", ["tensors", "its own record", "augmentation", "a cache", "a public table of tokens"])
def test_honest_datasets_are_read(name: str) -> None:
    assert facts(HONEST[name]()).read >= 5


def test_datasets_inside_of_others_are_read() -> None:
    assert facts(Subset(Records(pasted), range(20))).mixed
    assert facts(ConcatDataset([TensorDataset(X, Y), Records(pasted)])).mixed
    assert not facts(Subset(Records(lambda d, i: d.base[i]), range(20))).mixed


def test_the_dataset_and_the_generators_stay() -> None:
    data = Records(cached, source=np.random.default_rng(1), x=X)
    before, states = X.clone(), (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    own = data.source.bit_generator.state
    facts(data, reads=0)
    facts(OwnGlobal(None), reads=0)
    assert data.state == {}
    assert data.source.bit_generator.state == own
    assert torch.equal(X, before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


def test_the_state_of_the_dataset_stays() -> None:
    data = Records(with_unused_state, reads=0, queue=deque[Tensor](maxlen=4), mean=torch.zeros(8))
    facts(data, reads=0)
    assert (len(data.queue), data.reads) == (0, 0)
    assert not data.mean.any()


def test_datasets_that_cannot_be_read_have_no_facts() -> None:
    def fails(data: Any, index: int) -> Tensor:
        raise OSError("no such file")

    assert facts(Records(fails), reads=0).read == 0
    assert facts(range(5), reads=0).read == 0


def test_only_the_generators_that_are_restored_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.manual_seed`` would leave generators of devices with a public seed, which later noise is drawn from."""
    monkeypatch.setattr(torch, "manual_seed", lambda _: pytest.fail("torch.manual_seed seeds all devices"))
    dataset = TensorDataset(torch.randn(20, 3), torch.arange(20))
    before = torch.get_rng_state()
    assert mixed_records(dataset)[0] > 0
    assert torch.equal(torch.get_rng_state(), before)
