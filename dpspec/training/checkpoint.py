"""A run's state on disk, so that a killed run loses at most what came after: one file, replaced as a whole.

The file holds nothing but arrays (``.npz``, never pickled), the digest of its job and one of its arrays; a file of
another job, one that was changed, or one that cannot be read, counts as absent. The file of a run that has ended stays,
for whoever trains several times before anything of it is stored; it is the owner of the folder who removes it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

import dpspec
from dpspec.contract.canonical import digest
from dpspec.contract.providers import Resumable, TrainingJob
from dpspec.training.memories import Remembering, collect, distribute, part

#: Raise it when what is stored changes its meaning.
_FORMAT = 2

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
            with self._file.open("rb") as file, np.load(file, allow_pickle=False) as stored:
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
            "versions": [dpspec.__version__, torch.__version__, np.__version__],
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
