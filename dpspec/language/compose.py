"""Compose a spec from its layers, lowest first: parent, child, matrix cell, ``--set``.

A child ``extends`` its parent: maps merge, lists and scalars replace, null removes the parent's value. ``matrix``
expands one spec into many cells, either the product of a map of axes or a list of cells. ``--set path=value`` is the
topmost layer; its values are YAML, its paths dotted, such as ``claims.family.epsilon``.
"""

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TypeAlias

from dpspec.contract import Diagnostic, FrozenMap, Json, Path, Span
from dpspec.contract.frozen import canonical_json
from dpspec.language.blocks import core
from dpspec.language.problems import problems
from dpspec.language.yaml_source import (
    Node,
    Source,
    child,
    claim_ids,
    locate,
    origin,
    plain,
    read_file,
    read_yaml,
    value_at,
)
from dpspec.text import closest, did_you_mean, listed, quoted, shown, visible

MAX_PARENTS = 8

#: Maximum number of cells of a matrix, with and without the key ``audit``, which trains.
MAX_CELLS, MAX_BOUNDED_CELLS = 1000, 10_000
#: Maximum of the number of cells times the number of values in the document without its matrix.
MAX_VALUES = 2_000_000

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


def read_family(path: FilePath, first: Source | None = None) -> Family:
    """The file and its parents; ``first`` replaces the content of the file."""
    family = Family()
    layers: list[Node] = []
    ancestors: list[str] = []
    file = str(path)
    extends: Node | None = None  # the ``extends`` value that names the current file
    while True:
        source = first if first is not None and not layers else read_file(FilePath(file))
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
        ancestors.append(os.path.realpath(file))
        extends = source.root.value.get("extends")
        if extends is None:
            break
        if ("extends",) in source.unparsed:  # already reported
            return family
        parent = _parent(file, extends, ancestors)
        if isinstance(parent, Diagnostic):
            family.diagnostics.append(parent)
            return family
        file = parent
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


def _parent(file: str, extends: Node, ancestors: list[str]) -> str | Diagnostic:
    def problem(code: str, message: str) -> Diagnostic:
        return Diagnostic(code=code, message=message, path=("extends",), span=extends.span)

    name = extends.value
    if not isinstance(name, str) or not name:
        return problem("bad-extends", f"extends must be the path of one spec file, got {shown(plain(extends))}")
    if os.path.isabs(name) or FilePath(name).is_absolute() or ":" in name[:2]:
        return problem("bad-extends", f"extends must be a path relative to this file, got {quoted(name)}")
    parent = os.path.normpath(os.path.join(os.path.dirname(file), name))
    if os.path.realpath(parent) in ancestors:
        message = f"{quoted(name)} extends this file" if len(ancestors) > 1 else "a spec cannot extend itself"
        return problem("extends-cycle", message)
    if len(ancestors) > MAX_PARENTS:
        return problem("extends-depth", f"the chain of parents is longer than {MAX_PARENTS}")
    if not os.path.realpath(parent).lower().endswith((".yaml", ".yml")):  # messages show lines of parents
        return problem("bad-extends", f"extends must name a file that ends in .yaml or .yml, got {quoted(name)}")
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


