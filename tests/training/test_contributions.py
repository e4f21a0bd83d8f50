"""Clipped sums over records, users and inserted canaries, and their expectation for an adversary."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from math import expm1
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.layers import one_by_one
from support.phases import phase_of
from support.seen_run import SeenRun
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpspec.contract import Cancelled, FrozenMap, Resumable, TrainingJob
from dpspec.contract.attacks import Records
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Poisson, TruncatedPoisson
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.persample import Clipper, FlatModel, per_example_gradients
from dpspec.training.loop import contributions
from dpspec.training.loop.contributions import (
    Estimated,
    Population,
    RecordsAndCanaries,
    Sample,
    SparseCanaries,
    clipped_sparse_sum,
    estimated,
    population,
)
from dpspec.training.loop.native import NativeTrainer, parts_of
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.run_evidence import replayed_step
from dpspec.training.measure.scores import RecordScores
from dpspec.training.measure.update_statistics import ResidualLog


class Dense:
    def __init__(self, canaries):
        self.count, self.gradients = canaries.count, canaries.gradients


@pytest.mark.rounding
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

#: The number of records of each user.
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
    existing = job.y[user] >= 0
    return one_by_one(job.model, torch.tensor(job.x[user][existing]), torch.tensor(job.y[user][existing])).double()


def clipped(vector: Tensor, clip_norm: float) -> Tensor:
    return vector * min(1.0, clip_norm / float(vector.norm()))


def choices(job: TrainingJob, user: int, most: int, clip_norm: float) -> list[Tensor]:
    rows = gradients(job, user)
    sets = itertools.combinations(range(len(rows)), min(most, len(rows)))
    return [clipped(rows[list(chosen)].mean(0), clip_norm) for chosen in sets]


@pytest.mark.rounding
@pytest.mark.parametrize("clip_norm", [0.3, 100.0])
def test_a_user_adds_the_clipped_mean_gradient_of_all_records(of_users: Any, clip_norm: float) -> None:
    job = of_users({"records_per_user": 4}, clip_norm=clip_norm)
    parts = parts_of(job)
    found = parts.contributions(parts.initial, torch.arange(10), clip_norm)
    wanted = [choices(job, user, 4, clip_norm)[0] for user in range(10)]
    torch.testing.assert_close(found.sum.double(), torch.stack(wanted).sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.norms, torch.stack(wanted).norm(dim=1), rtol=1e-5, atol=1e-6)


@pytest.mark.family
@pytest.mark.parametrize(("count", "most"), [(4, 2), (4, 1), (5, 3), (3, 2)])
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


@pytest.mark.rounding
@given(st.integers(0, 9), st.integers(1, 4), st.floats(0.05, 2.0), st.booleans(), st.integers(0, 1000))
def test_no_user_exceeds_the_clip_norm_for_any_records(user, most, clip_norm, broken, seed):
    """Explicit neighbors: a user with extreme records changes the sum, and no other user's part."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(25, 6)).astype(np.float32)
    job = replace(
        _plain_job(),
        phases=(phase_of(steps=1, clip=clip_norm, **{**BLOCK, "records_per_user": most}),),
        **dict(zip("xy", laid_out(x, x[:, 0] > 0), strict=True)),
    )
    job.x[user] *= 1e4
    if broken:
        job.x[user, 0] = np.inf
    kept = [other for other in range(10) if other != user]
    without = replace(job, x=job.x[kept], y=job.y[kept])
    clips = [clip_norm, Clipper(clip_norm, 0.1 * clip_norm)]
    for clip in clips:
        # The user stands last in the batch, so that all others throw the same coins as without.
        here, there = parts_of(job), parts_of(without)
        full = here.contributions(here.initial, torch.tensor([*kept, user]), clip)
        less = there.contributions(there.initial, torch.arange(9), clip)
        apart = float((full.sum.double() - less.sum.double()).norm())
        assert apart <= clip_norm * (1.0 + 1e-5) + 1e-5
        assert bool((full.norms <= clip_norm * (1 + 1e-9)).all())
        assert torch.allclose(full.norms[:9], less.norms, rtol=1e-5)


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


@pytest.mark.rounding
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
    # Per batch: q E|G|^2 - q^2 |E G|^2 for each user; the stated value is an upper bound, and exact without choices.
    q, sampler = 0.3, Poisson(10, 0.3, most)
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
    parts(state, torch.arange(64), 0.5)  # cached
    with Largest() as seen:
        parts(state, torch.arange(batch), 0.5)
    return seen.bytes


@pytest.mark.ci
@pytest.mark.usefixtures("small_pieces")
def test_memory_does_not_grow_with_the_batch(make_model, rows):
    """Memory does not grow, except 16 bytes per record for its index and norm."""
    small, large = (largest(make_model, rows, batch) for batch in (256, 2000))
    assert large <= max(small, 2000 * 16)
    assert large < rows("cnn", 2000)[0].nbytes / 4


