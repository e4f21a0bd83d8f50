"""Optimizers with a state before their first step, and after one."""

import pytest
import torch
from torch import nn

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.observers.released_model.trained_before import TrainedBefore

RUN = RuleRun(own_loop=False, steps=100, delta=1e-5)


def caution(model, optimizer):
    rule = TrainedBefore()
    rule.start(RuleSetup(model=model, optimizer=optimizer))
    return rule.caution(rule.facts(), RUN)


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.Adam])
def test_only_a_step_gives_an_optimizer_state_of_records(kind):
    model = nn.Linear(4, 2)
    optimizer = kind(model.parameters())
    assert caution(model, optimizer) == ""
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert "The optimizer had state before the block" in caution(model, optimizer)
