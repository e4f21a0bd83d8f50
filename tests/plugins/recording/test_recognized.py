"""Parts that the recorder recognizes, and repeated records of datasets."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.optimizers.ddp_perlayeroptimizer import SimpleDistributedPerLayerOptimizer
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from support.checked_runs import checked
from support.opacus_training import RECORDS, Training, recorded
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import dpspec
from dpspec.errors import UsageError
from dpspec_recording.recognized import largest_multiplicity, refuse_other_loader, sampler_of

DATA = TensorDataset(torch.zeros(40, 3))


@pytest.fixture
def way():
    return Training().build()


class Own(DPOptimizer):
    pass


class Evens(Sampler):
    def __iter__(self):
        yield from ([0, 2], [4])


def unmade(kind, **attributes):
    """A module of a class, without the processes that its constructor needs."""
    found = object.__new__(kind)
    nn.Module.__init__(found)
    vars(found).update(attributes)
    return found


def test_unknown_parts_are_refused_by_name(way, tmp_path):
    kind, raw, other = SimpleDistributedPerLayerOptimizer, way.private.original_optimizer, Training().build()
    other.loader.distributed = True
    sharded = unmade(type("FSDPLinear", (FSDPModule, nn.Linear), {}))
    older = unmade(FullyShardedDataParallel, _fsdp_wrapped_module=nn.Linear(2, 2))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for given, words in (
        ({"optimizer": kind.__new__(kind)}, f"optimizer is {kind.__name__}: "),
        ({"optimizer": scaler}, "optimizer must be an optimizer of torch or Opacus, got torch.GradScaler"),
        ({"optimizer": Own(raw, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)}, "the recorder does"),
        ({"optimizer": raw, "engine": way.engine}, "optimizer is torch.SGD, which is not Opacus', and engine is"),
        ({"optimizer": None, "engine": way.engine}, "no optimizer was given, and engine is"),
        ({"engine": PrivacyEngineAdaptiveClipping()}, "engine is Opacus' PrivacyEngineAdaptiveClipping: its clip norm"),
        ({"model": sharded}, "FSDP2 shards the model, and optimizer is opacus.DPOptimizer: give make_private"),
        ({"model": older, "optimizer": None}, "model is FullyShardedDataParallel: Opacus does not know FSDP1"),
        ({"loader": other.loader}, "loader is a distributed DPDataLoader, and optimizer is opacus.DPOptimizer"),
        ({"model": nn.Linear(3, 3)}, "optimizer: 4 of its parameters are not in the model"),
        ({"rate": 0.1}, "rate: Opacus' optimizer and loader say so themselves; leave it out"),
    ):
        with pytest.raises(UsageError) as error:
            dpspec.record(tmp_path / "run", **{"model": way.model, "optimizer": way.private, **given})
        assert str(error.value).startswith(words)
        assert not (tmp_path / "run").exists()


def test_reports_are_for_custom_loops(way, tmp_path):
    inner = way.private.original_optimizer
    way.recorder(tmp_path / "own", optimizer=inner, engine=way.engine.accountant, loader=None)
    with way.recorder(tmp_path / "run") as run, pytest.raises(UsageError, match=r"run.noised is for custom loops"):
        run.noised(torch.zeros(3))


@pytest.mark.ci
def test_lightnings_own_wrapper_is_unwrapped(tmp_path):
    def wrapped(training):
        theirs = type("LightningOptimizer", (), {"__module__": "lightning.pytorch.core.optimizer"})()
        theirs.optimizer = training.private
        training.private = theirs

    def script(training):
        training.private = training.private.optimizer
        training.train()

    found = recorded(tmp_path / "run", script, prepare=wrapped)
    assert (found.verdict, found.run.header.optimizer) == ("proved", "DPOptimizer")


def test_a_wrapper_inside_opacus_optimizer_is_refused(way, tmp_path):
    """accelerate's prepare before make_private stopped the recorder with an AttributeError."""
    theirs = type("AcceleratedOptimizer", (), {"__module__": "accelerate.optimizer"})()
    theirs.optimizer, inner = way.private.original_optimizer, way.private.original_optimizer
    way.private.original_optimizer = theirs
    with pytest.raises(UsageError, match=r"steps AcceleratedOptimizer: call make_private first, and give its results"):
        way.recorder(tmp_path / "run")
    way.private.original_optimizer = inner


@pytest.mark.parametrize(
    ("loader", "scheme"),
    [
        (DataLoader(DATA, batch_size=4, shuffle=True), "shuffled"),
        (DataLoader(DATA, batch_size=4), "sequential"),
        (DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 40)), "weighted"),
        (DataLoader(DATA, batch_size=4, sampler=torch.utils.data.RandomSampler(DATA, replacement=True)), "weighted"),
        (DataLoader(DATA, batch_sampler=Evens()), "unknown"),
        (DataLoader(DATA, batch_sampler=BatchSampler(Evens(), 2, False)), "unknown"),
        (DataLoader(DATA, batch_size=None), "unknown"),
    ],
)
def test_samplers_are_known_by_name_or_not_at_all(loader, scheme):
    found = sampler_of(loader)
    assert found.scheme == scheme
    assert found.rate is None


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


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_a_claim_about_single_records_names_the_group_size(tmp_path: Path) -> None:
    training = Training().build()
    data: Any = training.loader.dataset
    twice = Subset(data, [*range(RECORDS // 2), *range(RECORDS // 2)])
    loader = DPDataLoader.from_data_loader(DataLoader(twice, batch_size=30))
    with training.recorder(tmp_path / "run", loader=loader):
        training.loader = loader
        training.train()
    single, pair = (checked(tmp_path / "run", epsilon=1e4, group_sizes=(size,)) for size in (1, 2))
    assert (single.verdict, pair.verdict) == ("open", "proved")
    assert "a record occurs 2 times: use --group-size 2" in single.reason
    assert next(c.status for c in single.channels if c.name == "sensitivity") == "violated"


def test_a_loader_for_validation_is_refused_and_the_right_one_named(tmp_path) -> None:
    """The recording compared steps with batches that no step used, and asked to drop unusable records."""
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
    validation = DataLoader(TensorDataset(torch.zeros(40, 6), torch.zeros(40).long()), batch_size=10)
    names = r"40 records .* one of 300 .* the loader that make_private returned .* another engine for a training"
    with pytest.raises(UsageError, match=names):
        training.recorder(tmp_path / "run", loader=validation)
    again = DataLoader(TensorDataset(*training.loader.dataset.tensors), batch_size=30)
    refuse_other_loader(training.engine, again)  # a dataset that was built again is not told from the first one
    refuse_other_loader(training.engine, training.loader)
    refuse_other_loader(training.engine.accountant, validation)
