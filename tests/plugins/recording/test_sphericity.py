"""Noise that has less variance in some directions is found; noise that has the same in all is not."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from plugins.recording.test_noise_watch import across, checked, plain_loop
from torch import Tensor
from torch.nn import functional as F

from dpspec.contract import Check
from dpspec.stats import gaussian_noise
from dpspec.stats.gaussian_noise import dependence, log_volume_tail
from dpspec_recording.outcomes.faults import checks_of
from dpspec_recording.probes.noise import ALIGNED, FLAT, UNEVEN, _directions_of
from dpspec_recording.watching import sphericity
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.noise_watch import NoiseWatch
from dpspec_recording.watching.sphericity import KeptSteps, Lines

#: A deviating p-value of a run of 60 checks, and a p-value that honest noise has once in ten million runs.
REJECTED, HONEST = 1e-6 / 60, 1e-7

Change = Callable[[Tensor], Tensor]


def subspace(dimensions: int, missing: int) -> Change:
    """Noise without ``missing`` random directions, of the length of noise with all."""
    basis = torch.linalg.qr(torch.randn(dimensions, missing))[0]
    return lambda z: (z - basis @ (basis.T @ z)) * math.sqrt(dimensions / (dimensions - missing))


def in_blocks(change: Change, size: int) -> Change:
    return lambda z: torch.cat([change(part) if len(part) == size else part for part in torch.split(z, size)])


def low_pass(z: Tensor) -> Tensor:
    frequencies = torch.fft.rfft(z)
    frequencies[int(0.95 * len(frequencies)) :] = 0.0
    kept: Tensor = torch.fft.irfft(frequencies, len(z)) / math.sqrt(0.95)
    return kept


def smoothed(z: Tensor) -> Tensor:
    return math.sqrt(3.0) * F.avg_pool1d(z.view(1, 1, -1), 3, 1, 1).flatten()


def columns_of(first: int, columns: int, change: Change) -> Change:
    """The change of each row of the first matrix."""
    return lambda z: torch.cat([torch.stack([*map(change, z[:first].view(-1, columns))]).flatten(), z[first:]])


def scaled(dimensions: int, by: float) -> Change:
    scales = 1.0 + by * torch.randn(dimensions)
    return lambda z: z * scales / scales.square().mean().sqrt()


def watched(steps: int, change: Change, shapes: list[tuple[int, ...]], precision: torch.dtype) -> list[Check]:
    watch, sizes = NoiseWatch([torch.zeros(shape, dtype=precision) for shape in shapes]), [*map(math.prod, shapes)]
    sketch = NoiseSketch(sizes)
    for _ in range(steps):
        noise = change(torch.randn(sum(sizes))).to(precision)
        total = (3.0 * torch.randn(sum(sizes))).to(precision)
        layers = ([part[None] for part in torch.split(row, sizes)] for row in (noise + total, total))
        watch.add(sketch.measure(*layers, noisy=True), [1.0])
    statistics = watch.found()
    assert statistics is not None
    return [*checks_of(_directions_of(statistics, 0.0))]


SHAPES = [(30, 40), (30,), (4, 30), (4,)]
WIDTH = 1354

MISTAKES: dict[str, tuple[Callable[[], Change], str, int]] = {
    "half of the directions": (lambda: subspace(WIDTH, WIDTH // 2), ALIGNED.title, 40),
    "blocks of the directions": (lambda: in_blocks(subspace(128, 64), 128), ALIGNED.title, 40),
    "a matrix's columns": (lambda: columns_of(1200, 40, subspace(40, 1)), FLAT.title, 30),
    "an average of neighbors": (lambda: smoothed, ALIGNED.title, 12),
    "low frequencies": (lambda: low_pass, ALIGNED.title, 20),
    "scales of coordinates": (lambda: scaled(WIDTH, 0.1), UNEVEN.title, 60),
}


@pytest.mark.family
@pytest.mark.parametrize("name", MISTAKES)
def test_noise_that_lacks_directions_is_found(name: str) -> None:
    torch.manual_seed(3)
    change, title, steps = MISTAKES[name]
    checks = watched(steps, change(), SHAPES, torch.float32)
    assert [check.p_value <= REJECTED for check in checks if check.test.startswith(title)] == [True]


@pytest.mark.family
@pytest.mark.parametrize("shapes", [SHAPES, [(9, 5), (5,)], [(1,)], [(3, 1, 2)]], ids=str)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_noise_of_all_directions_passes(shapes: list[tuple[int, ...]], precision: str) -> None:
    torch.manual_seed(4)
    checks = watched(40, lambda z: z, shapes, getattr(torch, precision))
    assert all(check.p_value > HONEST for check in checks)


@pytest.mark.parametrize("missing", [1, 0])
def test_one_missing_direction_is_found_if_the_steps_outnumber_the_coordinates(missing: int) -> None:
    torch.manual_seed(5)
    kept, change = KeptSteps(100), subspace(100, missing) if missing else (lambda z: z)
    for _ in range(150):
        kept.add(change(torch.randn(100)), 1.0)
    found = kept.found()
    assert found is not None
    volume = found.volume(1e-6, 1)
    log_p = log_volume_tail(volume.ratio, int(volume.vectors), int(volume.dimensions))
    assert log_p < math.log(REJECTED) if missing else log_p > math.log(HONEST)


@pytest.mark.parametrize(("steps", "width"), [(30, 200), (200, 30), (50, 50)])
def test_components_are_those_of_an_orthogonalization(steps: int, width: int) -> None:
    """By a QR decomposition, which has no products of vectors."""
    rows = torch.randn(steps, width, dtype=torch.double)
    kept = KeptSteps(width)
    for row in rows:
        kept.add(2.0 * row, 2.0)
    found = kept.found()
    assert found is not None
    squares, terms = dependence(rows.numpy())
    assert found.terms == terms
    assert found.squares == pytest.approx(squares, rel=1e-6)
    vectors = rows.numpy() if steps <= width else rows.numpy().T
    log_volume = np.linalg.slogdet(vectors @ vectors.T)[1]
    ratios = found.ratios * (max(steps, width) - np.arange(min(steps, width)))
    assert np.log(ratios).sum() == pytest.approx(log_volume, rel=1e-6)


def test_blocks_of_steps_are_compared_within_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps are kept at random; steps of two blocks have no common products."""
    monkeypatch.setattr(sphericity, "_NUMBERS", 16 * 2000)
    kept, rows = KeptSteps(2000), torch.randn(48, 2000, dtype=torch.double)
    for row in rows:
        kept.add(row, 1.0)
    found = kept.found()
    assert found is not None
    blocks = [dependence(block.numpy()) for block in torch.split(rows, 16)]
    assert found.terms == sum(terms for _, terms in blocks)
    assert found.squares == pytest.approx(sum(squares for squares, _ in blocks), rel=1e-6)


