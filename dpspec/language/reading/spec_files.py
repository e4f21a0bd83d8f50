"""Reads a spec file as text, bounded and decoded, or says why it cannot be read.

Of a folder, every YAML file below it with a top-level key ``dpspec`` is a spec, in the order of paths: the one rule for
all that take specs: commands, ``dpspec.run``, the pytest plugin. Parents that specs extend leave the key to their
children, and files that have nothing to do with dpspec do not have it."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pathlib import Path as FilePath

from dpspec.contract import Diagnostic, Span
from dpspec.errors import UsageError
from dpspec.regular_files import NotRegularError, open_regular, read_regular
from dpspec.text import closest, did_you_mean, quoted

MAX_BYTES = 128 * 1024

#: A file of a folder that is larger is none of ours; one that is a little too large for a spec is told when it is read.
_LARGEST = 1 << 30

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
            return _whole(file, "unreadable", "is not a regular file; what comes through a pipe, write to a file first")
        if facts.st_size > MAX_BYTES:
            return _too_large(file, facts.st_size)
        raw = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        beside = _specs_beside(path)
        near = closest(path.stem, beside)
        return _whole(file, "unreadable", "no such file" + did_you_mean(beside[near] if near else None))
    except NotRegularError as error:  # the system's own, such as /proc/self/environ, which nobody needs to see
        return _whole(file, "unreadable", f"{error.strerror}; a spec is a file on a disk")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _whole(file, "unreadable", f"cannot be read: {reason}")
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
    message = f"character U+{ord(found[0]):04X} is not allowed in a spec"
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


_SUFFIXES = (".yaml", ".yml")

#: The key at the beginning of a line, where no nested key can be; or the first of a document in braces.
_KEY = re.compile(rb"""^(?:\xef\xbb\xbf)?(?:\{\s*)?(["']?)dpspec\1[ \t]*:""", re.MULTILINE)

#: A folder that holds this is a virtual environment.
_ENVIRONMENT = "pyvenv.cfg"


@dataclass(frozen=True, kw_only=True)
class Found:
    """The spec files, each once; and the YAML files of the given folders that are none."""

    files: tuple[Path, ...]
    others: tuple[Path, ...] = ()


def find_specs(paths: Sequence[Path]) -> Found:
    """The files among ``paths`` as they are given, and for every folder the specs below it.

    Raises ``UsageError`` where a folder holds no spec, or one in it cannot be read.
    """
    files: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if not _is_folder(path):
            files.append(path)
            continue
        below = sorted(_yaml_below(path))
        specs = {file for file in below if is_spec(file)}
        if not specs:
            raise UsageError(_none_in(path, len(below)))
        files += [file for file in below if file in specs]
        others += [file for file in below if file not in specs]
    return Found(files=tuple(_once(files)), others=tuple(_once(others)))


def is_spec(path: Path) -> bool:
    """Whether a file in a folder is taken for a spec; what is wrong with it is told when it is read.

    So is one that we may not read: nobody should take it for audited.
    """
    if path.suffix not in _SUFFIXES or not os.path.isfile(path):  # a pipe would block
        return False
    try:
        with open_regular(path, _LARGEST) as stream:
            empty = os.fstat(stream.fileno()).st_size == 0  # or made up by the system, perhaps without an end
            return not empty and _KEY.search(stream.read(MAX_BYTES)) is not None
    except NotRegularError:
        return False
    except OSError:
        return True


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return False


def _yaml_below(folder: Path) -> Iterator[Path]:
    """YAML files: no hidden ones, none in hidden folders, in virtual environments or behind links to folders."""
    for root, folders, names in os.walk(folder, onerror=_unread):
        folders[:] = [name for name in folders if not _skipped(Path(root, name))]
        yield from (Path(root, name) for name in names if name.endswith(_SUFFIXES) and not name.startswith("."))


def _skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or os.path.exists(folder / _ENVIRONMENT)


def _unread(error: OSError) -> None:
    """What is in a folder that we may not read, nobody should take for audited."""
    if not isinstance(error, FileNotFoundError):
        raise UsageError(f"the folder {str(error.filename)!r} cannot be read: {error.strerror}")


def _once(paths: Iterable[Path]) -> Iterator[Path]:
    """Every file the first time that it is named, whatever the way to it."""
    seen: set[str] = set()
    for path in paths:
        try:
            place = os.path.realpath(path)
        except (OSError, ValueError):
            place = str(path)
        if place not in seen:
            seen.add(place)
            yield path


def _none_in(folder: Path, files: int) -> str:
    if not files:
        return f"the folder {quoted(str(folder))} holds no YAML file, so no spec"
    these = "its YAML file has" if files == 1 else f"none of its {files} YAML files has"
    no = "no" if files == 1 else "a"
    return (
        f"the folder {quoted(str(folder))} holds no spec: {these} {no} key 'dpspec' at the top level, as in 'dpspec: 1'"
    )
