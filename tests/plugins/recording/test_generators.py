"""A generator runs on from the end of a recording if its state follows by draws, and not if it was seeded again."""

import pytest
import torch

from dpspec_recording.watching.generators import continued_state, keep, keep_state


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


def test_a_generator_that_is_seeded_again_does_not(ended):
    ended.manual_seed(20_261_126)
    assert torch.equal(continued_state(ended), ended.get_state())


def test_a_generator_that_goes_back_to_a_checkpoint_does_not(ended):
    saved = ended.get_state()
    keep_state(ended, saved)
    torch.randn(9, generator=ended)
    keep(ended, saved)
    ended.set_state(saved)
    assert torch.equal(continued_state(ended), saved)


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


def test_a_generator_that_is_seeded_as_before_a_recording_in_between_does_not(ended):
    between(ended, 7)
    assert torch.equal(continued_state(ended.manual_seed(7)), ended.get_state())


@pytest.mark.ci
def test_other_seeds_have_no_kept_state(ended: torch.Generator) -> None:
    other = torch.Generator().manual_seed(1)
    assert torch.equal(continued_state(other), other.get_state())
