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


@pytest.mark.parametrize("before", [0, 17, 900])
def test_a_generator_that_is_seeded_again_and_draws_as_before_does_not(before: int) -> None:
    generator = torch.Generator().manual_seed(20_261_130)
    torch.rand(before, generator=generator)
    start = generator.get_state()
    torch.randn(1001, generator=generator)
    keep(generator, start)
    torch.rand(before, generator=generator.manual_seed(20_261_130))
    assert torch.equal(continued_state(generator), generator.get_state())


def test_a_generator_that_was_just_seeded_again_does_not() -> None:
    generator = torch.Generator().manual_seed(20_261_131)
    torch.rand(5, generator=generator)
    start = generator.get_state()
    torch.randn(1001, generator=generator)
    keep(generator, start)
    generator.manual_seed(20_261_131)
    assert torch.equal(continued_state(generator), generator.get_state())


def test_a_restored_state_of_the_same_block_does_not() -> None:
    generator = torch.Generator().manual_seed(20_261_132)
    torch.rand(3, generator=generator)
    start = generator.get_state()
    torch.rand(20, generator=generator)
    middle = generator.get_state()
    torch.rand(20, generator=generator)
    keep(generator, start)
    generator.set_state(middle)
    assert torch.equal(continued_state(generator), middle)


def test_a_recording_without_draws_is_continued() -> None:
    generator = torch.Generator().manual_seed(20_261_133)
    torch.rand(3, generator=generator)
    keep(generator, generator.get_state())
    end = generator.get_state()
    torch.rand(7, generator=generator)
    assert torch.equal(continued_state(generator), end)


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


def test_a_generator_that_is_seeded_before_a_recording_in_between_does_not(ended: torch.Generator) -> None:
    between(ended, 20_261_126)
    between(ended, None)
    assert torch.equal(continued_state(ended), ended.get_state())


@pytest.mark.ci
def test_other_seeds_have_no_kept_state(ended: torch.Generator) -> None:
    other = torch.Generator().manual_seed(1)
    assert torch.equal(continued_state(other), other.get_state())


def test_philox_offsets_grow() -> None:
    states = [torch.tensor([7, offset], dtype=torch.int64).view(torch.uint8) for offset in (8, 12)]
    assert generators._may_be_later("cuda", *states)
    assert not generators._may_be_later("cuda", *states[::-1])
