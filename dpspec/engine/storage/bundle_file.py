"""A bundle: one file with the records of up to 256 trials, so that an audit of many trials needs few files.

It starts with a line ``dpspec/trials/v1 SIZE DIGEST``. An index of SIZE bytes follows, JSON with this SHA-256, which
maps each key to its files: their names, starts and sizes. Then come the files, unchanged, each at a multiple of 64
bytes. So each record keeps its own digest and seal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpspec.engine.storage.array_files import DamageError, Part
from dpspec.regular_files import NotRegularError, open_private, open_regular
from dpspec.stores import check_key

#: Maximum number of trials of a bundle. Trial ``i`` belongs to bundle ``i // TRIALS`` of its audit.
TRIALS = 256

#: Maximum size of a bundle and of its index in bytes. Larger records stay in folders.
MAX_BYTES, _MAX_INDEX = 1 << 28, 1 << 22

_SCHEMA = "dpspec/trials/v1"
_MAX_LINE = 128
_FIRST_LINE = re.compile(rb"dpspec/trials/v1 ([0-9]{1,7}) ([0-9a-f]{64})\n")

#: Files start at multiples of this number of bytes, so that mapped arrays are aligned.
_ALIGNED = 64


def write_bundle(bundle: Path, records: Mapping[str, Mapping[str, Path]]) -> bool:
    """Write the files of records, by key and name; False if they exceed :data:`MAX_BYTES`."""
    index: dict[str, dict[str, Part]] = {}
    end = 0
    for key, files in records.items():
        sizes = {name: file.stat().st_size for name, file in files.items()}
        index[check_key(key)] = {}
        for name, size in sizes.items():
            index[key][name] = end, size
            end += _padded(size)
    content = json.dumps(index, separators=(",", ":")).encode("ascii")
    line = f"{_SCHEMA} {len(content)} {hashlib.sha256(content).hexdigest()}\n".encode("ascii")
    head = _padded(len(line) + len(content))
    if head + end > MAX_BYTES or len(content) > _MAX_INDEX:
        return False
    with open_private(bundle) as out:
        out.write((line + content).ljust(head, b"\n"))
        for key, files in records.items():
            for name, file in files.items():
                start, size = index[key][name]
                with file.open("rb") as source:
                    shutil.copyfileobj(source, out)
                if out.tell() != head + start + size:
                    raise OSError(errno.EIO, "its size changed while it was copied", str(file))
                out.write(bytes(_padded(size) - size))
    return True


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The records in a file: the part of each of their files, by key and name."""

    file: Path
    records: Mapping[str, Mapping[str, Part]]

    def read(self, key: str, name: str, most: int) -> bytes:
        """A file of a record, of at most ``most`` bytes."""
        start, size = self.records[key][name]
        if size > most:
            raise DamageError(f"{name} is larger than {most} bytes")
        with open_regular(self.file, MAX_BYTES, follow=False) as stream:
            stream.seek(start)
            return stream.read(size)

    def extract(self, key: str, names: Iterable[str], folder: Path) -> None:
        """Write files of a record into a folder."""
        for name in names:
            with open_private(folder / name) as out:
                out.write(self.read(key, name, MAX_BYTES))


def read_bundle(file: Path) -> Bundle:
    """The bundle in a file.

    Raises:
        DamageError: The file is not a whole bundle.
        OSError: It cannot be read.
    """
    try:
        stream = open_regular(file, MAX_BYTES, follow=False)
    except NotRegularError as error:
        raise DamageError(f"{file.name}: {error.strerror}") from None
    with stream:
        first = _FIRST_LINE.fullmatch(stream.readline(_MAX_LINE))
        size = int(first[1]) if first else 0
        content = stream.read(min(size, _MAX_INDEX))
    if first is None or hashlib.sha256(content).hexdigest().encode("ascii") != first[2]:
        raise DamageError("the digest of its bundle's index does not match")
    head = _padded(len(first[0]) + size)
    try:
        records = {
            check_key(key): {str(name): (head + start, size) for name, (start, size) in files.items()}
            for key, files in json.loads(content).items()
        }
        spans = [span for files in records.values() for span in files.values()]
        are_integers = all(type(start) is type(size) is int for start, size in spans)
        fits = are_integers and all(head <= start <= start + size <= MAX_BYTES for start, size in spans)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DamageError("its bundle's index is not in the format that a store writes") from None
    if not fits or len(records) > TRIALS:
        raise DamageError("its bundle's index names impossible places")
    return Bundle(file=file, records=records)


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
