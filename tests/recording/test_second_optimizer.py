"""The optimizers of the clients of a federated custom loop, and one that trains another model."""

import torch
from torch import nn

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec.recording.rules.second_optimizer import SecondOptimizer

FEDERATED, OPACUS = (RuleRun(own_loop=own_loop, steps=100, delta=1e-5) for own_loop in (True, False))


def facts(model, *modules):
    """The facts of a training in which an optimizer steps on each of the modules."""
    rule, optimizer = SecondOptimizer(), torch.optim.SGD(model.parameters(), lr=0.1)
    rule.start(RuleSetup(model=model, optimizer=optimizer))
    for module in modules:
        torch.optim.SGD(module.parameters(), lr=0.1).step()
    rule.stop()
    return rule.facts()


def clients(count):
    return [nn.Linear(4, 2) for _ in range(count)]


def test_optimizers_of_clients_get_no_caution_in_a_custom_loop():
    found = facts(nn.Linear(4, 2), *clients(20))
    assert SecondOptimizer.caution(found, FEDERATED) == ""
    assert "20 other optimizers (SGD)" in SecondOptimizer.caution(found, OPACUS)


def test_few_optimizers_and_those_of_the_model_get_one():
    model = nn.Linear(4, 2)
    assert "another optimizer" in SecondOptimizer.caution(facts(model, *clients(1)), FEDERATED).lower()
    assert "2 tensors of the model" in SecondOptimizer.caution(facts(model, *[model] * 20), FEDERATED)
