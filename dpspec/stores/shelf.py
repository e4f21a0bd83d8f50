"""What a store of trials asks of the place that it keeps them in, and which place a text names.

A record is a few files under one key. Whoever reads sees all of them or none; once there, they are never changed,
only set aside or removed as a whole. What the files say is no business of a shelf.

A place is known to be a store by a file that says so, or nothing in it but what version 0.1.0 wrote. Records are
written to and removed from stores alone. Any other folder that somebody names by mistake stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from dpspec.errors import UsageError

#: The file that marks a store, and what it says.
MARK = "dpspec-store.json"
CONTENT = json.dumps({"store": "dpspec", "version": 1}).encode("ascii") + b"\n"
_VERSION = 1

#: What stores hold beside their mark.
PARTS = ("trials", "damaged", "unfinished", "tmp")

_KEY, _FILE = r"[0-9a-f]{64}", r"(record\.json|([0-9a-f]{16}\.)?[^\W\d]\w*\.npy)"

#: The paths that version 0.1.0, which set no mark, wrote: records, what was set aside, states, and what was begun.
_KNOWN = re.compile(
    rf"trials(/(?P<two>[0-9a-f]{{2}})(/(?P=two)[0-9a-f]{{62}}(/{_FILE})?)?)?"
    rf"|damaged(/{_KEY}(/{_FILE})?)?"
    rf"|unfinished(/{_KEY}(/[0-9a-f]{{32}}\.(npz|tmp))?)?"
    rf"|tmp(/[0-9a-f]{{32}}(/{_FILE})?|/dpspec-store-\w+)?"
    rf"|{re.escape(MARK)}\.[0-9a-f]{{32}}"
)

#: Seconds after which no process still writes a record that it began.
STALE = 86_400.0

#: A key's folder under each part, for what is to be removed as a whole.
KEY, SCRATCH = re.compile(_KEY), re.compile(r"[0-9a-f]{32}")


def is_known(path: str) -> bool:
    """Whether a path below a store without a mark, with ``/`` between its parts, is one that 0.1.0 would have made."""
    return _KNOWN.fullmatch(path) is not None


def check_mark(content: bytes, location: str) -> None:
    """Raise ``UsageError`` where a mark does not say what this version writes."""
    try:
        said = json.loads(content)
        version = said["version"] if said["store"] == "dpspec" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if type(version) is not int or version < 1:
        raise UsageError(f"{location} is no store of trials: its {MARK} is not one that dpspec wrote")
    if version > _VERSION:
        raise UsageError(
            f"{location} is a store of format {version}, of a later version of dpspec; this one knows {_VERSION}"
        )


def require_known(paths: Iterable[str], location: str) -> None:
    """Raise ``UsageError`` where a place without a mark holds anything that version 0.1.0 would not have put there."""
    strange = next((path for path in paths if not is_known(path)), None)
    if strange is not None:
        raise UsageError(
            f"{location} is no store of trials: it holds {strange[:80]!r} and no {MARK}; "
            "--store takes a store, an empty folder or one that does not exist yet"
        )


#: The file of a record that is written last: with it the record is there.
RECORD = "record.json"

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

    def require_store(self) -> None:
        """Raise ``UsageError`` where the place is something other than a store, and neither empty nor absent.

        A place that is far away may be looked at when it is first asked for something.
        """

    def mark(self) -> None:
        """Say, for whoever comes later, that the place is a store; raises ``UsageError`` where it is something else."""

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
        """Remove everything that is not a record and return its size in bytes: the state of unfinished trials, damaged
        records, and records that a process began at least :data:`STALE` seconds ago and did not finish."""


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
