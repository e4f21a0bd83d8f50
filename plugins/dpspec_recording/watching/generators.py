"""Generators of random numbers: of noise and of batches, their states, and the same numbers for two computations.

A later part of a training must not repeat the random numbers of an earlier one. Federated rounds in one process share
a generator, which draws further numbers between two recordings: initial weights, evaluations. It runs on from the
earlier state, and no number is used twice, unless the script seeds it again.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The Mersenne Twister of torch's CPU generators, in bytes of the state: after the seed (8 bytes) and the number of
#: unused words (8), the position in the block (8) and its 624 words (8 each).
_POSITION, _BLOCK = slice(16, 24), slice(24, 24 + 8 * 624)

#: The largest number of kept recordings of one generator; of older ones no state is continued.
_MOST_KEPT = 1000


def generator_of_noise(private_optimizer: Any) -> torch.Generator:
    """The generator from which Opacus' optimizer draws; of a loop without one (None), torch's default one."""
    if private_optimizer is None:
        return torch.default_generator
    if private_optimizer.generator is not None:
        generator: torch.Generator = private_optimizer.generator
        return generator
    device = private_optimizer.params[0].device
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


def drawing_sampler(loader: Any) -> Any:
    """The sampler of a loader that draws from its ``generator``, of batches or of single records; None without one."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = (batches, getattr(batches, "sampler", None))
    return next((sampler for sampler in samplers if hasattr(sampler, "generator")), None)


def generator_of_batches(sampler: Any) -> torch.Generator:
    """The generator of a :func:`drawing_sampler`."""
    generator: torch.Generator = sampler.generator or torch.default_generator
    return generator


@dataclass(frozen=True)
class Kept:
    """The states of a generator before and after a recording in this process.

    owner: equal for the parts of one training. runs_on: whether no earlier recording began with its first state.
    """

    owner: str
    start: Tensor
    end: Tensor
    runs_on: bool


#: By device and seed, the recordings of a generator in the order of their ends.
_recordings: dict[tuple[str, int], list[Kept]] = {}


def keep(generator: torch.Generator, start: Tensor, owner: str = "") -> None:
    """Keep the state of a generator whose recording ends. start: its state at the beginning of the recording."""
    recordings = _recordings.setdefault((generator.device.type, generator.initial_seed()), [])
    recordings.append(Kept(owner, start, generator.get_state(), _runs_on(generator, recordings, start)))
    del recordings[:-_MOST_KEPT]


def continued_state(generator: torch.Generator, owner: str = "") -> Tensor:
    """The state after the owner's last kept recording if the generator ran on from there, otherwise its current state.

    It did not run on if it, or a recording since then, of another training too, began with the state of a new seed,
    with a state of an earlier beginning, or before the last end in one block. A script that sets the same secret seed
    again, and draws another number of values before the recording, is not found: the statement names it, and a public
    seed is ``guessable-seed``.
    """
    state = generator.get_state()
    recordings = _recordings.get((generator.device.type, generator.initial_seed()), [])
    last = next((n for n in reversed(range(len(recordings))) if recordings[n].owner == owner), None)
    if last is None:
        return state
    if all(recording.runs_on for recording in recordings[last + 1 :]) and _runs_on(generator, recordings, state):
        return recordings[last].end
    return state


def _runs_on(generator: torch.Generator, recordings: Sequence[Kept], state: Tensor) -> bool:
    if not recordings or torch.equal(state, recordings[-1].end):
        return True
    seeded = torch.Generator(generator.device).manual_seed(generator.initial_seed()).get_state()
    if any(torch.equal(state, used) for used in (seeded, *(recording.start for recording in recordings))):
        return False
    return _may_be_later(generator.device.type, recordings[-1].end, state)


def _may_be_later(device: str, end: Tensor, state: Tensor) -> bool:
    if device != "cpu":  # Philox: the state is the seed and an offset, which grows with each draw
        return len(end) == len(state) == 16 and _number(end[8:]) <= _number(state[8:])
    return not torch.equal(end[_BLOCK], state[_BLOCK]) or _number(end[_POSITION]) <= _number(state[_POSITION])


def _number(content: Tensor) -> int:
    return int(content.clone().view(torch.int64))


@contextlib.contextmanager
def same_randomness(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch at the end; ``seed`` seeds them at the beginning.

    device: the only one whose generator may be used; None for all.
    """
    python, numpy, devices = random.getstate(), np.random.get_state(), range(torch.cuda.device_count())
    if device is not None:
        devices = range(device.index or 0, (device.index or 0) + 1) if device.type == "cuda" else range(0)
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
