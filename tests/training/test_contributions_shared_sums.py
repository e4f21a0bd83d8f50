"""What a step has just added up is not computed again for who asks for the very same, and for nobody else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpspec.contract.providers import TrainingJob
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.clipping import Clip, Flat
from dpspec.training.gradients.fetching import all_equal
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import Memory
from dpspec.training.loop.contributions import RecordsAndCanaries, clipped_sum, reuse_last_sum
from dpspec.training.loop.dpsgd import Contributions, Parts
from dpspec.training.loop.native import parts_of, train_with
from dpspec.training.measure.residuals import Residuals

#: What a pipeline makes of its parts, given the job.
Change = Callable[[TrainingJob, Parts], Parts]


def watched(job: TrainingJob, change: Change | None = None, *, kept: bool, told: bool = True) -> Memory:
    """All that whoever is told of batches sees of a run; ``kept``: while sums are."""
    watcher = Residuals(job, drawn=told)
    watcher.keep_log(job)
    job = replace(job, model=copy.deepcopy(job.model), observers=(watcher,))
    parts = parts_of(job)
    parts = parts if change is None else change(job, parts)
    if kept:
        with reuse_last_sum(watcher.model):
            train_with(job, parts)
    else:
        train_with(job, parts)
    return watcher.state()


def same(one: Memory, other: Memory) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Per sum of clipped gradients that is computed, of how many records."""
    sizes: list[int] = []
    compute = FlatModel.clipped_sum

    def counting(model: FlatModel, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> ClippedSum:
        sizes.append(len(x))
        return compute(model, state, x, y, clip)

    monkeypatch.setattr(FlatModel, "clipped_sum", counting)
    return sizes


@pytest.mark.parametrize("told", [True, False])
def test_the_same_bits_for_half_the_work(make_job, asked: list[int], told: bool) -> None:
    """Of who is told of batches, and of who is not where every batch is all of the records."""
    sampling = {"scheme": "poisson", "rate": 0.25} if told else {"scheme": "full"}
    job = make_job(steps=6, sampling=sampling)
    twice = watched(job, kept=False, told=told)
    computed = len(asked)
    asked.clear()
    assert same(watched(job, kept=True, told=told), twice)
    # The log asks once a phase what planted records add, of which there are none.
    assert (computed, len(asked)) == (2 * 6 + 1, 6 + 1)


class _Other:
    """Contributions that are not those of the records that are told of, the model, or the clip norm."""

    def __init__(self, made: Contributions, ask: Callable[..., Any]) -> None:
        self._made, self._ask = made, ask

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip, /) -> ClippedSum:
        found: ClippedSum = self._ask(self._made, state, indices, clip)
        return found


def asking(ask: Callable[..., Any]) -> Change:
    return lambda job, parts: replace(parts, contributions=_Other(parts.contributions, ask))


