"""A run's state on disk, so that a killed run loses at most what came after: one file, replaced as a whole.

A part or an observer with a memory between steps has two methods, ``state()`` and ``restore(state)``, of named arrays;
``restore({})`` makes it as new. A part without them has no memory. An observer whose ``state()`` is None cannot tell
what it remembers, and a run that it watches cannot be resumed.

The file holds nothing but arrays (``.npz``, never pickled), the digest of its job and one of its arrays; a file of
another job, one that was changed, or one that cannot be read, counts as absent. The file of a run that has ended
stays, for whoever trains several times before anything of it is stored; it is the owner of the folder who removes it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.canonical import digest
from dpspec.contract.providers import Resumable, TrainingJob
from dpspec.regular_files import open_regular
from dpspec.version import VERSION

#: No state is larger.
_LARGEST = 1 << 36

#: Arrays by name; names may have parts, set off by dots.
Memory: TypeAlias = Mapping[str, np.ndarray[Any, Any]]


@runtime_checkable
class Remembering(Protocol):
    """Something with a memory."""

    def state(self) -> Memory | None:
        """What it remembers, as arrays that later steps do not change; None where it cannot tell."""

    def restore(self, state: Memory) -> None:
        """Remember what ``state()`` gave; an empty memory is that of a new run."""


class Random:
    """The memory of a generator: the place in its stream."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state(self) -> Memory:
        """Where the stream stands."""
        return {"place": self._generator.get_state().numpy()}

    def restore(self, state: Memory) -> None:
        """Go on from there; a new run has a new generator."""
        if state:
            self._generator.set_state(torch.tensor(state["place"], dtype=torch.uint8))


def collect(named: Mapping[str, Remembering]) -> dict[str, np.ndarray[Any, Any]] | None:
    """All memories as one, each name's under ``name.``; None where one of them cannot tell."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, thing in named.items():
        state = thing.state()
        if state is None:
            return None
        found |= {f"{name}.{key}": value for key, value in state.items()}
    return found


def distribute(named: Mapping[str, Remembering], memory: Memory) -> None:
    """Give everything its part of a memory that :func:`collect` made."""
    for name, thing in named.items():
        thing.restore(part(memory, name))


def part(memory: Memory, name: str) -> Memory:
    """What stands under ``name.`` in a memory."""
    return {key.removeprefix(f"{name}."): value for key, value in memory.items() if key.startswith(f"{name}.")}


def tensors(**named: Tensor | None) -> Memory:
    """Tensors as arrays; what is None is left out."""
    return {name: value.cpu().numpy().copy() for name, value in named.items() if value is not None}


def tensor(memory: Memory, name: str) -> Tensor | None:
    """A tensor on the CPU with a storage of its own; None where the memory lacks it."""
    return torch.tensor(memory[name]) if name in memory else None


#: Raise it when what is stored changes its meaning.
_FORMAT = 3

#: A large state is saved less often: work goes on for so many times as long as saving took.
_WORTH = 20.0


class Checkpoint:
    """Where and when one run is saved."""

    def __init__(self, where: Resumable, identity: Callable[[], str]) -> None:
        """``identity`` gives the digest of the job, hexadecimal text; it is asked for once there is a file to be."""
        self._where = where
        self._digest = identity
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._saved_step: int | None = None

    @cached_property
    def _identity(self) -> str:
        return self._digest()

    @property
    def _file(self) -> Path:
        return self._where.folder / f"{self._identity[:32]}.npz"

    def load(self, remembering: Mapping[str, Remembering], initial: Tensor) -> tuple[int, Tensor] | None:
        """The steps that were done and the state after them (P,), like ``initial``; memories are restored.

        None, and nothing changes, where there is no file of this job that can be read.
        """
        if not self._where.folder.is_dir():
            return None
        try:
            with open_regular(self._file, _LARGEST, follow=False) as file, np.load(file, allow_pickle=False) as stored:
                if any(member.compress_type for member in stored.zip.infolist()):
                    return None  # written as it is, so that nothing is larger than its file
                kept = {name: stored[name] for name in stored.files}
            if str(kept.pop("digest")) != _content(kept) or str(kept["identity"]) != self._identity:
                return None
            step, state = int(kept["step"]), torch.tensor(kept["state"]).to(initial)
        except Exception:  # damaged bytes make zip, zlib and numpy raise more kinds than can be listed
            return None
        distribute(remembering, part(kept, "memory"))
        self._saved_step = step
        return step, state

    def due(self, step: int, total: int) -> bool:
        """Whether to save after ``step`` of ``total`` steps; after the last one only if the run was worth saving."""
        if self._where.steps is not None:
            return step % self._where.steps == 0 or (step == total and self._saved_step is not None)
        late = time.monotonic() - self._saved_at >= max(self._where.seconds, _WORTH * self._cost)
        return late or (step == total and self._saved_step is not None)

    def save(self, step: int, state: Tensor, remembering: Mapping[str, Remembering]) -> None:
        """Write the state after ``step`` steps; nothing is written where an observer cannot tell what it remembers.

        A folder that cannot be written to is no reason to stop: the run goes on, and starts anew if it is killed.
        """
        began = time.monotonic()
        self._write(step, state, remembering)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - began

    def _write(self, step: int, state: Tensor, remembering: Mapping[str, Remembering]) -> None:
        memory = collect(remembering) if step != self._saved_step else None
        if memory is None:
            return
        arrays: dict[str, Any] = {f"memory.{name}": value for name, value in memory.items()}
        arrays |= {"identity": np.array(self._identity), "step": np.array(step), "state": state.cpu().numpy()}
        arrays["digest"] = np.array(_content(arrays))
        beside = self._file.with_name(f"{uuid4().hex}.tmp")
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with beside.open("xb") as out:
                    np.savez(out, **arrays)
                    out.flush()
                    os.fsync(out.fileno())
                beside.replace(self._file)
                self._saved_step = step
            finally:
                beside.unlink(missing_ok=True)


def checkpoint_of(job: TrainingJob, initial: Tensor) -> Checkpoint | None:
    """The checkpoint that a job asks for, if it does; ``initial`` (P,) is the state that it begins with."""
    return None if job.resumable is None else Checkpoint(job.resumable, partial(identity_of, job, initial))


def identity_of(job: TrainingJob, initial: Tensor) -> str:
    """The digest of all that decides a job's run: equal for equal jobs on the same kind of device and versions.

    Of planted canaries it knows their number and the first and the last gradient.
    """
    canaries = job.canaries
    planted = []
    if canaries is not None and canaries.count:
        ends = torch.tensor([0, canaries.count - 1], device=initial.device)
        planted = [canaries.count, _hash(canaries.gradients(ends).cpu().numpy())]
    return digest(
        {
            "format": _FORMAT,
            "versions": [VERSION, torch.__version__, np.__version__],
            "x": _hash(job.x),
            "y": _hash(job.y),
            "initial": _hash(initial.cpu().numpy()),
            "phases": list(job.phases),
            "options": job.options,
            "expected_batch_size": job.expected_batch_size,
            "device": torch.device(job.device).type,
            "seed": job.seed,
            "canaries": planted,
            "observers": [type(observer).__name__ for observer in job.observers],
        }
    )


def _content(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The digest of named arrays."""
    return digest({name: _hash(array) for name, array in arrays.items()})


def _hash(array: np.ndarray[Any, Any]) -> str:
    header = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()
