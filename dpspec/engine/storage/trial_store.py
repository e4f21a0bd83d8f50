"""The trial store: content-addressed, write-once, checked on reading.

A record is ``record.json`` and one ``.npy`` file per array, on whatever storage the store has (``dpspec.stores``). What
does not match its own digests is set aside and counts as absent: it is reported and made again, never believed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json, Trial, freeze, thaw
from dpspec.contract.canonical import canonical_json, digest
from dpspec.engine.results.result import TrialRecord
from dpspec.engine.storage.seals import is_sealed, seal_of
from dpspec.engine.storage.trial_arrays import KINDS, MOST_BYTES, ArrayError, file_digest, read_array
from dpspec.errors import UsageError
from dpspec.regular_files import NotRegularError, read_regular
from dpspec.stores.open_storage import open_storage
from dpspec.stores.storage import RECORD

if TYPE_CHECKING:
    import numpy as np

SCHEMA = "dpspec/trial/v1"
MAX_EVIDENCE_BYTES = 1 << 20

#: No record is longer: evidence, and what is said of arrays and of who made them.
MAX_RECORD_BYTES = 1 << 23

#: Records that are asked for at once: a store may be far away.
AT_ONCE = 16

#: What the system says of files that are not as they were left. What else it says, of rights or of too many open files,
#: is no word on the record.
_BROKEN = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO})

#: Another process may take away as damaged what was put a moment ago; so often it is put again.
_ATTEMPTS = 3


#: Parts of a record that are mappings.
_MAPPINGS = ("evidence", "arrays", "recorded")


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

    def __init__(self, location: str | Path, key: bytes | None = None, *, only_read: bool = False) -> None:
        """``location``: a folder, or a URL that fsspec knows. ``key``: seals records, and only those sealed are read.
        only_read: damaged records are left where they are, as whoever has another key may not find them damaged.

        Raises ``UsageError`` where it does not, and where the place is neither a store nor empty nor absent.
        """
        self._storage = open_storage(location)
        self._key = key
        self._only_read = only_read
        self._storage.require_store()

    @property
    def location(self) -> str:
        """The path or URL that names it."""
        return self._storage.location

    def exists(self) -> bool:
        """Whether there is anything at its place yet."""
        return self._storage.exists()

    def refusal(self) -> str | None:
        """Why no trial could be kept here, in words; None where one could."""
        return self._storage.refusal()

    def get(
        self, key: str, on_damage: Callable[[str], None] | None = None, index: int | None = None
    ) -> StoredTrial | None:
        """The trial stored under ``key``, or None. A damaged record is set aside, reported, and counts as absent; of a
        store that is only read, it counts as absent.

        index: which trial of its audit it must be, where that is known.

        Raises ``UsageError`` where the system does not let us read it.
        """
        try:
            if not self._storage.holds(key):
                return None
            return self._read(key, index)
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno not in _BROKEN:
                why = error.strerror or str(error)
                raise UsageError(f"cannot read trial {key[:12]} in {self.location}: {why}") from error
            if not self._storage.holds(key):  # another process took it away meanwhile
                return None
            if self._only_read:
                return None
            self.quarantine(key)
            if on_damage is not None:
                on_damage(f"stored trial {key[:12]} is damaged ({error or type(error).__name__}); making it again")
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
            scratch = self._storage.scratch()
            try:
                _write_record(scratch, key, trial, json.loads(evidence), recorded, self._key)
                self._storage.commit(key, scratch)  # where it does not, another process has made the same trial
                if (stored := self.get(key, index=trial.index)) is not None:
                    return stored
            except OSError as error:
                why = error.strerror or str(error)
                raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: {why}") from error
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                self._forget_unfinished(key)
        raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: it is damaged whenever it is read back")

    def quarantine(self, key: str) -> None:
        """Take away what is stored under ``key``, as ``get`` does with what is damaged; an absent one is no error."""
        with suppress(OSError, UsageError):  # where another was faster, or the store cannot be written to
            self._storage.quarantine(key)

    def unfinished(self, key: str) -> Path | None:
        """A folder for the state of a trial in work, which may not exist; it is removed once the trial is stored.

        None where the store has no folder on this machine.
        """
        folder = self._storage.unfinished(key)
        if folder is not None:
            with suppress(OSError):  # what cannot be written to is told by ``refusal``
                self._storage.mark()
        return folder

    def sweep(self) -> int:
        """Remove what is no record: of trials that were not finished, and what was set aside; its bytes."""
        return self._storage.sweep()

    def keys(self) -> Iterator[str]:
        """The keys of all stored trials, sorted."""
        yield from sorted(self._storage.keys())

    def entries(self) -> Iterator[Entry]:
        """All stored trials by their keys, with what each says of itself; arrays are not looked at."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from (entry for entry in pool.map(self._entry, self.keys()) if entry is not None)

    def size(self, key: str) -> int:
        """The bytes that one trial takes."""
        return self._storage.size(key)

    def remove(self, key: str) -> None:
        """Remove one trial; an absent one is no error."""
        self._storage.remove(key)

    def _entry(self, key: str) -> Entry | None:
        """What a list shows of a trial; None where another process has just removed it."""
        try:
            size = self.size(key)
        except FileNotFoundError:
            return None
        except OSError:  # a file, or a loop of links, in the place of a folder
            size = 0
        try:
            recorded = self._body(key)["recorded"]
            fields = {name: str(recorded.get(name) or "") for name in ("spec", "kind", "made")}
        except _UNREADABLE:
            fields = {}
        return Entry(key=key, size=size, **fields)

    def _forget_unfinished(self, key: str) -> None:
        folder = self._storage.unfinished(key)
        if folder is not None and self._storage.holds(key):
            shutil.rmtree(folder, ignore_errors=True)

    def _body(self, key: str) -> dict[str, Any]:
        """What ``record.json`` says, once it is known to be what was written under this key."""
        body: dict[str, Any] = json.loads(_read(self._storage.file(key, RECORD)))
        seal, claimed = body.pop("seal", None), body.pop("digest")
        if digest(body) != claimed or body["key"] != key or body["schema"] != SCHEMA:
            raise _DamageError("its digest does not match")
        if self._key is not None and not is_sealed(self._key, claimed, seal):
            raise _DamageError("it is not sealed with the key of --store-key")
        if type(body["index"]) is not int or not all(isinstance(body[part], dict) for part in _MAPPINGS):
            raise _DamageError("it is not in the format that a store writes")
        return body

    def _read(self, key: str, index: int | None) -> StoredTrial:
        body = self._body(key)
        if index is not None and body["index"] != index:
            raise _DamageError(f"it is of trial {body['index']}, not of {index}")
        arrays: dict[str, np.ndarray] = {}
        for name, about in body["arrays"].items():
            file = self._storage.file(key, _array_file(name), about["digest"])
            try:
                arrays[name] = read_array(file, about["dtype"], about["shape"], about["digest"])
            except ArrayError as error:
                raise _DamageError(f"array {name} {error}") from None
        record = TrialRecord(
            index=body["index"],
            key=key,
            evidence=freeze(body["evidence"]),
            arrays=freeze(body["arrays"]),
            recorded=freeze(body["recorded"]),
        )
        return StoredTrial(trial=Trial(index=record.index, evidence=record.evidence, arrays=arrays), record=record)


