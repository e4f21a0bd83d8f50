"""A digest of the code behind a provider: the files of its package, and of what else of the same author's they import.

Found without importing anything of it. A regular package counts with all of its files, a module with its file, a
namespace package with the innermost part that leads to the module; from there, whatever is imported by name and belongs
to no other installed distribution. What is in a zip file counts with the whole of that file. Code that is only named
while it runs (``importlib.import_module(name)``) outside these is not seen.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from dpspec.registry.discover import GROUP, normalise

#: Beyond so many files, or bytes, of one provider nothing is said.
MOST_FILES, MOST_BYTES = 5_000, 1 << 28

#: Names that a file imports from without a dot in front, found by their look: too many do no harm.
_IMPORTS = re.compile(rb"(?m)^[ \t]*(?:from[ \t]+([^\W\d]\w*)|import[ \t]+([^#;\n(]+))")

_OURS = "dpspec"


class UnknownCodeError(Exception):
    """Nothing can be said of the code; the text says why."""


@cache
def source_digest(distribution: str, plugin: str, reference: str) -> str:
    """The SHA-256 of the code that a provider names as ``package.module:Attribute``, with that of its entry point.

    Computed once per process, which goes on with the code that it has imported. Raises :class:`UnknownCodeError` where
    files cannot be found or read, or are more than a digest is made of.
    """
    waiting = [reference.partition(":")[0], *_entry_modules(distribution, plugin)]
    looked_at: list[Path] = []
    roots: dict[str, str] = {}
    budget = _Budget()
    while waiting:
        label, places = _locate(waiting.pop())
        if label in roots or label.partition(".")[0] in _shipped():
            continue
        looked_at += places
        whole = hashlib.sha256()
        imported: set[str] = set()
        for name, file in sorted((name, file) for place in places for name, file in _files(place)):
            content = budget.read(file)
            whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
            if name.endswith(".py"):
                imported |= _imported(content)
        roots[label] = whole.hexdigest()
        waiting += [name for name in sorted(imported) if _is_own(name, distribution)]
    _SEEN[distribution, plugin, reference] = tuple(looked_at), _states(looked_at)
    return hashlib.sha256("\n".join(f"{label} {roots[label]}" for label in sorted(roots)).encode()).hexdigest()


def require_unchanged(distribution: str, plugin: str, reference: str) -> None:
    """Raise :class:`UnknownCodeError` where files are not as :func:`source_digest` saw them.

    What this process has imported is then one or the other, which nobody can tell: notebooks reload modules.
    """
    places, states = _SEEN[distribution, plugin, reference]
    if _states(places) != states:
        raise UnknownCodeError("its files were changed while this process ran: start it anew")


#: Where the code of a digest is, and the names, sizes and times of its files.
_SEEN: dict[tuple[str, str, str], tuple[Sequence[Path], frozenset[tuple[str, int, int]]]] = {}


def _states(places: Sequence[Path]) -> frozenset[tuple[str, int, int]]:
    try:
        found = [(str(file), file.stat()) for place in places for _, file in _files(place)]
    except OSError as error:
        raise UnknownCodeError(f"its files cannot be read: {error.strerror or error}") from error
    return frozenset((name, about.st_size, about.st_mtime_ns) for name, about in found)


@cache
def requirements(distribution: str) -> Mapping[str, str]:
    """The installed versions of what a distribution requires, but for what dpspec itself does."""
    known = {_OURS, *_required(_OURS)}
    return {name: _version(name) for name in sorted(_required(distribution)) if name not in known}


class _Budget:
    """What may still be read."""

    def __init__(self) -> None:
        self._files, self._bytes = MOST_FILES, MOST_BYTES

    def read(self, file: Path) -> bytes:
        """A file's content; raises where it cannot be had, or is one too many."""
        try:
            size = file.stat().st_size
            self._files, self._bytes = self._files - 1, self._bytes - size
            if self._files < 0 or self._bytes < 0:
                raise UnknownCodeError(
                    f"its package holds more than {MOST_FILES} files, or than {MOST_BYTES >> 20} MiB, up to {file.name}"
                )
            with file.open("rb") as stream:
                return stream.read(size + 1)
        except OSError as error:
            raise UnknownCodeError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _entry_modules(distribution: str, plugin: str) -> list[str]:
    """The module that the plugin's entry point names; none where it has none, as in tests."""
    try:
        entries = importlib.metadata.distribution(distribution).entry_points
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    return [e.value.partition(":")[0].strip() for e in entries if e.group == GROUP and e.name == plugin]


def _locate(module: str) -> tuple[str, Sequence[Path]]:
    """The package or module that a dotted name stands in, and the folders or the file that it is."""
    label, *inner = module.split(".")
    found = _spec(label)
    if found is None:
        raise UnknownCodeError(f"module {module!r} is found nowhere")
    archive = getattr(found.loader, "archive", None)
    if archive is not None:
        return label, [Path(archive)]
    if found.submodule_search_locations is None:
        if found.origin is None or not found.has_location:
            raise UnknownCodeError(f"module {label!r} is in no file")
        return label, [Path(found.origin)]
    places = [Path(place) for place in found.submodule_search_locations]
    if found.origin is None:  # a namespace, whose other parts may be of other people
        for part in inner:
            below = [place / part for place in places if (place / part).is_dir()]
            if not below or any((place / f"{part}.py").is_file() for place in places):
                break  # a module: what lies beside it can be imported by it
            label, places = f"{label}.{part}", below
            if any((place / "__init__.py").is_file() for place in places):
                break
    return label, places


def _spec(name: str) -> ModuleSpec | None:
    """Where a top-level module would come from, without importing it."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = None if find is None else find(name, None, None)
        except Exception:  # a finder of somebody's may fail in any way
            continue
        if spec is not None:
            return spec
    return None


def _files(place: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder with their names in it, links followed; a file stands for itself."""
    if place.is_file():
        yield place.name, place
        return
    if not place.is_dir():
        raise UnknownCodeError(f"{place} is neither a folder nor a file")
    seen: set[str] = set()
    count = 0

    def refuse(error: OSError) -> None:
        raise UnknownCodeError(f"{place.name} cannot be read: {error.strerror or error}") from error

    for folder, folders, names in os.walk(place, followlinks=True, onerror=refuse):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                count += 1
                if count > MOST_FILES:
                    raise UnknownCodeError(f"{place.name} holds more than {MOST_FILES} files")
                yield file.relative_to(place).as_posix(), file


def _imported(content: bytes) -> set[str]:
    """The top-level names that a file may import."""
    found: set[str] = set()
    for single, several in _IMPORTS.findall(content):
        names = [single] if single else several.split(b",")
        found |= {re.split(rb"[.\s]", name.strip())[0].decode("utf-8", "replace") for name in names}
    return {name for name in found if name.isidentifier()}


def _is_own(name: str, distribution: str) -> bool:
    """Whether a top-level name is neither the standard library's nor dpspec's nor another distribution's."""
    if name in sys.stdlib_module_names or name in _shipped():
        return False
    owners = {normalise(owner) for owner in _owners().get(name, ())}
    if owners and normalise(distribution) not in owners:
        return False
    return _spec(name) is not None


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


def _required(distribution: str) -> Iterator[str]:
    """The names of what a distribution requires here and without extras."""
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


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
