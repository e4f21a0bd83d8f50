"""Watchers that ask together learn what each would have found alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpspec.training.canaries import SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.loop.native import NativeTrainer, train_many
from dpspec.training.measure.residuals import SharedPopulations
from dpspec.training.measure.scores import ProjectionObserver


class InTurn:
    """A trainer that knows one run at a time."""

    def train(self, job):
        NativeTrainer().train(job)


def watched(make_job, runs, **changes):
    jobs = [make_job(seed=seed, **changes) for seed in range(runs)]
    watchers = [ProjectionObserver(job, SignBlocks(63, 5, seed=seed)) for seed, job in enumerate(jobs)]
    return [replace(job, observers=(w,)) for job, w in zip(jobs, watchers, strict=True)], watchers


@pytest.mark.parametrize("trainer", [NativeTrainer(), InTurn()])
@pytest.mark.parametrize("clip_norm", [0.3, 50.0])
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


def test_each_step_is_computed_once_for_all(make_job):
    jobs, watchers = watched(make_job, 6)
    shared, asked = SharedPopulations(watchers, make_job().model), []
    compute = shared._all

    def counted(states, clip):
        asked.append(len(states))
        return compute(states, clip)

    shared._all = counted
    train_many(NativeTrainer(), jobs)
    assert asked == [6] * 5


def test_chunks_of_runs_and_records_change_nothing(make_job):
    _, watchers = watched(make_job, 5)
    whole, pieces = (SharedPopulations(watchers, make_job().model) for _ in range(2))
    states = torch.randn(5, 63, generator=torch.Generator().manual_seed(0))
    found = whole._all(states, 0.5)
    for size in (1, 3, 8):
        pieces._model.chunk = lambda how, size=size: size
        for one, other in zip(found, pieces._all(states, 0.5), strict=True):
            assert torch.allclose(one.sum, other.sum, atol=1e-4)
            assert one.squares == pytest.approx(other.squares, rel=1e-5)


@pytest.mark.parametrize("room", [1, 7, 60])
def test_runs_at_once_go_on_in_smaller_pieces_where_memory_runs_out(make_job, monkeypatch, room):
    """Training and watching, with the size that fits kept for all later steps."""
    whole, refused = StackedModel.add_clipped, []

    def cramped(self, sums, states, x, y, inside, how):
        if inside.numel() > room:
            refused.append(inside.numel())
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return whole(self, sums, states, x, y, inside, how)

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


@pytest.mark.parametrize(
    ("runs", "records", "chunk"), [(3, 5, 1), (3, 5, 4), (3, 5, 15), (1, 7, 3), (4, 0, 2), (5, 2, 99)]
)
def test_tiles_hold_every_record_of_every_model_once(runs, records, chunk):
    seen = torch.zeros(runs, records)
    for at in tiles(runs, records, chunk):
        seen[at] += 1
        assert 0 < seen[at].numel() <= chunk
    assert bool((seen == 1).all())
