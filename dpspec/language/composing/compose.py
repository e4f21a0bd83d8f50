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
from dpspec.language.reading.tree import Node, child, locate, origin, plain
from dpspec.language.reading.yaml_source import read_file
from dpspec.text import quoted, shown

MAX_PARENTS = 8


def merge(parent: Node, child: Node) -> Node:
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
    """A spec file merged with its parents; ``unparsed`` has the paths of values that cannot be parsed."""

    root: Node | None = None
    texts: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unparsed: set[Path] = field(default_factory=set)


def read_family(path: FilePath) -> Family:
    family = Family()
    layers: list[Node] = []
    seen: list[str] = []
    file = str(path)
    extends: Node | None = None  # the ``extends`` value that names the current file
    while True:
        source = read_file(FilePath(file), file)
        if source.text is not None:
            family.texts[file] = source.text
        for d in source.diagnostics:
            if d.code == "unreadable" and extends is not None:  # located at the line that names the parent
                d = Diagnostic(
                    code=d.code, message=f"{quoted(file)}: {d.message}", path=("extends",), span=extends.span
                )
            family.diagnostics.append(d)
        family.unparsed |= source.unparsed
        if source.root is None:
            return family
        if not isinstance(source.root.value, dict):
            message = f"a spec must be a map of keys and values, got {shown(plain(source.root))}"
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
    def problem(code: str, message: str) -> Diagnostic:
        return Diagnostic(code=code, message=message, path=("extends",), span=extends.span)

    name = extends.value
    if not isinstance(name, str) or not name:
        return problem("bad-extends", f"extends must be the path of one spec file, got {shown(plain(extends))}")
    if os.path.isabs(name) or FilePath(name).is_absolute() or ":" in name[:2]:
        return problem("bad-extends", f"extends must be a path relative to this file, got {quoted(name)}")
    parent = os.path.normpath(os.path.join(os.path.dirname(file), name))
    if os.path.realpath(parent) in seen:
        message = f"{quoted(name)} extends this file" if len(seen) > 1 else "a spec cannot extend itself"
        return problem("extends-cycle", message)
    if len(seen) > MAX_PARENTS:
        return problem("extends-depth", f"the chain of parents is longer than {MAX_PARENTS}")
    return parent


#: Keys that control composition and are removed from the result.
COMPOSING = ("extends", "matrix", "tuning")


@dataclass(frozen=True, kw_only=True)
class Composed:
    """The document of one cell; ``chosen`` are the paths that axes or the command line set."""

    root: Node
    cell: FrozenMap
    suffix: str
    chosen: tuple[Path, ...] = ()
    matrix: Node | None = None
    tuning: Node | None = None


def compose(root: Node, given: Sequence[overrides.Override]) -> tuple[list[Composed], list[Diagnostic]]:
    """Invalid cells and overrides are reported and not applied, so that the rest can be checked."""
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
    # ``--set`` or another axis may have changed part of an axis's value: cell names show the effective values.
    named = [
        {place: matrix.value_at(document, place) or node for place, node in cell.items()}
        for cell, document in zip(cells, documents, strict=True)
    ]
    kept = matrix.distinct(named)
    composed = []
    for i, suffix in zip(kept, matrix.suffixes([named[i] for i in kept]), strict=True):
        document = documents[i]
        entries = document.value if isinstance(document.value, dict) else {}
        chosen = []
        for place in (*named[i], *(o.place for o in others)):
            with contextlib.suppress(overrides.PlaceError):  # already reported
                chosen.append(overrides.resolve(document, place))
        composed.append(
            Composed(
                root=dataclasses.replace(document, value={k: v for k, v in entries.items() if k not in COMPOSING}),
                cell=FrozenMap({place: plain(node) for place, node in named[i].items()}),
                suffix=suffix,
                chosen=tuple(dict.fromkeys(chosen)),
                matrix=child(root, "matrix"),
                tuning=child(document, "tuning"),
            )
        )
    spans = origin(root)
    return composed, list(dict.fromkeys(locate(d, spans) for d in problems))
