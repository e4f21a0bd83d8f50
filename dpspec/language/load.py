"""Find the specs in folders, and load specs from files or resolved documents.

Errors in a file are diagnostics, not exceptions. In a folder, each YAML file with a top-level key ``dpspec`` is a spec,
sorted by path. Parent files leave the key to their children.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from yaml.representer import RepresenterError

from dpspec.contract import AuditOptions, Claim, Section, Span, Spec, ThreatModel
from dpspec.contract import Path as SpecPath
from dpspec.contract.catalog import Catalog
from dpspec.contract.frozen import FrozenMap, Json, digest, freeze, thaw, without
from dpspec.contract.spec import COLLECTION, unit_in_words
from dpspec.errors import Diagnostic, NothingToRunError, PluginError, SpecError, UsageError, has_errors
from dpspec.language.blocks import core
from dpspec.language.compose import (
    OVERRIDES_FILE,
    Composed,
    Family,
    Override,
    compose,
    one_line,
    parse_overrides,
    read_family,
)
from dpspec.language.problems import problems
from dpspec.language.rewrite import split_claims, unused_settings
from dpspec.language.validate import PLUGIN_CODES, Checked, check, complete
from dpspec.language.yaml_source import MAX_BYTES, SUFFIXES, Node, Origin, locate, origin, plain, read_yaml, to_yaml
from dpspec.regular_files import NotRegularError, open_regular
from dpspec.text import quoted

#: Keys that do not affect an audit, or that composition has already consumed. The name is in the digest, so that a
#: result cannot be renamed.
OUTSIDE_DIGEST = frozenset(
    {"description", "system", "owner", "contact", "deployment", "requires", "extends", "matrix", "tuning"}
)

_INHERITED = ("adjacency", "access", "direction", "min_records", "neighbours")


def build(checked: Checked, *, name: str, cell: FrozenMap, origin: Mapping[SpecPath, Span], directory: str) -> Spec:
    document = checked.document
    field_values, options = _parts(ThreatModel, document["threat_model"])
    threat_model, audit = ThreatModel(**field_values, options=options), None
    if document.get("audit") is not None:
        field_values, options = _parts(AuditOptions, document["audit"], "canary", "score")
        audit = AuditOptions(**field_values, options=options, canary=checked.canary, score=checked.score)
    inherited = {key: getattr(threat_model, key) for key in _INHERITED}
    inherited["unit"] = unit_in_words(threat_model.unit, document["data"])
    claims = []
    for claim in document["claims"]:
        field_values, options = _parts(Claim, claim, "unit")
        claims.append(Claim(**{**inherited, **field_values}, options=options))
    return Spec(
        name=name,
        description=document["description"],
        mechanism=_section(document["mechanism"], "kind"),
        data=_section(without(document["data"], (COLLECTION,)), "kind"),
        model=_section(document["model"], "kind") if "model" in document else None,
        training=_section(document["training"], "backend"),
        threat_model=threat_model,
        claims=tuple(claims),
        audit=audit,
        cell=cell,
        document=FrozenMap(document),
        digest=digest({**without(document, OUTSIDE_DIGEST), "data": without(document["data"], (COLLECTION,))}),
        origin=origin,
        directory=directory,
    )


def claim_options(claim: Mapping[str, Json]) -> FrozenMap:
    """The keys that only this kind of claim has, such as ``epsilon`` and ``delta``."""
    return _parts(Claim, claim, "unit")[1]


def _parts(kind: type[Any], block: Mapping[str, Json], *excluded: str) -> tuple[dict[str, Any], FrozenMap]:
    """The fields of a dataclass, except those ``excluded``, that a block has, and its other keys."""
    names = {declared.name for declared in fields(kind)} - {"options", *excluded}
    return {key: freeze(block[key]) for key in names if key in block}, without(block, names)


def _section(block: Mapping[str, Json], key: str) -> Section:
    return Section(kind=block.get(key, "native"), options=without(block, (key,)))


MAX_DIAGNOSTICS = 50


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """``others`` are YAML files that are not specs; ``broken`` has all errors with their files."""

    specs: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    files: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()
    broken: tuple[tuple[Path, Diagnostic], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        return not has_errors(self.diagnostics)

    @property
    def missing_plugins(self) -> bool:
        """Whether there are errors, and all are about plugins."""
        return plugins_only(self.diagnostics)


def load_specs(
    paths: Sequence[Path],
    catalog: Catalog,
    overrides: Sequence[str] = (),
    *,
    documents: Sequence[Mapping[str, Json]] = (),
) -> Loaded:
    """Read, compose and validate spec files, or the specs in folders; ``overrides`` apply to every spec.

    ``documents`` are further specs as mappings; their diagnostics point into their YAML.

    Raises:
        NothingToRunError: A folder contains no spec.
    """
    files, other_files = find_specs(paths)
    parsed_overrides, misread = parse_overrides(overrides)
    diagnostics = _limited(misread)
    sources = {OVERRIDES_FILE: "\n".join(map(one_line, overrides))} if overrides else {}
    specs: list[Spec] = []
    families = [(path, read_family(path)) for path in files]
    families += [_mapping_family(i, document) for i, document in enumerate(documents, 1)]
    broken: list[tuple[Path, Diagnostic]] = []
    for path, family in families:
        built, wrong, texts = _load(path, family, catalog, parsed_overrides)
        broken += [(path, error) for error in wrong if error.severity == "error"]
        specs += built
        diagnostics += wrong
        sources |= texts
    if len(parsed_overrides) < len(overrides):
        specs = []  # an override is invalid, so no spec is the requested one
    unique = tuple(dict.fromkeys(diagnostics))
    return Loaded(
        specs=tuple(specs),
        diagnostics=unique,
        files=files,
        others=other_files,
        broken=tuple(broken),
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
    """Rebuild the spec of a resolved document; ``name`` includes the cell. Raises ``SpecError`` or ``PluginError``."""
    checked = check(thaw(document), catalog)
    _require_no_errors(checked)
    name = checked.document["name"] if name is None else name
    return build(checked, name=name, cell=FrozenMap(cell), origin=Origin(), directory=directory)


def from_command(document: Mapping[str, Json], catalog: Catalog) -> Spec:
    """The spec of a document that a command wrote from valid parts, see :func:`dpspec.language.validate.complete`.

    Raises:
        PluginError: A provider is missing or broken.
    """
    checked = complete(thaw(document), catalog)
    _require_no_errors(checked)
    return build(checked, name=checked.document["name"], cell=FrozenMap(), origin=Origin(), directory=".")


def _require_no_errors(checked: Checked) -> None:
    errors = [d for d in checked.diagnostics if d.severity == "error"]
    if plugins_only(errors):
        raise PluginError("; ".join(d.message for d in errors), errors)
    if errors:
        raise SpecError(errors)


def _mapping_family(number: int, document: Mapping[str, Json]) -> tuple[Path, Family]:
    """The family of a spec that is a mapping; parents are relative to the current folder."""
    path = Path(f"<dictionary {number}>")
    try:
        return path, read_family(path, read_yaml(to_yaml(_plain_values(document)), str(path)))
    except RepresenterError as error:
        value = type(error.args[-1]).__name__
        raise UsageError(
            f"a spec must hold strings, numbers, booleans, lists and dictionaries, not a {value}"
        ) from None


def _plain_values(value: Any) -> Any:
    """With paths as strings, and numbers of NumPy as numbers of Python."""
    if isinstance(value, Mapping):
        return {key: _plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_values(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _load(
    path: Path, family: Family, catalog: Catalog, overrides: Sequence[Override]
) -> tuple[list[Spec], list[Diagnostic], dict[str, str]]:
    diagnostics = list(family.diagnostics)
    if family.root is None:
        return [], _limited(diagnostics), family.texts
    cells, misplaced = compose(family.root, overrides)
    diagnostics += misplaced
    split = split_claims(cells)
    diagnostics += split.diagnostics
    tuning = cells[0].tuning if cells else None  # equal in all cells: no axis may change it
    if tuning is not None:
        unfit = problems(core("spec")["properties"]["tuning"], plain(tuning), ("tuning",))
        diagnostics += [locate(d, origin(Node({"tuning": tuning}))) for d in unfit]
    specs: list[Spec] = []
    for composed in split.cells:
        spec, wrong = _build_cell(composed, path, catalog)
        # The reader already reported values that cannot be parsed; schema errors would repeat it.
        diagnostics += [d for d in wrong if not any(d.path[: len(s)] == s for s in family.unparsed)]
        specs += [spec] if spec is not None else []
        if len(diagnostics) > MAX_DIAGNOSTICS:
            break
    if split.claims and specs and not has_errors(diagnostics):
        diagnostics += split.differing(specs)
        best, wrong = _build_cell(split.best(specs), path, catalog)
        diagnostics += wrong
        specs = [*([] if split.bare else specs), *([best] if best is not None else [])]
    unique = list(dict.fromkeys(diagnostics))
    return [] if has_errors(unique) else specs, _limited(unique), family.texts


def _build_cell(composed: Composed, path: Path, catalog: Catalog) -> tuple[Spec | None, list[Diagnostic]]:
    spans = origin(composed.root)
    document = plain(composed.root)
    checked = check(document, catalog)
    unused = unused_settings(document, composed.chosen)
    wrong = [locate(d, spans) for d in (*checked.diagnostics, *unused)]
    if has_errors(wrong):
        return None, wrong
    name = checked.document["name"] + composed.suffix
    directory = str(path.parent)
    return build(checked, name=name, cell=composed.cell, origin=spans, directory=directory), wrong


def _limited(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    ordered = sorted(diagnostics, key=lambda d: (d.span.file, d.span.line, d.span.column) if d.span else ("", 0, 0))
    if len(ordered) <= MAX_DIAGNOSTICS:
        return ordered
    last = ordered[MAX_DIAGNOSTICS - 1]
    message = f"more than {MAX_DIAGNOSTICS} errors; the rest is not shown"
    summary = Diagnostic(code="more-errors", message=message, path=last.path, span=last.span, help="fix these first")
    return [*ordered[:MAX_DIAGNOSTICS], summary]


def plugins_only(diagnostics: Sequence[Diagnostic]) -> bool:
    codes = {d.code for d in diagnostics if d.severity == "error"}
    return bool(codes) and codes <= PLUGIN_CODES


#: Larger files in a folder are not specs. Smaller files above MAX_BYTES are reported when they are read.
_MAX_CANDIDATE_BYTES = 1 << 30

#: Keys at the beginning of a line, or first in a document in braces.
_KEYS = re.compile(rb"""^(?:\xef\xbb\xbf)?(?:\{\s*)?(["']?)([A-Za-z_-]{4,9})\1[ \t]*:""", re.MULTILINE)


def skip_reason(path: Path) -> str:
    """Why a YAML file in a folder is not a spec."""
    try:
        with open_regular(path, _MAX_CANDIDATE_BYTES) as stream:
            content = stream.read(MAX_BYTES)
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except (NotRegularError, OSError) as error:
        return error.strerror or "unreadable"
    if not content.strip():
        return "empty"
    return "no key 'dpspec' at the top level, as in a parent of specs"


#: The key at the beginning of a line, where nested keys cannot be, or first in a document in braces.
_KEY = re.compile(rb"""^(?:\xef\xbb\xbf)?(?:\{\s*)?(["']?)dpspec\1[ \t]*:""", re.MULTILINE)


def find_specs(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Spec files, and YAML files that are not specs; without repetitions."""
    files: list[Path] = []
    other_files: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        below = sorted(_yaml_below(path))
        specs = {file for file in below if is_spec(file)}
        if not specs:
            reason = f"none of its {len(below)} YAML files has a top-level key 'dpspec', as in 'dpspec: 1'"
            if not below:
                reason = "it has no YAML files; for a recording, use `dpspec check`"
            raise NothingToRunError(f"no spec in the folder {quoted(str(path))}: {reason}")
        files += [file for file in below if file in specs]
        other_files += [file for file in below if file not in specs]
    return _unique(files), _unique(other_files)


def is_spec(path: Path) -> bool:
    """A file without read permission counts, and one with a misspelled key, so that neither is skipped silently."""
    if path.suffix not in SUFFIXES or not os.path.isfile(path):  # a pipe would block
        return False
    try:
        with open_regular(path, _MAX_CANDIDATE_BYTES) as stream:
            empty = os.fstat(stream.fileno()).st_size == 0  # also system files, which may be endless
            content = b"" if empty else stream.read(MAX_BYTES)
            keys = {match[2].decode("ascii").lower() for match in _KEYS.finditer(content)}
            return _KEY.search(content) is not None or any(map(_is_misspelled, keys))
    except NotRegularError:
        return False
    except OSError:
        return True


def _is_misspelled(key: str) -> bool:
    """Whether a key is ``dpspec`` except for a letter; not ``spec`` or ``specs``, which other files have."""
    return SequenceMatcher(None, key, "dpspec").ratio() > 0.8


def _yaml_below(folder: Path) -> Iterator[Path]:
    """Except hidden files, and files in hidden folders, virtual environments and linked folders."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise UsageError(f"the folder {str(error.filename)!r} cannot be read: {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and not os.path.exists(Path(root, f, "pyvenv.cfg"))]
        yield from (Path(root, name) for name in names if name.endswith(SUFFIXES) and not name.startswith("."))


def _unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Even if several paths lead to one file."""
    by_location: dict[str, Path] = {}
    for path in paths:
        by_location.setdefault(os.path.abspath(path), path)
    return tuple(by_location.values())
