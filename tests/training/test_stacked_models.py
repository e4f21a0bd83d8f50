"""The sums of many models at once equal a plain loop of autograd over models and records."""

import copy
from dataclasses import replace

import pytest
import torch
from support.layers import made, one_by_one

from dpspec.training.canaries import SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import Clipper, per_example_gradients
from dpspec.training.gradients.stacked_models import StackedModel
from dpspec.training.loop.native import NativeTrainer, train_many
from dpspec.training.measure.residuals import SharedPopulations
from dpspec.training.measure.scores import ProjectionObserver

pytestmark = pytest.mark.rounding

RUNS, RECORDS = 3, 5

#: Models of :mod:`support.layers`, and one whose first layer is not trained.
KINDS = ("dense", "norms", "convolutions", "sequence, rows", "used twice", "also used elsewhere", "positions", "frozen")


def runs_of(kind):
    """Models with different weights, their flat parameters (R, P), records (R, c, ...) and labels (R, c)."""
    model, x, y, *_ = made("dense" if kind == "frozen" else kind)
    model, source = model.float(), torch.Generator().manual_seed(0)
    if kind == "frozen":
        model[0].requires_grad_(False)
    models = [copy.deepcopy(model) for _ in range(RUNS)]
    for other in models:
        for p in other.parameters():
            p.data += 0.1 * p.requires_grad * torch.randn(p.shape, generator=source)
    drawn = torch.stack([torch.randperm(len(x), generator=source)[:RECORDS] for _ in range(RUNS)])
    return models, torch.stack([flat_model.flatten(other) for other in models]), x.float()[drawn], y[drawn]


def by_hand(models, x, y, inside, how):
    sums, norms = [], torch.zeros(inside.shape, dtype=torch.float64)
    for run, model in enumerate(models):
        layout, drawn = flat_model.Layout.of(model), inside[run]
        rows = one_by_one(copy.deepcopy(model).double(), x[run].double(), y[run])[drawn]
        clipped = how.rows(layout, rows)
        norms[run, drawn] = clipped.norm(dim=1)
        sums.append(clipped.sum(0))
    return torch.stack(sums), norms


@pytest.mark.parametrize(
    "how", [Clipper(0.3), Clipper(0.5, 0.05), Clipper(0.3, per_layer=True)], ids=["flat", "truncated", "per-layer"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_as_a_plain_loop(kind, how):
    models, states, x, y = runs_of(kind)
    inside = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    stacked, sums = StackedModel(models[0], x.flatten(0, 1), y.flatten()), torch.zeros_like(states)
    norms = stacked.add_clipped(sums, states, x, y, inside, how)
    expected, lengths = by_hand(models, x, y, inside, how)
    assert torch.allclose(sums.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(norms, lengths, rtol=1e-5, atol=1e-9)
    assert not sums[2].any()
    assert not norms[~inside].any()
    before = sums.clone()
    stacked.add_clipped(sums, states, x, y, inside, how)
    assert torch.allclose(sums, 2 * before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [Clipper(0.3), Clipper(0.5, 0.05), Clipper(0.3, per_layer=True)])
def test_a_record_that_is_not_finite_counts_as_nothing(how):
    models, states, x, y = runs_of("dense")
    inside = torch.ones(RUNS, RECORDS, dtype=torch.bool)
    stacked = StackedModel(models[0], x.flatten(0, 1), y.flatten())
    broken = x.clone()
    broken[0, 1], broken[2, 4, 3] = torch.nan, torch.inf
    without = inside.clone()
    without[0, 1] = without[2, 4] = False
    sums, expected = torch.zeros_like(states), torch.zeros_like(states)
    norms = stacked.add_clipped(sums, states, broken, y, inside, how)
    assert torch.allclose(norms, stacked.add_clipped(expected, states, x, y, without, how), rtol=1e-5)
    assert torch.allclose(sums, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_directions_are_those_of_gradients_written_out(kind):
    models, states, x, y = runs_of(kind)
    stacked = StackedModel(models[0], x.flatten(0, 1), y.flatten())
    directions = torch.randn(states.shape, generator=torch.Generator().manual_seed(9))
    products, squares = stacked.along(states, directions, x, y)
    for run in range(RUNS):
        rows = per_example_gradients(models[0], x[run], y[run], state=states[run]).double()
        assert torch.allclose(products[run], rows @ directions[run].double(), rtol=1e-4, atol=1e-5)
        assert torch.allclose(squares[run], rows.square().sum(1), rtol=1e-4)


class InTurn:
    def train(self, job):
        NativeTrainer().train(job)


def watched(make_job, runs, **changes):
    jobs = [make_job(seed=seed, **changes) for seed in range(runs)]
    watchers = [ProjectionObserver(job, SignBlocks(63, 5, seed=seed)) for seed, job in enumerate(jobs)]
    return [replace(job, observers=(w,)) for job, w in zip(jobs, watchers, strict=True)], watchers


@pytest.mark.family
@pytest.mark.parametrize(("trainer", "clip_norm"), [(NativeTrainer(), 0.3), (InTurn(), 50.0)])
def test_together_they_see_what_they_see_alone(make_job, trainer, clip_norm):
    jobs, alone = watched(make_job, 4, clip_norm=clip_norm)
    for job in jobs:
        NativeTrainer().train(job)
    jobs, together = watched(make_job, 4, clip_norm=clip_norm)
    shared = SharedPopulations(together, make_job().model)
    assert all(w.x is together[0].x and w.populations is shared for w in together)
    train_many(trainer, jobs)
    for one, other in zip(alone, together, strict=True):
        assert one.steps == other.steps == 5
        assert torch.allclose(one.projections, other.projections, atol=1e-4)
        assert torch.allclose(one.squares, other.squares, rtol=1e-4)
        assert torch.allclose(one.spread, other.spread, rtol=1e-4)


def test_chunks_of_runs_and_records_change_nothing(make_job):
    _, watchers = watched(make_job, 3)
    whole, pieces = (SharedPopulations(watchers, make_job().model) for _ in range(2))
    states = torch.randn(3, 63, generator=torch.Generator().manual_seed(0))
    found = whole._all(states, [Clipper(0.5)] * 3)
    for size in (1, 8):
        pieces._model.chunk = lambda how, size=size: size
        for one, other in zip(found, pieces._all(states, [Clipper(0.5)] * 3), strict=True):
            assert torch.allclose(one.sum, other.sum, atol=1e-4)
            assert one.squares == pytest.approx(other.squares, rel=1e-5)


@pytest.mark.ci
def test_runs_at_once_go_on_in_smaller_pieces_where_memory_runs_out(make_job, monkeypatch):
    whole, refused = StackedModel.add_clipped, []

    def cramped(self, sums, states, x, y, inside, *how):
        if inside.numel() > 7:
            refused.append(inside.numel())
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return whole(self, sums, states, x, y, inside, *how)

    def seen():
        jobs, watchers = watched(make_job, 3, steps=2)
        SharedPopulations(watchers, make_job(steps=2).model)
        train_many(NativeTrainer(), jobs)
        return [(w.projections, w.squares, flat_model.flatten(j.model)) for j, w in zip(jobs, watchers, strict=True)]

    expected = seen()
    monkeypatch.setattr(StackedModel, "add_clipped", cramped)
    for one, other in zip(expected, seen(), strict=True):
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(one, other, strict=True))
    assert 2 <= len(refused) <= 2 * 20  # two who ask; no size that did not fit is tried twice
