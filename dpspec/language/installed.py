"""Look up the providers that a spec names, and check the distributions in ``requires``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpspec.contract import Diagnostic, Json, Mechanism, Path
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Canary, Score
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.text import clipped, closest, did_you_mean, listed, quoted, shown
from dpspec.version import VERSION

#: Codes that report a missing or broken installation, not an invalid spec.
PLUGIN_CODES = frozenset({"unknown-kind", "broken-plugin", "unmet-requirement"})


@dataclass(frozen=True)
class Chooser:
    """The key of a block that selects a provider, the catalog's attribute, and the message for unknown kinds."""

    block: str
    key: str
    offers: str
    missing: str


CHOOSERS = {
    "mechanism": Chooser("mechanism", "kind", "mechanisms", "no installed plugin offers mechanism kind"),
    "data": Chooser("data", "kind", "datasets", "no installed plugin offers data kind"),
    "model": Chooser("model", "kind", "models", "no installed plugin offers model kind"),
    "training": Chooser("training", "backend", "backends", "no installed plugin offers backend"),
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
        offered = catalog.canaries.get(kind) if isinstance(kind, str) else None
        if offered is not None and offered.provider.space != space:
            other = offered.provider.space
            message = f"{quoted(kind)} is not a kind of {space} canary"
            hint = f"it is a kind of {other} canary: write space: {other}"
            canary = Diagnostic(code="unsupported", message=message, path=path, help=hint)
        else:
            fitting = {name: each for name, each in catalog.canaries.items() if each.provider.space == space}
            canary = _find_kind(kind, fitting, f"{space} canary", path, catalog)
    # A score of final models applies to inserted records.
    scored = space == "input" and threat_model is not None and threat_model.get("access") == "final-model"
    if mechanism.scores and ("score" in audit or scored):
        score = _find_kind(audit.get("score", USUAL_SCORE), catalog.scores, "score", ("audit", "score"), catalog)
    wrong = [found for found in (canary, score) if isinstance(found, Diagnostic)]
    return canary if isinstance(canary, Canary) else None, score if isinstance(score, Score) else None, wrong


def _find_kind(kind: Json, offers: Mapping[str, Offered], what: str, path: Path, catalog: Catalog) -> Any:
    """The provider, a diagnostic if the kind is unknown, or None if it is not a string."""
    if not isinstance(kind, str) or not kind:
        return None
    if kind in offers:
        return offers[kind].provider
    return _unknown_kind(kind, offers, f"no installed plugin offers {what}", path, catalog)


def find(block: Mapping[str, Json], chooser: Chooser, catalog: Catalog) -> Any | Diagnostic:
    path: Path = (chooser.block, chooser.key)
    installed: Mapping[str, Offered] = getattr(catalog, chooser.offers)
    if chooser.key not in block:
        message = f"missing key {quoted(chooser.key)} in {chooser.block}"
        return Diagnostic(
            code="missing-key", message=message, path=path[:1], help=_installed_help(installed), at_key=True
        )
    kind = block[chooser.key]
    if not isinstance(kind, str):
        message = f"{chooser.key} must be a string, got {shown(kind)}"
        return Diagnostic(code="wrong-type", message=message, path=path, help=_installed_help(installed))
    if kind in installed:
        return installed[kind].provider
    return _unknown_kind(kind, installed, chooser.missing, path, catalog)


def _unknown_kind(
    kind: str, installed: Mapping[str, Offered], missing: str, path: Path, catalog: Catalog
) -> Diagnostic:
    broken = next((b for b in catalog.broken if kind in b.kinds), None)
    if broken is not None:
        message = f"{_plugin_name(broken)} failed to load: {clipped(broken.reason, 200)} (see `dpspec plugins`)"
        hint = f"reinstall or update {broken.distribution or broken.plugin}, or report the error to its authors"
        return Diagnostic(code="broken-plugin", message=message, path=path, help=hint)
    near = closest_kind(kind, installed)
    message = f"{missing} {quoted(kind)}" + did_you_mean(near)
    hint = _installed_help(installed)
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
