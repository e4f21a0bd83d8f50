"""Observers of the sampler, of the seeds, of parameters and of noise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from support.checked_runs import CheckedRun
from support.opacus_training import SECRET, Training, recorded
from support.sketches import directions
from torch import nn

from dpspec_recording.judge.generator import recorded_noise
from dpspec_recording.watching.noise_sketch import MOST_DIRECTIONS, NoiseSketch, width_of
from dpspec_recording.watching.parameter_watch import ParameterWatch
from dpspec_recording.watching.sampler_watch import SamplerWatch


def with_generators(folder: Path, noise: torch.Generator | None, batches: torch.Generator | None) -> CheckedRun:
    def prepare(training: Training) -> None:
        training.private.generator = noise
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
    assert [found[0].tolist() for found in taken] == [[1, 1], [2, 2], [3, 3]]


def test_an_empty_batch_that_was_fetched_ahead_is_of_the_next_step() -> None:
    sampler = UniformWithReplacementSampler(num_samples=9, sample_rate=0.3)
    watch = SamplerWatch(sampler, ahead=False)
    number = watch.begin()
    for batch in ([1, 4], [], [2]):
        watch.add(batch, number)
    taken = [watch.take(rows) for rows in (2, 0, 1)]
    assert [(found[0].tolist(), found[1]) for found in taken] == [([1, 4], 1), ([], 1), ([2], 1)]


def test_a_batch_fetched_ahead_of_a_new_pass_may_have_the_size_of_the_first() -> None:
    watch = SamplerWatch(UniformWithReplacementSampler(num_samples=9, sample_rate=0.3), ahead=False)
    first, taken = watch.begin(), []
    watch.add([1], first)
    for number, batch, rows in ((first, [2, 3], 1), (None, [4, 5], 2), (None, [6, 7], 2)):
        watch.add(batch, number or watch.begin())
        taken.append(watch.take(rows))
    assert [found[0].tolist() for found in taken] == [[1], [2, 3], [4, 5]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BOTH = seeded(SECRET + 5)


@pytest.mark.family
@pytest.mark.parametrize(
    ("noise", "batches", "words"),
    [
        (None, None, ""),
        (BOTH, BOTH, ""),
        (None, seeded(SECRET + 7), ""),
        (seeded(SECRET + 5), seeded(SECRET + 5), "one seed"),
        (seeded(SECRET), None, "one seed"),  # as torch.manual_seed of the training
        (torch.Generator(), None, "recompute the noise"),
        (None, torch.Generator(), "recompute the batches"),
    ],
)
def test_shared_and_public_seeds_are_cautions(noise, batches, words, tmp_path):
    found = with_generators(tmp_path / "run", noise, batches)
    fired = [rule.text for rule in found.audit.recording.rules]
    assert len(fired) == bool(words)
    assert words in " ".join(fired)
    facts = recorded_noise(found.run)
    assert facts is not None
    assert (facts.generator, facts.draws) == ("torch's CPU generator", 1)
    assert facts.seed_bits == (noise or torch.default_generator).initial_seed().bit_length()


def drawn_at(training: Training, rate: Any) -> None:
    """Batches are drawn at a rate that the sampler does not have before or after."""
    sampler = training.loader.batch_sampler
    for _ in range(training.epochs):
        batches = iter(training.loader)
        while True:
            kept, sampler.sample_rate = sampler.sample_rate, rate
            batch = next(batches, None)
            sampler.sample_rate = kept
            if batch is None:
                break
            training.step(*batch)


@pytest.mark.ci
def test_the_rate_of_a_step_is_that_of_its_draw(tmp_path: Path) -> None:
    once, again = (
        recorded(tmp_path / str(rate), lambda training, rate=rate: drawn_at(training, rate), asked={"epsilon": 4.0})
        for rate in (0.1, 0.3)
    )
    assert (once.verdict, again.verdict) == ("proved", "open")


@pytest.mark.ci
def test_rates_of_single_records_end_the_recording(tmp_path: Path) -> None:
    training, rates = Training().build(), torch.full((300,), 0.1)
    rates[7] = 2.0
    with pytest.warns(RuntimeWarning, match="sample_rate of the sampler"), training.recorder(tmp_path / "run"):
        drawn_at(training, rates)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("values", [[0.0, 1.0, float("nan")], 0.0, -1.0])
def test_the_sign_of_a_zero_counts(dtype: torch.dtype, values: list[float] | float) -> None:
    parameter = nn.Parameter(torch.tensor(values, dtype=dtype))
    watch = ParameterWatch([parameter])
    assert not watch.moved()
    first = parameter.data.view(-1)[:1]
    first.copy_(-first)
    assert watch.moved()
    watch.advance()
    assert not watch.moved()


SIZES = [[1], [3, 2], [640, 32, 64, 2], [20_000, 128, 7], [16_256, 16_257]]


@pytest.mark.family
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_directions_are_orthonormal_and_hold_every_coordinate(sizes):
    rows = directions(NoiseSketch(sizes), sizes)
    assert torch.allclose(rows @ rows.T, torch.eye(len(rows), dtype=torch.float64), atol=1e-12)
    assert bool((rows != 0).any(dim=0).all())
    assert len(rows) == width_of(sizes) <= MOST_DIRECTIONS


@pytest.mark.family
@pytest.mark.parametrize("sizes", [*SIZES, [140_000, 0, 5]], ids=str)
@pytest.mark.parametrize(("steps", "scale", "dtype"), [(1, 4.0, torch.float32), (3, 1.0, torch.bfloat16)])
def test_measured_noise_is_that_of_a_direct_computation(sizes, steps, scale, dtype):
    sketch, starts = NoiseSketch([size + 9 for size in sizes]), [place % 9 for place in range(3, 3 + len(sizes))]
    sums = [3.0 * torch.randn(steps, size) for size in sizes]
    given = [(one + torch.randn(one.shape)).to(dtype) for one in sums]
    found = sketch.measure(given, sums, starts=starts, scale=scale, noisy=True)
    noise, total = [scale * (a.float() - b) for a, b in zip(given, sums, strict=True)], scale * torch.cat(sums, dim=1)
    assert torch.allclose(found.noise, torch.cat(noise, dim=1), atol=1e-5)
    assert torch.allclose(found.whole_sums(), total)
    squares = torch.stack([one.double().square().sum(1) for one in noise], dim=1)
    assert torch.allclose(found.squares, squares, rtol=1e-5)
    assert torch.allclose(found.lengths, total.double().norm(dim=1))
    assert torch.allclose(found.products, (found.noise.double() * total).sum(1), rtol=1e-4, atol=1e-2 * scale**2)
    assert torch.equal(found.largest, total.abs().amax(1))
    whole = [torch.nn.functional.pad(one, (start, 9 - start)) for one, start in zip(noise, starts, strict=True)]
    rows = directions(sketch, [size + 9 for size in sizes])
    assert torch.allclose(found.along, torch.cat(whole, dim=1).double() @ rows.T, atol=1e-3)


def test_noise_that_is_missing_anywhere_shows_in_the_directions():
    whole, sketch = torch.randn(40_000), NoiseSketch([40_000])
    before = sketch.measure([whole[None]]).along
    whole[31_007] += 50.0
    assert int((sketch.measure([whole[None]]).along != before).sum()) == 1


def test_each_sketch_has_other_signs() -> None:
    one, another = (directions(NoiseSketch([640]), [640]) for _ in range(2))
    assert bool((one.abs() == another.abs()).all())
    assert not bool((one == another).all())
