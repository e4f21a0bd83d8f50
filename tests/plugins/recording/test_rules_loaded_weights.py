"""Weights that a script loads within the block: earlier ones, and averages that it puts back."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.rules.loaded_weights import LoadedWeights, LoadFacts

RUN = RuleRun(own_loop=False, steps=10, delta=1e-5)


class Training:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.rule, self.steps = LoadedWeights(), 0
        self.rule.start(RuleSetup(model=self.model, optimizer=self.optimizer))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.model(torch.randn(3, 4)).square().mean().backward()
            self.optimizer.step()
            self.steps += 1
            self.rule.after_step(RuleStep(number=self.steps, drawn=None, norms=None, clip_norm=1.0))

    def saved(self) -> dict[str, torch.Tensor]:
        return deepcopy(self.model.state_dict())


def back(training: Training) -> None:
    training.step(2)
    best = training.saved()
    training.step(3)
    training.model.load_state_dict(best)
    training.step()


def back_at_the_end(training: Training) -> None:
    training.step(2)
    best = training.saved()
    training.step(3)
    training.saved()
    training.model.load_state_dict(best)


def foreign(training: Training) -> None:
    training.step(2)
    training.model.load_state_dict(nn.Linear(4, 2).state_dict())
    training.step()


def average(training: Training) -> None:
    """An average for an evaluation, and back."""
    training.step(2)
    own = training.saved()
    training.model.load_state_dict({name: 0.9 * value for name, value in own.items()})
    training.model.load_state_dict(own)
    training.step()


def average_in_place(training: Training) -> None:
    training.step(2)
    own = training.saved()
    with torch.no_grad():
        training.model.weight.mul_(0.9)
    training.model.load_state_dict(own)
    training.step()


def crash(training: Training) -> None:
    training.step(2)
    training.model.load_state_dict(training.saved())
    training.step(2)


def public_start(training: Training) -> None:
    training.model.load_state_dict(nn.Linear(4, 2).state_dict())
    training.step(3)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (back, "after step 5 to the weights after step 2"),
        (back_at_the_end, "after step 5 to the weights after step 2"),
        (foreign, "after step 2 to weights of another source"),
    ],
)
def test_changes_of_the_weights_are_named(script: Callable[[Training], None], text: str) -> None:
    training = Training()
    script(training)
    training.rule.stop()
    caution = LoadedWeights.caution(training.rule.facts(), RUN)
    assert (
        caution
        == f"load_state_dict changed the weights once within the block, {text}: did a loss on the records choose them?"
    )


@pytest.mark.parametrize(("script", "loads"), [(average, 2), (average_in_place, 1), (crash, 1), (public_start, 0)])
def test_weights_that_stay_are_counted(script: Callable[[Training], None], loads: int) -> None:
    training = Training()
    script(training)
    training.rule.stop()
    assert training.rule.facts() == LoadFacts(loads=loads, changed=0, changes=())
    assert LoadedWeights.caution(training.rule.facts(), RUN) == ""


def test_hooks_end_with_the_recording() -> None:
    training = Training()
    average(training)
    training.rule.stop()
    assert not training.model._load_state_dict_pre_hooks
    assert not training.model._state_dict_pre_hooks
    assert not training.optimizer._optimizer_step_pre_hooks
