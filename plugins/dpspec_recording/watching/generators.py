"""Generators of random numbers: of noise and of batches, their states, and the same numbers for two computations.

A later part of a training must not repeat the random numbers of an earlier one. Federated rounds in one process share
a generator, which draws further numbers between two recordings: initial weights, evaluations.
"""

import contextlib
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The largest number of kept states of a generator.
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
class _Kept:
    """The states of a generator at beginnings, checkpoints and ends of recordings, and the last end of each owner."""

    states: list[Tensor] = field(default_factory=list)
    ends: dict[str, Tensor] = field(default_factory=dict)


#: By the device and the seed of a generator.
_recordings: defaultdict[tuple[str, int], _Kept] = defaultdict(_Kept)


def _states_of(generator: torch.Generator) -> _Kept:
    return _recordings[generator.device.type, generator.initial_seed()]


def keep_state(generator: torch.Generator, state: Tensor) -> None:
    """Keep a state to which a script may go back."""
    states = _states_of(generator).states
    if not states or not torch.equal(states[-1], state):
        states.append(state)
        del states[:-_MOST_KEPT]


def keep(generator: torch.Generator, start: Tensor, owner: str = "") -> None:
    """Keep the state of a generator whose recording ends.

    Args:
        generator: Of noise or batches.
        start: Its state at the beginning of the recording.
        owner: Equal for the parts of one training.
    """
    end = generator.get_state()
    keep_state(generator, start)
    keep_state(generator, end)
    _states_of(generator).ends[owner] = end


def continued_state(generator: torch.Generator, owner: str = "") -> Tensor:
    """The state after the owner's last kept recording if the generator ran on from there, otherwise its current state.

    A generator that is seeded again, or goes back to a checkpoint, has an earlier kept state, unless it draws another
    number of values before the recording begins.
    """
    state, kept_states = generator.get_state(), _states_of(generator)
    is_last = bool(kept_states.states) and torch.equal(state, kept_states.states[-1])
    is_repeated = not is_last and any(torch.equal(state, earlier) for earlier in kept_states.states)
    return state if is_repeated else kept_states.ends.get(owner, state)


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
