"""Compose a spec from its layers, lowest first: parent, child, matrix cell, ``--set``.

A child ``extends`` its parent: maps merge, lists and scalars replace, null removes the parent's value.
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
    """Merge a child over its parent. Each value keeps its span."""
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
    """A spec file merged with all its parents.

    Attributes:
        root: The merged tree; None if a file cannot be read.
        texts: The text of each file, by file name.
        diagnostics: Errors found while reading.
        unparsed: Paths of values that cannot be parsed.
    """

    root: Node | None = None
    texts: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unparsed: set[Path] = field(default_factory=set)


def read_family(path: FilePath) -> Family:
    """Read a spec file and the chain of its parents."""
    family = Family()
    layers: list[Node] = []
    seen: list[str] = []
    file = str(path)
    extends: Node | None = None  # the ``extends`` value that names the current file
    while True:
        source = read_file(FilePath(file), file)
        if source.text is not None:
            family.texts[file] = source.text
        family.diagnostics += [_at_extends(d, file, extends) for d in source.diagnostics]
        family.unparsed |= source.unparsed
        if source.root is None:
            return family
        if not isinstance(source.root.value, dict):
            message = f"a spec must be a map of keys and values, got {shown(_outline(source.root))}"
            family.diagnostics.append(Diagnostic(code="wrong-type", message=message, span=source.root.span))
            return family
        layers.append(source.root)
        seen.append(os.path.realpath(file))
        extends = source.root.value.get("extends")
        if extends is None:
            break
        if ("extends",) in source.unparsed:  # already reported
            return family
        found = _parent(file, extends, seen)
        if isinstance(found, Diagnostic):
            family.diagnostics.append(found)
            return family
        file = found
    family.root = layers[-1]
    for layer in reversed(layers[:-1]):
        family.root = merge(family.root, layer)
    return family


def _parent(file: str, extends: Node, seen: list[str]) -> str | Diagnostic:
    """Return the parent's file, or a diagnostic if ``extends`` is not usable."""
    name = extends.value
    if not isinstance(name, str) or not name:
        message = f"extends must be the path of one spec file, got {shown(_outline(extends))}"
        return Diagnostic(code="bad-extends", message=message, path=("extends",), span=extends.span)
    if os.path.isabs(name) or FilePath(name).is_absolute() or ":" in name[:2]:
        message = f"extends must be a path relative to this file, got {quoted(name)}"
        return Diagnostic(code="bad-extends", message=message, path=("extends",), span=extends.span)
    parent = os.path.normpath(os.path.join(os.path.dirname(file), name))
    if os.path.realpath(parent) in seen:
        message = f"{quoted(name)} extends this file" if len(seen) > 1 else "a spec cannot extend itself"
        return Diagnostic(code="extends-cycle", message=message, path=("extends",), span=extends.span)
    if len(seen) > MAX_PARENTS:
        message = f"the chain of parents is longer than {MAX_PARENTS}"
        return Diagnostic(code="extends-depth", message=message, path=("extends",), span=extends.span)
    return parent


def _at_extends(diagnostic: Diagnostic, file: str, extends: Node | None) -> Diagnostic:
    """Locate the error of an unreadable parent at the line that names it."""
    if diagnostic.code != "unreadable" or extends is None:
        return diagnostic
    message = f"{quoted(file)}: {diagnostic.message}"
    return Diagnostic(code=diagnostic.code, message=message, path=("extends",), span=extends.span)


def _outline(node: Node) -> object:
    """Return a node's value, with the content of maps and lists omitted."""
    return {} if isinstance(node.value, dict) else [] if isinstance(node.value, list) else node.value


#: Keys that control composition and are removed from the result.
COMPOSING = ("extends", "matrix", "tuning")


@dataclass(frozen=True, kw_only=True)
class Composed:
    """The complete document of one cell.

    Attributes:
        root: The document as a tree.
        cell: The values of the matrix axes, by dotted path.
        suffix: The text appended to the spec's name.
        chosen: Paths that the axes or the command line set.
        matrix: The file's ``matrix`` block, or None.
        tuning: The document's ``tuning`` block, or None.
    """

    root: Node
    cell: FrozenMap
    suffix: str
    chosen: tuple[Path, ...] = ()
    matrix: Node | None = None
    tuning: Node | None = None


def compose(root: Node, given: Sequence[overrides.Override]) -> tuple[list[Composed], list[Diagnostic]]:
    """Expand the matrix and apply overrides to a document whose parents are merged.

    Invalid cells and overrides are reported and not applied, so that the rest can be checked.

    Args:
        root: The merged document.
        given: Overrides from the command line.

    Returns:
        The cells, and diagnostics of invalid axes and overrides.
    """
    # An override may replace the matrix itself, so apply those before expanding it.
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
    named = [matrix.with_composed_values(cell, document) for cell, document in zip(cells, documents, strict=True)]
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
    """Return the paths set by a cell and the command line. Invalid ones were already reported."""
    found: list[Path] = []
    for place in (*cell.values, *(o.place for o in given)):
        with contextlib.suppress(overrides.PlaceError):
            found.append(overrides.resolve(document, place))
    return tuple(dict.fromkeys(found))


def _without_extends(root: Node) -> Node:
    entries = root.value if isinstance(root.value, dict) else {}
    return dataclasses.replace(root, value={k: v for k, v in entries.items() if k not in COMPOSING})
