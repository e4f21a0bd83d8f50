"""Noise that is not fresh, Gaussian and independent is found; noise as it should be is not."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.noise_attacks import ATTACKS, Draw, fresh, plain_loop
from support.opacus_training import Training
from torch import Tensor, nn

from dpspec.contract import Check
from dpspec.engine.recorded.noise_checks import ALONG, noise_checks
from dpspec.recording.watching.noise_watch import WINDOW, Coordinates, NoiseWatch, SampledSteps

#: Rejected p-values in a run of 60 checks.
REJECTED = 1e-6 / 60

#: Steps and coordinates are chosen at random, so that each p-value of honest noise is below this once in ten million.
HONEST = 1e-7


def checked(folder: Path) -> CheckedRun:
    return check_run(folder, Question(delta=1e-5, epsilon=1e5))


def rejected_noise(found: CheckedRun) -> list[str]:
    """Rejected tests of the noise alone: a script that replaces a function of Opacus is reported for that as well."""
    names = ("noise-scale", "independent-noise", "per-layer-noise", "noise-law")
    return [one.test for one in found.checks if one.assumption in names and one.p_value * len(found.checks) <= 1e-6]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_plain_loop_with_other_noise_deviates(attack: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    # The recorder tests values of steps that it samples ever more rarely: a late attack needs more steps.
    plain_loop(tmp_path / "run", ATTACKS[attack], steps=300 if attack == "from the tenth step on" else 30)
    found = checked(tmp_path / "run")
    assert found.status == ("open", "deviates")


@pytest.mark.parametrize("steps", [1, 30])
def test_a_plain_loop_with_fresh_noise_conforms(steps: int, tmp_path: Path) -> None:
    torch.manual_seed(4)
    plain_loop(tmp_path / "run", fresh, steps=steps)
    found = checked(tmp_path / "run")
    assert found.status == ("proved", "no-deviation-found")
    noise = [one for one in found.checks if one.assumption in ("independent-noise", "per-layer-noise", "noise-law")]
    assert min(one.p_value for one in noise) > HONEST
    assert any(one.assumption == "noise-law" for one in noise)


class Patched:
    """Takes the place of Opacus' source of noise: draws the noise of all layers with the first of them."""

    def __init__(self, draw: Draw, shapes: Sequence[torch.Size]) -> None:
        self._draw, self._shapes, self._step = draw, list(shapes), 0
        self._kept: dict[str, Any] = {}
        self._waiting: list[Tensor] = []

    def __call__(self, std: float, reference: Tensor, **_: Any) -> Tensor:
        if not self._waiting:
            self._waiting = self._draw(self._step, self._shapes, self._kept)
            self._step += 1
        return std * self._waiting.pop(0)


