"""The trial store: content-addressed, write-once, checked on reading.

A record is ``record.json`` and one ``.npy`` file per array, on whatever shelf the store has (``dpspec.stores``). What
does not match its own digests is set aside and counts as absent: it is reported and made again, never believed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json, Trial, freeze, thaw
from dpspec.contract.canonical import canonical_json, digest
from dpspec.engine.result import TrialRecord
from dpspec.errors import UsageError
from dpspec.stores.shelf import RECORD, open_shelf

if TYPE_CHECKING:
    import numpy as np

SCHEMA = "dpspec/trial/v1"
MAX_EVIDENCE_BYTES = 1 << 20

#: Records that are asked for at once: a store may be far away.
AT_ONCE = 16

#: Arrays of fewer bytes are read at once: mapped ones keep their file open, and systems allow so many of them.
_MAPPED = 1 << 18

#: What the system says of files that are not as they were left. What else it says, of rights or of too many open files,
#: is no word on the record.
_BROKEN = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO})

#: Headers of arrays are read one at a time: Python before 3.11.8 fails where threads parse at once (gh-106905).
_HEADERS = threading.Lock()

#: Another process may take away as damaged what was put a moment ago; so often it is put again.
_ATTEMPTS = 3


class _DamageError(Exception):
    """A record that must not be believed; the text says why."""


#: What reading a record that is not one may raise.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, _DamageError)


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial with the record that vouches for it."""

    trial: Trial
    record: TrialRecord


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A record as a list shows it. ``spec``, ``kind`` and ``made`` are what it says of itself, empty where nothing."""

    key: str
    size: int
    spec: str = ""
    kind: str = ""
    made: str = ""


class Store:
    """Trials by their keys. Safe for several writers: records are never changed, only added or removed whole."""

    def __init__(self, location: str | Path) -> None:
        """``location``: a folder, or a URL that fsspec knows; raises ``UsageError`` where it does not."""
        self._shelf = open_shelf(location)

    @property
    def location(self) -> str:
        """The path or URL that names it."""
        return self._shelf.location

    def exists(self) -> bool:
        """Whether there is anything at its place yet."""
        return self._shelf.exists()

    def refusal(self) -> str | None:
        """Why no trial could be kept here, in words; None where one could."""
        return self._shelf.refusal()

    def get(self, key: str, on_damage: Callable[[str], None] | None = None) -> StoredTrial | None:
        """The trial stored under ``key``, or None. A damaged record is set aside, reported, and counts as absent.

        Raises ``UsageError`` where the system does not let us read it.
        """
        if not self._shelf.holds(key):
            return None
        try:
            return self._read(key)
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno not in _BROKEN:
                why = error.strerror or str(error)
                raise UsageError(f"cannot read trial {key[:12]} in {self.location}: {why}") from error
            if not self._shelf.holds(key):  # another process took it away meanwhile
                return None
            with suppress(OSError, UsageError):  # where another was faster, or the store cannot be written to
                self._shelf.set_aside(key)
            if on_damage is not None:
                on_damage(f"stored trial {key[:12]} is damaged ({error or type(error).__name__}): it is made again")
            return None

    def put(self, key: str, trial: Trial, recorded: FrozenMap) -> StoredTrial:
        """Store a trial and return it as it was stored; a record that is already there stays and is returned.

        Raises ``ValueError`` when the evidence is not finite JSON or larger than 1 MiB.
        """
        try:
            evidence = canonical_json(trial.evidence)
        except (TypeError, ValueError) as error:
            raise type(error)(f"trial {trial.index}: its evidence cannot be kept: {error}") from None
        if len(evidence) > MAX_EVIDENCE_BYTES:
            raise ValueError(
                f"trial {trial.index}: its evidence takes {len(evidence)} bytes, more than the {MAX_EVIDENCE_BYTES} "
                "allowed; put large things into arrays"
            )
        for _ in range(_ATTEMPTS):
            scratch = self._shelf.scratch()
            try:
                _write_record(scratch, key, trial, json.loads(evidence), recorded)
                self._shelf.commit(key, scratch)  # where it does not, another process has made the same trial
                if (kept := self.get(key)) is not None:
                    return kept
            except OSError as error:
                why = error.strerror or str(error)
                raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: {why}") from error
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                self._forget_unfinished(key)
        raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: it is damaged whenever it is read back")

    def unfinished(self, key: str) -> Path | None:
        """A folder for the state of a trial in work, which may not exist; it is removed once the trial is stored.

        None where the store has no folder on this machine.
        """
        return self._shelf.unfinished(key)

    def sweep(self) -> int:
        """Remove what is no record: of trials that were not finished, and what was set aside; its bytes."""
        return self._shelf.sweep()

    def keys(self) -> Iterator[str]:
        """The keys of all stored trials, sorted."""
        yield from sorted(self._shelf.keys())

    def entries(self) -> Iterator[Entry]:
        """All stored trials by their keys, with what each says of itself; arrays are not looked at."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from (entry for entry in pool.map(self._entry, self.keys()) if entry is not None)

    def size(self, key: str) -> int:
        """The bytes that one trial takes."""
        return self._shelf.size(key)

    def remove(self, key: str) -> None:
        """Remove one trial; an absent one is no error."""
        self._shelf.remove(key)

    def _entry(self, key: str) -> Entry | None:
        """What a list shows of a trial; None where another process has just removed it."""
        try:
            size = self.size(key)
        except FileNotFoundError:
            return None
        try:
            recorded = self._body(key)["recorded"]
            told = {name: str(recorded.get(name) or "") for name in ("spec", "kind", "made")}
        except _UNREADABLE:
            told = {}
        return Entry(key=key, size=size, **told)

    def _forget_unfinished(self, key: str) -> None:
        folder = self._shelf.unfinished(key)
        if folder is not None and self._shelf.holds(key):
            shutil.rmtree(folder, ignore_errors=True)

    def _body(self, key: str) -> dict[str, Any]:
        """What ``record.json`` says, once it is known to be what was written under this key."""
        body: dict[str, Any] = json.loads(self._shelf.file(key, RECORD).read_bytes())
        claimed = body.pop("digest")
        if digest(body) != claimed or body["key"] != key or body["schema"] != SCHEMA:
            raise _DamageError("its digest does not match")
        return body

    def _read(self, key: str) -> StoredTrial:
        body = self._body(key)
        arrays: dict[str, np.ndarray] = {}
        for name, about in body["arrays"].items():
            file = self._shelf.file(key, _array_file(name), about["digest"])
            if _file_digest(file) != about["digest"]:
                raise _DamageError(f"array {name} does not match its digest")
            arrays[name] = _load(file)
        record = TrialRecord(
            index=body["index"],
            key=key,
            evidence=freeze(body["evidence"]),
            arrays=freeze(body["arrays"]),
            recorded=freeze(body["recorded"]),
        )
        return StoredTrial(trial=Trial(index=record.index, evidence=record.evidence, arrays=arrays), record=record)