def test_noise_without_length_or_on_one_line_gives_numbers() -> None:
    for rows in (torch.zeros(20, 50), torch.randn(50).expand(20, 50)):
        kept = KeptSteps(50)
        for row in rows:
            kept.add(row, 1.0)
        found = kept.found()
        assert found is not None
        assert math.isfinite(found.squares)
        assert 0.0 <= found.volume(0.0, 1).ratio < 1e-3
    few = Lines((40, 3))
    few.add(torch.randn(40, 3))
    assert few.found() is None


@pytest.mark.ci
@pytest.mark.parametrize("missing", [204, 0])
def test_a_loop_whose_noise_lacks_some_directions_deviates(missing: int, tmp_path: Path) -> None:
    """1,363 parameters; each value is normal, and the length is as declared, but no epsilon is finite."""
    torch.manual_seed(6)
    change = subspace(1363, missing) if missing else (lambda z: z)
    plain_loop(tmp_path / "run", across(lambda step, z, kept: change(z)), steps=130)
    found = checked(tmp_path / "run")
    assert found.status == (("open", "deviates") if missing else ("proved", "no-deviation-found"))
    assert {test.test for test in found.tests if test.p_value <= REJECTED} == ({ALIGNED.title} if missing else set())


@pytest.mark.ci
@pytest.mark.parametrize(
    ("coordinates", "steps", "share"),
    [(100_000, 100, 0.14), (100_000, 10_000, 0.034), (1_000_000, 100, 0.31), (1_000_000, 10_000, 0.037)],
)
def test_the_documented_share_of_missing_directions_is_found(coordinates: int, steps: int, share: float) -> None:
    """The limits of ``conformance.md``: the mean squared product is 1 / (1 - share)."""
    block = KeptSteps(coordinates)._most
    kept = min(steps, block) + max(0, steps - block) * min(1.0, sphericity._PRODUCTS / block)
    blocks, more = divmod(int(kept), block)
    limit = gaussian_noise.alignment(1.0, blocks * block * (block - 1) // 2 + more * (more - 1) // 2, 1, 0.0, "")
    assert limit.detectable is not None
    assert 0.9 * share <= limit.detectable / (1.0 + limit.detectable) <= share


@pytest.mark.ci
def test_one_of_a_thousand_directions_is_found() -> None:
    """By the first 2,000 steps."""
    torch.manual_seed(8)
    kept, change = KeptSteps(1000), subspace(1000, 1)
    for _ in range(2000):
        kept.add(change(torch.randn(1000)), 1.0)
    found = kept.found()
    assert found is not None
    volume = found.volume(1e-6, 1)
    assert log_volume_tail(volume.ratio, int(volume.vectors), int(volume.dimensions)) < math.log(REJECTED)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("coordinates", "steps", "std"),
    [(1000, 100, 0.045), (1000, 10_000, 0.0045), (65_536, 100, 0.015), (65_536, 10_000, 0.0015)],
)
def test_the_documented_variation_of_scales_is_found(coordinates: int, steps: int, std: float) -> None:
    """The limits of ``conformance.md``, which 99 of 100 recordings exceed."""
    random = np.random.default_rng(steps + coordinates)
    p_values = []
    for _ in range(20):
        scales = 1.0 + std * random.standard_normal(coordinates)
        squares = gaussian_noise.dispersion(scales**2 * random.chisquare(steps, coordinates), steps)
        p_values.append(gaussian_noise.spread(squares, coordinates - 1, "").p_value)
    assert sum(p_value <= 1e-6 for p_value in p_values) >= 18