@pytest.mark.parametrize(
    "attack",
    [
        "interleaved", "mirrored", "permuted within a step", "random signs", "noisy copies", "shared scalar", "uniform",
        "laplace", "truncated", "spherical", "centered in each layer", "quantized", "rounded to bfloat16", "low rank",
        "broadcast rows", "permuted in pairs of steps", "antithetic steps", "pool of six",
    ],
)  # fmt: skip
def test_opacus_with_other_noise_deviates(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(batch=10).build()
    shapes = [p.shape for p in training.optimizer_.params]
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", Patched(ATTACKS[attack], shapes))
    with training.recorder(tmp_path / "run"):
        training.train()
    found = checked(tmp_path / "run")
    assert found.status == ("open", "deviates")
    assert rejected_noise(found)


def checks_of(watch: NoiseWatch, shapes: Sequence[tuple[int, ...]]) -> list[Check]:
    """The checks that a reader makes of the statistics."""
    layers = tuple((str(n), torch.Size(shape).numel()) for n, shape in enumerate(shapes))
    end = json.loads(json.dumps({"noise": watch.found()}))
    run: Any = types.SimpleNamespace(
        end=end, folder=None, header=types.SimpleNamespace(layers=layers), rows=np.zeros((0, 1))
    )
    return list(noise_checks(run))


SHAPES: list[list[tuple[int, ...]]] = [
    [(1,)],
    [(3,), (2,)],
    [(4, 2), (4,)],
    [(5, 1, 1, 7), (1, 1)],
    [(16, 4, 3, 3), (16,), (3, 256), (3,)],
    [(300, 300)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "four sums", "long sums"])
def test_honest_noise_of_any_type_and_shape_passes(shapes: list[tuple[int, ...]], kind: str) -> None:
    torch.manual_seed(8)
    dtype = getattr(torch, kind, torch.float32)
    watch = NoiseWatch([torch.zeros(shape, dtype=dtype) for shape in shapes])
    for _ in range(15):
        noise = [torch.normal(0.0, 0.3, size=shape, dtype=dtype) for shape in shapes]
        if kind == "four sums":
            noise = [sum(torch.normal(0.0, 0.3, size=shape) for _ in range(4)) / 2 for shape in shapes]
        sums = [(100.0 if kind == "long sums" else 1.0) * torch.randn(shape).to(dtype) for shape in shapes]
        noise = [(part + total) - total for part, total in zip(noise, sums, strict=True)]
        watch.add(noise, sums, 0.3)
    found = checks_of(watch, shapes)
    assert min(one.p_value for one in found) > HONEST
    assert kind == "long sums" or any(one.test.startswith("share of values") for one in found)


def test_noise_that_repeats_at_a_few_steps_is_found() -> None:
    """Steps are sampled in pairs: reuse of the step before is found though its coordinates are permuted."""
    torch.manual_seed(2)
    shapes = [(40, 50)]
    watch = NoiseWatch([torch.zeros(40, 50)])
    last = torch.randn(40, 50)
    for step in range(60):
        noise = last.reshape(-1)[torch.randperm(2000)].reshape(40, 50) if step % 2 else torch.randn(40, 50)
        last = noise
        watch.add([noise], [torch.zeros(40, 50)], 1.0)
    common = next(one for one in checks_of(watch, shapes) if one.test.startswith("absolute values common"))
    assert common.p_value < REJECTED


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_sums_that_take_the_noise_back_are_found(share: float) -> None:
    watch = NoiseWatch([torch.zeros(40, 50)])
    for _ in range(10):
        noise, clipped = torch.randn(40, 50), 2.0 * torch.randn(40, 50)
        watch.add([noise], [clipped - share * noise], 1.0)
    (found,) = [one for one in checks_of(watch, [(40, 50)]) if one.test.startswith(ALONG)]
    assert (found.p_value < 1e-9) == bool(share)


def test_steps_without_known_noise_give_no_statistics() -> None:
    watch = NoiseWatch([torch.zeros(3)])
    for std in (0.0, float("nan"), float("inf")):
        watch.add([torch.randn(3)], [torch.zeros(3)], std)
    watch.add([torch.tensor([1.0, float("nan"), 0.0])], [torch.zeros(3)], 1.0)
    watch.add([torch.zeros(3, dtype=torch.int64)], None, 1.0)
    assert watch.found() is None
    assert NoiseWatch([]).found() is None


def test_the_training_draws_the_same_numbers_with_the_statistics() -> None:
    torch.manual_seed(1)
    expected = torch.randn(4)
    torch.manual_seed(1)
    watch = NoiseWatch([torch.zeros(20, 30)])
    assert torch.equal(torch.randn(4), expected)
    state = torch.get_rng_state()
    noise = torch.ones(20, 30)
    watch.add([noise], [noise], 1.0)
    watch.found()
    assert torch.equal(torch.get_rng_state(), state)


def test_about_twenty_of_two_hundred_steps_are_sampled_in_pairs() -> None:
    counts = []
    for _ in range(100):
        steps = SampledSteps()
        chosen = [steps.next() for _ in range(200)]
        counts.append(sum(chosen))
        assert all(chosen[:4])
    assert 14.0 < sum(counts) / 100 < 25.0
    assert len(set(counts)) > 3


@pytest.mark.parametrize("count", [1, 100, WINDOW, WINDOW + 1, 70_000, 10**6, 10**9 + 7])
def test_windows_are_disjoint_stretches_of_the_coordinates(count: int) -> None:
    for _ in range(20):
        stretches = Coordinates([(count,)]).window()
        assert stretches[0].start >= 0
        assert stretches[-1].stop <= count
        assert all(one.start < one.stop for one in stretches)
        assert all(one.stop <= other.start for one, other in pairwise(stretches))
        assert sum(one.stop - one.start for one in stretches) >= min(count, WINDOW // 3)


@pytest.mark.parametrize("shape", [(3, 5), (6, 4, 3, 3), (200, 700), (2, 1, 1, 2), (1, 5, 1, 3)])
def test_blocks_are_submatrices_of_their_layer(shape: tuple[int, ...]) -> None:
    """Coordinates of a block are sums of a row's and a column's, and each is in the layer once."""
    for _ in range(20):
        chosen = Coordinates([(7,), shape, (9,)]).blocks()
        assert [layer for layer, _ in chosen] == [1]
        where = chosen[0][1]
        assert where.shape[0] <= where.shape[1]
        assert len(where.unique()) == where.numel()
        assert int(where.min()) >= 7
        assert int(where.max()) < 7 + torch.Size(shape).numel()
        assert torch.equal(where, where[:, :1] + where[:1] - where[0, 0])


def test_a_convolution_s_kernels_are_rows_or_columns_of_some_blocks() -> None:
    coordinates = Coordinates([tuple(nn.Conv2d(8, 12, 3).weight.shape)])
    sides = {tuple(block.shape) for _ in range(60) for _, block in coordinates.blocks()}
    assert {(12, 72), (9, 96)} <= sides