@pytest.mark.rounding
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


#: Gradients of no more than one clip norm; the first two are the same, which Poisson batches do not keep apart.
CLIPPED = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.1, -0.3], [0.0, 0.0]], dtype=torch.float64)


def of(places: tuple[int, ...]) -> Estimated:
    some = CLIPPED[list(places)]
    factor = len(CLIPPED) / len(places)
    n, sampled = len(CLIPPED), float(some.square().sum())
    return Estimated(factor * some.sum(0), n, factor * n, sampled=sampled, places=torch.tensor(places), factor=factor)


def differences(q: float, size: int) -> Iterator[tuple[float, Tensor]]:
    """Every batch against every estimate: the probability, and the batch's sum less the estimated mean."""
    estimates = [of(places).mean(Poisson(5, q)) for places in combinations(range(5), size)]
    for coins in product((0, 1), repeat=5):
        chance = float(np.prod([q if coin else 1.0 - q for coin in coins])) / len(estimates)
        drawn = (torch.tensor(coins, dtype=torch.float64).unsqueeze(1) * CLIPPED).sum(0)
        yield from ((chance, drawn - estimate) for estimate in estimates)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("q", [0.1, 0.4])
def test_sum_and_spread_are_without_bias(q: float, size: int) -> None:
    """Over all samples there are, and all batches: the exact mean, and the exact squared distance."""
    samples = [of(places) for places in combinations(range(5), size)]
    assert torch.allclose(torch.stack([one.sum for one in samples]).mean(0), CLIPPED.sum(0))
    exact = sum(chance * float(rest.square().sum()) for chance, rest in differences(q, size))
    found = [float(one.spread(Poisson(5, q))) for one in samples]
    assert float(np.mean(found)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("q", "size"), [(0.1, 2), (0.4, 2), (0.4, 3), (0.8, 4), (0.9, 5)])
def test_charged_variance_bounds_every_exponential_moment(q: float, size: int) -> None:
    """E exp(l X) <= exp(V (e^l - 1 - l)) with the charged V, as Freedman's inequality asks, along many directions."""
    assert size >= q * 5
    one = of(tuple(range(size)))
    charged = q * (1.0 - q) * one.squares + q * q * one.within
    chances, rests = zip(*differences(q, size), strict=True)
    angles = torch.linspace(0.0, 2.0 * torch.pi, 37, dtype=torch.float64)
    along = torch.stack(rests) @ torch.stack([angles.cos(), angles.sin()])
    weights = torch.tensor(chances, dtype=torch.float64)
    assert torch.allclose(weights @ along, torch.zeros(37, dtype=torch.float64), atol=1e-12)
    assert float((weights @ along.square()).max()) <= charged
    for scale in (0.1, 0.5, 1.0, 2.0, 4.0):
        assert float((weights @ torch.exp(scale * along)).max()) <= np.exp(charged * (expm1(scale) - scale))


def test_samples_are_drawn_anew_and_without_replacement() -> None:
    sample = Sample(40, seed=7)
    first, again, other = sample.at(1, 100), sample.at(1, 100), sample.at(2, 100)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.unique(), first)
    assert (len(first), int(first[0]) >= 0, int(first[-1]) < 100) == (40, True, True)
    assert not torch.equal(first, Sample(40, seed=8).at(1, 100))
    assert not torch.equal(first, sample.at(1, 100, 1))
    counts = torch.stack([torch.bincount(sample.at(step, 100), minlength=100) for step in range(1000)]).sum(0)
    # Each of the hundred is drawn Binomial(1000, 0.4) times: six deviations either way.
    assert int(counts.min()) > 400 - 6 * 15.5
    assert int(counts.max()) < 400 + 6 * 15.5


def watched(make_job, sample: Sample | None, steps: int, **changes) -> Residuals:
    job = make_job(steps=steps, **changes)
    watcher = Residuals(job, sample=sample)
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    return watcher


@pytest.mark.rounding
def test_a_sample_of_all_records_measures_what_asking_them_does(make_job) -> None:
    """Along the update itself, without an error probability."""
    asked, sampled = (watched(make_job, sample, 12) for sample in (None, Sample(40, 3)))
    assert asked.log is not None
    assert sampled.log is not None
    assert sampled.log.along == asked.log.along
    assert sampled.log.variances == asked.log.variances


def drift(watcher: Residuals) -> float:
    """The mean of residuals along the expected updates, in deviations of it."""
    assert watcher.log is not None
    along = np.array(watcher.log.along)[:, 0]
    return float(along.mean() / (along.std(ddof=1) / np.sqrt(len(along))))


