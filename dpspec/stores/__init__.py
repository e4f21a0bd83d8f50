"""Storage of trials: a folder, or an object store through fsspec (``s3://``, ``gs://``, ``memory://`` and others).

A location is a store if it has a marker file. dpspec writes and removes records only in stores and never changes other
folders. A record consists of a few files under one key, which never change. Readers see a whole record or nothing. A
bundle is one file with the records of many trials, under the key of the first one. It never changes either.
Methods raise ``OSError``, or ``UsageError`` if the storage is unreachable.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpspec.errors import UsageError
from dpspec.regular_files import make_private_folder, open_private

#: Name and content of the marker file.
MARK = "dpspec-store.json"
CONTENT = json.dumps({"store": "dpspec", "version": 1}).encode("ascii") + b"\n"

#: Folders of a store.
PARTS = ("trials", "damaged", "unfinished", "tmp")

#: Pattern of a key.
KEY = re.compile(r"[0-9a-f]{64}")


#: The largest number of bytes by which a damaged marker differs from a whole one.
_DAMAGED_BYTES = 4

#: How to repair a marker with more damaged bytes.
_REPAIR = f"write {CONTENT.decode().strip()} and a line end into it"


def is_whole_mark(content: bytes, location: str) -> bool:
    """Whether the content is this version's marker; a damaged one is named, and its store stays usable.

    Records have their own digests, so damage to the marker does not concern them.

    Raises:
        UsageError: Another program, or another version of dpspec, wrote the content.
    """
    if content == CONTENT:
        return True
    differing = sum(a != b for a, b in zip(content, CONTENT, strict=False)) + abs(len(content) - len(CONTENT))
    version = _version_in(content)
    if version is not None:
        raise UsageError(
            f"{location} is not a store of trials of this version of dpspec: {location}/{MARK} says version {version}. "
            f"If no other version wrote it, the file is damaged: {_REPAIR}"
        )
    if differing > _DAMAGED_BYTES:
        raise UsageError(
            f"{location} is not a store of trials: this version of dpspec did not write its {MARK}. If it is a store "
            f"with a damaged file, {_REPAIR}; its trials stay usable. Else give --store another folder"
        )
    effect = "its trials stay usable, and the next trial repairs it"
    print(f"note: {location}/{MARK} is damaged ({differing} bytes differ); {effect}", file=sys.stderr)
    return False


def _version_in(content: bytes) -> object:
    """The version in a marker that is valid JSON; None in any other content."""
    try:
        read = json.loads(content)
    except ValueError:
        return None
    return read.get("version") if isinstance(read, dict) and read.get("store") == "dpspec" else None


def require_unused(paths: Iterable[str], location: str) -> None:
    """Raise ``UsageError`` for any path except a marker file that another process is writing."""
    strange = next((path for path in paths if not path.startswith(f"{MARK}.")), None)
    if strange is not None:
        raise UsageError(
            f"{location} is not a store of trials: it contains {strange[:80]!r} and no {MARK}; "
            "--store takes a store, an empty folder or a new folder"
        )


#: The file of a record that is written last and completes it.
RECORD = "record.json"

#: Suffix of the file of a bundle, which follows its key.
BUNDLE = ".bundle"

#: Possible secrets in a URL: the password and the query.
_PASSWORD, _OPTIONS = re.compile(r"(://[^/?#:@]*:)[^/?#]*@"), re.compile(r"(?<=\?).+")


def shown(location: str) -> str:
    """A location without secrets: a URL without its password and query."""
    return _OPTIONS.sub("***", _PASSWORD.sub(r"\1***@", location)) if "://" in location else location


def check_key(key: str) -> str:
    """Return the key. Raises ``ValueError`` if it is not a valid key, for example a path out of the store."""
    if not KEY.fullmatch(key):
        raise ValueError(f"not a trial key: {key!r}")
    return key


#: Errors of a rename onto an existing record.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})

#: Maximum number of bytes of the marker file.
_MARK_BYTES = 4096


class FolderStorage:
    """Stores each record in a folder ``trials/ab/abcd.../``. Safe for several processes on one disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)
        self._damaged = False

    def exists(self) -> bool:
        return self.root.is_dir()

    def require_store(self) -> None:
        """Raise ``UsageError`` unless the location is a store, empty or absent."""
        if not os.path.lexists(self.root):
            return
        if not self.root.is_dir():
            fault = "a broken link" if self.root.is_symlink() and not self.root.exists() else "not a folder"
            raise UsageError(f"cannot keep trials in {self.root}: {self.root} is {fault}")
        try:
            linked = next((part for part in PARTS if (self.root / part).is_symlink()), None)
            if linked is not None:
                raise UsageError(f"{self.root} is not a store of trials: its {linked} is a symbolic link")
            entries = os.listdir(self.root)
            if entries and not self._is_marked():
                require_unused(entries, self.location)
        except OSError as error:
            raise UsageError(f"cannot use the store {self.root}: {error.strerror or error}") from error

    def mark(self) -> None:
        """Mark the location as a store. Raises ``UsageError`` if it is not a store and not empty."""
        mark = self.root / MARK
        if mark.is_file() and not self._damaged:
            return
        make_private_folder(self.root)
        self.require_store()
        beside = self.root / f"{MARK}.{uuid.uuid4().hex}"
        try:
            with open_private(beside) as file:
                file.write(CONTENT)
            with suppress(FileExistsError):  # another process was faster, on Windows
                os.replace(beside, mark) if self._damaged else os.rename(beside, mark)
            self._damaged = False
        finally:
            beside.unlink(missing_ok=True)

    def refusal(self) -> str | None:
        """Reason why records cannot be written; None if they can."""
        existing = next(existing for existing in (self.root, *self.root.absolute().parents) if os.path.exists(existing))
        if not os.path.isdir(existing):
            return f"{existing} is not a folder"
        if not os.access(existing, os.W_OK | os.X_OK):
            return "permission denied; --store names another folder"
        try:
            tempfile.TemporaryDirectory(dir=existing).cleanup()
        except OSError as error:  # a file system that takes no folders, such as /proc
            return f"{error.strerror}; --store names another folder"
        return None

    def holds(self, key: str) -> bool:
        """True if anything exists in the record's place. A file there is a damaged record."""
        return os.path.lexists(self._folder(key))

    def file(self, key: str, name: str, digest: str = "") -> Path:
        """A local, read-only file with the content of one file of a record, whose SHA-256 may be known."""
        folder = self._folder(key)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "its folder is a link", str(folder))
        return folder / name

    def scratch(self) -> Path:
        """Create an empty local folder for a new record. The caller removes it."""
        self.mark()
        folder = self.root / "tmp" / uuid.uuid4().hex
        make_private_folder(folder)
        return folder

    def commit(self, key: str, folder: Path, *, durable: bool = True) -> None:
        """Store the files of a folder from :meth:`scratch`. An existing record does not change.

        Args:
            key: The key of the record.
            folder: The folder with its files.
            durable: Whether the record must survive a power failure as soon as this method returns.
        """
        record = self._folder(key)
        make_private_folder(record.parent)
        if durable:
            for file in folder.iterdir():
                _sync(file)
        try:
            folder.rename(record)
        except OSError as error:
            if error.errno not in _TAKEN and not record.is_dir():
                raise
            return
        if durable:
            _sync(record.parent)

    def bundle(self, key: str) -> Path | None:
        """A local, read-only file with the bundle of this key; None without one."""
        file = self._bundle(key)
        return file if os.path.lexists(file) else None

    def commit_bundle(self, key: str, file: Path) -> None:
        """Store a file from :meth:`scratch` as a bundle. An existing bundle does not change."""
        bundle = self._bundle(key)
        make_private_folder(bundle.parent)
        if not os.path.lexists(bundle):
            _sync(file)
            os.replace(file, bundle)
            _sync(bundle.parent)

    def remove(self, records: Mapping[str, Mapping[str, str]]) -> None:
        """Remove records, if they exist; their arrays have names and digests. A reader finds each one whole or none."""
        for key in records:
            trash = self.root / "tmp" / uuid.uuid4().hex
            with suppress(OSError):
                self._folder(key).rename(trash)
                shutil.rmtree(trash, ignore_errors=True)

    def quarantine_bundle(self, key: str) -> None:
        """Hide a bundle and keep it for inspection."""
        bundle = self._bundle(key)
        hidden = self.root / "damaged" / f"{bundle.name}.{uuid.uuid4().hex[:8]}"
        make_private_folder(hidden.parent)
        bundle.rename(hidden)

    def quarantine(self, key: str) -> None:
        """Hide a record and keep it for inspection."""
        record = self.root / "damaged" / check_key(key)
        make_private_folder(record.parent)
        if record.is_symlink() or not record.is_dir():
            record.unlink(missing_ok=True)
        shutil.rmtree(record, ignore_errors=True)
        self._folder(key).rename(record)

    def unfinished(self, key: str) -> Path | None:
        """Folder for the state of an unfinished trial, which may not exist; None if not supported."""
        folder = self.root / "unfinished" / check_key(key)
        return None if folder.is_symlink() else folder

    def _is_marked(self) -> bool:
        mark = self.root / MARK
        if mark.is_symlink() or not mark.is_file():
            return False
        with mark.open("rb") as file:
            self._damaged = not is_whole_mark(file.read(_MARK_BYTES), self.location)
        return True

    def _folder(self, key: str) -> Path:
        """Folder of a record. Symbolic links are neither followed nor removed."""
        above = self.root / "trials" / check_key(key)[:2]
        if above.is_symlink():
            raise UsageError(f"{self.root} is not a store of trials: its {above.name} is a symbolic link")
        return above / key

    def _bundle(self, key: str) -> Path:
        return self._folder(key).with_name(f"{key}{BUNDLE}")


