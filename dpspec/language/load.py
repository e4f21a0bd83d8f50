"""From spec files to specs: the one way in. What is wrong with a file is a diagnostic, never an exception."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpspec.contract import AuditOptions, Claim, Diagnostic, FrozenMap, Json, Section, Span, Spec, ThreatModel, thaw
from dpspec.contract import (
    Path as Place,
)
from dpspec.contract import Path as SpecPath
from dpspec.contract.canonical import digest
from dpspec.contract.catalog import Catalog
from dpspec.contract.spec import unit_in_words
from dpspec.errors import PluginError, SpecError
from dpspec.language.composing import overrides as command_line
from dpspec.language.composing import schedules, selection
from dpspec.language.composing.compose import Composed, compose, read_family
from dpspec.language.reading.spec_files import find_specs
from dpspec.language.reading.tree import Node, from_plain, locate, not_json, origin, plain
from dpspec.language.validating.blocks import core
from dpspec.language.validating.installed import PLUGIN_CODES
from dpspec.language.validating.problems import problems
from dpspec.language.validating.validate import Checked, check

#: Keys that change nothing about an audit, or are used up by the time a document is resolved.
OUTSIDE_DIGEST = frozenset(
    {"name", "description", "system", "owner", "contact", "requires", "extends", "matrix", "tuning"}
)

_THREAT_MODEL = ("adjacency", "unit", "access", "direction")
_RESTRICTIONS = ("min_records", "neighbours")
_AUDIT = ("method", "runs", "confidence", "seed", "expect")
_CLAIM = (
    "id",
    "kind",
    "adjacency",
    "access",
    "direction",
    "group_size",
    *_RESTRICTIONS,
    "record",
    "over",
    "expect",
    "refuted_by",
)


def build(
    checked: Checked,
    *,
    name: str,
    cell: FrozenMap,
    origin: Mapping[Place, Span],
    directory: str,
) -> Spec:
    """The spec of a valid document with its defaults filled in."""
    document = checked.document
    threat_model = _threat_model(document["threat_model"])
    unit = unit_in_words(threat_model.unit, document["data"])
    return Spec(
        name=name,
        description=document["description"],
        mechanism=_section(document["mechanism"], "kind"),
        data=_section(document["data"], "kind"),
        model=_section(document["model"], "kind") if "model" in document else None,
        training=_section(document["training"], "backend"),
        threat_model=threat_model,
        claims=tuple(_claim(claim, threat_model, unit) for claim in document["claims"]),
        audit=_audit(document["audit"], checked) if "audit" in document else None,
        cell=cell,
        document=FrozenMap(document),
        digest=digest_of(document),
        origin=origin,
        directory=directory,
    )


def digest_of(document: Mapping[str, Json]) -> str:
    """The SHA-256 of what a resolved document decides: all but its names, texts, requirements and composition."""
    return digest({key: value for key, value in document.items() if key not in OUTSIDE_DIGEST})


def claim_options(claim: Mapping[str, Json]) -> FrozenMap:
    """What a claim's block says besides what claims of every kind may say: its own kind's numbers."""
    return _without(claim, _CLAIM)


def _section(block: Mapping[str, Json], key: str) -> Section:
    kind = block.get(key, "native")
    return Section(kind=kind, options=_without(block, (key,)))


def _threat_model(block: Mapping[str, Json]) -> ThreatModel:
    known = {key: block[key] for key in _THREAT_MODEL}
    known |= {key: block[key] for key in _RESTRICTIONS if key in block}
    further = _without(block, (*_THREAT_MODEL, *_RESTRICTIONS, "group_size"))
    return ThreatModel(**known, group_size=tuple(block["group_size"]), options=further)


def _claim(claim: Mapping[str, Json], threat_model: ThreatModel, unit: str) -> Claim:
    return Claim(
        id=claim["id"],
        kind=claim["kind"],
        options=claim_options(claim),
        adjacency=claim.get("adjacency", threat_model.adjacency),
        access=claim.get("access", threat_model.access),
        direction=claim.get("direction", threat_model.direction),
        group_size=claim["group_size"],
        min_records=claim.get("min_records", threat_model.min_records),
        neighbours=claim.get("neighbours", threat_model.neighbours),
        record=claim.get("record"),
        over=claim.get("over"),
        expect=tuple(claim["expect"]),
        refuted_by=claim.get("refuted_by", "any"),
        unit=unit,
    )


def _audit(block: Mapping[str, Json], checked: Checked) -> AuditOptions:
    known = {key: block[key] for key in _AUDIT}
    return AuditOptions(**known, options=_without(block, _AUDIT), canary=checked.canary, score=checked.score)


def _without(block: Mapping[str, Json], keys: tuple[str, ...]) -> FrozenMap:
    return FrozenMap({key: value for key, value in block.items() if key not in keys})


#: How many errors of one file are told.
MAX_DIAGNOSTICS = 50


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What some files hold: one spec for every valid cell of every matrix, and all that is wrong.

    missing_plugins: there are errors, and every one of them is a plugin that is not installed, broken or too old.
    sources: the text of every file that was read, and of the overrides, by the name that spans give them.
    files: the spec files, those of folders among them. others: the YAML files of these folders that are no specs.
    """

    specs: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    missing_plugins: bool
    files: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings do not count."""
        return not any(d.severity == "error" for d in self.diagnostics)


def load_specs(paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str] = ()) -> Loaded:
    """Read, compose and validate spec files, and all specs below folders (``reading.spec_files``).

    overrides: ``path=value`` texts of the command line; each holds for every spec.

    Raises ``UsageError`` where a folder holds no spec.
    """
    found = find_specs(paths)
    given, misread = command_line.parse(overrides)
    diagnostics = _bounded(misread)
    sources = {command_line.FILE: command_line.text_of(overrides)} if overrides else {}
    specs: list[Spec] = []
    for path in found.files:
        built, wrong, texts = _load(path, catalog, given)
        specs += built
        diagnostics += wrong
        sources |= texts
    if len(given) < len(overrides):
        specs = []  # without one of its overrides, none of them is the spec that was asked for
    unique = tuple(dict.fromkeys(diagnostics))
    return Loaded(
        specs=tuple(specs),
        diagnostics=unique,
        missing_plugins=_plugins_only(unique),
        files=found.files,
        others=found.others,
        sources=sources,
    )


def from_document(
    document: Mapping[str, Json],
    catalog: Catalog,
    directory: str = ".",
    *,
    name: str | None = None,
    cell: Mapping[str, Json] | None = None,
) -> Spec:
    """Rebuild the spec of a resolved document, such as a result holds.

    name: the spec's name with its cell, where it differs from the document's.
    Raises ``SpecError`` where the document is not valid, ``PluginError`` where only a plugin is missing or broken.
    """
    unusable = not_json(document)
    if unusable is not None:
        raise SpecError([unusable])
    checked = check(thaw(document), catalog)
    errors = [d for d in checked.diagnostics if d.severity == "error"]
    if errors and _plugins_only(errors):
        raise PluginError("; ".join(d.message for d in errors), errors)
    if errors:
        raise SpecError(errors)
    spans = origin(from_plain(checked.document))
    return build(
        checked,
        name=checked.document["name"] if name is None else name,
        cell=FrozenMap(cell),
        origin=spans,
        directory=directory,
    )


def _load(
    path: Path, catalog: Catalog, given: Sequence[command_line.Override]
) -> tuple[list[Spec], list[Diagnostic], dict[str, str]]:
    """One file: its specs, what is wrong with it, and the texts that were read."""
    family = read_family(path)
    diagnostics = list(family.diagnostics)
    if family.root is None:
        return [], _bounded(diagnostics), family.texts
    cells, misplaced = compose(family.root, given)
    diagnostics += misplaced
    parted = selection.part(cells)
    diagnostics += [*parted.diagnostics, *_of_tuning(cells)]
    specs: list[Spec] = []
    for composed in parted.cells:
        spec, wrong = _cell(composed, path, catalog)
        # What is wrong with a value as written was told where it was read; a schema would only repeat it.
        diagnostics += [d for d in wrong if not _below(d.path, family.spoilt)]
        specs += [spec] if spec is not None else []
        if len(diagnostics) > MAX_DIAGNOSTICS:
            break
    if parted.selection is not None and specs and not any(d.severity == "error" for d in diagnostics):
        diagnostics += parted.selection.differing(specs)
        best, wrong = _cell(parted.selection.composed(specs), path, catalog)
        diagnostics += wrong
        specs = [*([] if parted.bare else specs), *([best] if best is not None else [])]
    unique = list(dict.fromkeys(diagnostics))
    errors = any(d.severity == "error" for d in unique)
    return [] if errors else specs, _bounded(unique), family.texts


def _of_tuning(cells: Sequence[Composed]) -> Iterator[Diagnostic]:
    """What is wrong with ``tuning``, which is none of a cell's blocks."""
    tuning = next((cell.tuning for cell in cells if cell.tuning is not None), None)
    if tuning is not None:
        spans = origin(Node({"tuning": tuning}))
        for wrong in problems(core("spec")["properties"]["tuning"], plain(tuning), ("tuning",)):
            yield locate(wrong, spans)