@pytest.mark.ci
def test_estimates_show_no_drift_along_another_one(make_job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along itself an estimate is too long, by its own error; along one that was made apart it is not."""

    def mean_drift() -> float:
        runs = (watched(make_job, Sample(16, seed), 60, seed=seed, noise_multiplier=0.05) for seed in range(2))
        return float(np.mean([drift(run) for run in runs]))

    # The mean of two runs deviates by 0.71.
    assert abs(mean_drift()) < 2.9
    add = ResidualLog.add
    monkeypatch.setattr(ResidualLog, "add", lambda log, step, *given: add(log, step, *given[:-1]))
    assert mean_drift() < -3.0


def test_a_resumed_run_sees_the_same(make_job) -> None:
    job, kept = make_job(steps=12), SeenRun()
    NativeTrainer().train(replace(job, observers=(kept,)))
    whole, half, other = (Residuals(job, sample=Sample(16, 3)) for _ in range(3))
    for watcher in (whole, half, other):
        watcher.keep_log(job)
    for step, state in enumerate(kept.states):
        whole.released(step, state)
        if step == 7:
            other.restore(half.state())
        (half if step < 7 else other).released(step, state)
    mine, theirs = whole.state(), other.state()
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_covariance_of_what_a_sample_leaves_open_is_without_bias(make_job, make_model, rows) -> None:
    q, (x, y) = 0.5, rows("mlp", 4)
    job = make_job(x=x.numpy(), y=y.numpy())
    canaries = rows("mlp", 2, seed=5)
    watcher = RecordScores(job, Records(canaries[0].numpy(), canaries[1].numpy()), np.array([1, 1]), 1)
    model, clip = watcher.model, next(iter(watcher.schedule)).clip
    state = model.initial()
    phase = replace(next(iter(watcher.schedule)), sampler=Poisson(4, q))
    planted = torch.cat(list(watcher._clipped(state, *canaries, phase)))
    real = torch.cat(list(watcher._clipped(state, x, y, phase)))
    samples = [torch.tensor(places) for places in combinations(range(4), 3)]
    found = [
        watcher._sampling(state, planted, phase, estimated(model, state, x, y, places, clip, phase.clip_norm))
        for places in samples
    ]
    products = (planted @ real.T).double()
    whole = products @ products.T
    # The batch's q (1 - q), and at most q^2 (n / s - 1) for the omitted records of the sample.
    assert torch.allclose(torch.stack(found).mean(0), (q * (1 - q) + q * q / 3.0) * whole, rtol=1e-5)
    assert torch.allclose(watcher._sampling(state, planted, phase), q * (1 - q) * whole, rtol=1e-5)


def test_expected_update_is_rate_times_the_clipped_sum(make_model, rows):
    x, y = rows("mlp", 30)
    model, other = make_model("mlp"), FlatModel(make_model("mlp", seed=3))
    gradients = per_example_gradients(model, x, y)
    by_hand = 0.3 * (gradients * (0.5 / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    flat, sampler = FlatModel(model), Poisson(30, 0.3)
    assert torch.allclose(population(flat, flat.initial(), x, y, 0.5).mean(sampler), by_hand, atol=1e-5)
    moved = population(flat, other.initial(), x, y, 0.5).mean(sampler)
    assert torch.allclose(moved, population(other, other.initial(), x, y, 0.5).mean(sampler), atol=1e-6)
    assert not torch.allclose(moved, by_hand, atol=1e-2)


@pytest.mark.parametrize("records", [4, 6])
def test_mean_and_spread_are_exact(records):
    """Compare with all batches and their probabilities; records after the fourth are canaries."""
    clipped = torch.tensor([[1.0, 0.5], [0.8, 0.0], [0.1, -0.3], [0.9, 0.4]], dtype=torch.float64)
    known = Population(clipped.sum(0), float(clipped.square().sum()))
    padded = torch.cat([clipped, torch.zeros(records - 4, 2, dtype=torch.float64)])
    batches = [batch for size in range(records + 1) for batch in combinations(range(records), size)]
    sums = torch.stack([padded[list(batch)].sum(0) for batch in batches])
    sizes = torch.tensor([len(batch) for batch in batches])
    poisson = 0.3**sizes * 0.7 ** (records - sizes)
    full = float(poisson[sizes >= 2].sum()) / int((sizes == 2).sum())  # all batches of two are equally likely
    for sampler, weights in (
        (Poisson(records, 0.3), poisson),
        (TruncatedPoisson(records, 0.3, 2), torch.where(sizes < 2, poisson, full * (sizes == 2))),
        (FixedSize(records, 3), (sizes == 3).double() / (sizes == 3).sum()),
    ):
        assert torch.allclose(known.mean(sampler), weights.double() @ sums)
        distance = (sums - weights.double() @ sums).square().sum(1)
        assert known.spread(sampler) == pytest.approx(float(weights.double() @ distance), rel=1e-6)


@pytest.mark.rounding
def test_one_step_on_users_adds_up(of_users: Any) -> None:
    found = replayed_step(NativeTrainer(), of_users(clip_norm=0.3))
    assert found is not None
    assert found.records == 10
    assert found.random <= found.rounding
    assert found.apart < 1e-4
