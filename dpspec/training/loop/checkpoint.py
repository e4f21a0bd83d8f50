"""Checkpoints of a run: one file, replaced atomically, so that a killed run resumes from the last save.

The file is an uncompressed ``.npz`` (never pickled) with the digests of its job and its arrays; a file of another job,
or a modified or unreadable file, is ignored. The owner of the folder removes it.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.frozen import digest
from dpspec.contract.providers import Resumable, TrainingJob
from dpspec.regular_files import make_private_folder, open_private, open_regular
from dpspec.version import VERSION

#: Maximum size of a checkpoint in bytes.
_LARGEST = 1 << 36

#: Arrays by name, with dots as separators of nested names.
Memory: TypeAlias = Mapping[str, np.ndarray[Any, Any]]


@runtime_checkable
class Stateful(Protocol):
    def state(self) -> Memory | None:
        """Return arrays that later steps do not modify; None if the state cannot be saved."""

    def restore(self, state: Memory) -> None:
        """Restore the result of ``state()`` in a new object."""


def state_of(stateful: Stateful | torch.Generator) -> Memory | None:
    return {"place": stateful.get_state().numpy()} if isinstance(stateful, torch.Generator) else stateful.state()


def restore(stateful: Stateful | torch.Generator, memory: Memory) -> None:
    if isinstance(stateful, torch.Generator):
        stateful.set_state(torch.tensor(memory["place"], dtype=torch.uint8))
    else:
        stateful.restore(memory)


class Remembering:
    """Saves the attributes that ``kept`` names: tensors, arrays, numbers, lists, generators, and objects with state."""

    kept: tuple[str, ...] = ()

    def state(self) -> Memory:
        memory: dict[str, np.ndarray[Any, Any]] = {}
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, Stateful | torch.Generator):
                memory |= {f"{name}.{key}": array for key, array in (state_of(value) or {}).items()}
            elif isinstance(value, Tensor):
                memory[name] = value.cpu().numpy().copy()
            elif value is not None:
                memory[name] = np.array(value)
        return memory

    def restore(self, state: Memory) -> None:
        for name in self.kept:
            value, array = getattr(self, name), state.get(name)
            if isinstance(value, Stateful | torch.Generator):
                restore(value, part(state, name))
            elif array is None or isinstance(value, np.ndarray):
                setattr(self, name, None if array is None else array.copy())
            elif isinstance(value, list):
                setattr(self, name, array.tolist() if array.ndim < 2 else list(array))
            elif isinstance(value, int | float):
                setattr(self, name, array.item())
            else:
                tensor = torch.tensor(array)
                setattr(self, name, tensor if value is None else tensor.to(value.device))


def part(memory: Memory, name: str) -> Memory:
    return {key.removeprefix(f"{name}."): value for key, value in memory.items() if key.startswith(f"{name}.")}


#: Increase this number when the meaning of stored arrays changes.
_FORMAT = 7

#: Minimum ratio of training time to saving time.
_WORTH = 20.0


class Checkpoint:
    def __init__(self, where: Resumable, identity: Callable[[], str]) -> None:
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

    def load(self, stateful: Mapping[str, Stateful | torch.Generator], initial: Tensor) -> tuple[int, Tensor] | None:
        """Restore the memories, and return the completed steps and the parameters (P,), or None without a file."""
        if not self._where.folder.is_dir():
            return None
        try:
            with open_regular(self._file, _LARGEST, follow=False) as file, np.load(file, allow_pickle=False) as stored:
                if any(member.compress_type for member in stored.zip.infolist()):
                    return None  # written uncompressed, so that no array is larger than its file
                arrays = {name: stored[name] for name in stored.files}
            if str(arrays.pop("digest")) != _content(arrays) or str(arrays["identity"]) != self._identity:
                return None
            step, state = int(arrays["step"]), torch.tensor(arrays["state"]).to(initial)
        except Exception:  # damaged files make zip, zlib and numpy raise many types
            return None
        for name, target in stateful.items():
            restore(target, part(part(arrays, "memory"), name))
        self._saved_step = step
        return step, state

    def due(self, step: int, total: int) -> bool:
        """Whether to save after ``step`` of ``total`` steps. After the last step, only if an earlier step was saved."""
        if self._where.steps is not None:
            due = step % self._where.steps == 0
        else:
            due = time.monotonic() - self._saved_at >= max(self._where.seconds, _WORTH * self._cost)
        return due or (step == total and self._saved_step is not None)

    def save(self, step: int, state: Tensor, stateful: Mapping[str, Stateful | torch.Generator]) -> None:
        """Write the state after ``step`` steps, unless an observer cannot be saved.

        If the folder is not writable, the run continues, and restarts from the beginning if it is killed.
        """
        began = time.monotonic()
        memory = {} if step == self._saved_step else {name: state_of(holder) for name, holder in stateful.items()}
        if step != self._saved_step and None not in memory.values():
            self._write(step, state, memory)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - began

    def _write(self, step: int, state: Tensor, memory: Mapping[str, Memory | None]) -> None:
        arrays: dict[str, Any] = {
            f"memory.{name}.{key}": array for name, part in memory.items() for key, array in (part or {}).items()
        }
        arrays |= {"identity": np.array(self._identity), "step": np.array(step), "state": state.cpu().numpy()}
        arrays["digest"] = np.array(_content(arrays))
        beside = self._file.with_name(f"{uuid4().hex}.tmp")
        with suppress(OSError):
            make_private_folder(self._file.parent)
            try:
                with open_private(beside) as out:
                    np.savez(out, **arrays)
                    out.flush()
                    os.fsync(out.fileno())
                beside.replace(self._file)
                self._saved_step = step
            finally:
                beside.unlink(missing_ok=True)


def job_digest(job: TrainingJob, initial: Tensor) -> str:
    """Digest of everything that determines a job's run; of gradient canaries the number, first and last gradient."""
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
    return digest({name: _hash(array) for name, array in arrays.items()})


def _hash(array: np.ndarray[Any, Any]) -> str:
    header = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()
