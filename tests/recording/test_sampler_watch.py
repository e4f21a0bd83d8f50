"""The generators of noise and batches: one for both, two with other seeds, and those that repeat numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import Training

from dpspec.engine.recorded.noise_checks import PUBLIC_SEED, SHARED_SEED

pytestmark = pytest.mark.filterwarnings("ignore")


def recorded(folder: Path, noise: torch.Generator | None, batches: torch.Generator | None) -> CheckedRun:
    training = Training(epochs=1, clipping="ghost")
    training.build()
    training.optimizer_.generator = noise
    training.loader.batch_sampler.generator = batches
    with training.recorder(folder):
        training.train()
    return check_run(folder, Question(delta=1e-5, epsilon=50.0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BOTH = seeded(5)


@pytest.mark.parametrize(("noise", "batches"), [(None, None), (BOTH, BOTH), (seeded(5), seeded(6)), (None, seeded(7))])
def test_generators_that_repeat_no_number(
    noise: torch.Generator | None, batches: torch.Generator | None, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run", noise, batches)
    assert found.fine
    assert found.run.at_end("seeds") == [0, 0]


@pytest.mark.parametrize(
    ("noise", "batches", "test"),
    [
        (seeded(5), seeded(5), SHARED_SEED),
        (seeded(0), None, SHARED_SEED),  # as torch.manual_seed(0) of the training
        (torch.Generator(), None, PUBLIC_SEED),
        (None, torch.Generator(), PUBLIC_SEED),
    ],
)
def test_repeated_and_public_seeds_deviate(
    noise: torch.Generator | None, batches: torch.Generator | None, test: str, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run", noise, batches)
    assert {one.test.removesuffix(", exact") for one in found.checks if one.p_value == 0.0} == {test}
