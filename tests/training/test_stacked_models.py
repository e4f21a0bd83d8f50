"""The sums of many models at once equal a plain loop of autograd over models and records."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpspec.contract import Facts, FrozenMap
from dpspec.models.architectures import Transformer
from dpspec.training.canaries import SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import Clipper, per_example_gradients
from dpspec.training.gradients.stacked_models import StackedModel
from dpspec.training.loop.native import NativeTrainer, train_many
from dpspec.training.measure.residuals import SharedPopulations
from dpspec.training.measure.scores import ProjectionObserver

pytestmark = pytest.mark.rounding

RUNS, RECORDS, FEATURES, CLASSES = 3, 5, 6, 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)
        self.other = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        return self.head(x) + self.other(x) * self.other.weight.sum()


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.head, self.scale = nn.Linear(2, 7), nn.Linear(7, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        return self.head(torch.relu(self.rows(x.view(len(x), 3, 2))).mean(1)) * self.scale


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.fixed, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.fixed.requires_grad_(False)
        self.register_buffer("shift", torch.full((5,), 0.3))

    def forward(self, x):
        return self.last(torch.relu(self.fixed(self.first(x)) + self.shift))


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        facts = Facts(records=1, features=FEATURES, classes=CLASSES, shape=(FEATURES,), vocabulary=5)
        options = FrozenMap({"width": 4, "hidden": 3})
        self.scores = Transformer(options, facts).build(int(torch.randint(0, 99, ())))

    def forward(self, x):
        return self.scores((3.0 * x.abs()).clamp(max=4.0).long())


KINDS = {
    "texts": (Texts, 1),
    "linear": (lambda: nn.Linear(FEATURES, CLASSES), 1),
    "mlp": (lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, CLASSES)), 2),
    "tied": (Tied, 1),
    "sequence": (Sequence, 1),
    "frozen": (Frozen, 2),
    "convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, CLASSES)),
        1,
    ),
}


def made(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [KINDS[kind][0]() for _ in range(RUNS)]
        frozen = {name: p for name, p in models[0].named_parameters() if not p.requires_grad}
        x, y = torch.randn(RUNS, RECORDS, FEATURES), torch.randint(0, CLASSES, (RUNS, RECORDS))
    for model in models:  # frozen parameters are shared
        model.load_state_dict(frozen, strict=False)
    return models, torch.stack([flat_model.flatten(model) for model in models]), x, y


def by_hand(models, x, y, inside, how):
    names = flat_model.Layout.of(models[0]).names
    sums, norms = [], torch.zeros(inside.shape, dtype=torch.float64)
    for run, model in enumerate(models):
        own = dict(model.named_parameters())
        total = torch.zeros(sum(own[name].numel() for name in names), dtype=torch.float64)
        for record in inside[run].nonzero().flatten().tolist():
            loss = nn.functional.cross_entropy(model(x[run, record : record + 1]), y[run, record : record + 1])
            rows = [g.double() for g in torch.autograd.grad(loss, [own[name] for name in names])]
            squares = torch.stack([row.square().sum() for row in rows])[:, None]
            factors, _ = how.scale(squares)
            factors = factors.expand(len(rows), -1)
            clipped = torch.cat([(row * factor).flatten() for row, factor in zip(rows, factors, strict=True)])
            clipped = clipped.clamp(-how.coordinate_bound, how.coordinate_bound)
            norms[run, record] = clipped.norm()
            total += clipped
        sums.append(total)
    return torch.stack(sums), norms


@pytest.mark.parametrize(
    "how", [Clipper(0.3), Clipper(0.5, 0.05), Clipper(0.3, per_layer=True)], ids=["flat", "truncated", "per-layer"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_as_a_plain_loop(kind, how):
    models, states, x, y = made(kind)
    inside = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    stacked, sums = StackedModel(models[0], x.flatten(0, 1), y.flatten()), torch.zeros_like(states)
    norms = stacked.add_clipped(sums, states, x, y, inside, how)
    expected, lengths = by_hand(models, x, y, inside, how)
    assert torch.allclose(sums.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(norms, lengths, rtol=1e-5, atol=1e-9)
    assert not sums[2].any()
    assert not norms[~inside].any()
    before = sums.clone()
    stacked.add_clipped(sums, states, x, y, inside, how)
    assert torch.allclose(sums, 2 * before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [Clipper(0.3), Clipper(0.5, 0.05), Clipper(0.3, per_layer=True)])
def test_a_record_that_is_not_finite_counts_as_nothing(how):
    models, states, x, y = made("mlp")
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
    models, states, x, y = made(kind)
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
    found = whole._all(states, 0.5)
    for size in (1, 8):
        pieces._model.chunk = lambda how, size=size: size
        for one, other in zip(found, pieces._all(states, 0.5), strict=True):
            assert torch.allclose(one.sum, other.sum, atol=1e-4)
            assert one.squares == pytest.approx(other.squares, rel=1e-5)


def test_runs_at_once_go_on_in_smaller_pieces_where_memory_runs_out(make_job, monkeypatch):
    whole, refused = StackedModel.add_clipped, []

    def cramped(self, sums, states, x, y, inside, how):
        if inside.numel() > 7:
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
