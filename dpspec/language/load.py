"""Load specs from files or resolved documents. Errors in a file are diagnostics, not exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpspec.contract import AuditOptions, Claim, Diagnostic, FrozenMap, Json, Section, Span, Spec, ThreatModel, thaw
from dpspec.contract import Path as SpecPath
from dpspec.contract.canonical import digest
from dpspec.contract.catalog import Catalog
from dpspec.contract.renamed import rename, with_old_words
from dpspec.contract.spec import unit_in_words
from dpspec.errors import PluginError, SpecError
from dpspec.language.composing import overrides as command_line
from dpspec.language.composing import schedules, selection
from dpspec.language.composing.compose import Composed, compose, read_family
from dpspec.language.reading.spec_files import find_specs
from dpspec.language.reading.tree import Node, from_plain, json_problem, locate, origin, plain
from dpspec.language.validating.blocks import core
from dpspec.language.validating.installed import PLUGIN_CODES
from dpspec.language.validating.problems import problems
from dpspec.language.validating.validate import Checked, check

#: Keys that do not affect an audit, or that composition has already consumed.
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
    origin: Mapping[SpecPath, Span],
    directory: str,
) -> Spec:
    """Build the spec of a valid document whose defaults are filled in."""
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
    """Return the SHA-256 of a resolved document without the keys in :data:`OUTSIDE_DIGEST`."""
    document = with_old_words(document)
    return digest({key: value for key, value in document.items() if key not in OUTSIDE_DIGEST})


def claim_options(claim: Mapping[str, Json]) -> FrozenMap:
    """Return the keys that only this kind of claim has, such as ``epsilon`` and ``delta``."""
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


#: Maximum number of errors reported per file.
MAX_DIAGNOSTICS = 50


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Specs and diagnostics of a set of files.

    Attributes:
        specs: One spec for each valid cell of each matrix.
        diagnostics: Errors and warnings, in the order of the files.
        missing_plugins: True if there are errors and each is about a missing, broken or outdated plugin.
        files: The spec files, including those found in folders.
        others: YAML files in these folders that are not specs.
        sources: The text of each file and of the overrides, by the file name that spans use.
    """

    specs: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    missing_plugins: bool
    files: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """True if there are no errors. Warnings are allowed."""
        return not any(d.severity == "error" for d in self.diagnostics)


def load_specs(paths: Sequence[Path], catalog: Catalog, overrides: Sequence[str] = ()) -> Loaded:
    """Read, compose and validate spec files.

    Args:
        paths: Spec files, or folders that are searched for specs (``reading.spec_files``).
        catalog: The installed providers.
        overrides: ``path=value`` strings from the command line; each applies to every spec.

    Returns:
        The valid specs and all diagnostics.

    Raises:
        UsageError: A folder contains no spec.
    """
    found = find_specs(paths)
    given, misread = command_line.parse(overrides)
    diagnostics = _limited(misread)
    sources = {command_line.FILE: command_line.as_text(overrides)} if overrides else {}
    specs: list[Spec] = []
    for path in found.files:
        built, wrong, texts = _load(path, catalog, given)
        specs += built
        diagnostics += wrong
        sources |= texts
    if len(given) < len(overrides):
        specs = []  # an override is invalid, so no spec is the requested one
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
    """Rebuild the spec of a resolved document, for example from a result.

    Args:
        document: The resolved document.
        catalog: The installed providers.
        directory: The folder that relative paths in the document refer to.
        name: The spec's name including its cell, if it differs from the document's name.
        cell: The values of the matrix axes in this cell.

    Raises:
        SpecError: The document is not valid.
        PluginError: Each error is about a missing or broken plugin.
    """
    invalid = json_problem(document)
    if invalid is not None:
        raise SpecError([invalid])
    plain_document: dict[str, Json] = thaw(document)
    rename(plain_document)
    checked = check(plain_document, catalog)
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
    """Return the specs of one file, its diagnostics, and the texts read."""
    family = read_family(path)
    diagnostics = list(family.diagnostics)
    if family.root is None:
        return [], _limited(diagnostics), family.texts
    cells, misplaced = compose(family.root, given)
    diagnostics += misplaced
    split = selection.split_claims(cells)
    diagnostics += [*split.diagnostics, *_tuning_problems(cells)]
    specs: list[Spec] = []
    for composed in split.cells:
        spec, wrong = _build_cell(composed, path, catalog)
        # The reader already reported values that cannot be parsed; schema errors would repeat it.
        diagnostics += [d for d in wrong if not _is_inside(d.path, family.unparsed)]
        specs += [spec] if spec is not None else []
        if len(diagnostics) > MAX_DIAGNOSTICS:
            break
    if split.selection is not None and specs and not any(d.severity == "error" for d in diagnostics):
        diagnostics += split.selection.differing(specs)
        best, wrong = _build_cell(split.selection.composed(specs), path, catalog)
        diagnostics += wrong
        specs = [*([] if split.bare else specs), *([best] if best is not None else [])]
    unique = list(dict.fromkeys(diagnostics))
    errors = any(d.severity == "error" for d in unique)
    return [] if errors else specs, _limited(unique), family.texts


def _tuning_problems(cells: Sequence[Composed]) -> Iterator[Diagnostic]:
    tuning = next((cell.tuning for cell in cells if cell.tuning is not None), None)
    if tuning is not None:
        spans = origin(Node({"tuning": tuning}))
        for wrong in problems(core("spec")["properties"]["tuning"], plain(tuning), ("tuning",)):
            yield locate(wrong, spans)


def _build_cell(composed: Composed, path: Path, catalog: Catalog) -> tuple[Spec | None, list[Diagnostic]]:
    root, unclear = schedules.expand(composed.root, path.parent)
    spans = origin(root)
    if unclear:
        return None, [locate(d, spans) for d in unclear]
    document = plain(root)
    old_words = rename(document)
    checked = check(document, catalog)
    unused = schedules.unused_settings(document, composed.chosen, merged=root is not composed.root)
    wrong = [locate(d, spans) for d in (*old_words, *checked.diagnostics, *unused)]
    if any(d.severity == "error" for d in wrong):
        return None, wrong
    name = checked.document["name"] + composed.suffix
    directory = str(path.parent)
    return build(checked, name=name, cell=composed.cell, origin=spans, directory=directory), wrong


def _limited(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Sort by position and keep the first :data:`MAX_DIAGNOSTICS`."""
    ordered = sorted(diagnostics, key=lambda d: (d.span.file, d.span.line, d.span.column) if d.span else ("", 0, 0))
    if len(ordered) <= MAX_DIAGNOSTICS:
        return ordered
    last = ordered[MAX_DIAGNOSTICS - 1]
    message = f"more than {MAX_DIAGNOSTICS} errors; the rest is not shown"
    more = Diagnostic(code="more-errors", message=message, path=last.path, span=last.span, help="fix these first")
    return [*ordered[:MAX_DIAGNOSTICS], more]


def _is_inside(path: SpecPath, unparsed: Iterable[SpecPath]) -> bool:
    return any(path[: len(s)] == s for s in unparsed)


def _plugins_only(diagnostics: Sequence[Diagnostic]) -> bool:
    codes = [d.code for d in diagnostics if d.severity == "error"]
    return bool(codes) and all(code in PLUGIN_CODES for code in codes)
