"""Names in a store of trials, and checks that a location is one.

A location is a store if it has a marker file, or contains only paths that version 0.1.0 wrote. dpspec writes and
removes records only in stores and never changes other folders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

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
