"""The trial store: content-addressed, write-once, validated on reading.

A record is ``record.json`` and one ``.npy`` file per array, on a storage backend (``dpspec.stores``). Once all trials
of a bundle are stored, one file replaces their records (``bundle_file``). A record that does not match its digests is
quarantined, reported, and made again.

A digest detects damage, not forgery. A seal is the HMAC-SHA256 of the digest, which covers key, evidence and the
digests of all arrays (RFC 2104): only someone with the secret can write a record with a valid seal.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json, Trial, freeze, thaw
from dpspec.contract.frozen import canonical_json, digest
from dpspec.contract.results import TrialRecord
from dpspec.engine.storage.array_files import DamageError, array_file, read_array, write_array
from dpspec.engine.storage.bundle_file import TRIALS, Bundle, read_bundle, write_bundle
from dpspec.errors import UsageError
from dpspec.regular_files import NotRegularError, open_private, read_regular
from dpspec.stores import RECORD, FolderStorage

if TYPE_CHECKING:
    import numpy as np

    from dpspec.stores import RemoteStorage


SCHEMA = "dpspec/trial/v1"
MAX_EVIDENCE_BYTES = 1 << 20

#: Maximum size of a record: evidence, descriptions of arrays, and makers.
MAX_RECORD_BYTES = 1 << 23

#: Number of concurrent requests to a store.
AT_ONCE = 16

#: Error numbers of damaged records. Other errors, such as missing permissions, are not the record's.
_BROKEN = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO})

#: Number of attempts to write a record that another process may quarantine.
_ATTEMPTS = 3

#: Minimum number of trials of a bundle: a single record needs no second file.
_FEWEST = 2

#: The folder, in the current one, of the trials that remote stores did not receive.
UNSENT = Path(".dpspec/unsent")

#: Parts of a record that are mappings.
_MAPPINGS = ("evidence", "arrays", "recorded")

#: The scheme of a URL.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)

#: Errors while reading an invalid record.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DamageError)

#: Size limits of a secret in bytes.
_LEAST, _MOST = 32, 4096

#: Prefix of sealed digests, which separates seals from other uses of the secret.
_PURPOSE = b"dpspec/trial/v1\0"


def read_key(file: Path | None) -> bytes | None:
    """The secret in a file; None without a file. Raises ``UsageError`` if it is invalid."""
    if file is None:
        return None
    try:
        key = read_regular(file, _MOST).strip(b"\r\n")
    except OSError as error:
        raise UsageError(f"cannot read the key of --store-key, {file}: {error.strerror or error}") from None
    if len(key) < _LEAST:
        raise UsageError(f"the key in {file} has {len(key)} bytes; a secret of {_LEAST} or more is needed")
    return key


def seal_of(key: bytes, digest: str) -> str:
    return hmac.new(key, _PURPOSE + digest.encode("ascii"), hashlib.sha256).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial with its record."""

    trial: Trial
    record: TrialRecord


