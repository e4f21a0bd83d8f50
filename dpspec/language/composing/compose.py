"""The layers of a spec, in their order: parent < child < cell of the matrix < ``--set``.

A child ``extends`` its parent: maps merge, lists and scalars replace, a null removes what the parent gave.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from dpspec.contract import Diagnostic, FrozenMap, Path
from dpspec.language.composing import matrix, overrides
from dpspec.language.reading.tree import Node, child, locate, origin
from dpspec.language.reading.yaml_source import read_file
from dpspec.text import quoted, shown

MAX_PARENTS = 8


def merge(parent: Node, child: Node) -> Node:
    """The child over the parent. Each value keeps the span of the file that it came from."""
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    entries = dict(parent.value)
    for key, value in child.value.items():
        if key not in entries:
            entries[key] = value
        elif value.value is None:
            del entries[key]
        else:
            entries[key] = merge(entries[key], value)
    return Node(entries, child.span, child.key)


@dataclass
class Family:
    """A file with all its parents merged (None where nothing could be read), and every text that was read."""

    root: Node | None = None
    texts: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    spoilt: set[Path] = field(default_factory=set)


def read_family(path: FilePath) -> Family:
    """Read a spec file and the chain of its parents."""
    family = Family()
    layers: list[Node] = []
    seen: list[str] = []
    file = str(path)
    blame: Node | None = None  # the ``extends`` value that asked for the file being read
    while True:
        source = read_file(FilePath(file), file)
        if source.text is not None:
            family.texts[file] = source.text
        family.diagnostics += [_blamed(d, file, blame) for d in source.diagnostics]
        family.spoilt |= source.spoilt
        if source.root is None:
            return family
        if not isinstance(source.root.value, dict):
            message = f"a spec must be a map of keys and values, got {shown(_gist(source.root))}"
            family.diagnostics.append(Diagnostic(code="wrong-type", message=message, span=source.root.span))
            return family
        layers.append(source.root)
        seen.append(os.path.realpath(file))
        blame = source.root.value.get("extends")
        if blame is None:
            break
        if ("extends",) in source.spoilt:  # no path: it has been told of
            return family
        found = _parent(file, blame, seen)
        if isinstance(found, Diagnostic):
            family.diagnostics.append(found)
            return family
        file = found
    family.root = layers[-1]
    for layer in reversed(layers[:-1]):
        family.root = merge(family.root, layer)
    return family


def _parent(file: str, extends: Node, seen: list[str]) -> str | Diagnostic:
    """The parent's file, or why there is none."""
    name = extends.value
    if not isinstance(name, str) or not name:
        message = f"extends must be the path of one spec file, got {shown(_gist(extends))}"
        return Diagnostic(code="bad-extends", message=message, path=("extends",), span=extends.span)
    if os.path.isabs(name) or FilePath(name).is_absolute() or ":" in name[:2]:
        message = f"extends must be a path relative to this file, got {quoted(name)}"
        return Diagnostic(code="bad-extends", message=message, path=("extends",), span=extends.span)
    parent = os.path.normpath(os.path.join(os.path.dirname(file), name))
    if os.path.realpath(parent) in seen:
        message = f"{quoted(name)} extends this file in turn" if len(seen) > 1 else "a spec cannot extend itself"
        return Diagnostic(code="extends-cycle", message=message, path=("extends",), span=extends.span)
    if len(seen) > MAX_PARENTS:
        message = f"more than {MAX_PARENTS} specs extend one another"
        return Diagnostic(code="extends-depth", message=message, path=("extends",), span=extends.span)
    return parent


def _blamed(diagnostic: Diagnostic, file: str, blame: Node | None) -> Diagnostic:
    """A parent that cannot be read is the fault of the line that names it."""
    if diagnostic.code != "unreadable" or blame is None:
        return diagnostic
    message = f"{quoted(file)}: {diagnostic.message}"
    return Diagnostic(code=diagnostic.code, message=message, path=("extends",), span=blame.span)


def _gist(node: Node) -> object:
    """Enough of a node's value to say what it is."""
    return {} if isinstance(node.value, dict) else [] if isinstance(node.value, list) else node.value


#: Keys that choose what is composed, and are gone once it is.
COMPOSING = ("extends", "matrix", "tuning")


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One cell's whole document.

    chosen: the places that its axes and the command line decide, as paths.
    matrix: that of the file, None without one. tuning: what the document said of how the best cell was found.
    """

    root: Node
    cell: FrozenMap
    suffix: str
    chosen: tuple[Path, ...] = ()
    matrix: Node | None = None
    tuning: Node | None = None


def compose(root: Node, given: Sequence[overrides.Override]) -> tuple[list[Composed], list[Diagnostic]]:
    """Every cell of a document whose parents are merged already, and what is wrong with cells and overrides.

    What is wrong is left out of the documents, so that everything else can still be checked.
    """
    # The command line may replace the matrix itself, which must be known before it is expanded.
    shaping = [o for o in given if o.place.split(".")[0] == "matrix"]
    others = [o for o in given if o not in shaping]
    root, problems = overrides.apply(root, shaping)
    cells, found = matrix.expand(root, others)
    problems += found
    documents: list[Node] = []
    for cell in cells:
        document, misplaced = matrix.place_cell(root, cell)
        document, wrong = overrides.apply(document, others)
        problems += misplaced + wrong
        documents.append(document)
    named = [matrix.as_composed(cell, document) for cell, document in zip(cells, documents, strict=True)]
    kept = matrix.distinct(named)
    composed = [
        Composed(
            root=_without_extends(documents[i]),
            cell=named[i].frozen(),
            suffix=suffix,
            chosen=_chosen(documents[i], named[i], others),
            matrix=child(root, "matrix"),
            tuning=child(documents[i], "tuning"),
        )
        for i, suffix in zip(kept, matrix.suffixes([named[i] for i in kept]), strict=True)
    ]
    spans = origin(root)
    return composed, list(dict.fromkeys(locate(d, spans) for d in problems))


def _chosen(document: Node, cell: matrix.Cell, given: Sequence[overrides.Override]) -> tuple[Path, ...]:
    """The paths of what a cell and the command line set; what names no place was told of."""
    found: list[Path] = []
    for place in (*cell.values, *(o.place for o in given)):
        with contextlib.suppress(overrides.PlaceError):
            found.append(overrides.resolve(document, place))
    return tuple(dict.fromkeys(found))


def _without_extends(root: Node) -> Node:
    entries = root.value if isinstance(root.value, dict) else {}
    return dataclasses.replace(root, value={k: v for k, v in entries.items() if k not in COMPOSING})
