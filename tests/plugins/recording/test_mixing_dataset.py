"""Datasets whose records depend on others, and honest ones: augmentation, caches, public tables."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree
from sklearn.neighbors import BallTree, NearestNeighbors
from sklearn.preprocessing import QuantileTransformer, StandardScaler
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.rules.mixing_dataset import MixingDataset, MixingFacts, mixed_records

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


class Global(Records):
    """Reads a global tensor."""

    def __getitem__(self, index: int) -> Any:
        return torch.cat([X[index], X[(index + torch.arange(1, 4)) % RECORDS].mean(0)]), Y[index]


class GlobalArray(Records):
    """Reads a global array."""

    def __getitem__(self, index: int) -> Any:
        return ARRAY[index] - ARRAY[np.arange(RECORDS) != index].min(0), int(Y[index])


BASE = TensorDataset(X, Y)


class GlobalPaste(Records):
    def __getitem__(self, index: int) -> Any:
        return torch.cat([BASE[index][0][:5], BASE[(index + 7) % len(BASE)][0][5:]]), BASE[index][1]


FEW = TensorDataset(PUBLIC[:9])


class GlobalRecord(Records):
    """Reads its own record and public ones."""

    def __getitem__(self, index: int) -> Any:
        return BASE[index][0] - FEW[index % len(FEW)][0], BASE[index][1]


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


def lazily_scaled(data: Any, index: int) -> Any:
    """Computes constants at the first record, before the recording ends."""
    if "mean" not in data.state:
        data.state["mean"] = data.base.tensors[0].mean(0)
    return data.base[index][0] - data.state["mean"]


def lazily_scaled_by_public(data: Any, index: int) -> Any:
    if "mean" not in data.state:
        data.state["mean"] = data.public.mean(0)
    return data.base[index][0] - data.state["mean"]


class RunningMean:
    """A mean of the records until now, which is subtracted."""

    def __init__(self) -> None:
        self.mean = torch.zeros(8)

    def __call__(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x
        return x - self.mean


def centered_in_place(data: Any, index: int) -> Any:
    data.mean.mul_(0.9).add_(data.base[index][0], alpha=0.1)
    return data.base[index][0] - data.mean


def with_last(data: Any, index: int) -> Any:
    """Paste a patch of the record that was read before."""
    x = data.base[index][0]
    last = data.queue[-1] if data.queue else x
    data.queue.append(x)
    return torch.cat([x[:5], last[5:]])


def with_unused_state(data: Any, index: int) -> Any:
    data.reads += 1
    data.queue.append(data.base[index][0])
    data.mean.add_(data.base[index][0])
    return data.base[index][0] - 0.1


class Nested(Records):
    """A dataset inside another one."""

    def __getitem__(self, index: int) -> Any:
        return self.inner[index], self.inner[(index * 7 + 1) % RECORDS][0]


ROWS = [{"x": row, "y": int(label)} for row, label in zip(X, Y, strict=True)]
MIXING = {
    "a pasted patch": lambda: Records(pasted),
    "mixup": lambda: Records(lambda d, i: 0.7 * d.base[i][0] + 0.3 * d.base[int(torch.randint(RECORDS, ()))][0]),
    "neighbors in a global tensor": lambda: Global(None),
    "the minimum of a global array": lambda: GlobalArray(None),
    "a global dataset": lambda: GlobalPaste(None, base=None),
    "a closure": lambda: Records(lambda d, i: d.x[i] + d.x[(i + 1) % RECORDS], x=X),
    "an array": lambda: Records(lambda d, i: torch.from_numpy(d.x[i] - d.x.mean(0)), x=ARRAY),
    "a list": lambda: Records(lambda d, i: d.rows[i]["x"] + d.rows[random.randrange(RECORDS)]["x"], rows=ROWS),
    "targets": lambda: Records(lambda d, i: (d.base[i][0], d.y[i] - d.y.mean()), y=X[:, 1].clone()),
    "a nested dataset": lambda: Nested(None, inner=TensorDataset(X, Y)),
    "a largest value": lambda: Records(lambda d, i: d.x[i] / d.x.abs().amax(0), x=X),
    "lazy constants": lambda: Records(lazily_scaled),
    "a running mean in a part": lambda: Records(lambda d, i: d.scale(d.base[i][0]), scale=RunningMean()),
    "a running mean in place": lambda: Records(centered_in_place, mean=torch.zeros(8)),
    "the last record": lambda: Records(with_last, queue=deque[Tensor](maxlen=4)),
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
    "a global dataset": lambda: GlobalRecord(None, base=None),
    "unknown random numbers": lambda: Records(lambda d, i: d.x[i] + next(d.numbers), x=X, numbers=iter(range(999))),
}


def ranks(data: Any, index: int) -> Any:
    return np.array(
        [np.searchsorted(column, value) for column, value in zip(data.sorted.T, data.x[index], strict=True)]
    )


def ranks_in_lists(data: Any, index: int) -> Any:
    return np.array([np.searchsorted(column, value) for column, value in zip(data.sorted, data.x[index], strict=True)])


def transformed(data: Any, index: int) -> Any:
    return data.scale.transform(data.x[index][None])[0]


def near(data: Any, index: int) -> Any:
    return data.tree.query(data.x[index][None], k=3)[0]


def near_rows(data: Any, index: int) -> Any:
    return torch.cdist(data.x[index][None], data.bank).topk(3, largest=False).values


def binned(data: Any, index: int) -> Any:
    return np.digitize(data.x[index], data.edges)


INTEGERS = (ARRAY[:, 0] * 10.0).astype(int)
UNIFORM = np.random.default_rng(4).random((RECORDS, 3))
ORDER = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(5))
#: Datasets whose constructors computed values from the records: only these change with others.
DERIVED = {
    "ranks in sorted columns": lambda: Records(ranks, x=ARRAY, sorted=np.sort(ARRAY, axis=0)),
    "ranks in a list of columns": lambda: Records(ranks_in_lists, x=ARRAY, sorted=[*np.sort(ARRAY, axis=0).T]),
    "ranks in a list of numbers": lambda: Records(
        lambda d, i: np.searchsorted(d.sorted, d.x[i, 0]), x=ARRAY, sorted=sorted(ARRAY[:, 0].tolist())
    ),
    "ranks of integers": lambda: Records(
        lambda d, i: np.searchsorted(d.sorted, d.x[i]), x=INTEGERS, sorted=np.sort(INTEGERS)
    ),
    "a search tree of SciPy": lambda: Records(near, x=ARRAY, tree=KDTree(ARRAY)),
    "a search tree of scikit-learn": lambda: Records(near, x=ARRAY, tree=BallTree(ARRAY)),
    "nearest neighbors": lambda: Records(
        lambda d, i: d.tree.kneighbors(d.x[i][None])[0], x=ARRAY, tree=NearestNeighbors(n_neighbors=3).fit(ARRAY)
    ),
    "rows in another order": lambda: Records(near_rows, x=X, bank=X[ORDER]),
    "some of the rows": lambda: Records(near_rows, x=X, bank=X[ORDER[:9]]),
    "a table of deciles": lambda: Records(
        lambda d, i: (d.edges < d.x[i]).sum(0), x=ARRAY, edges=np.quantile(ARRAY, np.linspace(0.0, 1.0, 11), axis=0)
    ),
    "inner octiles": lambda: Records(
        binned, x=ARRAY[:, :1].copy(), edges=np.quantile(ARRAY[:, 0], np.linspace(0.0, 1.0, 9)[1:-1])
    ),
    "a fitted QuantileTransformer": lambda: Records(
        transformed, x=ARRAY, scale=QuantileTransformer(n_quantiles=20).fit(ARRAY)
    ),
    "a fitted StandardScaler": lambda: Records(transformed, x=ARRAY, scale=StandardScaler().fit(ARRAY)),
    "one mean and deviation": lambda: Records(
        lambda d, i: (d.x[i] - d.mean) / d.std, x=ARRAY, mean=ARRAY.mean(), std=float(ARRAY.std())
    ),
    "medians": lambda: Records(lambda d, i: d.x[i] - d.center, x=X, center=X.quantile(0.5, 0)),
}
PUBLIC_ARRAY = PUBLIC.numpy()
NOT_DERIVED = {
    "ranks in public columns": lambda: Records(ranks, x=ARRAY, sorted=np.sort(PUBLIC_ARRAY, axis=0)),
    "public edges": lambda: Records(binned, x=ARRAY, edges=np.linspace(-3.0, 3.0, 21)),
    "public edges of uniform numbers": lambda: Records(binned, x=UNIFORM, edges=np.linspace(0.0, 1.0, 11)),
    "one-hot labels": lambda: Records(lambda d, i: d.units[d.y[i]], y=Y, units=torch.eye(2)),
    "values that are not read": lambda: Records(
        lambda d, i: d.x[i], x=ARRAY, sorted=np.sort(ARRAY, axis=0), mean=ARRAY.mean(0), tree=KDTree(ARRAY)
    ),
    "its own row in another order": lambda: Records(
        lambda d, i: d.x[i] + d.flipped[RECORDS - 1 - i], x=X, flipped=X.flip(0)
    ),
    "a public order of indices": lambda: Records(
        lambda d, i: d.table[d.ids[i]] + d.order[d.ids[i] // 2], ids=ORDER, order=ORDER[ORDER], table=PUBLIC
    ),
    "a scaler of public rows": lambda: Records(transformed, x=ARRAY, scale=StandardScaler().fit(PUBLIC_ARRAY)),
    "quantiles of public rows": lambda: Records(
        transformed, x=ARRAY, scale=QuantileTransformer(n_quantiles=20).fit(PUBLIC_ARRAY)
    ),
    "a tree of public rows": lambda: Records(near, x=ARRAY, tree=KDTree(PUBLIC_ARRAY)),
    "a constant for all": lambda: Records(lambda d, i: d.x[i] - d.mean, x=np.full((RECORDS, 2), 0.25), mean=0.25),
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
    assert found.mixed == found.read > 0
    assert f"{found.read} records that were read again" in MixingDataset.caution(found, RUN)


@pytest.mark.family
@pytest.mark.parametrize("name", HONEST)
def test_honest_datasets_get_no_caution(name: str) -> None:
    found = facts(HONEST[name]())
    assert found.mixed == 0
    assert MixingDataset.caution(found, RUN) == ""


@pytest.mark.family
@pytest.mark.parametrize("name", DERIVED)
def test_values_computed_from_the_records_are_found(name: str) -> None:
    found = facts(DERIVED[name]())
    assert 0 < found.mixed <= found.read


@pytest.mark.family
@pytest.mark.parametrize("name", NOT_DERIVED)
def test_values_that_are_public_or_not_read_get_no_caution(name: str) -> None:
    assert facts(NOT_DERIVED[name]()).mixed == 0


@pytest.mark.parametrize(
    "name", ["tensors", "its own record", "augmentation", "a cache", "a public table of tokens", "a global dataset"]
)
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


@pytest.mark.parametrize("function", [with_last, centered_in_place, with_unused_state])
def test_the_state_of_the_dataset_stays(function: Any) -> None:
    data = Records(function, reads=0, queue=deque[Tensor](maxlen=4), mean=torch.zeros(8), scale=RunningMean())
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
