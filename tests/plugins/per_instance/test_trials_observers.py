"""Observers of gradient norms and attacks on single records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import per_instance_brute as brute

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.training.loop.native import run_batched
from dpspec_per_instance import mean_rule
from dpspec_per_instance.trials import NormObserver, RecordAttack, RunSetup, Target


def job_of(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, *, steps: int, noise: float, clip: float, rate: float
) -> TrainingJob:
    sampling = {"scheme": "poisson", "rate": rate}
    phase = FrozenMap({"steps": steps, "noise_multiplier": noise, "clip_norm": clip, "sampling": sampling})
    options = FrozenMap({"learning_rate": 0.1, "reduction": "mean"})
    rows = {"x": x.numpy(), "y": y.numpy()}
    return TrainingJob(
        **rows, model=model, phases=[phase], options=options, expected_batch_size=2.0, device="cpu", seed=0
    )


def test_an_observer_measures_what_autograd_does() -> None:
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    job = job_of(model, x, y, steps=4, noise=1.0, clip=0.7, rate=0.5)
    watcher = NormObserver(job, x, y, (1, 3))
    state = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    for step in range(3):
        watcher.released(step, state)
    for place in range(5):
        loss = torch.nn.functional.cross_entropy(model(x[place : place + 1]), y[place : place + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        norm = float(torch.sqrt(sum(part.square().sum() for part in parts)))
        assert watcher.ratios[0, place] == pytest.approx(min(1.0, norm / 0.7), rel=1e-4)
        assert watcher.right[1, place] == int(model(x[place : place + 1]).argmax() == y[place])
    again = NormObserver(job, x, y, (1, 3))
    again.restore(watcher.state())
    assert np.array_equal(again.ratios, watcher.ratios)
    again.restore({})
    assert not again.ratios.any()
    watcher.released(0, state * float("nan"))
    assert np.all(watcher.ratios[0] == 1.0)


def _slow(gradients, point, batches, beta, order, sigma, present, divided=True):
    """Theorem 3.6's exponents for one record, batch by batch. beta: the record's coins, or None if it is inside."""
    place, coins = beta

    def mean(mask, coin, with_record):
        mask = mask.astype(bool).copy()
        if place is not None:
            mask[place] = mask[place] and with_record
            rows = gradients[mask]
        else:
            rows = gradients[mask] if not (with_record and coin) else np.vstack([gradients[mask], point])
        if not divided:
            return rows.sum(axis=0)
        return rows.mean(axis=0) if len(rows) else np.zeros(len(point))

    found = np.zeros(batches.inner.shape[:2])
    for o, outer in enumerate(batches.outer):
        base = mean(outer, coins[0][o] if coins else 0, not present)
        for i in range(found.shape[1]):
            v = [mean(batches.inner[o, i, a], coins[1][o, i, a] if coins else 0, present) - base for a in range(order)]
            found[o, i] = sum(v[a] @ v[b] for a in range(order) for b in range(a)) / sigma**2
    return float(mean_rule.plug_in(found, order).value)


@pytest.mark.parametrize("inside", [True, False])
def test_the_mean_rule_by_one_product_is_the_slow_one(inside: bool) -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(9, 4)).astype(np.float32) / 3
    where = np.array([2, 7]) if inside else None
    points = gradients[where] if inside else rng.normal(size=(2, 4)).astype(np.float32) / 3
    batches = mean_rule.draw(rng, 9, 0.3, 5, 4, 3)
    coins = None if inside else mean_rule.draw(rng, 2, 0.3, 5, 4, 3)
    found = mean_rule.estimate_kinds(gradients, points, where, batches, coins, 0.4)
    for m in range(2):
        own = None if coins is None else (coins.outer[:, m], coins.inner[..., m])
        for kind, (present, divided) in enumerate(((True, True), (False, True), (True, False))):
            beta = (None if where is None else where[m], own)
            slow = _slow(gradients.astype(float), points[m].astype(float), batches, beta, 3, 0.4, present, divided)
            assert found.value[kind, m] == pytest.approx(slow, rel=1e-5, abs=1e-9)


def test_an_attack_scores_as_the_formula_says() -> None:
    """One step of one record against inner products of gradients written out."""
    torch.manual_seed(1)
    model, x, y = torch.nn.Linear(3, 2), torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    job = job_of(model, x, y, steps=1, noise=0.8, clip=0.5, rate=0.3)
    watcher = RecordAttack(job, Target(job, (x[:5], y[:5]), (x[5:], y[5:])))
    state = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    noisy = torch.randn(len(state))
    with torch.no_grad():
        watcher.released(0, state)
        watcher.released(1, state - 0.1 / 2.0 * noisy)
    rows = []
    for place in range(6):
        loss = torch.nn.functional.cross_entropy(model(x[place : place + 1]), y[place : place + 1])
        row = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double()
        rows.append(row * min(1.0, 0.5 / float(row.norm())))
    g, others = rows[5], torch.stack(rows[:5])
    products, square = others @ g, float(g @ g)
    variance = 0.4**2 * square + 0.3 * 0.7 * float((products**2).sum())
    shift = (float(g @ noisy.double()) - 0.3 * float(products.sum())) * square / variance - square**2 / (2 * variance)
    assert watcher.score == pytest.approx(np.log(0.7 + 0.3 * np.exp(shift)), rel=1e-3, abs=1e-6)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_runs_that_train_together_are_scored_as_alone(kind: str) -> None:
    torch.manual_seed(3)
    layers: list[torch.nn.Module] = [torch.nn.Linear(16, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    if kind == "convolution":
        layers = [torch.nn.Unflatten(1, (1, 4, 4)), torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten()]
        layers += [torch.nn.Linear(8, 3)]
    model, x, y = torch.nn.Sequential(*layers), torch.randn(9, 16), torch.randint(0, 3, (9,))
    job = job_of(model, x, y, steps=4, noise=1.0, clip=0.5, rate=0.5)

    def scores(seeds: list[int]) -> list[float]:
        target = Target(job, (x[:8], y[:8]), (x[8:], y[8:]))
        watchers = [RecordAttack(job, target) for _ in seeds]
        run_batched([replace(job, seed=s, observers=(w,)) for s, w in zip(seeds, watchers, strict=True)])
        return [watcher.score for watcher in watchers]

    alone = [*scores([1]), *scores([2]), *scores([3])]
    assert scores([1, 2, 3]) == pytest.approx(alone, rel=1e-4, abs=1e-6)


class Trained:
    def __init__(self) -> None:
        self.alone: list[object] = []
        self.together = 0

    def train(self, job: Job) -> None:
        self.alone.append(job.resumable)

    def train_many(self, jobs: list[Job]) -> None:
        self.together += len(jobs)


@dataclass(frozen=True)
class Job:
    resumable: object = None


@pytest.mark.parametrize(
    ("device", "parameters", "alone"),
    [("cpu", 20_000, 0), ("cpu", 20_001, 2), ("cuda", 20_001, 0), ("cuda:1", 1_000_001, 2), ("cuda", None, 0)],
)
def test_runs_of_large_models_are_trained_alone_and_resumed(device: str, parameters: int | None, alone: int) -> None:
    trainer = Trained()
    facts = SimpleNamespace(parameters=parameters)
    context = SimpleNamespace(device=device, facts=facts, trainer=trainer, resumable=lambda index: f"folder {index}")
    setup = RunSetup(inputs=FrozenMap(), context=context)  # type: ignore[arg-type]
    setup.train([Job(), Job()], [3, 4])  # type: ignore[list-item]
    assert trainer.alone == ["folder 3", "folder 4"][:alone]
    assert trainer.together == 2 - alone


@pytest.mark.parametrize(
    ("population", "point", "present", "absent"),
    [("train", 3, [0, 1, 2, 3, 4], [0, 1, 2, 4]), ("test", 1, [0, 1, 2, 3, 4, 8], [0, 1, 2, 3, 4])],
)
def test_neighbours_differ_in_one_record(population: str, point: int, present: list[int], absent: list[int]) -> None:
    train, test = np.arange(5), np.array([9, 8])
    data = SimpleNamespace(train_x=train[:, None], train_y=train, test_x=test[:, None], test_y=test)
    context = SimpleNamespace(data=data, facts=SimpleNamespace(records=5, test_records=2))
    inputs = FrozenMap({"threat_model": {"population": population, "points": [point]}})
    found = RunSetup(inputs=inputs, context=context).neighbours(0)  # type: ignore[arg-type]
    for (x, y), rows in zip(found, (present, absent), strict=True):
        assert x[:, 0].tolist() == y.tolist() == rows


def test_the_mean_rule_estimates_the_theorem() -> None:
    """Three scalar gradients: 4000 outer batches come within 5% of the exact sum over all tuples."""
    rng, sigma = np.random.default_rng(1), 1.5
    rows, record, q = np.array([[0.7], [-0.4], [0.2]], dtype=np.float32), np.array([[0.9]], dtype=np.float32), 0.5
    batches, coins = (mean_rule.draw(rng, count, q, 3000, 60, 2) for count in (3, 1))
    found = mean_rule.estimate_kinds(rows, record, None, batches, coins, sigma)
    present, absent = brute.pair(rows[:, 0], 0.9, q, "mean")
    assert found.value[0][0] == pytest.approx(brute.exact(2, present, absent, sigma), rel=0.05)
    assert found.value[1][0] == pytest.approx(brute.exact(2, absent, present, sigma), rel=0.05)
