"""Cache keys, seeds and makers of trials.

Mechanism, data, backend, model and attack make a trial. dpspec's own providers increase their ``trial_revision`` when
trials change. For other providers, version and code are part of the key as well, unless they promise
(``revision_only``) to increase their revision.
"""

import hashlib
import importlib.metadata
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from packaging.utils import canonicalize_name

from dpspec.contract import Facts, FrozenMap, Json
from dpspec.contract.catalog import Offered
from dpspec.contract.frozen import canonical_json
from dpspec.registry.loader import GROUP
from dpspec.results.origins import UNKNOWN_CODE, describe_maker

#: The members of a key that differ between trials.
_CHUNK, _INDEX = "chunk", "index"


class TrialKeys:
    """The content addresses of the trials of one audit.

    A key covers the inputs and the trial's place in its chunk, which may be computed together. Claims, confidence and
    the number of runs are excluded, so changing them never trains again.
    """

    def __init__(
        self,
        inputs: FrozenMap,
        facts: Facts,
        revisions: FrozenMap,
        code: FrozenMap = FrozenMap(),  # noqa: B008 - it is frozen
    ) -> None:
        shared: dict[str, Json] = {"inputs": inputs, "data": facts.digest, "revisions": revisions}
        if facts.initial_weights is not None:
            shared["initial_weights"] = facts.initial_weights
        if code:
            shared["code"] = code
        # A key is the digest of one canonical JSON object. Its members are sorted, so those that all trials share are
        # written once: the time for all keys is linear in the number of trials.
        self._between = canonical_json({k: v for k, v in shared.items() if _CHUNK < k < _INDEX})[1:-1]
        self._after = canonical_json({k: v for k, v in shared.items() if k > _INDEX})[1:-1]
        self._begun: tuple[Sequence[int], hashlib._Hash] | None = None

    def of(self, chunk: Sequence[int], index: int) -> str:
        """The key of trial ``index`` of a chunk."""
        if self._begun is None or self._begun[0] is not chunk:
            begin = f'{{"{_CHUNK}":{canonical_json(chunk)},{self._between},"{_INDEX}":'
            self._begun = chunk, hashlib.sha256(begin.encode("ascii"))
        whole = self._begun[1].copy()
        whole.update(f"{index},{self._after}}}".encode("ascii"))
        return whole.hexdigest()


_OURS = "dpspec"

#: Fields of descriptors that name code.
_NAMED = ("audit", "source", "trainer", "factory", "make", "score", "code")

#: Values of a maker in a trial's key, besides kind and revision.
_KEYED = ("distribution", "version", "code")


def maker(kind: str, offered: Offered) -> dict[str, Json]:
    record: dict[str, Json] = {
        "kind": kind,
        "revision": offered.provider.trial_revision,
        "plugin": offered.plugin,
        "distribution": offered.distribution,
        "version": offered.version,
    }
    if _is_keyed(offered):
        code, _ = code_of(offered)
        record["code"] = code or f"{UNKNOWN_CODE}{uuid.uuid4().hex}"
    return record


def code_of(offered: Offered) -> tuple[str, str]:
    """The digest of a provider's code if keys of trials contain it; if it is unreadable, empty with the reason."""
    if not _is_keyed(offered):
        return "", ""
    if offered.code:
        return offered.code, ""
    reference = next(str(getattr(offered.provider, name)) for name in _NAMED if hasattr(offered.provider, name))
    where = offered.distribution, offered.plugin, reference
    try:
        code = source_digest(*where)
        if _states(_files_of(*where)) != _STATES[where]:  # notebooks reload modules
            return "", "its files were changed while this process ran: restart it"
    except UnknownCodeError as error:
        return "", str(error)
    return code, ""


def code_in(makers: FrozenMap) -> FrozenMap:
    return FrozenMap(
        {
            part: {name: maker.get(name) for name in _KEYED}
            for part, maker in makers.items()
            if isinstance(maker, Mapping) and "code" in maker
        }
    )


def differences(then: FrozenMap, now: FrozenMap) -> Iterator[tuple[str, str, str]]:
    was, is_ = code_in(then), code_in(now)
    for part, maker in then.items():
        if (part in was or part in is_) and was.get(part) != is_.get(part):
            present = now.get(part)
            yield part, describe_maker(maker), describe_maker(present) if present is not None else "no such provider"


def _is_keyed(offered: Offered) -> bool:
    return canonicalize_name(offered.distribution) != _OURS and not offered.provider.revision_only


class UnknownCodeError(Exception):
    """The code cannot be read; the text gives the reason."""


@cache
def source_digest(distribution: str, plugin: str, reference: str) -> str:
    """The SHA-256 of the code of a provider, read once per process, which continues with the code that it imported."""
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
    canonical = canonicalize_name(distribution)
    installed = [name for name, owners in _owners().items() if canonical in map(canonicalize_name, owners)]
    packages = {*(module.partition(".")[0] for module in modules), *installed} - _shipped()
    return sorted(item for package in sorted(packages) for item in _files(package))


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """The files of a top-level package or module by their names in it, links followed."""

    def refuse(error: OSError) -> None:
        raise UnknownCodeError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    try:
        module_spec = find_spec(package)
    except (ImportError, ValueError):
        module_spec = None
    if module_spec is None:
        raise UnknownCodeError(f"module {package!r} is found nowhere")
    if module_spec.submodule_search_locations is not None:
        for location in module_spec.submodule_search_locations:
            visited: set[str] = set()
            for folder, folders, names in os.walk(location, followlinks=True, onerror=refuse):
                folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
                if (real := os.path.realpath(folder)) in visited:  # a link that leads back
                    folders.clear()
                    continue
                visited.add(real)
                files = [Path(folder, name) for name in names if not name.startswith(".")]
                yield from ((f"{package}/{file.relative_to(location).as_posix()}", file) for file in files)
    elif module_spec.origin is None or not Path(module_spec.origin).is_file():
        raise UnknownCodeError(f"module {package!r} is in no file")
    else:
        yield package, Path(module_spec.origin)


@cache
def _shipped() -> frozenset[str]:
    """The top-level names of dpspec's own distribution, whose trials follow its ``trial_revision``."""
    entries = importlib.metadata.entry_points(group=GROUP)
    values = [entry.value for entry in entries if entry.dist and canonicalize_name(entry.dist.name) == _OURS]
    return frozenset({_OURS, *(value.partition(":")[0].partition(".")[0] for value in values)})


@cache
def _owners() -> Mapping[str, Sequence[str]]:
    try:
        return importlib.metadata.packages_distributions()
    except Exception:  # from damaged metadata of any distribution
        return {}