def _write_record(
    folder: Path, key: str, trial: Trial, evidence: Json, recorded: FrozenMap, sealing: bytes | None
) -> None:
    arrays = {name: _write_array(folder / _array_file(name), array) for name, array in trial.arrays.items()}
    body: dict[str, Json] = {
        "schema": SCHEMA,
        "key": key,
        "index": trial.index,
        "evidence": evidence,
        "arrays": arrays,
        "recorded": thaw(recorded),
    }
    body["digest"] = whole = digest(body)
    if sealing is not None:
        body["seal"] = seal_of(sealing, whole)
    with (folder / RECORD).open("xb") as out:
        out.write(canonical_json(body).encode("ascii"))
        out.flush()
        os.fsync(out.fileno())


def _write_array(file: Path, array: np.ndarray) -> dict[str, Json]:
    import numpy as np

    array = np.ascontiguousarray(array)
    if array.dtype.kind not in KINDS or array.nbytes > MOST_BYTES:
        raise ValueError(
            f"array {file.stem!r} holds {array.nbytes} bytes of {array.dtype}; arrays of trials hold at most "
            f"{MOST_BYTES} bytes of numbers that are not complex"
        )
    with file.open("xb") as out:
        np.save(out, array, allow_pickle=False)
        out.flush()
        os.fsync(out.fileno())
    return {"digest": file_digest(file), "shape": list(array.shape), "dtype": str(array.dtype)}


def _read(file: Path) -> bytes:
    """A record's text."""
    try:
        return read_regular(file, MAX_RECORD_BYTES, follow=False)
    except NotRegularError as error:
        raise _DamageError(f"{file.name}: {error.strerror}") from None


def _array_file(name: str) -> str:
    """The file of an array; a name that is no identifier could lead out of the record."""
    if not name.isidentifier():
        raise ValueError(f"array name {name!r} is not an identifier")
    return f"{name}.npy"
