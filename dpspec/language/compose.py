"""Compose a spec from its layers, lowest first: parent, child, matrix cell, ``--set``.

A child ``extends`` its parent: maps merge, lists and scalars replace, null removes the parent's value. ``matrix``
expands one spec into many cells, either the product of a map of axes or a list of cells.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TypeAlias

from dpspec.contract import Diagnostic, FrozenMap, Json, Path
from dpspec.contract.frozen import canonical_json
from dpspec.language import overrides
from dpspec.language.overrides import Override, PlaceError, key_spans, put, resolve
from dpspec.language.tree import Node, child, locate, origin, plain
from dpspec.language.yaml_source import read_file
from dpspec.text import quoted, shown

MAX_PARENTS = 8

MAX_CELLS = 1000
#: Maximum of the number of cells times the number of values in the document.
MAX_VALUES = 200_000

_NOT_AXES = frozenset({"dpspec", "name", "description", "requires", "extends", "matrix", "tuning"})

#: Keys that control composition and are removed from the result.
COMPOSING = ("extends", "matrix", "tuning")

#: The values of one cell by dotted path. A spec without a matrix has one empty cell.
Cell: TypeAlias = dict[str, Node]


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
        source = read_file(FilePath(file))
        if source.text is not None:
            family.texts[file] = source.text
        for d in source.diagnostics:
            if d.code == "unreadable" and extends is not None:  # located at the line that names the parent
                d = replace(d, message=f"{quoted(file)}: {d.message}", path=("extends",), span=extends.span)
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


@dataclass(frozen=True, kw_only=True)
class Composed:
    """The document of one cell; ``chosen`` are the paths that axes or the command line set."""

    root: Node
    cell: FrozenMap
    suffix: str
    chosen: tuple[Path, ...] = ()
    matrix: Node | None = None
    tuning: Node | None = None


def compose(root: Node, given: Sequence[Override]) -> tuple[list[Composed], list[Diagnostic]]:
    """Invalid cells and overrides are reported and not applied, so that the rest can be checked."""
    # An override may replace the matrix itself, so apply those before expanding it.
    shaping = [o for o in given if o.place.split(".")[0] == "matrix"]
    others = [o for o in given if o not in shaping]
    root, problems = overrides.apply(root, shaping)
    matrix = child(root, "matrix")
    cells, found = ([{}], []) if matrix is None else _expand(root, matrix, others)
    problems += found
    unique: dict[str, tuple[Node, Cell]] = {}
    for cell in cells:
        document, misplaced = place_cell(root, cell)
        document, wrong = overrides.apply(document, others)
        problems += misplaced + wrong
        # ``--set`` or another axis may have changed part of an axis's value: cell names show the effective values.
        named = {place: _node_at(document, place) or node for place, node in cell.items()}
        unique.setdefault(_canonical(named), (document, named))
    composed = []
    for (document, named), suffix in zip(unique.values(), suffixes([n for _, n in unique.values()]), strict=True):
        entries = dict(document.value) if isinstance(document.value, dict) else {}
        tuning = entries.get("tuning")
        for key in COMPOSING:
            entries.pop(key, None)
        chosen: dict[Path, None] = {}
        for place in (*named, *(o.place for o in others)):
            with contextlib.suppress(PlaceError):  # already reported
                chosen[resolve(document, place)] = None
        composed.append(
            Composed(
                root=replace(document, value=entries),
                cell=FrozenMap({place: plain(node) for place, node in named.items()}),
                suffix=suffix,
                chosen=tuple(chosen),
                matrix=matrix,
                tuning=tuning,
            )
        )
    spans = origin(root)
    return composed, list(dict.fromkeys(locate(d, spans) for d in problems))


def _expand(root: Node, matrix: Node, overrides: Sequence[Override]) -> tuple[list[Cell], list[Diagnostic]]:
    """The cells of a matrix, without the axes that an override sets."""
    problems: list[Diagnostic] = []
    if isinstance(matrix.value, dict):
        axes = _axes(matrix.value, problems)
        count = math.prod(len(values) for values in axes.values())
        products: Iterable[tuple[Node, ...]] = itertools.product(*axes.values()) if count <= MAX_CELLS else ()
        cells = [dict(zip(axes, values, strict=True)) for values in products]
    elif isinstance(matrix.value, list) and matrix.value:
        cells = []
        for item in matrix.value[: MAX_CELLS + 1]:
            if not isinstance(item.value, dict) or not item.value:
                problems.append(_bad(f"a cell must be a map of paths to values, got {shown(plain(item))}", item))
                continue
            for place, node in item.value.items():
                _check_axis(place, node, problems)
            cells.append(dict(item.value))
        count = len(matrix.value)
    else:
        return [], [_bad(f"matrix must be a map of axes or a list of cells, got {shown(plain(matrix))}", matrix)]
    size = _size(root)
    if count > MAX_CELLS or count * size > MAX_VALUES:
        message = f"the matrix has {count} cells; this spec may have {min(MAX_CELLS, MAX_VALUES // size)}"
        return [], [*problems, Diagnostic(code="too-many-cells", message=message, path=("matrix",), at_key=True)]
    if problems:
        return [], problems
    paths = [_path(root, o.place) for o in overrides]
    # An axis is overridden if a path equals it or contains it.
    axes_set = {a for cell in cells for a in cell if any(_path(root, a)[: len(path)] == path for path in paths)}
    unique: dict[str, Cell] = {}
    for cell in cells:
        kept = {place: node for place, node in cell.items() if place not in axes_set}
        first = unique.setdefault(_canonical(kept), kept)
        if first is not kept and not axes_set:  # cells that differed only in an overridden axis may be equal
            span = next((node.span for node in kept.values() if node.span), matrix.span)
            return [], [Diagnostic(code="bad-matrix", message="the matrix lists the same cell twice", span=span)]
    return list(unique.values()), []


def _axes(entries: Cell, problems: list[Diagnostic]) -> dict[str, list[Node]]:
    axes: dict[str, list[Node]] = {}
    for place, node in entries.items():
        _check_axis(place, node, problems)
        if not isinstance(node.value, list) or not node.value:
            got = shown(plain(node)) if not isinstance(node.value, list) else "an empty list"
            problems.append(_bad(f"the axis {quoted(place)} must be a list of values, got {got}", node))
            continue
        axes[place] = [Node(item.value, item.span, node.key) for item in node.value]
    return axes


def _check_axis(place: str, node: Node, problems: list[Diagnostic]) -> None:
    if place.split(".")[0] in _NOT_AXES:
        message = f"{quoted(place)} cannot vary over a matrix"
        problems.append(Diagnostic(code="bad-matrix", message=message, span=node.key))


def _bad(message: str, node: Node) -> Diagnostic:
    return Diagnostic(code="bad-matrix", message=message, path=("matrix",), span=node.span)


def _size(node: Node) -> int:
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return 1 + sum(map(_size, inner))


def place_cell(root: Node, cell: Cell) -> tuple[Node, list[Diagnostic]]:
    problems: list[Diagnostic] = []
    for place, node in cell.items():
        keys = key_spans(place, node.key) if node.key is not None else [None] * (place.count(".") + 1)
        try:
            root = put(root, resolve(root, place), Node(node.value, node.span), keys)
        except PlaceError as error:
            problems.append(Diagnostic(code="bad-path", message=error.message, span=node.key, help=error.hint))
    entries = dict(root.value) if isinstance(root.value, dict) else {}
    entries.pop("matrix", None)
    return Node(entries, root.span, root.key), problems


def _node_at(root: Node, place: str) -> Node | None:
    node: Node | None = root
    for step in _path(root, place):
        inner = node.value if node is not None else None
        if isinstance(inner, list) and isinstance(step, int):
            node = inner[step] if step < len(inner) else None
        else:
            node = inner.get(str(step)) if isinstance(inner, dict) else None
    return node


def _path(root: Node, place: str) -> Path:
    try:
        return resolve(root, place)
    except PlaceError:
        return tuple(place.split("."))


def _canonical(cell: Cell) -> str:
    return canonical_json({place: plain(node) for place, node in cell.items()})


def suffixes(cells: Sequence[Cell]) -> list[str]:
    """Unique, such as ``[0.8]`` or ``[0.8, 4]``; empty without a matrix."""
    same_axes = len(set(map(tuple, cells))) == 1
    names = []
    for cell in cells:
        labels = []
        for place, node in cell.items():
            value: Json = plain(node)
            text = value if isinstance(value, str) else canonical_json(value)
            labels.append(text if same_axes else f"{place.split('.')[-1]}={text}")
        names.append(", ".join(labels))
    if len(set(names)) < len(names) or max(map(len, names), default=0) > 60:
        names = [f"#{i}" for i in range(1, len(cells) + 1)]
    return [f"[{name}]" if name else "" for name in names]
