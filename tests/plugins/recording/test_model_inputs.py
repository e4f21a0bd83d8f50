"""Whether a collate function mixes records: they are collated alone and together after the training."""

import random

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

import dpspec
from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.observers.sensitivity.model_inputs import ChangedInputs

RUN, MODEL = RuleRun(own_loop=False, steps=100, delta=1e-5), nn.Linear(6, 2)

_GENERATOR = torch.Generator().manual_seed(0)
TEXTS = [torch.randint(1, 40, (int(size),), generator=_GENERATOR) for size in torch.randint(6, 14, (60,))]
IMAGES = [(torch.randn(3, 8, 8, generator=_GENERATOR), index % 4) for index in range(60)]


def packed(records):
    tokens = torch.cat(records)
    width = len(tokens) // len(records)
    return tokens[: width * len(records)].view(len(records), width)[:, :6]


def patched(records):
    images, labels = default_collate(records)
    images[:, :, 2:6, 2:6] = images.roll(1, 0)[:, :, 2:6, 2:6]
    return {"images": images, "labels": labels}


def minus_the_mean(records):
    images, labels = default_collate(records)
    return images - images.mean(0), labels


def cut(records):
    return torch.stack([text[:6] for text in records])


def sorted_by_length(records):
    ordered = sorted(records, key=len, reverse=True)
    return pad_sequence([text[:6] for text in ordered], batch_first=True), torch.tensor([len(text) for text in ordered])


def padded(records):
    return pad_sequence(records, batch_first=True)


def standardized_each(records):
    images, labels = default_collate(records)
    rows = images.flatten(1)
    return (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True), labels


def with_noise(records):
    images, labels = default_collate(records)
    return images + random.random() + float(np.random.random()) + torch.randn_like(images), labels


def caution(data, collate):
    rule = ChangedInputs()
    rule.start(RuleSetup(model=MODEL, loader=DataLoader(data, batch_size=20, collate_fn=collate)))
    rule.stop()
    rule.stop()
    return rule.caution(rule.facts(), RUN)


@pytest.mark.parametrize(("data", "collate"), [(TEXTS, packed), (IMAGES, patched), (IMAGES, minus_the_mean)])
def test_a_collate_function_that_mixes_records_is_asked_about(data, collate):
    assert "does collate_fn mix records?" in caution(data, collate)


@pytest.mark.parametrize(
    ("data", "collate"),
    [
        *((TEXTS, cut), (TEXTS, sorted_by_length), (TEXTS, padded)),
        *((IMAGES, default_collate), (IMAGES, standardized_each), (IMAGES, with_noise)),
    ],
)
def test_a_collate_function_that_changes_each_record_alone_is_not(data, collate):
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert caution(data, collate) == ""
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]


@pytest.mark.ci
def test_a_recorded_training_with_packed_texts_gets_the_caution(tmp_path):
    model = nn.Sequential(nn.Embedding(40, 4), nn.Linear(4, 40))
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TEXTS, batch_size=20, collate_fn=packed),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    with dpspec.record(tmp_path / "run", model=model, optimizer=optimizer, loader=loader, engine=engine):
        for tokens in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
            optimizer.step()
    assert "changed-inputs" in dpspec.check(tmp_path / "run", epsilon=8.0, delta=1e-5).cautions
