"""Collate functions, with and without a way of one record into the row of another."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dpspec.contract.rules import RuleRun, RuleSetup
from dpspec_recording.rules.mixing_collate import CollateFacts, MixingCollate

seen, mean = 0, torch.zeros(4)
SHIFT = torch.ones(4)
own_generator = np.random.default_rng()


def stacked(rows: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def running(rows: Sequence[Any]) -> Any:
    global seen, mean
    x, y = stacked(rows)
    seen, mean = seen + 1, mean + (x.mean(0) - mean) / (seen + 1)
    return x - mean, y


def shifted_in_place(rows: Sequence[Any]) -> Any:
    x, y = stacked(rows)
    SHIFT.lerp_(x[0], 0.1)
    return x - SHIFT, y


def helped(rows: Sequence[Any]) -> Any:
    return running(rows)


def batch_scaled(rows: Sequence[Any]) -> Any:
    x, y = stacked(rows)
    return {"x": (x - x.mean(0)) / x.std(0), "y": y}


def mixed(rows: Sequence[Any]) -> Any:
    x, y = stacked(rows)
    return 0.5 * x + 0.5 * x.flip(0), y


def closure() -> Callable[..., Any]:
    last = torch.zeros(4)

    def collate(rows: Sequence[Any]) -> Any:
        nonlocal last
        x, y = stacked(rows)
        x, last = x + 0.1 * last, x[0]
        return x, y

    return collate


class Queue:
    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def __call__(self, rows: Sequence[Any]) -> Any:
        x, y = stacked(rows)
        negatives = self.rows[-1] if self.rows else torch.zeros(4)
        self.rows.append(x[-1])
        return x, negatives.expand(len(x), -1), y


def augmented(rows: Sequence[Any]) -> Any:
    x, y = stacked(rows)
    return x + 0.1 * torch.randn_like(x) + random.random() + np.random.standard_normal(), y


def own_noise(rows: Sequence[Any]) -> Any:
    x, y = stacked(rows)
    return x + torch.from_numpy(own_generator.standard_normal(x.shape)), y


def sorted_by_length(rows: Sequence[Any]) -> Any:
    rows = sorted(rows, key=lambda row: float(row[0][0]), reverse=True)
    return stacked(rows)


def padded(rows: Sequence[Any]) -> Any:
    cut = [row[0][: 1 + int(row[0][0] > 0) + int(row[0][1] > 0)] for row in rows]
    return pad_sequence(cut, batch_first=True), torch.tensor([len(row) for row in cut])


def scaled(rows: Sequence[Any], *, by: float) -> Any:
    x, y = stacked(rows)
    return by * (x - SHIFT), y


def facts_of(collate: Callable[..., Any]) -> CollateFacts:
    data = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    rule = MixingCollate()
    loader = DataLoader(data, batch_size=10, collate_fn=collate)
    rule.start(RuleSetup(model=None, optimizer=None, private_optimizer=None, loader=loader, compiled=False))
    rule.stop()
    return rule.facts()


RUN = RuleRun(own_loop=False, steps=10, delta=1e-5, records=60)


@pytest.mark.parametrize("collate", [running, shifted_in_place, helped, closure(), Queue(), functools.partial(helped)])
def test_a_state_of_earlier_batches_is_found(collate: Callable[..., Any]) -> None:
    facts = facts_of(collate)
    assert facts.carried == facts.read == 4
    assert ("mixes records" if facts.mixed else "keeps a state of records") in MixingCollate.caution(facts, RUN)


@pytest.mark.parametrize("collate", [batch_scaled, mixed])
def test_rows_that_others_of_the_batch_change_are_found(collate: Callable[..., Any]) -> None:
    facts = facts_of(collate)
    assert facts.mixed == facts.read == 4
    assert "mixes records" in MixingCollate.caution(facts, RUN)


@pytest.mark.parametrize(
    "collate", [default_collate, augmented, own_noise, sorted_by_length, padded, functools.partial(scaled, by=2.0)]
)
def test_rows_of_one_record_each_are_none(collate: Callable[..., Any]) -> None:
    facts = facts_of(collate)
    assert facts == CollateFacts(read=4, mixed=0, carried=0)
    assert not MixingCollate.caution(facts, RUN)


def test_the_function_of_the_script_and_the_generators_keep_their_states() -> None:
    states = seen, mean.clone(), SHIFT.clone(), torch.get_rng_state(), random.getstate()
    queue = Queue()
    for collate in (running, shifted_in_place, queue, augmented):
        loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.zeros(60)), batch_size=10, collate_fn=collate)
        torch.set_rng_state(states[3])
        rule = MixingCollate()
        rule.start(RuleSetup(model=None, optimizer=None, private_optimizer=None, loader=loader, compiled=False))
        rule.stop()
    assert (seen, queue.rows) == (states[0], [])
    assert torch.equal(mean, states[1])
    assert torch.equal(SHIFT, states[2])
    assert torch.equal(torch.get_rng_state(), states[3])
    assert random.getstate() == states[4]
