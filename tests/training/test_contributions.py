"""Clipped sums over records, users and inserted canaries."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpspec.contract import Cancelled, FrozenMap, Resumable, TrainingJob
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.clipping import PerLayer, Truncated
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop import contributions
from dpspec.training.loop.contributions import (
    RecordsAndCanaries,
    SparseCanaries,
    clipped_sparse_sum,
    population,
)
from dpspec.training.loop.native import NativeTrainer, parts_of
from dpspec.training.loop.samplers import Poisson, PoissonUsers, sampler_of


class Dense:
    def __init__(self, canaries):
        self.count, self.gradients = canaries.count, canaries.gradients


@pytest.mark.parametrize("spread", [0.0, 0.4])
@pytest.mark.parametrize("clip_norm", [0.3, 20.0])
def test_sparse_sums_are_dense_sums(make_model, rows, clip_norm, spread):
    x, y = rows("mlp", 10)
    model = FlatModel(make_model("mlp"))
    canaries = CanaryGroups(SignBlocks(63, 9, seed=1), torch.tensor([0, 0, 3, 8, 8, 8]), 10.0, spread=spread, seed=2)
    assert isinstance(canaries, SparseCanaries)
    assert not isinstance(Dense(canaries), SparseCanaries)
    state, batch = model.initial(), torch.tensor([1, 5, 10, 11, 13, 14])
    sparse, dense = (RecordsAndCanaries(model, x, y, c)(state, batch, clip_norm) for c in (canaries, Dense(canaries)))
    assert torch.allclose(sparse.sum, dense.sum, atol=1e-5)
    assert torch.allclose(sparse.norms, dense.norms, rtol=1e-6)
    assert float(sparse.norms.max()) <= clip_norm


def test_nothing_and_what_is_not_finite_add_nothing(make_model):
    class Broken:
        count = 2

        def sparse(self, indices):
            values = torch.tensor([[1.0, 2.0], [math.inf, 1.0]])
            return torch.tensor([[0, 1], [1, 2]])[indices], values[indices]

        def gradients(self, indices):
            raise AssertionError("the sparse form is there")

    state = torch.zeros(5)
    empty = clipped_sparse_sum(Broken(), state, torch.tensor([], dtype=torch.int64), 1.0)
    assert torch.equal(empty.sum, state)
    assert len(empty.norms) == 0
    both = clipped_sparse_sum(Broken(), state, torch.tensor([0, 1]), 1.0)
    assert torch.allclose(both.sum, torch.tensor([1.0, 2.0, 0, 0, 0]) / 5**0.5)
    assert both.norms.tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("parameters", [60, 65])
@pytest.mark.parametrize("spread", [0.1, 1.2])
def test_members_are_turned_by_the_angle_each_its_own_way_within_their_support(parameters, spread):
    """Blocks of 12 and of 13: an odd block leaves one coordinate unturned."""
    blocks = SignBlocks(parameters, 5, seed=0)
    groups = CanaryGroups(blocks, torch.tensor([2] * 4 + [4]), 10.0, spread=spread, seed=3)
    unit = groups.gradients(torch.arange(5)) / 10.0
    assert torch.allclose(unit.norm(dim=1), torch.ones(5), atol=1e-6)
    shared = blocks.directions(torch.tensor([2, 2, 2, 2, 4]))
    assert torch.allclose((unit * shared).sum(1), torch.full((5,), math.cos(spread)), atol=1e-6)
    others = blocks.directions(torch.tensor([0, 1, 3]))
    assert torch.equal(unit @ others.T, torch.zeros(5, 3))
    pairs = [float((unit[i] - unit[j]).norm()) for i in range(4) for j in range(i)]
    assert min(pairs) > 0.1 * math.sin(spread)
    assert not torch.allclose(
        unit, CanaryGroups(blocks, groups.owner, 10.0, spread=spread, seed=4).gradients(torch.arange(5)) / 10.0
    )


BLOCK = {"scheme": "poisson", "unit": "user", "rate": 0.3, "records_per_user": 2}

#: How many records each of the users has.
COUNTS = (1, 4, 2, 3, 4, 1, 2, 4, 3, 1)


@pytest.fixture
def of_users(make_job: Callable[..., TrainingJob]) -> Callable[..., TrainingJob]:
    def make(sampling: dict[str, Any] | None = None, **changes: Any) -> TrainingJob:
        made = make_job(**{"sampling": FrozenMap({**BLOCK, **(sampling or {})}), **changes})
        x, y = laid_out(made.x, made.y)
        return replace(made, x=x, y=y, expected_batch_size=3.0)

    return make


def laid_out(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    rows = np.zeros((len(COUNTS), 4, *x.shape[1:]), dtype=np.float32)
    labels = np.full((len(COUNTS), 4), -1)
    place = 0
    for user, count in enumerate(COUNTS):
        rows[user, :count], labels[user, :count] = x[place : place + count], y[place : place + count]
        place += count
    return rows, labels


def gradients(job: TrainingJob, user: int) -> Tensor:
    """(n, P) float64 of one user's records, by autograd, one after the other."""
    model, rows = job.model, []
    for x, y in zip(job.x[user], job.y[user], strict=True):
        if y >= 0:
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.tensor(x)[None]), torch.tensor([y])).backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    return torch.stack(rows)