def _write_record(folder: Path, key: str, trial: Trial, evidence: Json, recorded: FrozenMap) -> None:
    arrays = {name: _write_array(folder / _array_file(name), array) for name, array in trial.arrays.items()}
    body: dict[str, Json] = {
        "schema": SCHEMA,
        "key": key,
        "index": trial.index,
        "evidence": evidence,
        "arrays": arrays,
        "recorded": thaw(recorded),
    }
    body["digest"] = digest(body)
    with (folder / RECORD).open("xb") as out:
        out.write(canonical_json(body).encode("ascii"))
        out.flush()
        os.fsync(out.fileno())


def _write_array(file: Path, array: np.ndarray) -> dict[str, Json]:
    import numpy as np

    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        raise ValueError(f"array {file.stem!r} holds Python objects; arrays of trials hold numbers")
    with file.open("xb") as out:
        np.save(out, array, allow_pickle=False)
        out.flush()
        os.fsync(out.fileno())
    return {"digest": _file_digest(file), "shape": list(array.shape), "dtype": str(array.dtype)}


def _load(file: Path) -> np.ndarray:
    """An array for reading only; a large one stays where it is until it is looked at."""
    import numpy as np

    with _HEADERS:
        mapped = np.lib.format.open_memmap(file, mode="r")
    if mapped.nbytes > _MAPPED:
        return mapped
    array = np.array(mapped)
    array.flags.writeable = False
    return array


def _array_file(name: str) -> str:
    """The file of an array; a name that is no identifier could lead out of the record."""
    if not name.isidentifier():
        raise ValueError(f"array name {name!r} is not an identifier")
    return f"{name}.npy"


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
