"""What a spec needs installed: the provider that a ``kind`` names, and the distributions of ``requires``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract import Diagnostic, Json, Mechanism, Path
from dpspec.contract.attacks import USUAL, USUAL_SCORE, Canary, Score
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.text import clipped, closest, did_you_mean, listed, quoted, shown
from dpspec.version import VERSION

if TYPE_CHECKING:
    from packaging.requirements import Requirement

#: Codes that say that something is not installed, rather than that the spec is wrong.
PLUGIN_CODES = frozenset({"unknown-kind", "broken-plugin", "unmet-requirement"})


@dataclass(frozen=True)
class Chooser:
    """A block, the key in it that chooses a provider, and how messages call what providers do."""

    block: str
    key: str
    offers: str
    missing: str

    def providers(self, catalog: Catalog) -> Mapping[str, Offered]:
        """What is installed for this block, by kind."""
        found: Mapping[str, Offered] = getattr(catalog, self.offers)
        return found


CHOOSERS = {
    "mechanism": Chooser("mechanism", "kind", "mechanisms", "no installed plugin audits kind"),
    "data": Chooser("data", "kind", "datasets", "no installed plugin offers data kind"),
    "model": Chooser("model", "kind", "models", "no installed plugin offers model kind"),
    "training": Chooser("training", "backend", "backends", "no installed plugin offers backend"),
}


def attack_of(
    audit: Json, mechanism: Mechanism, threat_model: Mapping[str, Json] | None, catalog: Catalog
) -> tuple[Canary | None, Score | None, list[Diagnostic]]:
    """What an audit block chooses of what plugins offer to mechanisms that take it, and what is wrong with the choice.

    A value of another type than its key's is left to the schema.
    """
    if not isinstance(audit, Mapping) or "scores" in audit:  # a table of scores was made elsewhere
        return None, None, []
    canary = audit.get("canary")
    space = canary.get("space", "gradient") if isinstance(canary, Mapping) else None
    kind = score = None
    if isinstance(canary, Mapping) and isinstance(space, str) and space in mechanism.canaries:
        kind = _canary(canary.get("kind", USUAL[space]), space, catalog)
    if mechanism.scores and ("score" in audit or _scored(space, threat_model)):
        score = _named(audit.get("score", USUAL_SCORE), catalog.scores, "score", ("audit", "score"), catalog)
    wrong = [found for found in (kind, score) if isinstance(found, Diagnostic)]
    return kind if isinstance(kind, Canary) else None, score if isinstance(score, Score) else None, wrong


def _scored(space: str | None, threat_model: Mapping[str, Json] | None) -> bool:
    """Whether planted records are scored by a final model."""
    return space == "input" and threat_model is not None and threat_model.get("access") == "final-model"


def _canary(kind: Json, space: str, catalog: Catalog) -> Any:
    """The kind of canary of a space, or what is wrong with it."""
    path: Path = ("audit", "canary", "kind")
    offered = catalog.canaries.get(kind) if isinstance(kind, str) else None
    if offered is not None and offered.provider.space != space:
        other = offered.provider.space
        return Diagnostic(
            code="unsupported",
            message=f"{quoted(kind)} is not a kind of {space} canary",
            path=path,
            help=f"it is one of {other} canaries: write space: {other}",
        )
    fitting = {name: each for name, each in catalog.canaries.items() if each.provider.space == space}
    return _named(kind, fitting, f"{space} canary", path, catalog)


def _named(kind: Json, offers: Mapping[str, Offered], what: str, path: Path, catalog: Catalog) -> Any:
    """The provider of a kind, a diagnostic where there is none, None where the kind is no text."""
    if not isinstance(kind, str) or not kind:
        return None
    if kind in offers:
        return offers[kind].provider
    return _absent(kind, offers, f"no installed plugin offers {what}", path, catalog)


def find(block: Mapping[str, Json], chooser: Chooser, catalog: Catalog) -> Any | Diagnostic:
    """The provider that a block chooses, or what is wrong with the choice."""
    path: Path = (chooser.block, chooser.key)
    installed = chooser.providers(catalog)
    if chooser.key not in block:
        message = f"missing key {quoted(chooser.key)} in {chooser.block}"
        return Diagnostic(code="missing-key", message=message, path=path[:1], help=_installed(installed), at_key=True)
    kind = block[chooser.key]
    if not isinstance(kind, str):
        message = f"{chooser.key} must be text, got {shown(kind)}"
        return Diagnostic(code="wrong-type", message=message, path=path, help=_installed(installed))
    if kind in installed:
        return installed[kind].provider
    return _absent(kind, installed, chooser.missing, path, catalog)


def _absent(kind: str, installed: Mapping[str, Offered], missing: str, path: Path, catalog: Catalog) -> Diagnostic:
    """What to say of a kind that nothing offers that could be used."""
    broken = next((b for b in catalog.broken if kind in b.kinds), None)
    if broken is not None:
        message = f"{_name(broken)} failed to load: {clipped(broken.reason, 200)} (see `dpspec plugins`)"
        return Diagnostic(code="broken-plugin", message=message, path=path, help=_mend(broken))
    near = closest(kind, installed)
    message = f"{missing} {quoted(kind)}" + did_you_mean(near)
    hint = _installed(installed)
    if near is None and catalog.broken:
        names = ", ".join(_name(b) for b in catalog.broken)
        hint += f". It may come from what failed to load: {names} (see `dpspec plugins`)"
    return Diagnostic(code="unknown-kind", message=message, path=path, help=hint)


def _name(broken: BrokenPlugin) -> str:
    return " ".join(part for part in ("plugin", broken.distribution or broken.plugin, broken.version) if part)


def _mend(broken: BrokenPlugin) -> str:
    return f"reinstall or update {broken.distribution or broken.plugin}, or report it to its authors"


def _installed(installed: Mapping[str, Offered]) -> str:
    return f"installed: {listed(sorted(installed))}" if installed else "nothing of the sort is installed"


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
        version = _installed_version(wanted.name)
        if version is None:
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} is not installed"
        elif not _within(wanted, version):
            message = f"this spec requires {clipped(text)}, and {clipped(wanted.name)} {version} is installed"
        else:
            continue
        hint = f"python -m pip install '{wanted.name}{wanted.specifier}'"
        yield Diagnostic(code="unmet-requirement", message=message, path=("requires", i), help=hint)


def name_packages(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Add to each unknown kind the packages that the spec requires and that are not installed: one may offer it."""
    commands = [d.help for d in found if d.code == "unmet-requirement" and d.help]
    if not commands:
        return list(found)
    hint = f"a package that the spec requires may offer it: {'; '.join(commands)}"
    return [replace(d, help=f"{d.help}; {hint}") if d.code == "unknown-kind" else d for d in found]


def _within(wanted: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _installed_version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    if name != "dpspec":
        return None
    return VERSION  # run from a source tree, dpspec is not installed
