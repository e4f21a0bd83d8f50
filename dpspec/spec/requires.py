"""``requires``: the distributions that a spec needs, with versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpspec.contract import Diagnostic, Json
from dpspec.spec.words import clipped, quoted

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check(requirements: Sequence[Json]) -> Iterator[Diagnostic]:
    """What is wrong with the requirements, or missing from this installation."""
    if not requirements:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for i, text in enumerate(requirements):
        if not isinstance(text, str):
            continue  # its type is told by the schema
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            wanted = None
        if wanted is None or wanted.url or wanted.marker or wanted.extras:
            message = f"{quoted(text)} is not a requirement"
            hint = "write a distribution and versions, such as dpspec>=0.1"
            yield Diagnostic(code="bad-requirement", message=message, path=("requires", i), help=hint)
            continue
        version = _installed(wanted.name)
        if version is None:
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} is not installed"
        elif not _within(wanted, version):
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} {version} is installed"
        else:
            continue
        hint = f"python -m pip install '{wanted.name}{wanted.specifier}'"
        yield Diagnostic(code="unmet-requirement", message=message, path=("requires", i), help=hint)


def _within(wanted: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _installed(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    if name != "dpspec":
        return None
    import dpspec  # run from a source tree, dpspec is not installed, and there

    version: str | None = getattr(dpspec, "__version__", None)
    return version
