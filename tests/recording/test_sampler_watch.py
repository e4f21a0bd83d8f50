"""The generators of noise and batches: one for both, two with other seeds, and those that repeat numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checked_runs import CheckedRun
from support.opacus_training import Training, recorded

from dpspec.engine.recorded.noise_checks import PUBLIC_SEED, SHARED_SEED
from dpspec.recording.watching.sampler_watch import SamplerWatch


def with_generators(folder: Path, noise: torch.Generator | None, batches: torch.Generator | None) -> CheckedRun:
    def prepare(training: Training) -> None:
        training.optimizer_.generator = noise
        training.loader.batch_sampler.generator = batches

    return recorded(folder, prepare=prepare, epochs=1, clipping="ghost")


def test_a_sampler_may_yield_one_array_again() -> None:
    class Reusing:
        def __iter__(self) -> Iterator[np.ndarray]:
            batch = np.zeros(2, dtype=np.int64)
            for _ in range(3):
                batch += 1
                yield batch

    sampler = Reusing()
    watch = SamplerWatch(sampler, ahead=True)
    assert watch.attach()
    assert len(list(sampler)) == 3
    taken = [watch.take(2) for _ in range(3)]
    assert [found[0].tolist() for found in taken if found is not None] == [[1, 1], [2, 2], [3, 3]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BOTH = seeded(5)


@pytest.mark.parametrize(
    ("noise", "batches", "test"),
    [
        (None, None, ""),
        (BOTH, BOTH, ""),
        (seeded(5), seeded(6), ""),
        (None, seeded(7), ""),
        (seeded(5), seeded(5), SHARED_SEED),
        (seeded(0), None, SHARED_SEED),  # as torch.manual_seed(0) of the training
        (torch.Generator(), None, PUBLIC_SEED),
        (None, torch.Generator(), PUBLIC_SEED),
    ],
)
def test_repeated_and_public_seeds_deviate(
    noise: torch.Generator | None, batches: torch.Generator | None, test: str, tmp_path: Path
) -> None:
    found = with_generators(tmp_path / "run", noise, batches)
    assert found.fine is not bool(test)
    if test:
        assert {one.test.removesuffix(", exact") for one in found.checks if one.p_value == 0.0} == {test}
    else:
        assert found.run.at_end("seeds") == [0, 0]
