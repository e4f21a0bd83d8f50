"""Look up the providers that a spec names, and check the distributions in ``requires``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpspec.contract import Diagnostic, Json, Mechanism, Path
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Canary, Score
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.text import clipped, closest, did_you_mean, listed, quoted, shown
from dpspec.version import VERSION

#: Codes that report a missing or broken installation, not an invalid spec.
PLUGIN_CODES = frozenset({"unknown-kind", "broken-plugin", "unmet-requirement"})


#: For each block, the key that selects a provider, the catalog's attribute, and the name of its kinds.
CHOOSERS = {
    "mechanism": ("kind", "mechanisms", "mechanism kind"),
    "data": ("kind", "datasets", "data kind"),
    "model": ("kind", "models", "model kind"),
    "training": ("backend", "backends", "backend"),
}


def selected_attack(
    audit: Json, mechanism: Mechanism, threat_model: Mapping[str, Json] | None, catalog: Catalog
) -> tuple[Canary | None, Score | None, list[Diagnostic]]:
    """The canary kind and the score of an audit block. The schema reports values of the wrong type."""
    if not isinstance(audit, Mapping) or "scores" in audit:  # external scores need neither
        return None, None, []
    block = audit.get("canary")
    space = block.get("space", "gradient") if isinstance(block, Mapping) else None
    canary = score = None
    if isinstance(block, Mapping) and isinstance(space, str) and space in mechanism.canaries:
        kind, path = block.get("kind", USUAL[space]), ("audit", "canary", "kind")
        other = catalog.canaries[kind].provider.space if isinstance(kind, str) and kind in catalog.canaries else space
        if other != space:
            message = f"{quoted(kind)} is not a kind of {space} canary"
            hint = f"it is a kind of {other} canary: write space: {other}"
            canary = Diagnostic(code="unsupported", message=message, path=path, help=hint)
        elif isinstance(kind, str) and kind:
            fitting = {name: each for name, each in catalog.canaries.items() if each.provider.space == space}
            canary = _find_kind(kind, fitting, f"{space} canary", path, catalog)
    # A score of final models applies to inserted records.
    scored = space == "input" and threat_model is not None and threat_model.get("access") == "final-model"
    kind = audit.get("score", USUAL_SCORE)
    if mechanism.scores and ("score" in audit or scored) and isinstance(kind, str) and kind:
        score = _find_kind(kind, catalog.scores, "score", ("audit", "score"), catalog)
    wrong = [found for found in (canary, score) if isinstance(found, Diagnostic)]
    return canary if isinstance(canary, Canary) else None, score if isinstance(score, Score) else None, wrong


def find(block: Mapping[str, Json], name: str, catalog: Catalog) -> Any | Diagnostic:
    """The provider that the block ``name`` of a spec selects."""
    key, field, what = CHOOSERS[name]
    installed: Mapping[str, Offered] = getattr(catalog, field)
    if key not in block:
        message, hint = f"missing key {quoted(key)} in {name}", _installed_help(installed)
        return Diagnostic(code="missing-key", message=message, path=(name,), help=hint, at_key=True)
    if not isinstance(block[key], str):
        message = f"{key} must be a string, got {shown(block[key])}"
        return Diagnostic(code="wrong-type", message=message, path=(name, key), help=_installed_help(installed))
    return _find_kind(block[key], installed, what, (name, key), catalog)


def _find_kind(kind: str, offers: Mapping[str, Offered], what: str, path: Path, catalog: Catalog) -> Any | Diagnostic:
    if kind in offers:
        return offers[kind].provider
    broken = next((b for b in catalog.broken if kind in b.kinds), None)
    if broken is not None:
        message = f"{_plugin_name(broken)} failed to load: {clipped(broken.reason, 200)} (see `dpspec plugins`)"
        hint = f"reinstall or update {broken.distribution or broken.plugin}, or report the error to its authors"
        return Diagnostic(code="broken-plugin", message=message, path=path, help=hint)
    near = closest_kind(kind, offers)
    message = f"no installed plugin offers {what} {quoted(kind)}" + did_you_mean(near)
    hint = _installed_help(offers)
    if near is None and catalog.broken:
        names = ", ".join(_plugin_name(b) for b in catalog.broken)
        hint += f". A plugin that failed to load may provide it: {names}"
    return Diagnostic(code="unknown-kind", message=message, path=path, help=hint)


#: Names of the field for kinds.
_SYNONYMS = {"reconstruction": "rero", "reconstruction-robustness": "rero"}


def closest_kind(word: str, kinds: Iterable[str]) -> str | None:
    known = list(kinds)
    synonym = _SYNONYMS.get(word.lower().replace("_", "-"))
    return synonym if synonym in known else closest(word, known)


def _plugin_name(broken: BrokenPlugin) -> str:
    return " ".join(part for part in ("plugin", broken.distribution or broken.plugin, broken.version) if part)


def _installed_help(installed: Mapping[str, Offered]) -> str:
    return f"installed: {listed(sorted(installed))} (see `dpspec plugins`)" if installed else "none is installed"


def check(requirements: Sequence[Json]) -> Iterator[Diagnostic]:
    if not requirements:
        return
    import importlib.metadata

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    for i, text in enumerate(requirements):
        if not isinstance(text, str):
            continue  # the schema reports it
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            wanted = None
        if wanted is None or wanted.url or wanted.marker or wanted.extras:
            message = f"{quoted(text)} is not a requirement"
            hint = "write a distribution and versions, such as dpspec>=0.1"
            yield Diagnostic(code="bad-requirement", message=message, path=("requires", i), help=hint)
            continue
        version: str | None
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:  # dpspec may run from a source tree
            version = VERSION if wanted.name == "dpspec" else None
        try:
            fits = version is not None and wanted.specifier.contains(version, prereleases=True)
        except InvalidVersion:
            fits = False
        if version is None:
            message = f"this spec requires {clipped(text)}, but {clipped(wanted.name)} is not installed"
        elif not fits:
            message = f"this spec requires {clipped(text)}, but {clipped(wanted.name)} {version} is installed"
        else:
            continue
        hint = f"python -m pip install '{wanted.name}{wanted.specifier}'"
        yield Diagnostic(code="unmet-requirement", message=message, path=("requires", i), help=hint)