def _sync(path: Path) -> None:
    """Make a file, or the renames into a folder, durable. Windows has no handles of folders."""
    if os.name == "posix" or path.is_file():
        handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


#: Seconds before repeated writes of a record. A store may reject both of two simultaneous writes.
_PAUSES = (0.1, 0.4, 1.6)


#: Limits of a request: seconds until a connection, and until each answer; the number of attempts; and seconds without
#: an answer after which a line says so.
_CONNECT_SECONDS, _READ_SECONDS, _ATTEMPTS, _SILENT_SECONDS = 10.0, 30.0, 2, 15.0


#: A store that receives fewer bytes in a second is given up.
_LEAST_BYTES_PER_SECOND = 1e5


class SilentStoreError(UsageError):
    """A store did not answer in time, after all attempts."""


class RemoteStorage:
    """Stores records under a prefix of an object store. Safe for writers on several machines.

    An object store cannot rename, but writes single objects atomically. A commit writes the arrays first, each under
    its digest, so writers of different bytes never collide. It writes ``record.json`` last and only if it does not
    exist (``If-None-Match``). Readers ignore arrays without a record.
    """

    def __init__(self, files: Any, root: str, location: str) -> None:
        """``files``: an fsspec file system; ``root``: its prefix; ``location``: the URL."""
        self._files, self._root, self._url = files, root.rstrip("/"), location
        self._local = Path(tempfile.mkdtemp(prefix="dpspec-store-"))
        self.location = shown(location)
        self._looked = self._marked = self._damaged = False
        weakref.finalize(self, shutil.rmtree, self._local, ignore_errors=True)

    @classmethod
    def open(cls, url: str) -> "RemoteStorage":
        import fsspec

        try:
            files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **_limits(url))
        except (ImportError, ValueError) as error:
            protocol = url.split("://", 1)[0]
            extra = {"s3": "s3", "gs": "gs", "gcs": "gs"}.get(protocol)
            hint = f"; pip install 'dpspec[{extra}]'" if extra else ""
            raise UsageError(f"cannot use the store {shown(url)}: {error}{hint}") from None
        except Exception as error:  # implementations raise different errors, some when they connect
            text = (" ".join(str(error).split()) or type(error).__name__).replace(url, shown(url))
            raise UsageError(f"cannot use the store {shown(url)}: {text}") from None
        if hasattr(files, "retries"):
            files.retries = _ATTEMPTS
        return cls(files, root, url)

    def exists(self) -> bool:
        """True: a prefix exists as soon as it has an object, and checking costs a request."""
        return True

    def require_store(self) -> None:
        """Do nothing. The first request checks the prefix."""

    def mark(self) -> None:
        self._look()
        if not self._marked or self._damaged:
            with self._asked(), self._in_bucket():
                self._files.pipe_file(f"{self._root}/{MARK}", CONTENT, **self._deadline(len(CONTENT)))
            self._marked, self._damaged = True, False

    def refusal(self) -> str | None:
        probe = f"{self._root}/tmp/{self._local.name}"
        try:
            self.mark()
            with self._asked(), self._in_bucket():
                self._files.pipe_file(probe, b"", **self._deadline(0))
                self._files.rm_file(probe)
        except UsageError as error:
            return str(error)
        return None

    def holds(self, key: str) -> bool:
        self._look()
        with self._asked():
            return bool(self._files.exists(f"{self._folder(key)}/{RECORD}"))

    def file(self, key: str, name: str, digest: str = "") -> Path:
        copy = self._read(key) / _stored_name(name, digest)
        if not (digest and copy.exists()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            arriving = copy.with_name(uuid.uuid4().hex)
            with self._asked():
                content = self._files.cat_file(f"{self._folder(key)}/{copy.name}")
            arriving.write_bytes(content)
            os.replace(arriving, copy)
        return copy

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._local))

    def commit(self, key: str, folder: Path, *, durable: bool = True) -> None:  # an object store is always durable
        if self.holds(key):
            return
        self.mark()
        key_folder = self._folder(key)
        with suppress(FileExistsError):
            for file in sorted(folder.iterdir()):
                if file.name != RECORD:
                    with file.open("rb") as stream:
                        name = _stored_name(file.name, hashlib.file_digest(stream, "sha256").hexdigest())
                    with self._asked(), self._in_bucket():
                        deadline = self._deadline(file.stat().st_size)
                        self._files.put_file(str(file), f"{key_folder}/{name}", **deadline)
            self._create(f"{key_folder}/{RECORD}", folder / RECORD)

    def bundle(self, key: str) -> Path | None:
        self._look()
        name = f"{check_key(key)}{BUNDLE}"
        copy = self._local / "bundles" / name
        if not copy.exists():
            arriving = self.scratch() / name
            try:
                with self._asked():
                    arriving.write_bytes(self._files.cat_file(self._folder(key) + BUNDLE))
            except FileNotFoundError:
                return None
            copy.parent.mkdir(exist_ok=True)
            os.replace(arriving, copy)
        return copy

    def commit_bundle(self, key: str, file: Path) -> None:
        with suppress(FileExistsError):
            self._create(self._folder(key) + BUNDLE, file)

    def remove(self, records: Mapping[str, Mapping[str, str]]) -> None:
        bodies = [f"{self._folder(key)}/{RECORD}" for key in records]
        arrays = [
            f"{self._folder(key)}/{_stored_name(name, digest)}"
            for key, digests in records.items()
            for name, digest in digests.items()
        ]
        for paths in (bodies, arrays):  # readers ignore arrays without a record
            self._remove(paths)

    def quarantine_bundle(self, key: str) -> None:
        bundle = self._folder(key) + BUNDLE
        with self._asked():
            self._files.copy(bundle, f"{self._root}/damaged/{key}{BUNDLE}.{uuid.uuid4().hex[:8]}")
            self._files.rm_file(bundle)
        (self._local / "bundles" / f"{key}{BUNDLE}").unlink(missing_ok=True)

    def quarantine(self, key: str) -> None:
        shutil.rmtree(self._read(key), ignore_errors=True)
        record = f"{self._folder(key)}/{RECORD}"
        with self._asked():
            self._files.copy(record, f"{self._root}/damaged/{key}/{RECORD}")
            self._files.rm_file(record)

    def unfinished(self, key: str) -> None:
        """None: uploading the state of unfinished trials repeatedly would be too slow."""
        check_key(key)

    def _deadline(self, size: int) -> dict[str, float]:
        """The option that limits the time to write ``size`` bytes, if the file system has one.

        A PUT that waits for "100 Continue" is not subject to the limit of reads.
        """
        seconds = _ATTEMPTS * (_CONNECT_SECONDS + _READ_SECONDS + size / _LEAST_BYTES_PER_SECOND)
        return {"timeout": seconds} if getattr(self._files, "async_impl", False) else {}

    def _remove(self, paths: list[str]) -> None:
        """Remove objects, if they exist."""
        try:
            with suppress(UsageError), self._asked():
                self._files.rm(paths)
        except FileNotFoundError:  # some file systems stop at the first object that another process has removed
            for path in paths:
                with suppress(FileNotFoundError, UsageError), self._asked():
                    self._files.rm_file(path)

    def _create(self, path: str, file: Path) -> None:
        """Write an object that does not exist. Raises ``FileExistsError`` if it does."""
        content = file.read_bytes()
        for pause in (*_PAUSES, None):
            try:
                with self._asked(), self._in_bucket():
                    self._files.pipe_file(path, content, mode="create", **self._deadline(len(content)))
                return
            except UsageError as error:
                if pause is None or isinstance(error, SilentStoreError):
                    raise
                time.sleep(pause)

    def _look(self) -> None:
        if self._looked:
            return
        with self._asked():
            self._marked = self._is_marked()
            if not self._marked:
                below: set[str] = set()
                with suppress(FileNotFoundError):
                    below = {path.removeprefix(self._root).strip("/") for path in self._files.find(self._root)}
                self._marked = MARK in below and self._is_marked()  # another writer may have marked it
            if not self._marked:
                require_unused((path for path in below if path), self.location)  # some stores list folders as objects
        self._looked = True

    def _is_marked(self) -> bool:
        try:
            content = self._files.cat_file(f"{self._root}/{MARK}")
        except FileNotFoundError:
            return False
        self._damaged = not is_whole_mark(content, self.location)
        return True

    def _read(self, key: str) -> Path:
        return self._local / "read" / check_key(key)

    def _folder(self, key: str) -> str:
        return f"{self._root}/trials/{check_key(key)[:2]}/{key}"

    @contextmanager
    def _in_bucket(self) -> Iterator[None]:
        """Name the bucket if a write finds nothing: object stores have no folders that could be missing."""
        try:
            yield
        except FileNotFoundError as error:
            bucket = self.location.partition("://")[2].partition("/")[0]
            raise UsageError(
                f"cannot use the store {self.location}: the bucket {bucket!r} does not exist, or must not be written: "
                "create it, or name another one"
            ) from error

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Convert errors of the file system to ``UsageError``, so that an unreachable store is not taken for damage."""
        text = f"the store {self.location} has not answered for {_SILENT_SECONDS} s; waiting"
        silence = threading.Timer(_SILENT_SECONDS, lambda: print(f"note: {text}", file=sys.stderr, flush=True))
        silence.daemon = True
        silence.start()
        try:
            yield
        except (FileNotFoundError, FileExistsError, UsageError):
            raise
        except Exception as error:  # implementations raise different errors
            text = (" ".join(str(error).split()) or type(error).__name__).replace(self._url, self.location)
            silent = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
            kind = SilentStoreError if silent else UsageError
            raise kind(f"cannot use the store {self.location}: {text}") from error
        finally:
            silence.cancel()


def _limits(url: str) -> dict[str, Any]:
    """Options of s3fs: without them, a PUT without an answer waits for four minutes, and is repeated."""
    if url.split("://", 1)[0].lower() not in ("s3", "s3a"):
        return {}
    retries = {"total_max_attempts": 1}  # s3fs itself repeats requests
    limits = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, "retries": retries}
    return {"config_kwargs": limits}


def _stored_name(name: str, digest: str) -> str:
    if name == RECORD:
        return name
    if not KEY.fullmatch(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return f"{digest[:16]}.{name}"
