"""Noise that is used again within a step, and gradients that are changed while the optimizer steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training
from torch import Tensor, nn

import dpspec
from dpspec.recording.watching.repeated_noise import RepeatedNoise

SIZES = [40 * 30, 30, 30 * 2, 2]


def fresh(step: int) -> Tensor:
    return torch.randn(sum(SIZES))


def halves(step: int) -> Tensor:
    half = torch.randn(600)
    return torch.cat([half, half, torch.randn(92)])


def opposite_halves(step: int) -> Tensor:
    half = torch.randn(600)
    return torch.cat([half, -half, torch.randn(92)])


def one_row_for_all(step: int) -> Tensor:
    return torch.cat([torch.randn(1230), torch.randn(1, 30).expand(2, 30).reshape(-1), torch.randn(2)])


def reseeded_for_each_layer(step: int) -> Tensor:
    parts = []
    for size in SIZES:
        torch.manual_seed(step)
        parts.append(torch.randn(size))
    return torch.cat(parts)


def recorded(folder: Path, draw: Callable[[int], Tensor]) -> CheckedRun:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.1, "records": 200}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:  # type: ignore[arg-type]
        for step in range(20):
            drawn = (torch.rand(200) < 0.1).nonzero().squeeze(1)
            noise = draw(step)
            total = torch.zeros(sum(SIZES))
            total[0] = 0.5 * len(drawn)
            for p, part in zip(model.parameters(), (total + noise).split(SIZES), strict=True):
                p.grad = part.view_as(p) / 20.0
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 0.5))
            run.summed(total)
            run.noised(noise)
            run.stepped()
    return check_run(folder, Question(delta=1e-5, epsilon=100.0))


def twice(found: CheckedRun) -> float:
    return next(c.p_value for c in found.checks if c.test.startswith("noise that is used again within a step"))


@pytest.mark.parametrize("draw", [halves, opposite_halves, one_row_for_all, reseeded_for_each_layer])
def test_noise_that_is_used_again_within_a_step_is_seen(draw: Callable[[int], Tensor], tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", draw)
    assert (found.verdict, found.conformance.status) == ("open", "deviates")
    assert twice(found) < 1e-12


def test_fresh_noise_is_not(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", fresh)
    assert (found.verdict, found.conformance.status) == ("proved", "conforms-within")
    assert twice(found) == 1.0


@pytest.mark.parametrize("scale", [1.0, 1e-3, 7.7])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_million_fresh_numbers_hold_no_pair_twice(scale: float, kind: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(1)
    watch = RepeatedNoise([2**20])
    watch.look(scale * torch.randn(2**20, generator=chance, dtype=kind))
    assert watch.found() == [1, 0, 2**20 - 1]


def test_steps_are_looked_at_ever_more_rarely() -> None:
    watch = RepeatedNoise([50, 7])
    for _ in range(100):
        watch.look(torch.randn(57))
    assert watch.found() == [7, 0, 56]
    watch.look(torch.zeros(57).bfloat16())
    assert watch.found() == [7, 0, 56]


def test_noise_that_was_not_looked_at_is_not_told_of() -> None:
    watch = RepeatedNoise([1])
    watch.look(torch.randn(1))
    assert watch.found() is None
    watch = RepeatedNoise([8])
    watch.look(torch.zeros(8))
    assert watch.found() is None


def test_a_hook_that_changes_gradients_once_they_were_seen_is_no_proof(tmp_path: Path) -> None:
    """Registered after the recorder, on the inner optimizer: it adds the plain sum of what was clipped."""
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.build()
        with training.recorder(tmp_path / "run"):

            def add(*_: object) -> None:
                for p in training.optimizer_.params:
                    p.grad += p.summed_grad.view_as(p)

            training.optimizer_.original_optimizer.register_step_pre_hook(add)
            training.train()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert (found.verdict, found.exit_code, found.conformance.status) == ("open", 1, "deviates")
    (unseen,) = (one for one in found.assumptions if one.name == "nothing-unseen")
    assert "gradients were others after 1 updates than before them: a hook changed them meanwhile" in unseen.text
