"""Private trainings that begin with, or read, weights that the script trained before, on the same records or others."""

import copy
import warnings

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy, softmax
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpspec.contract.rules import RuleRun
from dpspec_recording.judge.recorded_run import read_run
from dpspec_recording.observers.released_model import trained_before
from dpspec_recording.observers.released_model.trained_before import TrainedBefore
from dpspec_recording.observers.rules import Rules
from dpspec_recording.scripts.session import start

RECORDS, FEATURES = 300, 6


def rows(count=RECORDS):
    x = torch.randn(count, FEATURES)
    return TensorDataset(x, (x[:, 0] > 0).long())


def plainly(data):
    """A model that was trained without privacy in loops over a loader."""
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in DataLoader(data, batch_size=50):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def by_index(data):
    """The same, without a loader."""
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data.tensors
    for start_of_batch in range(0, len(x), 50):
        optimizer.zero_grad()
        cross_entropy(
            model(x[start_of_batch : start_of_batch + 50]), y[start_of_batch : start_of_batch + 50]
        ).backward()
        optimizer.step()
    return model


def privately(data, model=None, teacher=None):
    model = nn.Linear(FEATURES, 2) if model is None else model
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(data, batch_size=30),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        labels = y if teacher is None else softmax(teacher(x), dim=1).detach()
        cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model._module


def loaded(source):
    model = nn.Linear(FEATURES, 2)
    model.load_state_dict(source.state_dict())
    return model


def after_a_copy(data):
    privately(data, copy.deepcopy(plainly(data)))


def after_a_load(data):
    privately(data, loaded(by_index(data)))


def after_a_half(data):
    privately(data, loaded(plainly(Subset(data, range(100)))))


def after_a_private_one(data):
    privately(data, loaded(privately(data)))


def with_a_teacher(data):
    privately(data, teacher=plainly(data))


def after_steps_on_turned_records(data):
    """Rows differ, and are of the same people: the model itself was trained, on data that nobody knows."""
    x, y = data.tensors
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        for turned, labels in DataLoader(TensorDataset(-x, y), batch_size=100):
            optimizer.zero_grad()
            cross_entropy(model(turned), labels).backward()
            optimizer.step()
    model.zero_grad(set_to_none=True)
    privately(data, model)


def after_public_rows(data):
    privately(data, copy.deepcopy(plainly(rows(100))))


def after_a_private_one_on_others(data):
    halves = Subset(data, range(150)), Subset(data, range(150, 300))
    privately(halves[1], loaded(privately(halves[0])))


def next_to_a_baseline(data):
    baseline = plainly(data)
    model = privately(data)
    x, _ = data.tensors
    assert len(baseline(x)) == len(model(x))


def with_a_public_teacher(data):
    privately(data, teacher=plainly(rows(100)))


def with_an_average(data):
    """A teacher that follows the private weights costs nothing."""
    model = nn.Linear(FEATURES, 2)
    privately(data, model=model, teacher=copy.deepcopy(model))


def caution(folder, call, training):
    warnings.simplefilter("ignore")
    session = start(folder, whole=True, summary=False)
    try:
        call(rows())
    finally:
        session.end()
    assert not session.failures
    (facts,) = read_run(folder / training).fact(Rules).of(trained_before.RULE, trained_before.EarlierTraining)
    return TrainedBefore.caution(facts, RuleRun(own_loop=False, steps=10, delta=1e-5))


CAUTIONS = [
    (after_a_copy, "1", "The model began with weights of 6 steps of Adam in the script, on some of the same records."),
    (after_a_load, "1", "The model began with weights of 6 steps of SGD in the script: on which records?"),
    (after_a_half, "1", "The model began with weights of 2 steps of Adam in the script, on some of the same records."),
    (
        after_a_private_one,
        "2",
        "The model began with weights of training 1 in the script, on some of the same records.",
    ),
    (
        with_a_teacher,
        "1",
        "A replayed step read weights of 6 steps of Adam in the script, on some of the same records.",
    ),
]


@pytest.mark.family
@pytest.mark.parametrize(("call", "training", "words"), CAUTIONS, ids=lambda one: getattr(one, "__name__", None))
def test_weights_of_earlier_steps_on_the_records_are_named(tmp_path, call, training, words):
    assert caution(tmp_path / "run", call, training) == words


@pytest.mark.family
def test_steps_of_the_model_itself_are_asked_about_whatever_their_rows_are(tmp_path):
    words = caution(tmp_path / "run", after_steps_on_turned_records, "1")
    assert words.startswith("Each trained parameter was written at least"), words
    assert words.endswith("times before the block: on which records?")


HONEST = [
    (after_public_rows, "1"),
    (after_a_private_one_on_others, "2"),
    (next_to_a_baseline, "1"),
    (with_a_public_teacher, "1"),
    (with_an_average, "1"),
]


@pytest.mark.family
@pytest.mark.parametrize(("call", "training"), HONEST, ids=lambda one: getattr(one, "__name__", None))
def test_weights_of_other_records_and_other_models_are_no_caution(tmp_path, call, training):
    assert caution(tmp_path / "run", call, training) == ""