def of_other_rows(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Change:
    def changed(job: TrainingJob, parts: Parts) -> Parts:
        x, y = change(torch.tensor(job.x), torch.tensor(job.y))
        return replace(parts, contributions=RecordsAndCanaries(FlatModel(job.model), x, y))

    return changed


def of_another_model(change: Callable[[nn.Module], Any]) -> Change:
    def changed(job: TrainingJob, parts: Parts) -> Parts:
        change(job.model)
        x, y = torch.tensor(job.x), torch.tensor(job.y)
        return replace(parts, contributions=RecordsAndCanaries(FlatModel(job.model), x, y))

    return changed


class _Meanwhile:
    """Contributions of a model that is another one while they are computed."""

    def __init__(self, made: Contributions, model: nn.Module) -> None:
        self._made, self._model = made, model

    def __call__(self, state: Tensor, indices: Tensor, clip: Clip, /) -> ClippedSum:
        norm: Any = self._model[3]  # type: ignore[index]
        before, norm.eps = norm.eps, 0.1
        found = self._made(state, indices, clip)
        norm.eps = before
        return found


def in_place(made: Contributions, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
    found = made(state, indices, clip)
    found.sum.mul_(0.5)
    return found


def clipped_until_asked(made: Contributions, state: Tensor, indices: Tensor, clip: Clip) -> ClippedSum:
    norm = torch.tensor(2.0)
    found = made(state, indices, Flat(norm))  # type: ignore[arg-type]
    norm.fill_(1.0)
    return found


def exchanged(job: TrainingJob, parts: Parts) -> Parts:
    """Two vectors of five parameters each take each other's places."""
    model = FlatModel(job.model)
    names, shapes = list(model.layout.names), model.layout.shapes
    one, other = (place for place, shape in enumerate(shapes) if shape == (5,) and names[place].startswith("3"))
    names[one], names[other] = names[other], names[one]
    model.layout = flat_model.Layout(tuple(names), shapes)
    return replace(parts, contributions=RecordsAndCanaries(model, torch.tensor(job.x), torch.tensor(job.y)))


DEVIATING: dict[str, Change] = {
    "clips to twice the norm": asking(lambda made, state, indices, clip: made(state, indices, 2.0)),
    "clips to a norm that changes afterwards": asking(clipped_until_asked),
    "exchanges parameters": exchanged,
    "leaves a record out": asking(lambda made, state, indices, clip: made(state, indices[1:], clip)),
    "takes all records": asking(lambda made, state, indices, clip: made(state, torch.arange(40), clip)),
    "takes the model before": asking(lambda made, state, indices, clip: made(torch.zeros_like(state), indices, clip)),
    "moves the model": asking(lambda made, state, indices, clip: made(state + 1e-3, indices, clip)),
    "halves what it was given": asking(in_place),
    "trains on other rows": of_other_rows(lambda x, y: (x * 1.01, y)),
    "trains on other labels": of_other_rows(lambda x, y: (x, (y + 1) % 3)),
    "uses another activation": of_another_model(lambda model: model.__setitem__(2, nn.ReLU())),
    "uses another epsilon for a while": lambda job, parts: replace(
        parts, contributions=_Meanwhile(parts.contributions, job.model)
    ),
    "uses another epsilon": of_another_model(lambda model: setattr(model[3], "eps", 0.1)),
}


@pytest.mark.parametrize("how", DEVIATING)
def test_of_what_deviates_nothing_is_taken_over(make_job, how: str) -> None:
    """What is seen of such a pipeline is what was seen when everything was computed again, bit by bit."""
    job = make_job(steps=4)
    independent = watched(job, DEVIATING[how], kept=False)
    assert same(watched(job, DEVIATING[how], kept=True), independent)
    assert not same(independent, watched(job, kept=False))


def test_nothing_is_kept_elsewhere(make_job, rows, make_model, asked: list[int]) -> None:
    model, (x, y) = FlatModel(make_model("mlp")), rows("mlp", 9)
    contributions, state = RecordsAndCanaries(model, x, y), model.initial()
    with reuse_last_sum(model):
        found = contributions(state, torch.arange(9), 1.0)
        again = clipped_sum(model, state, x, y, 1.0)
        with reuse_last_sum(model):
            clipped_sum(model, state, x, y, 1.0)
        clipped_sum(model, state, x, y, 1.0)
        clipped_sum(FlatModel(make_model("mlp")), state, x, y, 1.0)  # for whom nothing was kept
    clipped_sum(model, state, x, y, 1.0)
    assert asked == [9] * 4
    assert torch.equal(found.sum, again.sum)
    assert torch.equal(found.norms, again.norms)


def network(**changes: Any) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(32, 3))
    model.register_buffer("mean", torch.zeros(2))
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def hooked(model: nn.Module) -> nn.Module:
    model[0].register_forward_hook(lambda *given: None)  # type: ignore[operator]
    return model


def frozen(model: nn.Module) -> nn.Module:
    next(model.parameters()).requires_grad_(False)
    return model


class _Own(nn.Linear):
    """A layer of somebody else's, with the attributes of another one."""


def test_models_are_alike_where_layers_attributes_and_hooks_are(make_model) -> None:
    assert flat_model.are_alike(network(), network())
    assert flat_model.are_alike(network(size=(1, 2.5), names=["a"]), network(size=(1, 2.5), names=["a"]))
    model = make_model("cnn")
    assert flat_model.are_alike(model, copy.deepcopy(model))


@pytest.mark.parametrize(
    "other",
    [
        hooked(network()),
        frozen(network()),
        network().eval(),
        network(size=(1, 2)),
        network(mean=torch.zeros(3)),
        network(table=torch.zeros(2)),
        nn.Sequential(*network().children()),
        nn.Sequential(*network().children(), nn.ReLU()),
    ],
)  # fmt: skip
def test_models_that_differ_are_not_alike(other: nn.Module) -> None:
    assert not flat_model.are_alike(network(), other)
    assert not flat_model.are_alike(other, network())


def test_what_cannot_be_told_is_not_alike() -> None:
    """A tensor that is neither a parameter nor a buffer, an object that does not say when it is another one."""
    for value in (torch.zeros(2), object()):
        model = network(value=value)
        assert flat_model.are_alike(model, model)
        assert not flat_model.are_alike(model, copy.deepcopy(model))
    assert not flat_model.are_alike(nn.Linear(2, 2), _Own(2, 2))


@pytest.mark.parametrize("kind", ["itself", "parameters as keys"])
def test_attributes_that_lead_nowhere_are_not_alike(make_model, kind: str) -> None:
    """A model that holds itself, or a table by parameter, is compared without an error, and not taken over."""
    model = make_model("mlp")
    model.held = [model] if kind == "itself" else {next(model.parameters()): 1.0}
    assert not flat_model.are_alike(model, copy.deepcopy(model))


class _Counting(nn.Module):
    """A layer of somebody else's whose outputs depend on how often any such layer was asked."""

    asked = 0

    def forward(self, x: Tensor) -> Tensor:
        _Counting.asked += 1
        return x * (1.0 + 0.2 * (_Counting.asked % 7))


def test_of_layers_that_are_not_known_nothing_is_taken_over(make_job, make_model) -> None:
    """They may depend on what is neither parameter, buffer nor attribute: a second call may find another value."""
    *layers, last = make_model("mlp").children()
    job = make_job(steps=4, model=nn.Sequential(*layers, _Counting(), last))
    seen = []
    for kept in (False, True):
        _Counting.asked = 0
        seen.append(watched(job, kept=kept))
    assert same(*seen)


def test_constants_are_compared_by_their_values() -> None:
    model, x, y = network(), torch.randn(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64)
    flat, other = FlatModel(model), FlatModel(network(mean=torch.ones(2)))
    assert flat.is_alike(other)
    asked = []
    compute = other.clipped_sum
    other.clipped_sum = lambda *given: (asked.append(1), compute(*given))[1]  # type: ignore[method-assign]
    with reuse_last_sum(other):
        RecordsAndCanaries(flat, x, y)(flat.initial(), torch.arange(5), 1.0)
        clipped_sum(other, flat.initial(), x, y, 1.0)
    assert asked == [1]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.zeros(3), torch.zeros(3), True),
        (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-45]), False),
        (torch.zeros(3), torch.zeros(4), False),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64), False),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), False),
    ],
)
def test_tensors_are_compared_entry_by_entry(one: Tensor, other: Tensor, equal: bool) -> None:
    assert all_equal([(torch.ones(1), torch.ones(1)), (one, other)]) is equal