def clipped(vector: Tensor, clip_norm: float) -> Tensor:
    return vector * min(1.0, clip_norm / float(vector.norm()))


def choices(job: TrainingJob, user: int, most: int, clip_norm: float) -> list[Tensor]:
    rows = gradients(job, user)
    sets = itertools.combinations(range(len(rows)), min(most, len(rows)))
    return [clipped(rows[list(chosen)].mean(0), clip_norm) for chosen in sets]


@pytest.mark.parametrize("clip_norm", [0.3, 100.0])
def test_a_user_adds_the_clipped_mean_gradient_of_all_records(of_users: Any, clip_norm: float) -> None:
    job = of_users({"records_per_user": 4}, clip_norm=clip_norm)
    parts = parts_of(job)
    found = parts.contributions(parts.initial, torch.arange(10), clip_norm)
    wanted = [choices(job, user, 4, clip_norm)[0] for user in range(10)]
    torch.testing.assert_close(found.sum.double(), torch.stack(wanted).sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.norms, torch.stack(wanted).norm(dim=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "most"), [(4, 1), (4, 2), (5, 3), (3, 2)])
def test_each_choice_is_made_as_often_and_each_user_chooses_alone(count: int, most: int) -> None:
    """chi-square at 1e-4 of 6000 pairs of users, of each one's choices and of both together."""
    there = torch.arange(5).expand(6000, 2, 5) < count
    weights = contributions.random_choice_weights(there.reshape(-1, 5), most, torch.Generator().manual_seed(count))[
        :, 0
    ]
    sets = [tuple(row.nonzero().flatten().tolist()) for row in weights]
    ways = sorted(itertools.combinations(range(count), most))
    alone, both = Counter(sets), Counter(zip(sets[::2], sets[1::2], strict=True))
    assert stats.chisquare([alone[way] for way in ways]).pvalue > 1e-4
    assert stats.chisquare([both[pair] for pair in itertools.product(ways, ways)]).pvalue > 1e-4
    assert sum(alone[way] for way in ways) == 12000


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(1, 4), st.floats(0.05, 2.0), st.booleans(), st.integers(0, 1000))
def test_no_user_weighs_more_than_the_clip_norm_whatever_the_records_are(
    user: int, most: int, clip_norm: float, broken: bool, seed: int
) -> None:
    """On explicit neighbours: the sum with a user, whose records are extreme, and without; nobody else's part moves."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(25, 6)).astype(np.float32)
    job = replace(
        _plain_job(), phases=(_phase(clip_norm, most),), **dict(zip("xy", laid_out(x, x[:, 0] > 0), strict=True))
    )
    job.x[user] *= 1e4
    if broken:
        job.x[user, 0] = np.inf
    kept = [other for other in range(10) if other != user]
    without = replace(job, x=job.x[kept], y=job.y[kept])
    clips = [clip_norm, PerLayer(clip_norm), Truncated(clip_norm, 0.1 * clip_norm)]
    for clip in clips:
        # The user stands last in the batch, so that all others throw the same coins as without.
        here, there = parts_of(job), parts_of(without)
        full = here.contributions(here.initial, torch.tensor([*kept, user]), clip)
        less = there.contributions(there.initial, torch.arange(9), clip)
        apart = float((full.sum.double() - less.sum.double()).norm())
        assert apart <= clip_norm * (1.0 + 1e-5) + 1e-5
        assert bool((full.norms <= clip_norm * (1 + 1e-9)).all())
        assert torch.allclose(full.norms[:9], less.norms, rtol=1e-5)


def _phase(clip_norm: float, most: int) -> FrozenMap:
    block = FrozenMap({**BLOCK, "records_per_user": most})
    return FrozenMap({"steps": 1, "noise_multiplier": 1.0, "clip_norm": clip_norm, "sampling": block})


def _plain_job() -> TrainingJob:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return TrainingJob(
        x=np.zeros((1, 1, 6)),
        y=np.zeros((1, 1), dtype=np.int64),
        model=model,
        phases=(),
        options=FrozenMap({"learning_rate": 0.5, "reduction": "sum"}),
        expected_batch_size=1.0,
        device="cpu",
        seed=3,
    )


def test_users_are_drawn_by_the_coins_of_as_many_records() -> None:
    sampler, plain = sampler_of(BLOCK, 10), Poisson(10, 0.3)
    assert sampler == PoissonUsers(10, 0.3, 2)
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    assert all(torch.equal(sampler.draw(one), plain.draw(other)) for _ in range(9))


@pytest.mark.parametrize("most", [1, 2, 4])
def test_what_users_add_on_average_is_known_exactly(of_users: Any, most: int) -> None:
    job = of_users(clip_norm=0.2)
    model = FlatModel(job.model)
    x, y = torch.tensor(job.x), torch.tensor(job.y)
    known = population(model, model.initial(), x, y, 0.2, most)
    each = [torch.stack(choices(job, user, most, 0.2)) for user in range(10)]
    mean = torch.stack([one.mean(0) for one in each])
    squares = [float(one.square().sum(1).mean()) for one in each]
    torch.testing.assert_close(known.sum.double(), mean.sum(0), rtol=1e-5, atol=1e-6)
    assert known.squares == pytest.approx(sum(squares), rel=1e-5)
    # Of a batch: q E|G|^2 - q^2 |E G|^2 for each; what is stated is no less, and no more where nothing is chosen.
    q, sampler = 0.3, PoissonUsers(10, 0.3, most)
    exact = sum(q * square - q * q * float(m.square().sum()) for square, m in zip(squares, mean, strict=True))
    assert known.spread(sampler) >= exact * (1 - 1e-5)
    if most == 4:
        assert known.spread(sampler) == pytest.approx(exact, rel=1e-5)
    torch.testing.assert_close(known.mean(sampler), q * known.sum)


def test_a_stopped_run_goes_on_to_the_same_bit(of_users: Any, tmp_path: Path) -> None:
    whole, resumed = of_users(steps=12), of_users(steps=12)
    NativeTrainer().train(whole)
    where, seen = Resumable(folder=tmp_path / "state", steps=1), list[int]()
    watched = replace(resumed, resumable=where, progress=lambda step, total: seen.append(step))
    with pytest.raises(Cancelled):
        NativeTrainer().train(replace(watched, cancelled=lambda: len(seen) == 5))
    NativeTrainer().train(watched)
    assert seen == list(range(1, 13))
    assert torch.equal(flat_model.flatten(resumed.model), flat_model.flatten(whole.model))


def test_runs_of_users_are_trained_in_turn(of_users: Any) -> None:
    jobs = [of_users(seed=1), of_users(seed=2)]
    NativeTrainer().train_many(jobs)
    alone = of_users(seed=2)
    NativeTrainer().train(alone)
    assert torch.equal(flat_model.flatten(jobs[1].model), flat_model.flatten(alone.model))


def test_a_job_and_its_phases_speak_of_the_same(of_users: Any, make_job: Any) -> None:
    with pytest.raises(ValueError, match="its phases draw records"):
        parts_of(replace(of_users(), phases=make_job().phases))
    with pytest.raises(ValueError, match="users must be"):
        parts_of(make_job(sampling=FrozenMap(BLOCK)))
    job = of_users()
    with pytest.raises(ValueError, match="all phases must sample users"):
        parts_of(replace(job, phases=(*job.phases, *make_job().phases)))
    empty = of_users()
    empty.y[3] = -1
    with pytest.raises(ValueError, match="every user needs a record"):
        parts_of(empty)


class Largest(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(contributions, "_COPIED", 32 * 1024)
    monkeypatch.setitem(memory._PREFERRED, "cpu", 64 * 1024)


def largest(make_model, rows, batch):
    """The largest tensor of a step on ``batch`` of 4000 rows, whose own storages are looked into, not made."""
    x, y = rows("cnn", 4000)
    parts = RecordsAndCanaries(FlatModel(make_model("cnn")), x, y)
    state = parts._model.initial()
    parts(state, torch.arange(64), 0.5)  # what is found out once is found
    with Largest() as seen:
        parts(state, torch.arange(batch), 0.5)
    return seen.bytes


@pytest.mark.usefixtures("small_pieces")
def test_memory_does_not_grow_with_the_batch(make_model, rows):
    """But for 16 bytes a record: its index, and its norm."""
    small, large = (largest(make_model, rows, batch) for batch in (256, 4000))
    assert large <= max(small, 4000 * 16)
    assert largest(make_model, rows, 4000) < rows("cnn", 4000)[0].nbytes / 4


@pytest.mark.usefixtures("small_pieces")
def test_the_sum_is_that_of_all(make_model, rows):
    x, y = rows("cnn", 700)
    model = FlatModel(make_model("cnn"))
    drawn = torch.arange(0, 700, 2)
    found = RecordsAndCanaries(model, x, y)(model.initial(), drawn, 0.5)
    gradients = per_example_gradients(model, x[drawn], y[drawn]).double()
    norms = gradients.norm(dim=1)
    clipped = gradients * (0.5 / norms).clamp(max=1.0)[:, None]
    assert torch.allclose(found.sum.double(), clipped.sum(0), rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.norms, norms.clamp(max=0.5), rtol=1e-5)
    empty = RecordsAndCanaries(model, x, y)(model.initial(), drawn[:0], 0.5)
    assert not empty.sum.any()
    assert len(empty.norms) == 0
