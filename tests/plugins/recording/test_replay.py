"""``dpspec.replay`` finds constants that depend on the records, and no others."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from support.opacus_training import record_losses
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

import dpspec
from dpspec.errors import UsageError
from dpspec_recording.replay import neighbors_of

pytestmark = pytest.mark.filterwarnings("ignore")

Parts = dict[str, Any]


def rows(count: int = 210, features: int = 5) -> TensorDataset:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(count, features, generator=source)
    return TensorDataset(x, (x[:, 0] > 0).long())


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def opacus(
    dataset: Any, *, fault: str = "", clipping: str = "flat", optimizer: str = "sgd", declared: bool = True
) -> Parts:
    """Run a script with Opacus on a dataset; ``fault`` names the constant that depends on the records."""
    x, y = dataset.tensors
    clip = 1.0
    if fault == "quantile":
        clip = float(x.norm(dim=1).median())
    if fault == "maximum":
        clip = float(x.norm(dim=1).max())
    if fault == "normalisation":
        dataset = TensorDataset((x - x.mean(0)) / x.std(0), y)
    if fault == "in-model":
        model: nn.Module = nn.Sequential(nn.Linear(5, 2))
        model.register_buffer("mean", x.mean(0))
    else:
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    rate = 1.0 / len(x) if fault == "learning-rate" else 0.1
    model, made, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=kinds[optimizer](model.parameters(), lr=rate),
        data_loader=DataLoader(dataset, batch_size=20),
        noise_multiplier=float(x.std()) if fault == "noise" else 1.0,
        max_grad_norm=[clip] * len(list(model.parameters())) if clipping == "per_layer" else clip,
        clipping=clipping,
    )
    if declared:
        made.expected_batch_size = len(x) // 10 if fault == "divisor" else 20
        loader = DPDataLoader(dataset, sample_rate=0.1)
    found: Parts = {"model": model, "optimizer": made, "loader": loader, "loss": loss}
    if fault == "steps":
        found["steps"] = 10 * len(x)
    if fault == "schedule":
        found["scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=len(x) // 20)
    return found


@pytest.mark.family
@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_script_whose_constants_are_its_own_differs_in_nothing(clipping: str, optimizer: str) -> None:
    found = dpspec.replay(lambda dataset: opacus(dataset, clipping=clipping, optimizer=optimizer), rows())
    assert found.same
    assert (found.differences, found.unseen) == ((), ())
    assert {"divisor", "clip norm", "noise multiplier", "learning rate", "rate"} <= set(found.compared)
    assert {"records as prepared", "one step"} <= set(found.compared)
    found.require_same()


@pytest.mark.family
@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("divisor", {"divisor", "one step"}),
        ("quantile", {"clip norm", "one step"}),
        ("maximum", {"clip norm", "one step"}),
        ("noise", {"noise multiplier", "one step"}),
        ("normalisation", {"records as prepared"}),
        ("in-model", {"initial weights and buffers"}),
        ("learning-rate", {"learning rate", "one step"}),
        ("steps", {"steps"}),
        ("schedule", {"schedule's T_max"}),
    ],
)
def test_every_constant_from_the_records_is_found(fault: str, named: set[str]) -> None:
    found = dpspec.replay(lambda dataset: opacus(dataset, fault=fault), rows())
    assert {one.name for one in found.differences} == named
    assert not found.same
    with pytest.raises(AssertionError, match=f"{sorted(named)[0]} depends on the records"):
        found.require_same()


@pytest.mark.family
@pytest.mark.parametrize("record", [0, 17, -1])
@pytest.mark.parametrize("count", [203, 210])
def test_constants_of_opacus_are_found_for_any_number_of_records(count: int, record: int) -> None:
    """int(rate * records) is the same for 203 and 202 records; halving the data still finds the dependence."""
    found = dpspec.replay(lambda dataset: opacus(dataset, declared=False), rows(count), record=record)
    assert {"divisor", "rate", "steps of an epoch"} & {one.name for one in found.differences} >= {"rate"}
    by_one = dpspec.replay(lambda dataset: {"divisor": int(0.1 * len(dataset))}, rows(count), record=record)
    assert {one.name for one in by_one.differences} == {"divisor"}


@pytest.mark.family
@pytest.mark.parametrize("fault", ["", "quantile"])
def test_the_loss_of_each_record_is_as_good_as_their_mean(fault: str) -> None:
    """One loss does for ``run.score`` and for a replay."""
    mean = dpspec.replay(lambda dataset: opacus(dataset, fault=fault), rows())
    single = dpspec.replay(lambda dataset: {**opacus(dataset, fault=fault), "loss": record_losses}, rows())
    assert "one step" in single.compared
    assert single == mean


def linear(dataset: Any, **options: Any) -> tuple[Any, ...]:
    """What ``make_private`` returns for a linear model."""
    model = nn.Linear(5, 2)
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options}
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(dataset, batch_size=21)
    made: tuple[Any, ...] = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, criterion=nn.CrossEntropyLoss(), **given
    )
    return made


def test_losses_of_each_record_are_summed_where_the_optimizer_takes_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    kept = torch.Tensor.backward

    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        taken.append(float(self.detach()))
        kept(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", backward)

    def make(dataset: Any, reduction: str) -> Parts:
        model, made, _ = linear(dataset, loss_reduction=reduction)
        ones = {"loss": lambda model, batch: model(batch[0]).sum(1) * 0.0 + 1.0}
        return {"model": model, "optimizer": made, "dataset": dataset, **ones}

    for reduction, loss_of_eight in (("mean", 1.0), ("sum", 8.0)):
        taken.clear()
        dpspec.replay(lambda dataset, reduction=reduction: make(dataset, reduction), rows())
        assert set(taken) == {loss_of_eight}


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, batch: model(batch[0]), r"shape \(8,\), got shape \(8, 2\)"),
        (lambda model, batch: 1.0, "got float"),
        (lambda model, batch: None, "got NoneType"),
        (lambda model, batch: model(batch[0]).mean().detach(), "does not follow from the model's parameters"),
        (lambda model, batch: model(batch[0])[:3].mean(1), r"got shape \(3,\)"),
    ],
)
def test_a_loss_that_is_none_is_refused_by_its_name(loss: Any, words: str) -> None:
    with pytest.raises(UsageError, match=rf"loss\(model, batch\).*{words}"):
        dpspec.replay(lambda dataset: {**opacus(dataset), "loss": loss}, rows())


@pytest.mark.parametrize("given", ["criterion", "loss", ""])
def test_ghost_clipping_is_replayed_by_its_own_criterion_alone(given: str) -> None:
    """Another loss is not clipped, so a step on it would compare an impossible training."""

    def make(dataset: Any) -> Parts:
        clip = float(dataset.tensors[0].norm(dim=1).median()) / 50.0
        model, made, criterion, _ = linear(dataset, grad_sample_mode="ghost", max_grad_norm=clip)
        losses = {"loss": loss, "criterion": lambda model, batch: criterion(model(batch[0]), batch[1])}
        found = {"model": model, "optimizer": made}
        return {**found, "dataset": dataset, "loss": losses[given]} if given else found

    found = dpspec.replay(make, rows())
    if given == "criterion":
        assert "one step" in {one.name for one in found.differences}
    elif given == "loss":
        assert found.unseen == ("one step: ghost clipping is done by the criterion of make_private: return its loss",)
    else:
        assert any("one step: it needs a model, an optimizer, a loss" in reason for reason in found.unseen)
        assert any("no loader, and no dataset" in reason for reason in found.unseen)


@pytest.mark.ci
def test_a_replaced_record_leaves_the_number_alone() -> None:
    replacement = (torch.full((5,), 50.0), 1)
    counting = dpspec.replay(lambda dataset: opacus(dataset, fault="divisor"), rows(), replacement=replacement)
    assert counting.same
    found = dpspec.replay(lambda dataset: opacus(dataset, fault="normalisation"), rows(), replacement=replacement)
    assert {one.name for one in found.differences} == {"records as prepared"}


def test_a_loop_of_ones_own_names_its_constants() -> None:
    def make(dataset: Any) -> Parts:
        x = np.stack([row for row, _ in dataset])
        return {"steps": 100, "clip_norm": 1.0, "mean": x.mean(axis=0), "layers": [{"width": 3}]}

    found = dpspec.replay(make, [(np.ones(3) * i, 0) for i in range(10)])
    assert [one.name for one in found.differences] == ["mean"] * 3
    assert set(found.compared) == {"steps", "clip_norm", "mean", "layers"}
    assert "steps" in str(found).splitlines()[-3]


def test_a_script_that_withholds_records_is_not_taken_for_one_that_reads_them() -> None:
    """Validation records that are split off move all others, and random numbers with them: that shows no constant."""

    def make(dataset: Any) -> Parts:
        kept, _ = random_split(dataset, [0.8, 0.2])
        model = nn.Linear(5, 2)
        return {"model": model, "dataset": kept, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    found = dpspec.replay(make, rows())
    assert found.same
    assert any("make keeps 168 of 210 records" in reason for reason in found.unseen)
    assert any("draws more random numbers" in reason for reason in found.unseen)


def test_records_in_another_order_are_not_taken_for_changed_ones() -> None:
    def make(dataset: Any) -> Parts:
        order = random.sample(range(len(dataset)), len(dataset))
        return {"dataset": Subset(dataset, order)}

    found = dpspec.replay(make, rows(60))
    assert found.unseen[0] == "records as prepared: make puts them in another order"
    assert not found.same  # nothing was compared


def test_augmentation_is_compared_with_the_same_coins() -> None:
    class Noisy(Dataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __len__(self) -> int:
            return len(self.dataset)

        def __getitem__(self, index: int) -> Any:
            x, y = self.dataset[index]
            return x + torch.randn(5) + float(np.random.standard_normal()) + random.random(), y

    assert dpspec.replay(lambda dataset: {"dataset": Noisy(dataset)}, rows()).same


def test_generators_are_left_as_they_were() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    dpspec.replay(opacus, rows())
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": iter(())}, "map-style"),
        ({"dataset": [1, 2]}, "three records or more"),
        ({"record": 210}, "one of 210 records"),
        ({"record": True}, "one of 210 records"),
        ({"make": lambda dataset: 3}, "mapping from names to parts"),
        ({"make": lambda dataset: {"steps": object()}}, "not a constant"),
        ({"make": lambda dataset: {"model": 3}}, "torch.nn.Module"),
        ({"make": lambda dataset: {"optimizer": 3}}, "optimizer of torch or Opacus"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: Parts, message: str) -> None:
    asked = {"make": lambda dataset: {"steps": 1}, "dataset": rows(), **given}
    with pytest.raises(UsageError, match=message):
        dpspec.replay(asked.pop("make"), asked.pop("dataset"), **asked)


@given(st.integers(3, 40), st.data())
def test_neighbours_hold_what_they_say(count: int, data: st.DataObject) -> None:
    record = data.draw(st.integers(0, count - 1))
    for dataset in (list(range(count)), np.arange(count), torch.arange(count), range(count)):
        without, even, odd = neighbors_of(dataset, record)
        assert [int(without.dataset[i]) for i in range(count - 1)] == [i for i in range(count) if i != record]
        assert sorted([*even.place, *odd.place]) == list(range(count))
        for one in (without, even, odd):
            assert all(int(one.dataset[at]) == index for index, at in one.place.items())
        for one in neighbors_of(dataset, record, replacement=-1):
            assert len(one.dataset) == count
            assert [int(one.dataset[i]) for i in range(count)] == [i if i in one.place else -1 for i in range(count)]
