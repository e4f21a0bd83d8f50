"""Records in a folder of this machine: written beside their place and renamed into it.

A reader sees all of a record or nothing, and a killed run leaves at most a folder under ``tmp/``. ``damaged/`` holds
what was set aside, ``unfinished/`` what trials in work need to go on after they were killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpspec.stores.shelf import RECORD, check_key, is_place_of

#: What a rename says where a record was, even if another process has set it aside a moment later.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})

#: Seconds after which nobody works any more on a record that was begun.
_STALE = 86_400.0


class FolderShelf:
    """A folder ``trials/ab/abcd.../`` per record. Safe for several processes on one disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self.root)

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.root.is_dir()

    def refusal(self) -> str | None:
        """Whether the folder, or the nearest one above it that exists, can be written to."""
        place = next(place for place in (self.root, *self.root.absolute().parents) if os.path.exists(place))
        if not os.path.isdir(place):
            return f"{place} is not a folder"
        if not os.access(place, os.W_OK | os.X_OK):
            return "permission denied; --store names another folder"
        return None

    def keys(self) -> Iterator[str]:
        """One for each record file."""
        found = (path.parent for path in self.root.glob(f"trials/*/*/{RECORD}"))
        yield from (folder.name for folder in found if is_place_of(folder.parent.name, folder.name))

    def holds(self, key: str) -> bool:
        """Whether its folder is there."""
        return self._folder(key).is_dir()

    def file(self, key: str, name: str, digest: str = "") -> Path:
        """The file itself."""
        return self._folder(key) / name

    def size(self, key: str) -> int:
        """The sum over its files."""
        return sum(path.stat().st_size for path in self._folder(key).iterdir())

    def scratch(self) -> Path:
        """A folder under ``tmp/``, on the same disk."""
        folder = self.root / "tmp" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def commit(self, key: str, folder: Path) -> bool:
        """Rename the folder into its place, and make that last."""
        place = self._folder(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(place)
        except OSError as error:
            if error.errno not in _TAKEN and not place.is_dir():
                raise
            return False
        _sync_folder(place.parent)
        return True

    def set_aside(self, key: str) -> None:
        """Rename the record's folder into ``damaged/``."""
        place = self.root / "damaged" / check_key(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        self._folder(key).rename(place)

    def remove(self, key: str) -> None:
        """Take the record away by one rename first, so that nobody sees half of it."""
        if self.holds(key):
            try:
                self.set_aside(key)
            except OSError:
                if self.holds(key):  # otherwise another process was faster
                    raise
        shutil.rmtree(self.root / "damaged" / key, ignore_errors=True)

    def unfinished(self, key: str) -> Path:
        """A folder under ``unfinished/``."""
        return self.root / "unfinished" / check_key(key)

    def sweep(self) -> int:
        """Remove ``unfinished/``, ``damaged/``, and from ``tmp/`` what was left there a day ago or earlier."""
        freed = 0
        for folder in (self.root / "unfinished", self.root / "damaged", *self.root.glob("tmp/*")):
            with suppress(FileNotFoundError):  # another process was faster
                if folder.parent == self.root or folder.stat().st_mtime < time.time() - _STALE:
                    freed += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                    shutil.rmtree(folder, ignore_errors=True)
        return freed

    def _folder(self, key: str) -> Path:
        return self.root / "trials" / check_key(key)[:2] / key


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
