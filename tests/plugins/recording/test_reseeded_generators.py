"""Trainings whose generators get new seeds between steps, and honest ones that seed once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run
from support.opacus_training import SECRET, recorded
from support.plain_loop import plain_loop
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.rules.reseeded_generators import NewSeeds, ReseededGenerators

NAME = "reseeded-generators"


class Private:
    """Opacus' optimizer, as far as the rule reads it."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator, self.params = generator, (torch.zeros(1),)


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(SECRET + number)


def step(number: int, noise: Sequence[Any] = (), batches: Sequence[Any] = ()) -> RuleStep:
    generators = {"noise_generators": tuple(noise), "batch_generators": tuple(batches)}
    return RuleStep(number=number, drawn=None, norms=None, clip_norm=1.0, **generators)


def loop_facts(noise: Sequence[Sequence[int]], batches: Sequence[Sequence[int]] = ()) -> NewSeeds:
    """The facts of a custom loop whose generators had these seeds at each step; () if the step was not traced."""
    rule = ReseededGenerators()
    rule.start(RuleSetup(model=nn.Identity()))
    for number, seeds in enumerate(noise):
        drawn = map(seeded, batches[number]) if batches else ()
        rule.after_step(step(number + 1, [*map(seeded, seeds)], [*drawn]))
    return rule.facts()


@pytest.mark.parametrize(
    ("noise", "new"),
    [
        ([(1,), (1,), (1,)], 0),
        ([(1, 2), (1, 2)], 0),
        ([(1, 2), (2,), (1,)], 0),  # of two generators that the first step used
        ([(1,), (), (1,)], 0),
        ([(1,), (2,), (3,)], 2),
        ([(1,), (), (2,), (2,), (1,)], 1),
        ([(), (), (1,)], 0),
    ],
    ids=str,
)
def test_seeds_that_no_earlier_step_had_count(noise: list[tuple[int, ...]], new: int) -> None:
    assert loop_facts(noise) == NewSeeds(noise=new, batches=0)
    assert loop_facts([()] * len(noise), noise) == NewSeeds(noise=0, batches=new)


@pytest.mark.parametrize("own", [True, False], ids=["own generator", "default generator"])
@pytest.mark.parametrize("again", [True, False], ids=["seeded again", "seeded once"])
def test_the_generator_of_opacus_is_compared(own: bool, again: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(SECRET)
        generator = seeded(0)
        rule = ReseededGenerators()
        rule.start(RuleSetup(model=nn.Identity(), private_optimizer=Private(generator if own else None)))
        for number in range(3):
            if again:
                (generator.manual_seed if own else torch.manual_seed)(SECRET + number)
            torch.randn(3, generator=generator if own else None)
            rule.after_step(step(number + 1))
    assert rule.facts() == NewSeeds(noise=2 * again, batches=0)
    text = rule.caution(rule.facts(), RuleRun(own_loop=False, steps=3, delta=1e-5))
    assert ("2 steps of the noise" in text) is again


def test_the_generator_of_a_loader_is_compared() -> None:
    generator, data = seeded(0), TensorDataset(torch.zeros(8, 2))
    loader = DataLoader(data, sampler=RandomSampler(data, generator=generator), batch_size=2)
    rule = ReseededGenerators()
    rule.start(RuleSetup(model=nn.Identity(), private_optimizer=Private(seeded(1)), loader=loader))
    for number in range(3):
        rule.after_step(step(number + 1))
        generator.manual_seed(SECRET + number)
    assert rule.facts() == NewSeeds(noise=0, batches=1)


def of_weights(training: Any) -> None:
    """Seed the generator of the noise by the weights."""
    total = sum(float(p.detach().abs().sum()) for p in training.model.parameters())
    training.private.generator.manual_seed(SECRET + int(1e6 * total))


def of_the_system(training: Any) -> None:
    training.private.generator.seed()


@pytest.mark.family
@pytest.mark.parametrize(("seed", "asked"), [(of_weights, True), (of_the_system, True), (None, False)])
def test_a_recorded_training_whose_noise_follows_from_the_weights_is_asked_about(
    seed: Callable[[Any], None] | None, asked: bool, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run", lambda training: training.train(seed))
    assert found.verdict == "proved"
    assert [rule.name for rule in found.audit.recording.rules] == ([NAME] if asked else [])


@pytest.mark.parametrize("again", [True, False], ids=["seeded again", "seeded once"])
@pytest.mark.family
def test_a_custom_loop_that_seeds_torch_at_each_step_is_asked_about(again: bool, tmp_path: Path) -> None:
    def seed(optimizer: torch.optim.Optimizer) -> None:
        first = optimizer.param_groups[0]["params"][0]
        torch.manual_seed(SECRET + int(1e6 * float(first.detach().abs().sum())))

    plain_loop(tmp_path / "run", before=seed if again else None, seed=SECRET)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert (NAME in [rule.name for rule in found.audit.recording.rules]) is again
