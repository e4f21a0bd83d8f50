"""Noise against C, batches against the participation, and whole trainings."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from plugins.matrix.test_encoders import options

from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import EncoderOptions, Participation
from dpspec_matrix.training import CorrelatedNoise, Slots

STEPS = 11
ENCODERS = [
    options("identity"),
    options("tree"),
    options("banded", coefficients=(2.0, -0.5, 0.25)),
    options("square-root", bands=4),
    options("optimized", bands=3),
    options("inverse-square-root", bands=3),
    options("inverse-square-root", bands=20),
    options("buffers", weights=(0.3, 0.1), decays=(0.5, 0.95)),
]


def noises(encoder_options: EncoderOptions, *, stop: int | None = None) -> np.ndarray:
    """All rows (STEPS, 3); after ``stop`` steps another object continues from the saved state."""
    part, source = CorrelatedNoise(encoder_of(encoder_options, STEPS)), torch.Generator().manual_seed(3)
    rows = []
    for step in range(STEPS):
        if step == stop:
            resumed = CorrelatedNoise(encoder_of(encoder_options, STEPS))
            resumed.restore(part.state())
            part = resumed
        rows.append(part(torch.zeros(3, dtype=torch.float64), 2.0, source).numpy())
    return np.array(rows)


@pytest.mark.parametrize("encoder_options", ENCODERS)
def test_c_times_the_noise_is_the_independent_draws(encoder_options: EncoderOptions) -> None:
    source = torch.Generator().manual_seed(3)
    draws = [torch.randn(3, generator=source, dtype=torch.float64).numpy() * 2.0 for _ in range(STEPS)]
    matrix = encoder_of(encoder_options, STEPS).matrix()
    assert matrix @ noises(encoder_options) == pytest.approx(np.array(draws), abs=1e-12)


@pytest.mark.parametrize("encoder_options", ENCODERS)
@pytest.mark.parametrize("stop", [0, 1, 6])
def test_resumed_noise_continues_with_the_same_bits(encoder_options: EncoderOptions, stop: int) -> None:
    assert np.array_equal(noises(encoder_options, stop=stop), noises(encoder_options))


def batches(scheme: str, *, rate: float = 1.0, stop: int | None = None) -> list[list[int]]:
    participation = Participation(scheme=scheme, separation=5, rate=rate)
    sampler, generator = Slots(103, 5, participation), torch.Generator().manual_seed(1)
    result = []
    for step in range(20):
        if step == stop:
            resumed = Slots(103, 5, participation)
            resumed.restore(sampler.state())
            sampler = resumed
        result.append(sampler.draw(generator).tolist())
    return result


def test_cyclic_batches_take_each_slot_in_turn() -> None:
    assert batches("cyclic") == [list(range(step % 5, 103, 5)) for step in range(20)]


def test_cyclic_poisson_samples_each_slot() -> None:
    drawn = batches("cyclic-poisson", rate=0.5)
    assert all(record % 5 == step % 5 for step, batch in enumerate(drawn) for record in batch)
    assert abs(sum(map(len, drawn)) - 206) < 5 * math.sqrt(103)


@pytest.mark.parametrize("scheme", ["random-allocation", "balls-in-bins"])
def test_allocation_takes_each_record_once_per_epoch(scheme: str) -> None:
    drawn = batches(scheme)
    epochs = [Counter(record for batch in drawn[i : i + 5] for record in batch) for i in range(0, 20, 5)]
    assert all(epoch == Counter(range(103)) for epoch in epochs)
    places = [{record: place for place in range(5) for record in drawn[i + place]} for i in range(0, 20, 5)]
    is_the_same = all(place == places[0] for place in places)
    assert is_the_same == (scheme == "balls-in-bins")
    assert len(set(places[0].values())) == 5


@pytest.mark.parametrize("scheme", ["cyclic", "random-allocation", "balls-in-bins", "cyclic-poisson"])
@pytest.mark.parametrize("stop", [0, 3, 5, 12])
def test_resumed_batches_are_the_same(scheme: str, stop: int) -> None:
    rate = 0.5 if scheme == "cyclic-poisson" else 1.0
    assert batches(scheme, rate=rate, stop=stop) == batches(scheme, rate=rate)
