"""Gradient canaries, input canaries, and initial weights that an adversary chose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpspec.contract import Facts, FrozenMap
from dpspec.contract.attacks import Asked
from dpspec.models.architectures import Linear
from dpspec.registry.loader import resolve
from dpspec.training.canaries import TARGET_LOSS, CanaryGroups, PretrainedFactory, Records, SignBlocks, fit, plant
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.contributions import RecordsAndCanaries
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import SamplingLog
from dpspec.training.measure.scores import ProjectionObserver
from dpspec.training.providers import CANARIES

#: The kinds of records.
KINDS = tuple(canary.kind for canary in CANARIES if canary.space == "input")

Array = np.ndarray[Any, Any]


def make(
    kind: str, count: int, x: Array, y: Array, classes: int, seed: int, *, vocabulary: int | None = None
) -> Records:
    """``count`` canaries of a kind after the training records ``x``, ``y``."""
    (canary,) = [canary for canary in CANARIES if canary.kind == kind]
    features = int(np.prod(x.shape[1:]))
    facts = Facts(records=len(x), features=features, classes=classes, digest=None, vocabulary=vocabulary)
    made: Records = resolve(canary.make)(Asked(count=count, seed=seed, facts=facts, options=FrozenMap(), x=x, y=y))
    return made


@pytest.mark.parametrize(("parameters", "count"), [(63, 1), (63, 10), (63, 63), (100, 7)])
def test_orthonormal_and_projected(parameters, count):
    blocks = SignBlocks(parameters, count, seed=3)
    dense = blocks.directions(torch.arange(count))
    assert dense.shape == (count, parameters)
    assert torch.allclose(dense @ dense.T, torch.eye(count), atol=1e-6)
    assert bool((dense != 0).sum(1).eq(parameters // count).all())
    vector = torch.randn(parameters, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(blocks.project(vector), dense @ vector, atol=1e-6)
    assert torch.equal(blocks.directions(torch.tensor([count - 1, 0])), dense[[count - 1, 0]])


def test_the_seed_decides_and_the_global_generator_does_not():
    torch.manual_seed(0)
    first = SignBlocks(50, 5, seed=3).directions(torch.arange(5))
    torch.manual_seed(1)
    assert torch.equal(first, SignBlocks(50, 5, seed=3).directions(torch.arange(5)))
    assert not torch.equal(first, SignBlocks(50, 5, seed=4).directions(torch.arange(5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda blocks: SignBlocks(50, 0, seed=0), r"within 1..50"),
        (lambda blocks: SignBlocks(50, 51, seed=0), r"within 1..50"),
        (lambda blocks: CanaryGroups(SignBlocks(30, 30, seed=0), torch.tensor([0]), 1.0, spread=0.1), "60 parameters"),
    ],
)
def test_groups_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make(SignBlocks(30, 5, seed=0))


@pytest.mark.rounding
@pytest.mark.parametrize("chunk", [1, 1024])
def test_canaries_are_clipped_with_the_rest(make_model, rows, chunk):
    x, y = rows("mlp", 10)
    model = FlatModel(make_model("mlp"))
    blocks = SignBlocks(63, 7, seed=0)
    canaries = CanaryGroups(blocks, torch.tensor([4, 4, 1]), 10.0)
    part = RecordsAndCanaries(model, x, y, canaries)
    part._chunk = chunk
    state = model.initial()
    both = part(state, torch.tensor([0, 3, 9, 10, 11, 12]), 0.5)
    real = part(state, torch.tensor([0, 3, 9]), 0.5)
    added = both.sum - real.sum
    assert torch.allclose(blocks.project(added), torch.tensor([0, 0.5, 0, 0, 1.0, 0, 0]), atol=1e-6)
    assert float(added.norm()) == pytest.approx((0.5**2 + 1.0**2) ** 0.5, rel=1e-5)
    assert torch.equal(both.norms[:3], real.norms)
    assert torch.allclose(both.norms[3:], torch.tensor(0.5, dtype=torch.float64), rtol=1e-6)
    last = part(state, torch.tensor([12]), 0.5)
    assert torch.allclose(last.sum, 0.5 * blocks.directions(torch.tensor([1]))[0], atol=1e-6)


def test_gradients_of_the_wrong_shape_are_refused(make_job):
    class Short:
        count = 4

        def gradients(self, indices):
            return torch.ones(len(indices), 62)

    with pytest.raises(ValueError, match=r"shape \(4, 63\), got \(4, 62\)"):
        NativeTrainer().train(make_job(canaries=Short(), sampling={"scheme": "full"}))


@pytest.mark.rounding
@pytest.mark.parametrize("clip_norm", [0.2, 3.0])
def test_groups_show_in_the_released_models(make_job, clip_norm):
    """Without noise and with everything drawn, a group of k adds exactly k clip norms to its own projection."""
    blocks = SignBlocks(63, 9, seed=1)
    present = torch.tensor([True, False, True, True, False, False, True, False, True])
    groups = CanaryGroups.planted(blocks, present, 4, 10 * clip_norm)
    job = make_job(canaries=groups, noise_multiplier=0.0, clip_norm=clip_norm, sampling={"scheme": "full"}, steps=6)
    seen = ProjectionObserver(job, blocks)
    log = SamplingLog(job.phases, 60)
    NativeTrainer().train(replace(job, observers=(seen, log)))
    assert log.sizes == [60] * 6
    assert torch.allclose(seen.projections, (4.0 * present).expand(6, 9), atol=2e-4)
    assert torch.allclose(seen.squares, torch.tensor(16.0 * 5, dtype=torch.float64), rtol=1e-3)


RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 2, 3)).astype(np.float32)
Y = RNG.integers(0, 4, size=30)


def rows_of(records: Records) -> list[int]:
    found = [np.flatnonzero((x == X).all(axis=(1, 2))) for x in records.x]
    assert all(len(at) == 1 for at in found)
    return [int(at[0]) for at in found]


@pytest.mark.ci
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "least-variance"])
def test_the_seed_decides(kind: str) -> None:
    first, again, other = (make(kind, 4, X, Y, 4, seed) for seed in (1, 1, 2))
    assert first.x.shape == (4, 2, 3)
    assert first.x.dtype == np.float32
    assert set(first.y.tolist()) <= set(range(4))
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not (np.array_equal(first.x, other.x) and np.array_equal(first.y, other.y))


def test_mislabelled_records_have_another_label_and_duplicates_their_own() -> None:
    wrong, same = make("mislabelled", 30, X, Y, 4, 0), make("duplicate", 30, X, Y, 4, 0)
    assert sorted(rows_of(wrong)) == sorted(rows_of(same)) == list(range(30))
    assert np.all(wrong.y != Y[rows_of(wrong)])
    assert np.array_equal(same.y, Y[rows_of(same)])
    assert len(make("duplicate", 70, X, Y, 4, 0).x) == 70


def test_blank_records_differ_in_their_labels_and_noise_fills_the_range() -> None:
    blank = make("blank", 4, X, Y, 4, 0)
    assert np.all(blank.x == X.min())
    assert sorted(blank.y) == [0, 1, 2, 3]
    noise = make("noise", 500, X, Y, 4, 0)
    assert X.min() <= noise.x.min() < noise.x.max() <= X.max()
    assert abs(noise.x.mean() - 0.5 * (X.min() + X.max())) < 0.1
    assert min(np.bincount(noise.y)) > 80


def test_records_in_random_directions_have_one_length_and_balanced_labels() -> None:
    canaries = make("random-direction", 400, X, Y, 4, 0)
    flat = canaries.x.reshape(400, 6).astype(np.float64)
    lengths = np.linalg.norm(flat, axis=1)
    assert lengths == pytest.approx(8.0 * np.linalg.norm(X.reshape(30, 6), axis=1).max(), rel=1e-5)
    assert np.bincount(canaries.y).tolist() == [100] * 4
    unit = flat / lengths[:, None]
    assert np.abs(unit.T @ unit / 400 - np.eye(6) / 6).max() < 0.05  # no direction is preferred


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(ValueError, match="4 blank records at most"):
        make("blank", 5, X, Y, 4, 0)
    with pytest.raises(ValueError, match="two classes"):
        make("mislabelled", 5, X, Y, 1, 0)
    with pytest.raises(ValueError, match="two classes"):
        make("random-direction", 5, X, Y, 1, 0)
    with pytest.raises(ValueError, match="require training records"):
        make("noise", 5, X[:0], Y[:0], 4, 0)
    with pytest.raises(ValueError, match="at most 4096 features"):
        make("least-variance", 1, np.ones((2, 4097), dtype=np.float32), np.array([0, 1]), 2, 0)
    with pytest.raises(ValueError, match="texts"):
        make("least-variance", 1, X, Y, 4, 0, vocabulary=9)


def test_coins_decide_whole_groups() -> None:
    canaries = make("noise", 4, X, Y, 4, 0)
    rows = plant(X, Y, canaries, np.array([1, 3, 2, 1]), np.array([1, 0, 1, 1]))
    assert rows.owner.tolist() == [0, 2, 2, 3]
    assert np.array_equal(rows.x[:30], X)
    assert np.array_equal(rows.x[30:], canaries.x[[0, 2, 2, 3]])
    assert np.array_equal(rows.y[30:], canaries.y[[0, 2, 2, 3]])


def test_least_variance_is_the_last_singular_vector_with_the_least_likely_label() -> None:
    """Compare with the singular values of the rows, and with least squares that has the penalty as rows."""
    rng = np.random.default_rng(8)
    y = rng.integers(0, 3, size=60)
    x = (rng.normal(size=(60, 6)) * np.array([3.0, 2.0, 1.0, 0.5, 0.2, 0.05]) + y[:, None]).astype(np.float32)
    made = make("least-variance", 36, x.reshape(60, 2, 3), y, 3, 0)
    assert made.x.shape == (36, 2, 3)
    flat = made.x.reshape(36, 6).astype(np.float64)
    assert np.allclose(np.linalg.norm(flat, axis=1), np.linalg.norm(x, axis=1).max(), rtol=1e-5)
    directions = np.linalg.svd(x.astype(np.float64))[2][::-1]
    cosines = np.abs(np.sum(flat * np.tile(directions, (6, 1)), axis=1)) / np.linalg.norm(flat, axis=1)
    assert np.allclose(cosines, 1.0, atol=1e-4)
    penalty = np.sqrt(1e-3 * (x.astype(np.float64) ** 2).sum() / 6)
    rows = np.concatenate([x.astype(np.float64), penalty * np.eye(6)])
    weights = np.linalg.lstsq(rows, np.concatenate([np.eye(3)[y], np.zeros((6, 3))]), rcond=None)[0]
    likely = flat @ weights
    assert np.array_equal(made.y[:6], likely[:6].argmin(1))
    assert np.array_equal(made.y[12:18], likely[12:18].argmax(1))
    assert len({(*row.round(4), label) for row, label in zip(flat, made.y, strict=True)}) == 36


CHANCE = np.random.default_rng(0)
OWN = CHANCE.integers(0, 3, size=90)
NEAR = (CHANCE.normal(size=(90, 5)) + 8.0 * np.eye(5)[OWN]).astype(np.float32)
FACTORY = Linear(FrozenMap({}), Facts(records=90, features=5, classes=3, shape=(5,)))


def test_they_fit_the_records_and_leave_short_gradients() -> None:
    module = FACTORY.build(0)
    before = FlatModel(FACTORY.build(0))
    loss = fit(module, NEAR, OWN)
    after = FlatModel(module)
    rows = torch.tensor(NEAR), torch.tensor(OWN)
    by_hand = torch.nn.functional.cross_entropy(after.logits(after.initial(), rows[0]), rows[1])
    assert float(by_hand) == pytest.approx(loss, rel=0.2)
    assert float(by_hand) < 2 * TARGET_LOSS
    shorter = after.look(after.initial(), *rows)[0].mean() / before.look(before.initial(), *rows)[0].mean()
    assert float(shorter) < 0.1
    assert module.training


def test_every_module_starts_alike_and_rows_are_read_once() -> None:
    asked: list[int] = []

    def rows() -> tuple[np.ndarray, np.ndarray]:
        asked.append(1)
        return NEAR, OWN

    state = torch.random.get_rng_state()
    fitted = PretrainedFactory(FACTORY, rows, lambda: "cpu")
    assert fitted.parameters() == FACTORY.parameters()
    assert not asked
    first, second = fitted.build(1).state_dict(), fitted.build(2).state_dict()
    again = PretrainedFactory(FACTORY, rows, lambda: "cpu").build(3).state_dict()
    assert all(torch.equal(first[name], second[name]) and torch.equal(first[name], again[name]) for name in first)
    assert len(asked) == 2
    assert torch.equal(state, torch.random.get_rng_state())
    other = PretrainedFactory(FACTORY, lambda: (NEAR[1:], OWN[1:]), lambda: "cpu").build(1).state_dict()
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_what_cannot_be_fitted_is_said() -> None:
    with pytest.raises(ValueError, match="without records"):
        fit(FACTORY.build(0), NEAR[:0], OWN[:0])
    with pytest.raises(ValueError, match="not finite"):
        fit(FACTORY.build(0), np.full_like(NEAR, np.inf), OWN)
