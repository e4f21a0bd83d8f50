"""``matrix``: expand one spec into many cells, either the product of a map of axes or a list of cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpspec.contract import Diagnostic, FrozenMap, Json, Path, Span
from dpspec.contract.canonical import canonical_json
from dpspec.language.composing.overrides import Override, PlaceError, covers, key_spans, put, resolve
from dpspec.language.reading.tree import Node, child, plain
from dpspec.text import quoted, shown

MAX_CELLS = 1000
#: Maximum of the number of cells times the number of values in the document.
MAX_VALUES = 200_000

_NOT_AXES = frozenset({"dpspec", "name", "description", "requires", "extends", "matrix", "tuning"})


@dataclass(frozen=True)
class Cell:
    """One cell: the values that it sets, by dotted path. A spec without a matrix has one empty cell."""

    values: dict[str, Node]

    def frozen(self) -> FrozenMap:
        """Return the cell as plain values."""
        return FrozenMap({place: plain(node) for place, node in self.values.items()})


def expand(root: Node, overrides: Sequence[Override]) -> tuple[list[Cell], list[Diagnostic]]:
    """Return the cells of the document's matrix without the axes that an override sets."""
    matrix = child(root, "matrix")
    if matrix is None:
        return [Cell({})], []
    problems: list[Diagnostic] = []
    if isinstance(matrix.value, dict):
        axes = _axes(matrix.value, problems)
        count = math.prod(len(values) for values in axes.values())
        products: Iterable[tuple[Node, ...]] = itertools.product(*axes.values()) if count <= MAX_CELLS else ()
        cells = [dict(zip(axes, values, strict=True)) for values in products]
    elif isinstance(matrix.value, list) and matrix.value:
        cells = [_cell(item, problems) for item in matrix.value[: MAX_CELLS + 1]]
        count = len(matrix.value)
    else:
        _report(problems, f"matrix must be a map of axes or a list of cells, got {shown(plain(matrix))}", matrix)
        return [], problems
    size = count * _size(root)
    if count > MAX_CELLS or size > MAX_VALUES:
        most = min(MAX_CELLS, MAX_VALUES // _size(root))
        message = f"the matrix has {count} cells; this spec may have {most}"
        return [], [*problems, Diagnostic(code="too-many-cells", message=message, path=("matrix",), at_key=True)]
    if problems:
        return [], problems
    overridden = _overridden_axes(root, cells, overrides)
    kept = [{place: node for place, node in cell.items() if place not in overridden} for cell in cells]
    repeated = _repeated_cell(kept, matrix)
    if overridden:  # cells that differed only in an overridden axis are now equal
        kept = list({_canonical(cell): cell for cell in kept}.values())
    elif repeated is not None:
        return [], [repeated]
    return [Cell(cell) for cell in kept], []


def place_cell(root: Node, cell: Cell) -> tuple[Node, list[Diagnostic]]:
    """Return the document with the cell's values and without its matrix."""
    problems: list[Diagnostic] = []
    for place, node in cell.values.items():
        keys = key_spans(place, node.key) if node.key is not None else [None] * (place.count(".") + 1)
        try:
            root = put(root, resolve(root, place), Node(node.value, node.span), keys)
        except PlaceError as error:
            problems.append(Diagnostic(code="bad-path", message=error.message, span=node.key, help=error.hint))
    entries = dict(root.value) if isinstance(root.value, dict) else {}
    entries.pop("matrix", None)
    return Node(entries, root.span, root.key), problems


def with_composed_values(cell: Cell, document: Node) -> Cell:
    """Return the cell with the values of its composed document, in which ``--set`` or another axis may have changed
    part of an axis's value. Cell names then show the effective values."""
    return Cell({place: _value_at(document, place) or node for place, node in cell.values.items()})


def distinct(cells: Sequence[Cell]) -> list[int]:
    """Return the index of the first cell of each group of equal cells."""
    return sorted({_canonical(cell.values): i for i, cell in reversed(list(enumerate(cells)))}.values())


def _value_at(root: Node, place: str) -> Node | None:
    """Return the value at a dotted path, or None."""
    node: Node | None = root
    for step in _path(root, place):
        inner = node.value if node is not None else None
        if isinstance(inner, list) and isinstance(step, int):
            node = inner[step] if step < len(inner) else None
        else:
            node = inner.get(str(step)) if isinstance(inner, dict) else None
    return node


def suffixes(cells: Sequence[Cell]) -> list[str]:
    """Return each cell's unique name suffix, such as ``[0.8]`` or ``[0.8, 4]``; empty without a matrix."""
    same_axes = len({tuple(cell.values) for cell in cells}) == 1
    names = [", ".join(_label(place, node, named=not same_axes) for place, node in c.values.items()) for c in cells]
    if len(set(names)) < len(names) or any(len(name) > 60 for name in names):
        names = [f"#{i}" for i in range(1, len(cells) + 1)]
    return [f"[{name}]" if name else "" for name in names]


def _axes(entries: dict[str, Node], problems: list[Diagnostic]) -> dict[str, list[Node]]:
    axes: dict[str, list[Node]] = {}
    for place, node in entries.items():
        _check_axis(place, node, problems)
        if not isinstance(node.value, list) or not node.value:
            got = shown(plain(node)) if not isinstance(node.value, list) else "an empty list"
            _report(problems, f"the axis {quoted(place)} must be a list of values, got {got}", node)
            continue
        axes[place] = [Node(item.value, item.span, node.key) for item in node.value]
    return axes


def _cell(item: Node, problems: list[Diagnostic]) -> dict[str, Node]:
    if not isinstance(item.value, dict) or not item.value:
        _report(problems, f"a cell must be a map of paths to values, got {shown(plain(item))}", item)
        return {}
    for place, node in item.value.items():
        _check_axis(place, node, problems)
    return dict(item.value)


def _check_axis(place: str, node: Node, problems: list[Diagnostic]) -> None:
    if place.split(".")[0] in _NOT_AXES:
        message = f"{quoted(place)} cannot vary over a matrix"
        problems.append(Diagnostic(code="bad-matrix", message=message, span=node.key))


def _overridden_axes(root: Node, cells: list[dict[str, Node]], overrides: Sequence[Override]) -> set[str]:
    """Return the axes that an override sets, by id or by position."""
    paths = [_path(root, o.place) for o in overrides]
    axes = {place for cell in cells for place in cell}
    return {axis for axis in axes if any(covers(path, _path(root, axis)) for path in paths)}


def _path(root: Node, place: str) -> Path:
    try:
        return resolve(root, place)
    except PlaceError:
        return tuple(place.split("."))


def _repeated_cell(cells: list[dict[str, Node]], matrix: Node) -> Diagnostic | None:
    seen: set[str] = set()
    for cell in cells:
        canonical = _canonical(cell)
        if canonical in seen:
            span = next((node.span for node in cell.values() if node.span), matrix.span)
            return Diagnostic(code="bad-matrix", message="the matrix lists the same cell twice", span=span)
        seen.add(canonical)
    return None


def _canonical(cell: dict[str, Node]) -> str:
    return canonical_json({place: plain(node) for place, node in cell.items()})


def _label(place: str, node: Node, *, named: bool) -> str:
    value: Json = plain(node)
    text = value if isinstance(value, str) else canonical_json(value)
    return f"{place.split('.')[-1]}={text}" if named else text


def _size(node: Node) -> int:
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return 1 + sum(_size(child) for child in inner)


def _report(problems: list[Diagnostic], message: str, node: Node) -> None:
    span: Span | None = node.span
    problems.append(Diagnostic(code="bad-matrix", message=message, path=("matrix",), span=span))