def _cell(composed: Composed, path: Path, catalog: Catalog) -> tuple[Spec | None, list[Diagnostic]]:
    root, unclear = schedules.expand(composed.root, path.parent)
    spans = origin(root)
    if unclear:
        return None, [locate(d, spans) for d in unclear]
    document = plain(root)
    checked = check(document, catalog)
    idle = schedules.idle(document, composed.chosen, merged=root is not composed.root)
    wrong = [locate(d, spans) for d in (*checked.diagnostics, *idle)]
    if any(d.severity == "error" for d in wrong):
        return None, wrong
    name = checked.document["name"] + composed.suffix
    directory = str(path.parent)
    return build(checked, name=name, cell=composed.cell, origin=spans, directory=directory), wrong


def _bounded(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """In the order of the file, the first :data:`MAX_DIAGNOSTICS` of them."""
    ordered = sorted(diagnostics, key=lambda d: (d.span.file, d.span.line, d.span.column) if d.span else ("", 0, 0))
    if len(ordered) <= MAX_DIAGNOSTICS:
        return ordered
    last = ordered[MAX_DIAGNOSTICS - 1]
    message = f"there are more errors than these {MAX_DIAGNOSTICS}"
    more = Diagnostic(code="more-errors", message=message, path=last.path, span=last.span, help="mend these first")
    return [*ordered[:MAX_DIAGNOSTICS], more]


def _below(path: SpecPath, spoilt: Iterable[SpecPath]) -> bool:
    return any(path[: len(s)] == s for s in spoilt)


def _plugins_only(diagnostics: Sequence[Diagnostic]) -> bool:
    codes = [d.code for d in diagnostics if d.severity == "error"]
    return bool(codes) and all(code in PLUGIN_CODES for code in codes)
