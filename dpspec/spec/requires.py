"""``requires``: the distributions that a spec needs, with versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Diagnostic, Json
from dpspec.spec.words import clipped, quoted


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
        if wanted is None or wanted.url:
            message = f"{quoted(text)} is not a requirement"
            hint = "write a distribution and versions, such as dpspec>=0.1"
            yield Diagnostic(code="bad-requirement", message=message, path=("requires", i), help=hint)
            continue
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        version = _installed(wanted.name)
        if version is None:
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} is not installed"
        elif not wanted.specifier.contains(version, prereleases=True):
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} {version} is installed"
        else:
            continue
        hint = f"python -m pip install '{clipped(text)}'"
        yield Diagnostic(code="unmet-requirement", message=message, path=("requires", i), help=hint)


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
