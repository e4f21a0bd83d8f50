"""Read spec files as text with size limits, and find the specs in folders.

In a folder, each YAML file with a top-level key ``dpspec`` is a spec, sorted by path. Commands, ``dpspec.run`` and the
pytest plugin all use this rule. Parent files leave the key to their children, and unrelated files do not have it.
"""

from __future__ import annotations

import contextlib
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

#: Larger files in a folder are not specs. Smaller files above MAX_BYTES are reported when they are read.
_MAX_CANDIDATE_BYTES = 1 << 30

#: Control characters, and line separators that YAML and text editors count differently.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

LINE_END = re.compile("\r\n|\r|\n")


def read_text(path: FilePath, file: str) -> str | Diagnostic:
    """Without byte-order mark. ``file`` is the name in messages."""

    def problem(code: str, message: str) -> Diagnostic:
        return Diagnostic(code=code, message=message, span=Span(file, 1, 1, 1, 1))

    try:
        # Check type and size before opening: a pipe would block, a disk image would fill the memory.
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            return problem("unreadable", "is a folder; give the path of a spec file in it")
        if not stat.S_ISREG(facts.st_mode):
            return problem("unreadable", "is not a regular file; save piped input to a file first")
        if facts.st_size > MAX_BYTES:
            return problem("too-large", f"the file has {facts.st_size} bytes; a spec may have {MAX_BYTES}")
        raw = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        siblings: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError), os.scandir(path.parent) as entries:
            names = [FilePath(entry.name) for entry in itertools.islice(entries, 1000)]
            siblings = {name.stem: name.name for name in names if name.suffix in _SUFFIXES}
        near = closest(path.stem, siblings)
        return problem("unreadable", "no such file" + did_you_mean(siblings[near] if near else None))
    except NotRegularError as error:  # system files such as /proc/self/environ may contain secrets
        return problem("unreadable", f"{error.strerror}; a spec must be a file on disk")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return problem("unreadable", f"cannot be read: {reason}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", errors="replace")
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        return Diagnostic(
            code="encoding", message=message, span=span_after(before, file), help="save the file as UTF-8"
        )


def span_after(before: str, file: str) -> Span:
    """Of the character that follows the text ``before``."""
    lines = LINE_END.split(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


_SUFFIXES = (".yaml", ".yml")

#: The key at the beginning of a line, where nested keys cannot be, or first in a document in braces.
_KEY = re.compile(rb"""^(?:\xef\xbb\xbf)?(?:\{\s*)?(["']?)dpspec\1[ \t]*:""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Without repetitions; ``others`` are YAML files that are not specs."""

    files: tuple[Path, ...]
    others: tuple[Path, ...] = ()


def find_specs(paths: Sequence[Path]) -> Found:
    files: list[Path] = []
    others: list[Path] = []
    for path in paths:
        try:
            is_folder = path.is_dir()
        except (OSError, ValueError):  # ValueError: a null byte in the path
            is_folder = False
        if not is_folder:
            files.append(path)
            continue
        below = sorted(_yaml_below(path))
        specs = {file for file in below if is_spec(file)}
        if not specs and not below:
            recorded = any((path / name / "run.json").is_file() for name in ("", "rank-0"))
            hint = "; for a recording, use `dpspec check`" if recorded else ""
            raise UsageError(f"no spec in the folder {quoted(str(path))}: it has no YAML files{hint}")
        if not specs:
            these = "its YAML file has no" if len(below) == 1 else f"none of its {len(below)} YAML files has a"
            raise UsageError(
                f"no spec in the folder {quoted(str(path))}: {these} top-level key 'dpspec', as in 'dpspec: 1'"
            )
        files += [file for file in below if file in specs]
        others += [file for file in below if file not in specs]
    return Found(files=tuple(_unique(files)), others=tuple(_unique(others)))


def is_spec(path: Path) -> bool:
    """A file without read permission counts, so that it is not skipped silently."""
    if path.suffix not in _SUFFIXES or not os.path.isfile(path):  # a pipe would block
        return False
    try:
        with open_regular(path, _MAX_CANDIDATE_BYTES) as stream:
            empty = os.fstat(stream.fileno()).st_size == 0  # also system files, which may be endless
            return not empty and _KEY.search(stream.read(MAX_BYTES)) is not None
    except NotRegularError:
        return False
    except OSError:
        return True


def _yaml_below(folder: Path) -> Iterator[Path]:
    """Except hidden files, and files in hidden folders, virtual environments and linked folders."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise UsageError(f"the folder {str(error.filename)!r} cannot be read: {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and not os.path.exists(Path(root, f, "pyvenv.cfg"))]
        yield from (Path(root, name) for name in names if name.endswith(_SUFFIXES) and not name.startswith("."))


def _unique(paths: Iterable[Path]) -> Iterator[Path]:
    """Even if several paths lead to one file."""
    seen: set[str] = set()
    for path in paths:
        try:
            place = os.path.realpath(path)
        except (OSError, ValueError):
            place = str(path)
        if place not in seen:
            seen.add(place)
            yield path
