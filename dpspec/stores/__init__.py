"""Storage of trials: a folder, or an object store through fsspec.

A record consists of a few files under one key. Readers see a whole record or nothing. Records never change; they are
quarantined or removed as a whole. A storage does not interpret their content. Its methods raise ``OSError``, or
``UsageError`` if it is unreachable.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dpspec.errors import UsageError
from dpspec.stores.folder import FolderStorage

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


if TYPE_CHECKING:
    from dpspec.stores.remote import RemoteStorage

    Storage: TypeAlias = FolderStorage | RemoteStorage


def open_storage(location: str | Path) -> Storage:
    """The storage at a path or URL: a folder, ``file://``, or an fsspec protocol (``s3://``, ``gs://``)."""
    text = str(location)
    if not text.partition("://")[2 if "://" in text else 0].strip("/ \t") and not text.startswith("/"):
        raise UsageError(f"the store {text!r} has no location: give a folder, or a URL with a path after ://")
    scheme = _URL.match(text) if isinstance(location, str) else None
    if scheme is None:
        return FolderStorage(Path(location))
    if scheme[1].lower() in ("file", "local"):
        return FolderStorage(Path(text[scheme.end() :]))
    from dpspec.stores.remote import RemoteStorage

    return RemoteStorage.open(text)