def compose(root: Node, overrides: "Sequence[Override]") -> tuple[list[Composed], list[Diagnostic]]:
    """Invalid cells and overrides are reported and not applied, so that the rest can be checked."""
    # An override may replace the matrix itself, so apply those before expanding it.
    shaping: list[Override] = []
    cell_overrides: list[Override] = []
    for override in overrides:
        (shaping if override.place.split(".")[0] == "matrix" else cell_overrides).append(override)
    root, unset = apply_overrides(root, shaping)
    matrix = child(root, "matrix")
    cells, diagnostics = ([{}], []) if matrix is None else _expand(root, matrix, cell_overrides)
    diagnostics = [*unset, *diagnostics]
    documents: list[Node] = []
    unique: dict[str, dict[str, Json]] = {}
    for cell in cells:
        axes = [Override(place=axis, value=node, keys=key_spans(axis, node.key)) for axis, node in cell.items()]
        document, wrong = apply_overrides(root, [*axes, *cell_overrides])
        diagnostics += wrong
        # ``--set`` or another axis may have changed part of an axis's value: cell names show the effective values.
        values = plain(document)
        effective = {axis: value_at(values, _path(document, axis)) for axis in cell}
        named = {axis: plain(cell[axis]) if value is None else value for axis, value in effective.items()}
        if unique.setdefault(canonical_json(named), named) is named:
            documents.append(document)
    composed = []
    cells_named = list(unique.values())
    for document, named, suffix in zip(documents, cells_named, suffixes(cells_named), strict=True):
        entries = dict(document.value) if isinstance(document.value, dict) else {}
        tuning = entries.get("tuning")
        for key in COMPOSING:
            entries.pop(key, None)
        chosen: dict[Path, None] = {}
        for dotted_path in (*named, *(o.place for o in cell_overrides)):
            with contextlib.suppress(PlaceError):  # already reported
                chosen[resolve(document, dotted_path)] = None
        composed.append(
            Composed(
                root=replace(document, value=entries),
                cell=FrozenMap(named),
                suffix=suffix,
                chosen=tuple(chosen),
                matrix=matrix,
                tuning=tuning,
            )
        )
    if not diagnostics:
        return composed, []
    spans = origin(root)
    return composed, list(dict.fromkeys(locate(d, spans) for d in diagnostics))


