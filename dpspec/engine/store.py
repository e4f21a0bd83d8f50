"""The trial store: content-addressed, write-once, checked on reading.

A record is a folder ``trials/ab/abcd.../`` with ``record.json`` and one ``.npy`` file per array. It is written
beside its place and renamed into it, so that a reader sees all of it or nothing, and a killed run leaves at most a
folder under ``tmp/``. What does not match its own digests is moved to ``damaged/`` and counts as absent. What a trial
in work needs to go on after it was killed is under ``unfinished/``, until the trial is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.contract import FrozenMap, Json, Trial, freeze, thaw
from dpspec.contract.canonical import canonical_json, digest
from dpspec.engine.result import TrialRecord

if TYPE_CHECKING:
    import numpy as np

SCHEMA = "dpspec/trial/v1"
MAX_EVIDENCE_BYTES = 1 << 20


class _DamageError(Exception):
    """A record that must not be believed; the text says why."""


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial with the record that vouches for it."""

    trial: Trial
    record: TrialRecord


class Store:
    """A folder of trials. Safe for several processes: records are never changed, only added or removed whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str, on_damage: Callable[[str], None] | None = None) -> StoredTrial | None:
        """The trial stored under ``key``, or None. A damaged record is set aside, reported, and counts as absent."""
        folder = self._folder(key)
        if not folder.is_dir():
            return None
        try:
            return self._read(folder, key)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, _DamageError) as error:
            with suppress(OSError):  # where another process was faster, or the store cannot be written to
                self._set_aside(folder)
            if on_damage is not None:
                on_damage(f"stored trial {key[:12]} is damaged ({error or type(error).__name__}): it is made again")
            return None

    def put(self, key: str, trial: Trial, recorded: FrozenMap) -> StoredTrial:
        """Store a trial and return it as it was stored; a record that is already there stays and is returned.

        Raises ``ValueError`` when the evidence is not finite JSON or larger than 1 MiB.
        """
        evidence = canonical_json(trial.evidence)
        if len(evidence) > MAX_EVIDENCE_BYTES:
            raise ValueError(
                f"trial {trial.index}: its evidence takes {len(evidence)} bytes, more than the {MAX_EVIDENCE_BYTES} "
                "allowed; put large things into arrays"
            )
        scratch = self.root / "tmp" / uuid.uuid4().hex
        scratch.mkdir(parents=True)
        try:
            arrays = {name: _write_array(scratch / f"{name}.npy", array) for name, array in trial.arrays.items()}
            body: dict[str, Json] = {
                "schema": SCHEMA,
                "key": key,
                "index": trial.index,
                "evidence": json.loads(evidence),
                "arrays": arrays,
                "recorded": thaw(recorded),
            }
            body["digest"] = digest(body)
            _write_synced(scratch / "record.json", canonical_json(body).encode("ascii"))
            folder = self._folder(key)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.rename(folder)
            except OSError:
                kept = self.get(key)  # of another process that made the same trial; a damaged one is set aside
                if kept is not None:
                    return kept
                scratch.rename(folder)
            _sync_folder(folder.parent)
            return self._read(folder, key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if self._folder(key).is_dir():
                shutil.rmtree(self.unfinished(key), ignore_errors=True)

    def unfinished(self, key: str) -> Path:
        """A folder for the state of a trial in work, which may not exist; it is removed once the trial is stored."""
        return self.root / "unfinished" / self._folder(key).name

    def sweep(self) -> int:
        """Remove the state of all trials that were not finished; the number of bytes that it took."""
        folder = self.root / "unfinished"
        freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
        return freed

    def keys(self) -> Iterator[str]:
        """The keys of all stored trials, sorted."""
        yield from sorted(path.parent.name for path in self.root.glob("trials/*/*/record.json"))

    def size(self, key: str) -> int:
        """The bytes that one trial takes."""
        return sum(path.stat().st_size for path in self._folder(key).iterdir())

    def remove(self, key: str) -> None:
        """Remove one trial; an absent one is no error."""
        folder = self._folder(key)
        if folder.is_dir():
            self._set_aside(folder)
        shutil.rmtree(self.root / "damaged" / key, ignore_errors=True)

    def _folder(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise ValueError(f"not a trial key: {key!r}")
        return self.root / "trials" / key[:2] / key

    def _set_aside(self, folder: Path) -> None:
        place = self.root / "damaged" / folder.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)

    def _read(self, folder: Path, key: str) -> StoredTrial:
        import numpy as np

        body = json.loads((folder / "record.json").read_bytes())
        claimed = body.pop("digest")
        if digest(body) != claimed or body["key"] != key or body["schema"] != SCHEMA:
            raise _DamageError("its digest does not match")
        arrays: dict[str, np.ndarray] = {}
        for name, about in body["arrays"].items():
            file = folder / f"{name}.npy"
            if _file_digest(file) != about["digest"]:
                raise _DamageError(f"array {name} does not match its digest")
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        record = TrialRecord(
            index=body["index"],
            key=key,
            evidence=freeze(body["evidence"]),
            arrays=freeze(body["arrays"]),
            recorded=freeze(body["recorded"]),
        )
        return StoredTrial(trial=Trial(index=record.index, evidence=record.evidence, arrays=arrays), record=record)


def _write_array(file: Path, array: np.ndarray) -> dict[str, Json]:
    import numpy as np

    if not file.stem.isidentifier():
        raise ValueError(f"array name {file.stem!r} is not an identifier")
    with file.open("xb") as out:
        np.save(out, np.ascontiguousarray(array), allow_pickle=False)
        out.flush()
        os.fsync(out.fileno())
    return {"digest": _file_digest(file), "shape": list(array.shape), "dtype": str(array.dtype)}


def _write_synced(file: Path, content: bytes) -> None:
    with file.open("xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
