"""A generator runs on from the end of a recording if its state follows by draws, and not if it was seeded again."""

import pytest
import torch

from dpspec_recording.watching import generators
from dpspec_recording.watching.generators import continued_state, keep


@pytest.fixture
def ended() -> torch.Generator:
    generator = torch.Generator().manual_seed(20_261_126)
    start = generator.get_state()
    torch.randn(1001, generator=generator)
    keep(generator, start)
    return generator


@pytest.mark.parametrize("draws", [0, 1, 5, 623, 624, 70_001])
def test_further_draws_continue_the_kept_state(draws: int, ended: torch.Generator) -> None:
    end = ended.get_state()
    torch.rand(draws, generator=ended)
    assert torch.equal(continued_state(ended), end)


@pytest.mark.parametrize("draws", [0, 17, 900])
def test_a_generator_that_is_seeded_again_does_not(draws, ended, monkeypatch):
    monkeypatch.setattr(generators, "_MOST_DRAWS", 2**16)
    torch.rand(draws, generator=ended.manual_seed(20_261_126))
    assert torch.equal(continued_state(ended), ended.get_state())


def between(generator: torch.Generator, seed: int | None) -> None:
    """Another training's recording with this generator, which it may seed before."""
    torch.rand(5, generator=generator)
    if seed is not None:
        generator.manual_seed(seed)
    start = generator.get_state()
    torch.rand(70, generator=generator)
    keep(generator, start, "another")
    torch.rand(9, generator=generator)


def test_recordings_of_other_trainings_in_between_continue_the_state(ended: torch.Generator) -> None:
    end = ended.get_state()
    between(ended, None)
    between(ended, None)
    assert torch.equal(continued_state(ended), end)
    assert torch.equal(continued_state(ended, "a third one"), ended.get_state())


def test_a_generator_that_is_seeded_before_a_recording_in_between_does_not(ended, monkeypatch):
    monkeypatch.setattr(generators, "_MOST_DRAWS", 2**16)
    between(ended, 20_261_126)
    between(ended, None)
    assert torch.equal(continued_state(ended), ended.get_state())


@pytest.mark.ci
def test_other_seeds_have_no_kept_state(ended: torch.Generator) -> None:
    other = torch.Generator().manual_seed(1)
    assert torch.equal(continued_state(other), other.get_state())


def test_philox_offsets_grow() -> None:
    states = [torch.tensor([7, offset], dtype=torch.int64).view(torch.uint8) for offset in (8, 12)]
    assert generators._follows_on_cuda(*states)
    assert not generators._follows_on_cuda(*states[::-1])
