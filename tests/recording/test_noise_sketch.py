"""The noise in a few numbers, against the directions written out in full."""

from __future__ import annotations

import pytest
import torch
from support.sketches import directions

from dpspec.recording.watching.noise_sketch import MOST_DIRECTIONS, NoiseSketch, width_of

SIZES = [[1], [3, 2], [640, 32, 64, 2], [20_000, 128, 7], [16_256, 16_257]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_directions_are_orthonormal_and_hold_every_coordinate(sizes):
    rows = directions(NoiseSketch(sizes), sizes)
    assert torch.allclose(rows @ rows.T, torch.eye(len(rows), dtype=torch.float64), atol=1e-12)
    assert bool((rows != 0).any(dim=0).all())
    assert len(rows) == width_of(sizes) <= MOST_DIRECTIONS


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_of_squares_and_projections_are_those_of_the_noise(sizes):
    sketch = NoiseSketch(sizes)
    for seed in (1, 2):  # what one step left behind is not in the next
        parts = [torch.randn(size, generator=torch.Generator().manual_seed(seed * 100 + size)) for size in sizes]
        found = sketch.of(parts)
        assert torch.allclose(found[: len(sizes)], torch.stack([part.double().square().sum() for part in parts]))
        assert torch.allclose(found[len(sizes) :], directions(sketch, sizes) @ torch.cat(parts).double(), atol=1e-4)


def test_noise_that_is_missing_anywhere_shows_in_the_directions():
    whole, sketch = torch.randn(40_000), NoiseSketch([40_000])
    before = sketch.of([whole])[1:]
    whole[31_007] += 50.0
    assert int((sketch.of([whole])[1:] != before).sum()) == 1


def test_each_sketch_has_other_signs() -> None:
    one, another = (directions(NoiseSketch([640]), [640]) for _ in range(2))
    assert bool((one.abs() == another.abs()).all())
    assert not bool((one == another).all())
