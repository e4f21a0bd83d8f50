"""Opacus' adaptive clipping: its noisy count is observed, tested and charged."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from opacus.optimizers.adaclipoptimizer import AdaClipDPOptimizer
from support.checked_runs import checked, run_page
from support.opacus_training import Training, after_each, recorded
from support.recordings import Recordings
from torch import nn

from dpspec.accounting import PrivacyLoss, real_divisor_pair
from dpspec.reporters.page import render
from dpspec_recording.judge.bounds import ScheduleBounds
from dpspec_recording.judge.recorded_run import read_run
from dpspec_recording.observers.noise.adaptive_count import COUNT_NOISE, NEXT_NORM

pytestmark = pytest.mark.filterwarnings("ignore")

#: The standard deviation of the noise on counts in :class:`Training`.
COUNT_STD = 3.0


@pytest.mark.family
@pytest.mark.parametrize("physical", [None, 7])
def test_the_noisy_count_is_charged(physical: int | None, recordings: Recordings, tmp_path: Path) -> None:
    if physical is None:
        folder = recordings["adaptive"]
    else:
        folder = tmp_path / "run"
        Training(epochs=4, clipping="adaptive", physical=physical).run(folder)
    found = checked(folder, delta=1e-5, epsilon=50.0)
    raised = (1.1**-2 - (2.0 * COUNT_STD) ** -2) ** -0.5
    expected = PrivacyLoss.of(real_divisor_pair(0.1, raised, COUNT_STD)).compose(40).epsilon(1e-5).upper
    assert found.costs[1].interval.upper == pytest.approx(expected, rel=1e-4)
    assert (found.verdict, found.fine, found.rejected) == ("proved", True, set())
    assert [(phase.steps, phase.clip_norm) for phase in found.phases] == [(40, None)]
    assert "first clip norm 1 and the constants of its adaptation" in " ".join(found.audit.recording.confirm)
    assert any(text.startswith("The bound for adaptive clipping") for text in found.audit.recording.cautions)
    low = checked(folder, delta=1e-5, epsilon=0.5)
    assert "The bound for adaptive clipping is usually" in render(low.result).partition("To confirm")[0]
    assert "train with a larger unclipped_num_std" in render(low.result)
    page = run_page(low, 80)
    assert "Train with a larger unclipped_num_std or noise multiplier" in " ".join(page.split())
    added = checked(folder, delta=1e-5, epsilon=50.0, adjacency="add-remove")
    assert added.verdict == "open"
    assert "nothing bounds if a record is added" in added.reason


@pytest.mark.ci
def test_shuffled_batches_have_no_bound(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", clipping="adaptive", epochs=1, poisson=False, asked={"epsilon": 1e-3})
    assert (found.costs[1].interval, found.verdict) == (None, "open")
    assert "for Poisson samples only, not shuffled batches" in found.costs[1].method


def test_a_run_of_several_processes_has_no_bound(recordings: Recordings) -> None:
    run = read_run(recordings["adaptive"])
    joined = replace(run, folder=replace(run.folder, header=msgspec.structs.replace(run.header, world=2)))
    bound = ScheduleBounds(joined).epsilon("zero-out", 1e-5, 1)
    assert (bound.interval, bound.method) == (None, "adaptive clipping has a bound for one process only")


def other_count(optimizer: Any) -> None:
    optimizer.unclipped_num = torch.tensor(float(optimizer.sample_size))


def of_a_record(optimizer: Any) -> None:
    optimizer.max_grad_norm = 0.5 + float(optimizer.sample_size % 7) / 10.0


@pytest.mark.ci
@pytest.mark.parametrize(
    ("method", "change", "test"),
    [("add_noise", other_count, COUNT_NOISE.title), ("update_max_grad_norm", of_a_record, NEXT_NORM.title)],
)
def test_other_counts_and_clip_norms_deviate(method, change, test, tmp_path):
    found = recorded(tmp_path / "run", prepare=after_each(method, change), clipping="adaptive", epochs=3)
    assert found.conformance.status == "deviates"
    assert any(name.startswith(test) for name in found.rejected)


@pytest.mark.ci
def test_a_changed_constant_of_the_adaptation_leaves_the_claim_open(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        training.train()
        training.private.target_unclipped_quantile = 0.9
        training.train()

    found = recorded(tmp_path / "run", script, clipping="adaptive", epochs=1)
    assert found.status == ("open", "no-deviation-found")
    assert "clip_norm" in found.doubts


@pytest.mark.parametrize("length", [0.1, 0.9, 1.1, 50.0])
def test_executed_neighbors_are_dominated(length: float) -> None:
    """The optimizer steps with a record, and with a null record in its place: sum and count move as Theorem 55 says."""
    noise_multiplier, raised = 1.1, (1.1**-2 - (2.0 * COUNT_STD) ** -2) ** -0.5
    others = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    record = torch.nn.functional.normalize(torch.ones(1, 4)) * length

    def released(row: torch.Tensor) -> tuple[torch.Tensor, float]:
        parameter = nn.Parameter(torch.zeros(4))
        optimizer = AdaClipDPOptimizer(
            torch.optim.SGD([parameter], lr=1.0),
            noise_multiplier=noise_multiplier,
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.2,
            max_clipbound=10.0,
            min_clipbound=0.1,
            unclipped_num_std=COUNT_STD,
            max_grad_norm=1.0,
            expected_batch_size=10,
        )
        parameter.grad_sample = torch.cat([others, row])
        optimizer.clip_and_accumulate()
        return parameter.summed_grad, float(optimizer.unclipped_num)

    (total, count), (null_total, null_count) = released(record), released(torch.zeros(1, 4))
    moved = math.hypot(float((total - null_total).norm()) / raised, (count - null_count) / COUNT_STD)
    largest = math.hypot(1.0 / raised, 1.0 / COUNT_STD)
    assert moved <= largest
    assert moved >= (0.999 * largest if length > 1.0 else 0.0)
    pair, shown = real_divisor_pair(1.0, raised, COUNT_STD), PrivacyLoss.gaussian(1.0 / moved)
    for delta in (1e-2, 1e-5):
        assert shown.epsilon(delta).lower <= PrivacyLoss.of(pair).epsilon(delta).upper
