"""Which files of a folder are specs: every YAML file below it with a top-level key ``dpspec``, in the order of paths.

The one rule for all that take specs: commands, ``dpspec.run``, the pytest plugin. Parents that specs extend leave the
key to their children, and files that have nothing to do with dpspec do not have it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpspec.errors import UsageError
from dpspec.spec.files import MAX_BYTES
from dpspec.spec.words import quoted

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
        with open(path, "rb") as stream:
            return _KEY.search(stream.read(MAX_BYTES)) is not None
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
