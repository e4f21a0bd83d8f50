"""Weights that a client received: they must be in the model as they were sent."""

import copy

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from support.checked_runs import Question, check_run
from support.federated_clients import BATCH, FEATURES, average, clients_with, plain_steps
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import dpspec
from dpspec.errors import UsageError
from dpspec_recording.received_weights import LoadedTensors, ReceivedWeights

pytestmark = pytest.mark.filterwarnings("ignore")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("form", ["by name", "of a wrapper", "in order"])
def test_received_weights_are_compared_by_value(form):
    model = net()
    sent = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    forms = {
        "by name": sent,
        "of a wrapper": {f"_module.{name}": tensor for name, tensor in sent.items()},
        "in order": [tensor.numpy() for tensor in sent.values()],
    }
    received = ReceivedWeights(forms[form])
    assert received.are_in(model)
    with torch.no_grad():
        model[2].bias[0] += 1e-6
    assert not received.are_in(model)


def test_a_part_of_the_weights_is_not_enough():
    model = net()
    some = dict(list(model.state_dict().items())[:-1])
    assert not ReceivedWeights(some).are_in(model)
    assert not ReceivedWeights([np.zeros(2)]).are_in(model)
    with pytest.raises(UsageError, match="received must be"):
        ReceivedWeights(["text"])


def test_loaded_tensors_are_known_until_they_change():
    model, loaded = net(), LoadedTensors()
    assert not loaded.are_in(model)
    loaded.note(model, model.state_dict())
    assert loaded.are_in(model)
    assert not loaded.are_in(net())
    with torch.no_grad():
        model[0].weight.mul_(1.5)
    assert not loaded.are_in(model)
    biases = [name for name in model.state_dict() if name.endswith("bias")]
    loaded.note(model, biases)  # as by strict=False: the other tensors were written otherwise
    assert not loaded.are_in(model)


def test_received_weights_are_for_rounds_in_one_folder(tmp_path):
    with pytest.raises(UsageError, match="give resume=True"):
        dpspec.record(tmp_path / "run", model=net(), received=net().state_dict())


def rounds(folder, *, plain: bool):
    """Two rounds of a client, which the other one's weights change in between; plain: with steps without noise."""
    first, second = clients_with(2)
    weights = net().state_dict()
    for _ in range(2):
        received, model = copy.deepcopy(weights), net()
        model.load_state_dict(received)
        if plain:
            plain_steps(model, first.data)
        engine = PrivacyEngine(accountant="rdp")
        engine.accountant = first.accountant or engine.accountant
        first.accountant = engine.accountant
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(first.data, batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        parts = {"model": private, "optimizer": optimizer, "loader": loader, "engine": engine}
        with dpspec.record(folder, **parts, resume=True, received=received):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(private(x), y).backward()
                optimizer.step()
        weights = average([private._module.state_dict(), second.train(received)])
    return check_run(folder, Question(delta=1e-5, epsilon=50.0))


@pytest.mark.ci
def test_rounds_from_received_weights_are_one_proved_training(tmp_path):
    found = rounds(tmp_path / "run", plain=False)
    assert (found.verdict, found.fine) == ("proved", True)
    assert {one.status for one in found.assumptions if one.name == "server-weights"} == {"declared"}
    assert found.run.steps == 20


@pytest.mark.ci
def test_steps_without_noise_after_the_weights_came_leave_it_open(tmp_path):
    found = rounds(tmp_path / "run", plain=True)
    assert found.verdict == "open"
    assert "starts with parameters that no earlier part ended with" in found.doubts