class Store:
    """Trials by key. Safe for several writers: records never change and are added or removed as a whole."""

    def __init__(self, location: str | Path, key: bytes | None = None, *, only_read: bool = False) -> None:
        """Open a store.

        Args:
            location: A folder, or a URL: ``file://``, or an fsspec protocol (``s3://``, ``gs://``).
            key: Seals new records; other records are ignored.
            only_read: Whether to leave damaged records in place.

        Raises:
            UsageError: The location is invalid, or is neither a store nor empty nor absent.
        """
        text = str(location)
        if not text.partition("://")[2 if "://" in text else 0].strip("/ \t") and not text.startswith("/"):
            raise UsageError(f"the store {text!r} has no location: give a folder, or a URL with a path after ://")
        scheme = _URL.match(text) if isinstance(location, str) else None
        self._storage: FolderStorage | RemoteStorage
        if scheme is None:
            self._storage = FolderStorage(Path(location))
        elif scheme[1].lower() in ("file", "local"):
            self._storage = FolderStorage(Path(text[scheme.end() :]))
        else:
            from dpspec.stores import RemoteStorage

            self._storage = RemoteStorage.open(text)
        #: The local store of trials that a remote one did not receive.
        self._unsent: Store | None = None
        if scheme is not None and not isinstance(self._storage, FolderStorage):
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            self._unsent = Store(Path.cwd() / UNSENT / name, key)
        self._key = key
        self._only_read = only_read
        #: Keys of the records that :meth:`get` read, and of those that it could not use.
        self.intact: set[str] = set()
        self.damaged: set[str] = set()
        self._storage.require_store()

    @property
    def location(self) -> str:
        """The path or URL."""
        return self._storage.location

    def exists(self) -> bool:
        """Whether the location exists."""
        return self._storage.exists()

    def refusal(self) -> str | None:
        """Why no trial can be stored here; None if one can."""
        return self._storage.refusal()

    def get(
        self, key: str, on_damage: Callable[[str], None] | None = None, index: int | None = None
    ) -> StoredTrial | None:
        """The trial under ``key`` of this ``index``, or None. A damaged record is quarantined and reported."""
        try:
            if not self._storage.holds(key):
                return None
            stored = self._read(key, index)
            self.intact.add(key)
            return stored
        except _UNREADABLE as error:
            self._require_damage(error, key)
            if not self._storage.holds(key):  # another process took it away meanwhile
                return None
            self.damaged.add(key)
            if not self._only_read:
                self.quarantine(key)
                self._report_damage(key, error, on_damage)
            return None

    def _require_damage(self, error: Exception, key: str) -> None:
        """Raise ``UsageError`` if the error is not the record's, such as a missing permission."""
        if isinstance(error, OSError) and error.errno not in _BROKEN:
            reason = error.strerror or str(error)
            raise UsageError(f"cannot read trial {key[:12]} in {self.location}: {reason}") from error

    def _report_damage(self, key: str, error: Exception, on_damage: Callable[[str], None] | None) -> None:
        if on_damage is not None:
            cause = str(error) or type(error).__name__
            on_damage(f"stored trial {key[:12]} is damaged ({cause}): moved aside, to be trained again")

    def get_all(
        self,
        keys: Mapping[int, str],
        on_damage: Callable[[str], None] | None = None,
        *,
        planned: Mapping[int, str] | None = None,
        as_indexed: bool = True,
    ) -> dict[int, StoredTrial]:
        """The stored trials of one audit, by index, from bundles and single records.

        Args:
            keys: The keys of the trials, by index.
            on_damage: Receives a sentence for each damaged trial.
            planned: The keys of all trials of the audit, whose first ones name bundles; by default ``keys``.
            as_indexed: Whether a record of another index is damaged.
        """
        names = bundle_names(keys if planned is None else planned)
        trials: dict[int, StoredTrial] = {}
        broken: dict[str, None] = {}
        for _ in range(_ATTEMPTS):
            absent = []
            for number, bundle_keys in bundles_of(keys).items():
                missing = {index: key for index, key in bundle_keys.items() if index not in trials}
                if missing and number in names:
                    bundled = self._get_bundled(names[number], missing, on_damage, broken, as_indexed)
                    trials |= bundled or {}
                    absent += [names[number]] if bundled is None and not missing.keys() <= trials.keys() else []
            trials |= self._get_single(
                {index: key for index, key in keys.items() if index not in trials}, on_damage, as_indexed
            )
            if len(trials) == len(keys) or not any(self._storage.bundle(name) for name in absent):
                break  # otherwise another process has bundled them meanwhile
        self.damaged |= broken.keys() - self.intact
        return trials | self._sent({index: key for index, key in keys.items() if index not in trials})

    def _sent(self, keys: Mapping[int, str]) -> dict[int, StoredTrial]:
        """The trials that an earlier run kept locally, sent now."""
        trials: dict[int, StoredTrial] = {}
        if self._unsent is None or self._only_read or not self._unsent.exists():
            return trials
        for index, key in keys.items():
            if (unsent := self._unsent.get(key, index=index)) is not None:
                trials[index] = self.put(key, unsent.trial, unsent.record.recorded)
                self._unsent._storage.remove({key: {}})
        return trials

    def _get_single(
        self, keys: Mapping[int, str], on_damage: Callable[[str], None] | None, as_indexed: bool
    ) -> dict[int, StoredTrial]:
        """The trials of single records; a remote store receives several requests at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            over = map if isinstance(self._storage, FolderStorage) else pool.map
            read = over(lambda item: self.get(item[1], on_damage, item[0] if as_indexed else None), keys.items())
            return {index: trial for index, trial in zip(keys, read, strict=True) if trial is not None}

    def _get_bundled(
        self,
        name: str,
        keys: Mapping[int, str],
        on_damage: Callable[[str], None] | None,
        broken: dict[str, None],
        as_indexed: bool = True,
    ) -> dict[int, StoredTrial] | None:
        """The trials in a bundle, or None if it does not exist. Intact records of a damaged one become single again."""
        trials: dict[int, StoredTrial] = {}
        causes: dict[str, Exception] = {}
        bundle: Bundle | None = None
        try:
            if (file := self._storage.bundle(name)) is None:
                return None
            bundle = read_bundle(file)
        except _UNREADABLE as error:
            self._require_damage(error, name)
            if self._storage.bundle(name) is None:  # another process took it away meanwhile
                return None
            causes |= dict.fromkeys(keys.values(), error)
        else:
            for index, key in keys.items():
                if key in bundle.records:
                    try:
                        trials[index] = self._read(key, index if as_indexed else None, bundle)
                    except _UNREADABLE as error:
                        self._require_damage(error, key)
                        causes[key] = error
        self.intact.update(keys[index] for index in trials)
        broken.update(dict.fromkeys(causes))
        if causes and not self._only_read:
            with suppress(OSError, UsageError):  # another process was faster, or the store cannot be written to
                if bundle is not None:
                    self._take_apart(bundle)
                self._storage.quarantine_bundle(name)
            for key, cause in causes.items():
                self._report_damage(key, cause, on_damage)
        return trials

    def _take_apart(self, bundle: Bundle) -> None:
        """Make the intact records of a damaged bundle single records again."""
        for key in bundle.records:
            scratch = self._storage.scratch()
            try:
                names = [RECORD, *_array_digests(self._read(key, None, bundle).record)]
                bundle.extract(key, names, scratch)
                self._storage.commit(key, scratch)
            except (DamageError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def bundle(self, trials: Sequence[StoredTrial]) -> None:
        """Move the stored trials of one bundle out of their single records into one file.

        If that fails, the single records stay, which are valid too.
        """
        if len(trials) < _FEWEST:
            return
        keys = {trial.record.index: trial.record.key for trial in trials}
        (name,) = bundle_names(keys).values()
        with suppress(*_UNREADABLE, UsageError):
            if self._storage.bundle(name) is None:  # otherwise another process was faster
                self._write_bundle(name, trials)
            bundled = self._get_bundled(name, keys, None, {}) or {}  # read back before the single records go
            self._storage.remove({keys[index]: _array_digests(trial.record) for index, trial in bundled.items()})

    def _write_bundle(self, name: str, trials: Sequence[StoredTrial]) -> None:
        """Write a bundle, unless it would be too large."""
        scratch = self._storage.scratch()
        try:
            files: dict[str, dict[str, Path]] = {}
            for trial in trials:
                key, names = trial.record.key, {RECORD: "", **_array_digests(trial.record)}
                files[key] = {file: self._storage.file(key, file, digest) for file, digest in names.items()}
            scratch_file = scratch / name
            if write_bundle(scratch_file, files):
                self._storage.commit_bundle(name, scratch_file)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def put(
        self, key: str, trial: Trial, recorded: FrozenMap, bundle: str | None = None, *, durable: bool = True
    ) -> StoredTrial:
        """Store a trial as a single record and return it as stored, or the existing one.

        If a remote store does not receive it, a local one keeps it for the next run.

        Args:
            key: The key of the trial.
            trial: The trial.
            recorded: Its origin.
            bundle: The name of the bundle that another process may have moved the same trial to.
            durable: Whether the trial must survive a power failure from now on, not only from :meth:`bundle` on. It
                survives the end of this process anyway.

        Raises:
            ValueError: The evidence is invalid.
            UsageError: The trial cannot be stored here.
        """
        try:
            return self._put(key, trial, recorded, bundle, durable)
        except UsageError as error:
            if self._unsent is None:
                raise
            self._unsent.put(key, trial, recorded)
            effect = f"trial {key[:12]} is kept in {self._unsent.location}, and the same command sends it next time"
            raise UsageError(f"{error}; {effect}") from error

    def _put(self, key: str, trial: Trial, recorded: FrozenMap, bundle: str | None, durable: bool) -> StoredTrial:
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
                self._storage.commit(key, scratch, durable=durable)  # unless another process made the same trial
                bundled = bundle and self._get_bundled(bundle, {trial.index: key}, None, {})
                stored = bundled[trial.index] if bundled else self.get(key, index=trial.index)
                if stored is not None:
                    return stored
            except OSError as error:
                reason = error.strerror or str(error)
                raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: {reason}") from error
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                folder = self._storage.unfinished(key)
                if folder is not None and self._storage.holds(key):
                    shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"cannot keep trial {key[:12]} in {self.location}: it is damaged whenever it is read back")

    def quarantine(self, key: str) -> None:
        """Quarantine the record of ``key``, if it exists."""
        with suppress(OSError, UsageError):  # where another was faster, or the store cannot be written to
            self._storage.quarantine(key)

    def unfinished(self, key: str) -> Path | None:
        """A folder, which may not exist, for an unfinished trial; None if the store has no local folder."""
        folder = self._storage.unfinished(key)
        if folder is not None:
            with suppress(OSError):  # ``refusal`` reports a store that cannot be written to
                self._storage.mark()
        return folder

    def _body(self, key: str, bundle: Bundle | None) -> dict[str, Any]:
        """The content of ``record.json``, if it was written under this key."""
        if bundle is not None:
            content = bundle.read(key, RECORD, MAX_RECORD_BYTES)
        else:
            file = self._storage.file(key, RECORD)
            try:
                content = read_regular(file, MAX_RECORD_BYTES, follow=False)
            except NotRegularError as error:
                raise DamageError(f"{file.name}: {error.strerror}") from None
        body: dict[str, Any] = json.loads(content)
        seal, claimed = body.pop("seal", None), body.pop("digest")
        if digest(body) != claimed or body["key"] != key or body["schema"] != SCHEMA:
            raise DamageError("its digest does not match")
        sealed = isinstance(seal, str) and seal.isascii()
        if self._key is not None and not (sealed and hmac.compare_digest(seal_of(self._key, claimed), seal)):
            raise DamageError("it is not sealed with the key of --store-key")
        if type(body["index"]) is not int or not all(isinstance(body[part], dict) for part in _MAPPINGS):
            raise DamageError("it is not in the format that a store writes")
        return body

    def _read(self, key: str, index: int | None, bundle: Bundle | None = None) -> StoredTrial:
        body = self._body(key, bundle)
        if index is not None and body["index"] != index:
            raise DamageError(f"it is of trial {body['index']}, not of {index}")
        arrays: dict[str, np.ndarray] = {}
        for name, about in body["arrays"].items():
            file, part = array_file(name), None
            if bundle is None:
                array_path = self._storage.file(key, file, about["digest"])
            else:
                array_path, part = bundle.file, bundle.records[key][file]
            arrays[name] = read_array(array_path, about["dtype"], about["shape"], about["digest"], part)
        record = TrialRecord(
            index=body["index"],
            key=key,
            evidence=freeze(body["evidence"]),
            arrays=freeze(body["arrays"]),
            recorded=freeze(body["recorded"]),
        )
        return StoredTrial(trial=Trial(index=record.index, evidence=record.evidence, arrays=arrays), record=record)


def bundles_of(keys: Mapping[int, str]) -> dict[int, dict[int, str]]:
    """The keys by index, divided by the number of their bundle."""
    bundles: dict[int, dict[int, str]] = {}
    for index in sorted(keys):
        bundles.setdefault(index // TRIALS, {})[index] = keys[index]
    return bundles


def bundle_names(planned: Mapping[int, str]) -> dict[int, str]:
    """The key that names each bundle of an audit, the key of its first planned trial, by the bundle's number."""
    return {number: next(iter(keys.values())) for number, keys in bundles_of(planned).items()}


def _array_digests(record: TrialRecord) -> dict[str, str]:
    """The digest of each array's file of a record."""
    return {array_file(name): about["digest"] for name, about in record.arrays.items()}


def _write_record(
    folder: Path, key: str, trial: Trial, evidence: Json, recorded: FrozenMap, sealing: bytes | None
) -> None:
    arrays = {name: write_array(folder / array_file(name), array) for name, array in trial.arrays.items()}
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
    with open_private(folder / RECORD) as out:
        out.write(canonical_json(body).encode("ascii"))
