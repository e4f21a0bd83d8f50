"""Reads a spec file as text, bounded and decoded, or says why it cannot be read."""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path as FilePath

from dpspec.contract import Diagnostic, Span
from dpspec.spec.words import did_you_mean, quoted

MAX_BYTES = 128 * 1024

#: Control characters, and line separators that YAML and text editors count differently.
UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

#: What ends a line, to YAML and to people.
LINE_END = re.compile("\r\n|\r|\n")


def read_text(path: FilePath, file: str) -> str | Diagnostic:
    """The text of a file without its byte-order mark; ``file`` is its name in messages."""
    try:
        # The kind and the size are asked before anything is opened: a pipe would block, a disk image fill the memory.
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            return _whole(file, "unreadable", "is a folder; name a spec file in it")
        if not stat.S_ISREG(facts.st_mode):
            return _whole(file, "unreadable", "is not a regular file")
        if facts.st_size > MAX_BYTES:
            return _too_large(file, facts.st_size)
        with open(path, "rb") as stream:
            raw = stream.read(min(facts.st_size, MAX_BYTES) + 1)
    except FileNotFoundError:
        beside = _specs_beside(path)
        near = did_you_mean(path.stem, beside)
        return _whole(file, "unreadable", "no such file" + (f"; did you mean {quoted(beside[near])}?" if near else ""))
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _whole(file, "unreadable", f"cannot be read: {reason}")
    if len(raw) > facts.st_size:  # the system's own, such as /proc/self/environ, which nobody needs to see
        return _whole(file, "unreadable", "holds more than its size says; a spec is a file on a disk")
    return decode(raw, file)


def _specs_beside(path: FilePath) -> dict[str, str]:
    """YAML files in a file's folder, name by stem; none where it cannot be read."""
    try:
        with os.scandir(path.parent) as entries:
            names = [FilePath(entry.name) for entry in itertools.islice(entries, 1000)]
    except (OSError, ValueError):
        return {}
    return {name.stem: name.name for name in names if name.suffix in (".yaml", ".yml")}


def decode(raw: bytes, file: str) -> str | Diagnostic:
    """UTF-8 bytes as text, or the place of the first byte that is none."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", errors="replace")
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        return Diagnostic(code="encoding", message=message, span=_span(before, file), help="save the file as UTF-8")
    return text


def unwanted(text: str, file: str) -> Diagnostic | None:
    """What is wrong with the first character that a spec cannot hold, if there is one."""
    found = UNWANTED.search(text)
    if found is None:
        return None
    message = f"character U+{ord(found[0]):04X} cannot stand in a spec"
    span = _span(text[: found.start()], file)
    return Diagnostic(code="bad-character", message=message, span=span, help="remove the character")


def _span(before: str, file: str) -> Span:
    """The span of the one character that follows ``before``."""
    lines = LINE_END.split(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


def _whole(file: str, code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, span=Span(file, 1, 1, 1, 1))


def _too_large(file: str, size: int) -> Diagnostic:
    return _whole(file, "too-large", f"the file has {size} bytes; a spec may have {MAX_BYTES}")
