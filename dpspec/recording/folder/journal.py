"""An append-only file: frames under a chain of digests, readable up to the last complete one.

A frame is its length (4 bytes, little-endian), its kind (1 byte), its payload, and SHA-256 of the digest of the frame
before it, the length, the kind and the payload. The first frame follows the digest of the run's header. Frames are
written by one call, so a killed process leaves at most one incomplete frame, which readers skip.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpspec.errors import RecordingError

#: Largest size of a payload in bytes.
LONGEST = 1 << 22

_HEAD = struct.Struct("<IB")
_DIGEST = 32


@dataclass(frozen=True)
class Frame:
    """A frame: its kind, payload and digest, its number in the file from 1 on, and the byte at which it ends."""

    kind: int
    payload: bytes
    digest: bytes
    number: int
    end: int


class JournalWriter:
    """Appends frames to a file. digest: The last frame's."""

    def __init__(self, path: Path, digest: bytes, *, new: bool = True) -> None:
        """digest: of the header, or of the last frame if the file is not ``new``. Raises ``FileExistsError``."""
        made = os.O_CREAT | os.O_EXCL if new else 0
        self._file = os.open(path, os.O_WRONLY | made | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
        self.digest = digest

    def append(self, kind: int, *payloads: bytes) -> list[bytes]:
        """Write frames by one call and return their digests; raises ``ValueError`` if one is too long."""
        parts, digests, digest = list[bytes](), list[bytes](), self.digest
        for payload in payloads:
            if len(payload) > LONGEST:
                raise ValueError(f"a frame holds at most {LONGEST} bytes, got {len(payload)}")
            head = _HEAD.pack(len(payload), kind)
            digest = hashlib.sha256(digest + head + payload).digest()
            parts += (head, payload, digest)
            digests.append(digest)
        whole = b"".join(parts)
        written = os.write(self._file, whole)
        if written != len(whole):
            raise OSError(f"wrote {written} of {len(whole)} bytes")
        self.digest = digest
        return digests

    def close(self) -> None:
        os.close(self._file)


def read_frames(path: Path, first: bytes, name: str) -> Iterator[Frame]:
    """The complete frames of a file, in order, each checked against the chain.

    name: of the file in messages. Raises ``RecordingError`` that names file, frame and byte of an invalid frame.
    """
    digest, offset, number = first, 0, 1
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while True:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                length, kind = _HEAD.unpack(head)
                where = f"{name}: frame {number} at byte {offset}"
                if length > LONGEST:
                    raise RecordingError(f"{where}: a frame holds at most {LONGEST} bytes, this one claims {length}")
                if offset + _HEAD.size + length + _DIGEST > size:
                    return
                payload, told = file.read(length), file.read(_DIGEST)
                digest = hashlib.sha256(digest + head + payload).digest()
                if told != digest:
                    changed = "run.json or this file" if number == 1 else "this file"
                    raise RecordingError(f"{where}: the digest chain breaks: {changed} was changed; record again")
                offset += _HEAD.size + length + _DIGEST
                yield Frame(kind, payload, digest, number, offset)
                number += 1
    except OSError as error:
        raise RecordingError(f"{name}: cannot be read: {error.strerror or error}") from error