def _expand(root: Node, matrix: Node, overrides: "Sequence[Override]") -> tuple[list[Cell], list[Diagnostic]]:
    """The cells of a matrix, without the axes that an override sets."""
    wrong = list(problems(core("spec")["properties"]["matrix"], plain(matrix), ("matrix",)))
    if wrong:
        return [], wrong
    trains = isinstance(root.value, dict) and "audit" in root.value
    # The values of an axis count once, not for each cell.
    size = _size(root) - _size(matrix)
    most = min(MAX_CELLS if trains else MAX_BOUNDED_CELLS, MAX_VALUES // max(1, size))
    if isinstance(matrix.value, dict):
        axes = {
            axis: [Node(item.value, item.span, node.key) for item in node.value]
            for axis, node in matrix.value.items()
            if isinstance(node.value, list)
        }
        count = math.prod(len(values) for values in axes.values())
        products: Iterable[tuple[Node, ...]] = itertools.product(*axes.values()) if count <= most else ()
        cells = [dict(zip(axes, values, strict=True)) for values in products]
    else:
        assert isinstance(matrix.value, list)
        cells = [dict(item.value) for item in matrix.value[: most + 1] if isinstance(item.value, dict)]
        count = len(matrix.value)
    if count > most:
        message = f"the matrix has {count} cells; this spec may have {most}"
        return [], [Diagnostic(code="too-many-cells", message=message, path=("matrix",), at_key=True)]
    keys = {axis: node.key for cell in cells for axis, node in cell.items() if axis.split(".")[0] in _NOT_AXES}
    if keys:
        messages = {f"{quoted(axis)} cannot vary over a matrix": span for axis, span in keys.items()}
        return [], [Diagnostic(code="bad-matrix", message=text, span=span) for text, span in messages.items()]
    paths = [_path(root, o.place) for o in overrides]
    # An axis is overridden if a path equals it or contains it.
    axes_set = {a for cell in cells for a in cell if any(_path(root, a)[: len(path)] == path for path in paths)}
    replaced = [
        Diagnostic(
            code="axis-replaced",
            message=f"--set {override.place} replaces the axis {quoted(axis)} of the matrix by one value",
            span=override.keys[0],
            help=f"to change the values of the axis, write --set 'matrix.{axis}=[...]'",
            severity="warning",
        )
        for override, path in zip(overrides, paths, strict=True)
        for axis in sorted(axes_set)
        if _path(root, axis)[: len(path)] == path
    ]
    unique: dict[str, Cell] = {}
    for cell in cells:
        remaining_axes = {axis: node for axis, node in cell.items() if axis not in axes_set}
        text = canonical_json({axis: plain(node) for axis, node in remaining_axes.items()})
        first = unique.setdefault(text, remaining_axes)
        if first is not remaining_axes and not axes_set:  # cells that differed only in an overridden axis may be equal
            span = next((node.span for node in remaining_axes.values() if node.span), matrix.span)
            return [], [Diagnostic(code="bad-matrix", message="the matrix lists the same cell twice", span=span)]
    return list(unique.values()), replaced


def _size(node: Node) -> int:
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return 1 + sum(map(_size, inner))


def _path(root: Node, dotted_path: str) -> Path:
    try:
        return resolve(root, dotted_path)
    except PlaceError:
        return tuple(dotted_path.split("."))


def suffixes(cells: Sequence[Mapping[str, Json]]) -> list[str]:
    """Unique, such as ``[0.8]`` or ``[0.8, 4]``; empty without a matrix."""
    same_axes = len(set(map(tuple, cells))) == 1
    names = []
    for cell in cells:
        labels = []
        for axis, value in cell.items():
            text = value if isinstance(value, str) else canonical_json(value)
            labels.append(text if same_axes else f"{axis.split('.')[-1]}={text}")
        names.append(", ".join(labels))
    if len(set(names)) < len(names) or max(map(len, names), default=0) > 60:
        names = [f"#{i}" for i in range(1, len(cells) + 1)]
    return [f"[{name}]" if name else "" for name in names]


MAX_KEYS = 64


class PlaceError(Exception):
    """``part`` is the index of the invalid key in the path."""

    def __init__(self, message: str, part: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.hint = hint


def resolve(root: Node, text: str) -> Path:
    """Keys by name, list items by position from 0, claims also by id. The last keys may be new.

    The axes of a matrix are paths themselves: ``matrix.mechanism.steps`` names the axis ``mechanism.steps``.
    """
    steps = text.split(".")
    if len(steps) > MAX_KEYS:
        raise PlaceError(f"the path has {len(steps)} keys; specs are at most {MAX_KEYS} levels deep", 0)
    if steps[0] == "matrix":
        cells = child(root, "matrix")
        depth = 2 if cells is not None and isinstance(cells.value, list) else 1
        steps = [*steps[:depth], *filter(None, [".".join(steps[depth:])])]
    node: Node | None = root
    path: Path = ()
    for i, step_text in enumerate(steps):
        if not step_text:
            raise PlaceError(f"{quoted(text)} has an empty key between its dots", i)
        step: str | int = step_text
        value = node.value if node is not None else {}
        if isinstance(value, list):
            ids = claim_ids(root) if path == ("claims",) else {}
            if step_text in ids:
                step = ids[step_text]
            elif step_text.isascii() and step_text.isdigit() and len(step_text) < 6 and int(step_text) < len(value):
                step = int(step_text)
            elif path == ("claims",):
                message = f"no claim is called {quoted(step_text)}" + did_you_mean(closest(step_text, ids))
                raise PlaceError(message, i, f"claims: {listed(ids)}" if ids else None)
            else:
                message = f"{quoted('.'.join(map(str, path)))} is a list without an item {quoted(step_text)}"
                raise PlaceError(message, i, f"its items: 0 to {len(value) - 1}")
            node = value[step]
        elif isinstance(value, dict):
            node = value.get(step_text)
        elif value is None:
            node = None
        else:
            raise PlaceError(f"{quoted('.'.join(steps[:i]))} is a single value and has no {quoted(step_text)}", i)
        path = (*path, step)
    return path


def put(root: Node, path: Path, value: Node, keys: Sequence[Span | None]) -> Node:
    """Null removes the key; ``keys`` are the spans of new keys."""
    if not path:
        return value
    step, inner_path = path[0], path[1:]
    if isinstance(step, int):
        items = list(root.value) if isinstance(root.value, list) else []
        items[step] = put(items[step], inner_path, value, keys[1:])
        return Node(items, root.span, root.key)
    entries = dict(root.value) if isinstance(root.value, dict) else {}
    if not inner_path:
        if value.value is None and step in entries:
            del entries[step]
        else:
            entries[step] = Node(value.value, value.span, keys[0])
    else:
        below = entries.get(step, Node({}, keys[0], keys[0]))
        entries[step] = put(below, inner_path, value, keys[1:])
    return Node(entries, root.span, root.key)


#: File name in the spans of values from the command line.
OVERRIDES_FILE = "--set"


@dataclass(frozen=True, kw_only=True)
class Override:
    """A value of the command line, or of an axis in a cell; ``keys`` are the spans of the keys of its place."""

    place: str
    value: Node
    keys: list[Span | None]


def parse_overrides(overrides: Sequence[str]) -> tuple[list[Override], list[Diagnostic]]:
    parsed: list[Override] = []
    diagnostics: list[Diagnostic] = []
    for line, override in enumerate(overrides, start=1):
        text = one_line(override)
        dotted_path, equals, value = text.partition("=")
        if not equals or not dotted_path.strip():
            span = Span(OVERRIDES_FILE, line, 1, line, len(text) + 1)
            message = f"--set needs PATH=VALUE, for example --set mechanism.steps=100; got {quoted(text)}"
            diagnostics.append(Diagnostic(code="bad-path", message=message, span=span))
            continue
        # Replacing the path by spaces keeps the value's columns.
        source = read_yaml(" " * (len(dotted_path) + 1) + value, OVERRIDES_FILE, line=line)
        empty = [d.code for d in source.diagnostics] == ["empty-file"]
        if source.diagnostics and not empty:
            # A list or map is often cut short by a space that ended the shell argument.
            cut = any(value.count(opening) > value.count(closing) for opening, closing in ("[]", "{}"))
            hint = f"quote the argument if it has spaces: --set '{visible(dotted_path)}=...'"
            diagnostics += [
                replace(d, help=hint) if cut and d.code == "syntax" and not d.help else d for d in source.diagnostics
            ]
            continue
        column = len(dotted_path) + 2
        node = source.root or Node(None, Span(OVERRIDES_FILE, line, column, line, column + len(value)))
        keys = key_spans(dotted_path.strip(), Span(OVERRIDES_FILE, line, 1, line, column - 1))
        parsed.append(Override(place=dotted_path.strip(), value=node, keys=keys))
    return parsed, diagnostics


def apply_overrides(root: Node, overrides: Sequence[Override]) -> tuple[Node, list[Diagnostic]]:
    diagnostics: list[Diagnostic] = []
    for override in overrides:
        try:
            path = resolve(root, override.place)
            if path[0] == "extends":
                raise PlaceError("extends cannot be overridden: parents are merged before overrides", 0)
        except PlaceError as error:
            span = override.keys[error.part]
            diagnostics.append(Diagnostic(code="bad-path", message=error.message, span=span, help=error.hint))
            continue
        root = put(root, path, override.value, override.keys)
    return root, diagnostics


def key_spans(dotted_path: str, span: Span | None) -> list[Span | None]:
    if span is None:
        return [None] * (dotted_path.count(".") + 1)
    spans: list[Span | None] = []
    column = span.column
    for part in dotted_path.split("."):
        spans.append(Span(span.file, span.line, column, span.line, column + max(len(part), 1)))
        column += len(part) + 1
    return spans


def one_line(text: str) -> str:
    return " ".join(text.splitlines()) if text else text
