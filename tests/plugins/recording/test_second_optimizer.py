"""The optimizers of the clients of a federated custom loop, and one that trains another model."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.observers.update_rule.second_optimizer import OtherOptimizer, SecondOptimizer

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


def test_optimizers_of_the_model_are_named_first():
    model = nn.Linear(4, 2)
    last = OtherOptimizer(name="Last", inside=2, outside=0, steps=9, is_regular=True)
    others = [replace(last, name=name, inside=0, outside=2) for name in ("One", "Two", "Three")]
    found = replace(facts(model), optimizers=(*others, last))
    assert found.changes_model
    assert SecondOptimizer.caution(found, OPACUS).startswith("Another optimizer (Last) stepped 9 times on 2 tensors of")
    assert not replace(found, optimizers=tuple(others)).changes_model


def gan_facts(loss_of):
    """The facts of a GAN whose discriminator is recorded. loss_of: of the generator, (model, generator, real rows)."""
    torch.manual_seed(3)
    real = torch.randn(50, 6)
    loader = DataLoader(TensorDataset(real, torch.zeros(50)), batch_size=5)
    model, generator = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)), nn.Sequential(nn.Linear(6, 6))
    rule, optimizer = SecondOptimizer(), torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(generator.parameters(), lr=0.1)
    rule.start(RuleSetup(model=model, optimizer=optimizer, private_optimizer=optimizer, loader=loader))
    for number in range(1, 6):
        x = real[5 * number : 5 * number + 5]
        optimizer.zero_grad()
        (model(generator(torch.randn(5, 6)).detach()).mean() - model(x).mean()).backward()
        optimizer.step()
        rule.after_step(RuleStep(number=number, drawn=None, norms=None, clip_norm=1.0))
        with torch.no_grad():
            model(x)  # the accuracy
        other.zero_grad()
        loss_of(model, generator, x).backward()
        other.step()
    rule.stop()
    assert not torch.nn.modules.module._global_forward_pre_hooks
    return rule.facts()


@pytest.mark.parametrize(
    ("loss_of", "words"),
    [
        (lambda d, g, x: -d(g(torch.randn(5, 6))).mean(), ""),
        (lambda d, g, x: -d(g(x)).mean(), "sequential outside the model read records of the dataset"),
        (lambda d, g, x: (d(g(torch.randn(5, 6))).mean() - d(x).mean()) ** 2, "does their loss depend on records?"),
    ],
    ids=["honest", "generator", "loss"],
)
def test_a_generator_that_reads_records_is_named(loss_of, words):
    caution = SecondOptimizer.caution(gan_facts(loss_of), OPACUS).lower()
    assert caution.startswith("another optimizer (sgd) stepped 5 times on 2 tensors outside the model")
    assert words in caution
    assert ("records of the dataset" in caution) == bool(words)
