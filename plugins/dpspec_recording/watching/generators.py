"""Generators of random numbers: of noise and of batches, their states, and the same numbers for two computations.

A later part of a training must not repeat the random numbers of an earlier one. Federated rounds in one process share
a generator, which draws further numbers between two recordings: initial weights, evaluations. Its state then follows
from the earlier one by draws, and no number is used twice.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Number of 32-bit draws between two recordings up to which a state is found, about one second.
_MOST_DRAWS = 2**25

#: The Mersenne Twister of torch's CPU generators: its number of words, and its bytes in the state: after the seed (8
#: bytes) and the number of unused words (8), the position in the block (8) and the words (8 each).
_WORDS, _POSITION, _BLOCK = 624, slice(16, 24), slice(24, 24 + 8 * 624)

#: By device and seed, the state of a generator at the end of its last recording in this process.
_ends: dict[tuple[str, int], Tensor] = {}


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


def keep_end(generator: torch.Generator) -> None:
    """Keep the state of a generator whose recording ends."""
    _ends[generator.device.type, generator.initial_seed()] = generator.get_state()


def continued_state(generator: torch.Generator) -> Tensor:
    """The kept state from which the generator ran on by at most :data:`_MOST_DRAWS` draws, otherwise its own state."""
    state = generator.get_state()
    end = _ends.get((generator.device.type, generator.initial_seed()))
    if end is None or torch.equal(end, state):
        return state
    follows = _follows_on_host if generator.device.type == "cpu" else _follows_on_cuda
    return end if follows(end, state) else state


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
