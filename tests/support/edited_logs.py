"""The logs of a recording as mappings that a test edits, and that are written again with right checksums."""

import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

#: Changes an event in place; returns True to omit it.
Change = Callable[[dict[str, Any]], bool | None]


def payloads(log: Path) -> list[bytes]:
    """The bytes of all events."""
    content, found = log.read_bytes(), []
    while content:
        length, _ = struct.unpack_from("<II", content)
        found.append(content[8 : 8 + length])
        content = content[8 + length :]
    return found


def write_payloads(log: Path, found: Iterable[bytes]) -> None:
    log.write_bytes(b"".join(struct.pack("<II", len(content), zlib.crc32(content)) + content for content in found))


def edit(log: Path, change: Change) -> None:
    """Change the events of a log, and write it again."""
    events = [msgspec.msgpack.decode(content) for content in payloads(log)]
    write_payloads(log, [msgspec.msgpack.encode(event) for event in events if not change(event)])
