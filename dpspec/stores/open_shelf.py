"""From the location of a store to the shelf that keeps its records."""

from __future__ import annotations

import re
from pathlib import Path

from dpspec.errors import UsageError
from dpspec.stores.folder import FolderShelf
from dpspec.stores.shelf import Shelf

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def open_shelf(location: str | Path) -> Shelf:
    """The shelf that a path or a URL names: a folder, ``file://``, or whatever fsspec knows (``s3://``, ``gs://``).

    Raises ``UsageError`` for a text that names nothing, and for a protocol that fsspec does not know, or needs a
    package for that is not installed.
    """
    text = str(location)
    if not text.partition("://")[2 if "://" in text else 0].strip("/ \t") and not text.startswith("/"):
        raise UsageError(f"the store {text!r} names no place: give a folder, or a URL with something after ://")
    scheme = _URL.match(text) if isinstance(location, str) else None
    if scheme is None:
        return FolderShelf(Path(location))
    if scheme[1].lower() in ("file", "local"):
        return FolderShelf(Path(text[scheme.end() :]))
    from dpspec.stores.remote import RemoteShelf

    return RemoteShelf.open(text)
