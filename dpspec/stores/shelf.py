"""What a store of trials asks of the place that it keeps them in, and which place a text names.

A record is a few files under one key. Whoever reads sees all of them or none; once there, they are never changed,
only set aside or removed as a whole. What the files say is no business of a shelf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

#: The file of a record that is written last: with it the record is there.
RECORD = "record.json"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-f]{64}")

#: What may be a secret in a URL: a password, and what stands behind a question mark.
_PASSWORD, _OPTIONS = re.compile(r"(://[^/?#:@]*:)[^/?#]*@"), re.compile(r"(?<=\?).+")


class Shelf(Protocol):
    """A place for records. Every method may raise ``OSError``, or ``UsageError`` where the place cannot be reached."""

    @property
    def location(self) -> str:
        """The text that names it, without what may be a secret."""

    def exists(self) -> bool:
        """Whether there is such a place yet."""

    def refusal(self) -> str | None:
        """Why nothing could be kept here, in words; None where something could."""

    def keys(self) -> Iterator[str]:
        """The keys of all records, in no order; what else lies there is left out."""

    def holds(self, key: str) -> bool:
        """Whether there is a record, whole or not."""

    def file(self, key: str, name: str, digest: str = "") -> Path:
        """A local file with the content of one file of a record, for reading only.

        digest: its SHA-256 where the record says it. Raises ``FileNotFoundError`` where there is no such file.
        """

    def size(self, key: str) -> int:
        """The bytes that a record takes."""

    def scratch(self) -> Path:
        """A fresh local folder for the files of a record in the making; whoever asked for it removes it."""

    def commit(self, key: str, folder: Path) -> bool:
        """Keep the files of a folder made by :meth:`scratch`; False where a record was there, which then stays."""

    def set_aside(self, key: str) -> None:
        """Take a record away from where it is found, and keep it for whoever wants to know what happened to it."""

    def remove(self, key: str) -> None:
        """Remove a record, and what was set aside of it; an absent one is no error."""

    def unfinished(self, key: str) -> Path | None:
        """A local folder for the state of a trial in work, which may not exist; None where there can be none."""

    def sweep(self) -> int:
        """Remove what is no record: the state of trials in work, what was set aside, what was begun; its bytes."""


def open_shelf(location: str | Path) -> Shelf:
    """The shelf that a path or a URL names: a folder, ``file://``, or whatever fsspec knows (``s3://``, ``gs://``).

    Raises ``UsageError`` for a protocol that fsspec does not know, or needs a package for that is not installed.
    """
    from dpspec.stores.folder import FolderShelf

    text = str(location)
    scheme = _URL.match(text) if isinstance(location, str) else None
    if scheme is None:
        return FolderShelf(Path(location))
    if scheme[1].lower() in ("file", "local"):
        return FolderShelf(Path(text[scheme.end() :]))
    from dpspec.stores.remote import RemoteShelf

    return RemoteShelf.open(text)


def shown(location: str) -> str:
    """A location as people may see it: a URL without its password and its options, where tokens stand."""
    return _OPTIONS.sub("***", _PASSWORD.sub(r"\1***@", location)) if "://" in location else location


def check_key(key: str) -> str:
    """The key itself; raises ``ValueError`` on a text that could lead out of the store."""
    if not _DIGEST.fullmatch(key):
        raise ValueError(f"not a trial key: {key!r}")
    return key


def check_digest(digest: str) -> str:
    """The digest itself, which a record claims and file names begin with; raises ``ValueError`` as for a key."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return digest


def is_place_of(folder: str, key: str) -> bool:
    """Whether a record in ``trials/FOLDER/KEY`` is where a store would have put it."""
    return bool(_DIGEST.fullmatch(key)) and folder == key[:2]
