"""Generators of random numbers: of noise and of batches, their states, and the same numbers for two computations.

A later part of a training must not repeat the random numbers of an earlier one. Federated rounds in one process share
a generator, which draws further numbers between two recordings: initial weights, evaluations. Its state then follows
from the earlier one by draws, and no number is used twice.
"""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Number of 32-bit draws between two recordings up to which a state is found, about one second. To compare with the
#: states of earlier beginnings would cost nothing, but misses a seed that is set again before another number of draws.
_MOST_DRAWS = 2**25

#: The Mersenne Twister of torch's CPU generators: its number of words, and its bytes in the state: after the seed (8
#: bytes) and the number of unused words (8), the position in the block (8) and the words (8 each).
_WORDS, _POSITION, _BLOCK = 624, slice(16, 24), slice(24, 24 + 8 * 624)

#: The largest number of kept recordings of one generator; of older ones no state is continued.
_MOST_KEPT = 1000


def generator_of_noise(private_optimizer: Any) -> torch.Generator:
    """The generator from which Opacus' optimizer draws; of a loop without one (None), torch's default one."""
    if private_optimizer is None:
        return torch.default_generator
    if private_optimizer.generator is not None:
        generator: torch.Generator = private_optimizer.generator
        return generator
    first = private_optimizer.params[0]
    return torch.cuda.default_generators[first.device.index or 0] if first.is_cuda else torch.default_generator


def drawing_sampler(loader: Any) -> Any:
    """The sampler of a loader that draws from its ``generator``, of batches or of single records; None without one."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = (batches, getattr(batches, "sampler", None))
    return next((sampler for sampler in samplers if hasattr(sampler, "generator")), None)


def generator_of_batches(sampler: Any) -> torch.Generator:
    """The generator of a :func:`drawing_sampler`."""
    generator: torch.Generator = sampler.generator or torch.default_generator
    return generator


@dataclass
class Kept:
    """The states of a generator before and after a recording in this process.

    owner: equal for the parts of one training. follows: whether the start continues the end of the kept recording
    before; None until that is known.
    """

    owner: str
    start: Tensor
    end: Tensor
    follows: bool | None = None


#: By device and seed, the recordings of a generator in the order of their ends.
_recordings: dict[tuple[str, int], list[Kept]] = {}


def keep(generator: torch.Generator, start: Tensor, owner: str = "") -> None:
    """Keep the state of a generator whose recording ends. start: its state at the beginning of the recording."""
    recordings = _recordings.setdefault((generator.device.type, generator.initial_seed()), [])
    recordings.append(Kept(owner, start, generator.get_state()))
    del recordings[:-_MOST_KEPT]


def continued_state(generator: torch.Generator, owner: str = "") -> Tensor:
    """The state after the owner's last kept recording if the generator ran on from there, otherwise its current state.

    It ran on if every recording since then, of other trainings too, began with a state that follows from the end of the
    one before by at most :data:`_MOST_DRAWS` draws.
    """
    state, device = generator.get_state(), generator.device.type
    recordings = _recordings.get((device, generator.initial_seed()), [])
    last = next((n for n in reversed(range(len(recordings))) if recordings[n].owner == owner), None)
    if last is None:
        return state
    for before, after in pairwise(recordings[last:]):
        if after.follows is None:
            after.follows = _follows(device, before.end, after.start)
        if not after.follows:
            return state
    return recordings[last].end if _follows(device, recordings[-1].end, state) else state


def _follows(device: str, end: Tensor, state: Tensor) -> bool:
    if torch.equal(end, state):
        return True
    return _follows_on_host(end, state) if device == "cpu" else _follows_on_cuda(end, state)


def _follows_on_host(end: Tensor, state: Tensor) -> bool:
    block, copy = state[_BLOCK], torch.Generator()
    copy.set_state(end)
    if torch.equal(end[_BLOCK], block):
        return _number(end[_POSITION]) <= _number(state[_POSITION])
    drawn = torch.empty(_WORDS, dtype=torch.int32)
    for _ in range(_MOST_DRAWS // _WORDS):
        drawn.random_(generator=copy)
        if torch.equal(copy.get_state()[_BLOCK], block):
            return True
    return False


def _follows_on_cuda(end: Tensor, state: Tensor) -> bool:
    """Philox: the state is the seed and an offset, which grows with each draw."""
    return len(end) == len(state) == 16 and bool(_number(end[8:]) <= _number(state[8:]))


def _number(content: Tensor) -> int:
    return int(content.clone().view(torch.int64))


def own_normals(like: Tensor) -> Tensor:
    """Standard normal numbers in the form of a tensor, from a new generator: the training's generators stay.

    A generator that is put back to an earlier state would repeat the numbers that another thread drew meanwhile.
    """
    generator = torch.Generator(like.device)
    generator.seed()
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


@contextlib.contextmanager
def same_randomness(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch at the end; ``seed`` seeds them at the beginning.

    device: the only one whose generator may be used; None for all. ``torch.manual_seed`` would also seed the other
    devices, whose later noise is to stay secret.
    """
    python, numpy, devices = random.getstate(), np.random.get_state(), range(torch.cuda.device_count())
    if device is not None:
        devices = range(device.index or 0, (device.index or 0) + 1) if device.type == "cuda" else range(0)
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
                for number in devices:
                    torch.cuda.default_generators[number].manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
