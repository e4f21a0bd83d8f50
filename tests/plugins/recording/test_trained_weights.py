"""Values of trained weights, by which copies of them are found."""

import copy

import torch
from torch import nn

from dpspec_recording.watching.trained_weights import SteppedWeights


def trained(model, steps=3, **options):
    """The weights of a model, after steps of SGD on a loss without records."""
    weights, optimizer = SteppedWeights(), torch.optim.SGD(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        weights.begin(optimizer)
        optimizer.step()
        weights.end(optimizer, [])
    return weights.until_now()[0]


def test_copies_of_the_weights_after_each_step_are_found():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    weights, optimizer, states = SteppedWeights(), torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        states.append(copy.deepcopy(model.state_dict()))
        weights.begin(optimizer)
        optimizer.step()
        weights.end(optimizer, [])
    (found,) = weights.until_now()
    assert (found.name, found.steps, found.loaded) == ("SGD", 3, False)
    states.append(model.state_dict())
    assert [[found.include(tensor) for tensor in state.values()] for state in states] == [[False] * 4] + 3 * [
        [True] * 4
    ]


def test_weights_that_no_step_moved_are_not_trained_ones():
    model = nn.Linear(6, 4)
    model.weight.requires_grad_(False)
    start = copy.deepcopy(model.weight)
    found = trained(model)
    assert found.include(model.bias.detach().clone())
    assert not found.include(start)


def test_other_shapes_types_and_constant_values_are_not_found():
    model = nn.Linear(6, 4)
    found = trained(model)
    assert not any(map(found.include, (model.weight.t().clone(), torch.zeros(4), torch.arange(4), None, [1.0])))
    assert found.include(model.weight.double())


def test_models_that_are_gone_are_found():
    model = nn.Linear(6, 4)
    found, state = trained(model), copy.deepcopy(model.state_dict())
    del model
    assert found.include(state["weight"])


def test_no_mode_of_torch_sees_the_comparison():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model = nn.Linear(6, 4)
    found = trained(model)
    with Count() as count:
        found.note_step([])
    assert count.calls == 0
