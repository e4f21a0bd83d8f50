"""A digest of the code behind a provider: every file of the packages that its distribution installed.

A package counts with all of its files, a module with its file, and code in a zip file with that file, without imports.
An editable install lists no files: its packages are those named by the provider and its entry point.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dpspec.registry.loader import GROUP, normalise

_OURS = "dpspec"


class UnknownCodeError(Exception):
    """The code cannot be read; the text gives the reason."""


@cache
def source_digest(distribution: str, plugin: str, reference: str) -> str:
    """The SHA-256 of the code of a distribution, its entry point ``plugin`` and the ``reference`` of a provider.

    It is computed once per process, which continues with the code that it has imported.
    """
    whole = hashlib.sha256()
    files = _files_of(distribution, plugin, reference)
    for name, file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UnknownCodeError(f"{file.name} cannot be read: {error.strerror or error}") from error
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    _STATES[distribution, plugin, reference] = _states(files)
    return whole.hexdigest()


def require_unchanged(distribution: str, plugin: str, reference: str) -> None:
    """Raise :class:`UnknownCodeError` if files changed after :func:`source_digest` read them.

    The version that this process imported is unknown: notebooks reload modules.
    """
    if _states(_files_of(distribution, plugin, reference)) != _STATES[distribution, plugin, reference]:
        raise UnknownCodeError("its files were changed while this process ran: start it anew")


#: The names, sizes and times of the files of a digest.
_STATES: dict[tuple[str, str, str], list[tuple[str, int, int]]] = {}


def _states(files: list[tuple[str, Path]]) -> list[tuple[str, int, int]]:
    try:
        return [(name, (about := file.stat()).st_size, about.st_mtime_ns) for name, file in files]
    except OSError as error:
        raise UnknownCodeError(f"its files cannot be read: {error.strerror or error}") from error


def _files_of(distribution: str, plugin: str, reference: str) -> list[tuple[str, Path]]:
    """All files of the packages of a distribution, sorted by name, except dpspec's own."""
    modules = [reference.partition(":")[0]]
    with suppress(importlib.metadata.PackageNotFoundError, ValueError):  # tests have no entry point
        entries = importlib.metadata.distribution(distribution).entry_points
        modules += [e.value.partition(":")[0].strip() for e in entries if e.group == GROUP and e.name == plugin]
    installed = [name for name, owners in _owners().items() if normalise(distribution) in map(normalise, owners)]
    packages = {*(module.partition(".")[0] for module in modules), *installed} - _shipped()
    return sorted(item for package in sorted(packages) for item in _files(package))


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """The files of a top-level package or module by their names in it, links followed."""

    def refuse(error: OSError) -> None:
        raise UnknownCodeError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UnknownCodeError(f"module {package!r} is found nowhere")
    archive = getattr(found.loader, "archive", None)
    if archive is not None:
        yield package, Path(archive)
    elif found.submodule_search_locations is not None:
        for place in found.submodule_search_locations:
            seen: set[str] = set()
            for folder, folders, names in os.walk(place, followlinks=True, onerror=refuse):
                folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
                if (real := os.path.realpath(folder)) in seen:  # a link that leads back
                    folders.clear()
                    continue
                seen.add(real)
                files = [Path(folder, name) for name in names if not name.startswith(".")]
                yield from ((f"{package}/{file.relative_to(place).as_posix()}", file) for file in files)
    elif found.origin is None or not found.has_location:
        raise UnknownCodeError(f"module {package!r} is in no file")
    else:
        yield package, Path(found.origin)


@cache
def _shipped() -> frozenset[str]:
    """The top-level names of dpspec's own distribution, whose trials follow its ``trial_revision``."""
    entries = importlib.metadata.entry_points(group=GROUP)
    values = [entry.value for entry in entries if entry.dist and normalise(entry.dist.name) == _OURS]
    return frozenset({_OURS, *(value.partition(":")[0].partition(".")[0] for value in values)})


@cache
def _owners() -> Mapping[str, Sequence[str]]:
    try:
        return importlib.metadata.packages_distributions()
    except Exception:  # damaged metadata of any distribution raises whatever it likes
        return {}


@cache
def requirements(distribution: str) -> Mapping[str, str]:
    """The installed version of each requirement of a distribution that dpspec does not require; ``absent`` if none."""
    versions = {}
    for name in sorted({*_required(distribution)} - {_OURS, *_required(_OURS)}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _required(distribution: str) -> Iterator[str]:
    """The names of required distributions under this platform's markers, without extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        texts = importlib.metadata.requires(distribution) or ()
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return
    for text in texts:
        with suppress(InvalidRequirement):
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                yield normalise(wanted.name)
