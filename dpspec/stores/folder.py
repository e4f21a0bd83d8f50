"""Names in a store of trials, and checks that a location is one.

A location is a store if it has a marker file, or contains only paths that version 0.1.0 wrote. dpspec writes and
removes records only in stores and never changes other folders.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dpspec.errors import UsageError

#: Name and content of the marker file.
MARK = "dpspec-store.json"
CONTENT = json.dumps({"store": "dpspec", "version": 1}).encode("ascii") + b"\n"
_VERSION = 1

#: Folders of a store.
PARTS = ("trials", "damaged", "unfinished", "tmp")

_KEY, _FILE = r"[0-9a-f]{64}", r"(record\.json|([0-9a-f]{16}\.)?[^\W\d]\w*\.npy)"

#: Paths of version 0.1.0, which wrote no marker: records, quarantined records, states and temporary folders.
_KNOWN = re.compile(
    rf"trials(/(?P<two>[0-9a-f]{{2}})(/(?P=two)[0-9a-f]{{62}}(/{_FILE})?)?)?"
    rf"|damaged(/{_KEY}(/{_FILE})?)?"
    rf"|unfinished(/{_KEY}(/[0-9a-f]{{32}}\.(npz|tmp))?)?"
    rf"|tmp(/[0-9a-f]{{32}}(/{_FILE})?|/dpspec-store-\w+)?"
    rf"|{re.escape(MARK)}\.[0-9a-f]{{32}}"
)

#: Age in seconds after which an incomplete record is abandoned.
STALE = 86_400.0

#: Patterns of the names of a key's folder and of a temporary folder.
KEY, SCRATCH = re.compile(_KEY), re.compile(r"[0-9a-f]{32}")


def is_known(path: str) -> bool:
    return _KNOWN.fullmatch(path) is not None


def check_mark(content: bytes, location: str) -> None:
    try:
        said = json.loads(content)
        version = said["version"] if said["store"] == "dpspec" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if type(version) is not int or version < 1:
        raise UsageError(f"{location} is not a store of trials: dpspec did not write its {MARK}")
    if version > _VERSION:
        raise UsageError(
            f"{location} is a store of format {version}, of a later version of dpspec; this version reads {_VERSION}"
        )


def require_known(paths: Iterable[str], location: str) -> None:
    strange = next((path for path in paths if not is_known(path)), None)
    if strange is not None:
        raise UsageError(
            f"{location} is not a store of trials: it contains {strange[:80]!r} and no {MARK}; "
            "--store takes a store, an empty folder or a new folder"
        )


#: The file of a record that is written last and completes it.
RECORD = "record.json"

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


def is_place_of(folder: str, key: str) -> bool:
    """True if ``trials/FOLDER/KEY`` is the path of a record."""
    return bool(KEY.fullmatch(key)) and folder == key[:2]


#: Errors of a rename onto an existing record.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})

#: Maximum number of bytes of the marker file.
_MARK_BYTES = 4096


class FolderStorage:
    """Stores each record in a folder ``trials/ab/abcd.../``. Safe for several processes on one disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def exists(self) -> bool:
        return self.root.is_dir()

    def require_store(self) -> None:
        """Raise ``UsageError`` unless the location is a store, empty or absent."""
        if not os.path.lexists(self.root):
            return
        if not self.root.is_dir():
            what = "a broken link" if self.root.is_symlink() and not self.root.exists() else "not a folder"
            raise UsageError(f"cannot keep trials in {self.root}: {self.root} is {what}")
        try:
            linked = next((part for part in PARTS if (self.root / part).is_symlink()), None)
            if linked is not None:
                raise UsageError(f"{self.root} is not a store of trials: its {linked} is a symbolic link")
            if not any(self.root.iterdir()):
                return
            if not self._is_marked():
                try:
                    require_known(_paths(self.root, ""), self.location)
                except (UsageError, FileNotFoundError):
                    if not self._is_marked():  # another process may have marked it in the meantime
                        raise
        except OSError as error:
            raise UsageError(f"cannot use the store {self.root}: {error.strerror or error}") from error

    def mark(self) -> None:
        """Mark the location as a store. Raises ``UsageError`` if it is not a store and not empty."""
        mark = self.root / MARK
        if mark.is_file():
            return
        self.root.mkdir(parents=True, exist_ok=True)
        self.require_store()
        beside = self.root / f"{MARK}.{uuid.uuid4().hex}"
        try:
            beside.write_bytes(CONTENT)
            with suppress(FileExistsError):  # another process was faster, on Windows
                os.rename(beside, mark)
        finally:
            beside.unlink(missing_ok=True)

    def refusal(self) -> str | None:
        """Reason why records cannot be written; None if they can."""
        place = next(place for place in (self.root, *self.root.absolute().parents) if os.path.exists(place))
        if not os.path.isdir(place):
            return f"{place} is not a folder"
        if not os.access(place, os.W_OK | os.X_OK):
            return "permission denied; --store names another folder"
        return None

    def keys(self) -> Iterator[str]:
        """Keys of all records, in any order."""
        for above in self._below(self.root / "trials"):
            if above.is_symlink():
                raise UsageError(f"{self.root} is not a store of trials: its {above.name} is a symbolic link")
            for folder in self._below(Path(above)):
                if is_place_of(above.name, folder.name):
                    yield folder.name

    def holds(self, key: str) -> bool:
        """True if anything exists in the record's place. A file there is a damaged record."""
        return os.path.lexists(self._folder(key))

    def file(self, key: str, name: str, digest: str = "") -> Path:
        """A local, read-only file with the content of one file of a record, whose SHA-256 may be known."""
        folder = self._folder(key)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "its folder is a link", str(folder))
        return folder / name

    def size(self, key: str) -> int:
        folder = self._folder(key)
        return 0 if folder.is_symlink() else sum(path.lstat().st_size for path in folder.iterdir())

    def scratch(self) -> Path:
        """Create an empty local folder for a new record. The caller removes it."""
        self.mark()
        folder = self.root / "tmp" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def commit(self, key: str, folder: Path) -> None:
        """Store the files of a folder from :meth:`scratch`. An existing record does not change."""
        place = self._folder(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(place)
        except OSError as error:
            if error.errno not in _TAKEN and not place.is_dir():
                raise
            return
        if hasattr(os, "O_DIRECTORY"):  # the rename becomes durable
            handle = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def quarantine(self, key: str) -> None:
        """Hide a record and keep it for inspection."""
        place = self.root / "damaged" / check_key(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        self._folder(key).rename(place)

    def remove(self, key: str) -> None:
        """Remove the record. One rename hides it first, so no reader sees an incomplete record."""
        if self.holds(key):
            try:
                self.quarantine(key)
            except OSError:
                if self.holds(key):  # another process may have been faster
                    raise
        shutil.rmtree(self.root / "damaged" / key, ignore_errors=True)

    def unfinished(self, key: str) -> Path | None:
        """Folder for the state of an unfinished trial, which may not exist; None if not supported."""
        folder = self.root / "unfinished" / check_key(key)
        return None if folder.is_symlink() else folder

    def sweep(self) -> int:
        """Remove everything but records, and records begun :data:`STALE` seconds ago; returns the removed bytes."""
        freed = 0
        for folder in (*self._named("unfinished", KEY), *self._named("damaged", KEY), *self._named("tmp", SCRATCH)):
            with suppress(FileNotFoundError):  # another process was faster
                if folder.parent.name != "tmp" or folder.stat().st_mtime < time.time() - STALE:
                    freed += sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
                    shutil.rmtree(folder, ignore_errors=True)
        return freed

    def _below(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            if not folder.is_symlink():
                with os.scandir(folder) as entries:
                    yield from entries
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UsageError(f"cannot use the store {self.root}: {folder.name}: {error.strerror or error}") from error

    def _is_marked(self) -> bool:
        mark = self.root / MARK
        if mark.is_symlink() or not mark.is_file():
            return False
        with mark.open("rb") as file:
            check_mark(file.read(_MARK_BYTES), self.location)
        return True

    def _named(self, part: str, name: re.Pattern[str]) -> list[Path]:
        found = self.root.joinpath(part).glob("*")
        return [path for path in found if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]

    def _folder(self, key: str) -> Path:
        """Folder of a record. Symbolic links are neither followed nor removed."""
        above = self.root / "trials" / check_key(key)[:2]
        if above.is_symlink():
            raise UsageError(f"{self.root} is not a store of trials: its {above.name} is a symbolic link")
        return above / key


def _paths(folder: Path, above: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{above}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield path
                yield from _paths(Path(entry.path), f"{path}/")
            else:
                yield path if entry.is_file(follow_symlinks=False) else f"{path} (no regular file)"
