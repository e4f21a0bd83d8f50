"""``mechanism.phases`` from a table or a formula: data, no code; what follows is the list of phases that it stands for.

*A table*, ``phases: {table: schedule.csv}``: a phase for each row, a key of a phase for each column, those inside a map
by their dotted names: ``steps,noise_multiplier,sampling.rate``.

*A formula*, ``phases: {steps: 1000, every: 10, noise_multiplier: {from: 2.0, to: 1.0, shape: geometric}}``: phases of
``every`` steps, the last one of what is left, until there are ``steps``. Of n phases number i = 0, ..., n - 1 has, with
f = i / (n - 1) (0 where n is 1),

    linear     from + (to - from) f
    geometric  from^(1 - f) to^f, both above 0
    cosine     to + (from - to) (1 + cos(pi f)) / 2

Other keys are the same in every phase. A map that stands in a phase and in the block too adds to the block's.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath

from dpspec.contract import Diagnostic, Json, Path, Span
from dpspec.language.reading.tree import Node, plain
from dpspec.regular_files import read_text
from dpspec.text import quoted, shown

#: How a table's name ends.
TABLE = ".csv"

#: More phases are no list that a spec may hold.
MOST_PHASES = 1000

#: A table is a spec's, and no longer than one (bytes).
_LARGEST = 2**17

_PLACE = ("mechanism", "phases")

#: No key of a phase lies deeper, in pieces of a dotted name.
_DEEPEST = 8

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")

#: What a number is made of; ``float`` takes digits of all alphabets, and underscores.
_NUMBER = re.compile(r"[0-9.eE+-]+")

_SHAPES = ("linear", "geometric", "cosine")


class _WrongError(Exception):
    """What is wrong with a schedule, and where."""

    def __init__(self, message: str, node: Node, help: str | None = None) -> None:
        self.diagnostic = Diagnostic(code="bad-value", message=message, path=_PLACE, span=node.span, help=help)


def expand(root: Node, directory: FilePath) -> tuple[Node, list[Diagnostic]]:
    """The document with its phases written out, where they are a table or a formula; what is wrong with these.

    directory: what the table's path is relative to.
    """
    mechanism = root.value.get("mechanism") if isinstance(root.value, dict) else None
    phases = mechanism.value.get("phases") if mechanism is not None and isinstance(mechanism.value, dict) else None
    if phases is None or not isinstance(phases.value, dict):
        return root, []
    assert mechanism is not None
    assert isinstance(root.value, dict)
    assert isinstance(mechanism.value, dict)
    try:
        found = list(_of_table(phases, directory) if "table" in phases.value else _of_formula(phases))
    except _WrongError as wrong:
        return root, [wrong.diagnostic]
    written = replace(phases, value=[_over(mechanism.value, phase) for phase in found])
    return replace(
        root, value={**root.value, "mechanism": replace(mechanism, value={**mechanism.value, "phases": written})}
    ), []


def idle(document: Json, chosen: Iterable[Path], *, merged: bool) -> Iterator[Diagnostic]:
    """Of the paths that axes of a matrix and ``--set`` decide, those in the mechanism's block that no phase takes from
    there, as each has its own: what they are set to would be told, and something else be audited.

    document: plain, its phases written out. merged: whether they were a table or a formula: then a phase's map is added
    to the block's, so that of a key inside one is known only what it came to.
    """
    mechanism = document.get("mechanism") if isinstance(document, dict) else None
    phases = mechanism.get("phases") if isinstance(mechanism, dict) else None
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        return
    assert isinstance(mechanism, dict)
    for path in chosen:
        if len(path) < 2 or path[0] != "mechanism" or path[1] in ("phases", "steps"):
            continue  # steps are refused beside phases anyway
        value = _within(mechanism, path[1:])
        effective = [_within(phase if path[1] in phase else mechanism, path[1:]) for phase in phases]
        own = all(path[1] in phase for phase in phases) and not (merged and isinstance(mechanism.get(path[1]), dict))
        differ = [one != value for one in effective]
        if value is not None and (all(differ) or (own and any(differ))):
            name = ".".join(map(str, path))
            yield Diagnostic(
                code="conflicting-key",
                message=f"{quoted(name)} is set and changes nothing: each phase has its own",
                path=path,
                help=f"set {quoted(f'mechanism.phases.0.{path[1]}')} and so on, or take it out of the phases",
            )


def _within(block: Json, path: Path) -> Json:
    """What stands at a path; None where nothing does."""
    for step in path:
        block = block.get(step) if isinstance(block, dict) else None
    return block


def _of_table(phases: Node, directory: FilePath) -> Iterator[Node]:
    """A phase for each row, located in the table."""
    assert isinstance(phases.value, dict)
    table = phases.value["table"]
    if len(phases.value) > 1:
        other = next(key for key in phases.value if key != "table")
        raise _WrongError(f"{quoted(other)} does not belong beside 'table'", phases, "write it as a column")
    if not isinstance(table.value, str) or not table.value.endswith(TABLE) or os.path.isabs(table.value):
        message = f"table must be the path of a {TABLE} file, relative to the spec, got {shown(plain(table))}"
        raise _WrongError(message, table)
    try:
        text = read_text(directory / table.value, _LARGEST)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise _WrongError(f"table {quoted(table.value)} cannot be read: {why}", table) from None
    file = str(directory / table.value)
    try:
        rows = [(number, row) for number, row in _rows(text) if any(map(str.strip, row))]
    except csv.Error as error:
        raise _WrongError(f"table {quoted(table.value)} is no CSV: {error}", table) from None
    if len(rows) < 2:
        raise _WrongError(f"table {quoted(table.value)} must have a line of names and a line for each phase", table)
    (_, names), *lines = rows
    names = [name.strip() for name in names]
    if len(set(names)) < len(names) or "" in names:
        raise _WrongError(f"table {quoted(table.value)} must name each of its columns once", table)
    for name in names:
        pieces = name.split(".")
        if len(pieces) > _DEEPEST:
            raise _WrongError(f"column {quoted(name)} has {len(pieces)} pieces; no key of a phase lies so deep", table)
        if (whole := next((w for w in names if name.startswith(f"{w}.")), None)) is not None:
            message = f"columns {quoted(whole)} and {quoted(name)} exclude each other: one is a part of the other"
            raise _WrongError(message, table)
    if len(lines) > MOST_PHASES:
        raise _WrongError(f"table {quoted(table.value)} has {len(lines)} phases, of at most {MOST_PHASES}", table)
    for number, row in lines:
        span = Span(file=file, line=number, column=1, end_line=number, end_column=2)
        if len(row) != len(names):
            raise _WrongError(f"the line has {len(row)} values, of {len(names)} columns", Node(None, span))
        phase: dict[str, Node] = {}
        for name, value in zip(names, row, strict=True):
            if value.strip():  # an empty cell leaves the block's value
                _put(phase, name, Node(_scalar(value.strip()), span, span))
        yield Node(phase, span)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    for row in reader:
        yield reader.line_num, row


def _scalar(text: str) -> str | int | float:
    """A cell as a whole number, a number, or text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _put(phase: dict[str, Node], name: str, value: Node) -> None:
    """Set the value at a dotted name."""
    first, _, rest = name.partition(".")
    if not rest:
        phase[first] = value
        return
    there = phase.get(first)
    inner = dict(there.value) if there is not None and isinstance(there.value, dict) else {}
    _put(inner, rest, value)
    phase[first] = Node(inner, value.span, value.key)


def _of_formula(phases: Node) -> Iterator[Node]:
    assert isinstance(phases.value, dict)
    steps, every = _count(phases, "steps"), _count(phases, "every", 1)
    number = -(-steps // every)
    if number > MOST_PHASES:
        most = -(-steps // MOST_PHASES)
        message = f"{steps} steps in phases of {every} are {number} phases, of at most {MOST_PHASES}"
        raise _WrongError(message, phases, f"write every: {most} or more")
    for i in range(number):
        share = i / (number - 1) if number > 1 else 0.0
        entries = {key: _at(node, share) for key, node in phases.value.items() if key != "every"}
        length = min(every, steps - i * every)
        yield Node({**entries, "steps": replace(phases.value["steps"], value=length)}, phases.span)


def _count(phases: Node, key: str, otherwise: int | None = None) -> int:
    """A whole number of the formula, 1 or more."""
    assert isinstance(phases.value, dict)
    node = phases.value.get(key)
    value = otherwise if node is None else node.value
    if value is None:
        message = "phases that are a map must say how many steps there are, or name a table"
        raise _WrongError(message, phases, "for example phases: {steps: 1000, every: 10, ...}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _WrongError(
            f"{key} must be a whole number, 1 or more, got {shown(plain(node or phases))}", node or phases
        )
    return value


def _at(node: Node, share: float) -> Node:
    """A value of the phase at this share of the way; maps from one number to another give one."""
    if not isinstance(node.value, dict):
        return node
    if not {"from", "to"} & node.value.keys():
        return replace(node, value={key: _at(inner, share) for key, inner in node.value.items()})
    unknown = sorted(node.value.keys() - {"from", "to", "shape"})
    if unknown:
        raise _WrongError(f"{quoted(unknown[0])} does not belong beside 'from' and 'to'", node)
    first, last = (_number(node, key) for key in ("from", "to"))
    shape = node.value["shape"].value if "shape" in node.value else "linear"
    if shape == "linear":
        value = first + (last - first) * share
    elif shape == "geometric":
        if first <= 0.0 or last <= 0.0:
            raise _WrongError("a geometric schedule must go from above 0 to above 0", node)
        value = first ** (1.0 - share) * last**share
    elif shape == "cosine":
        value = last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0
    else:
        raise _WrongError(f"shape must be one of {', '.join(_SHAPES)}, got {shown(plain(node.value['shape']))}", node)
    return replace(node, value=first if share == 0.0 else last if share == 1.0 else value)


def _number(node: Node, key: str) -> float:
    assert isinstance(node.value, dict)
    found = node.value.get(key)
    value = None if found is None else found.value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise _WrongError(f"a schedule goes from a number to a number; {key} is {shown(value)}", found or node)
    return float(value)


def _over(block: Mapping[str, Node], phase: Node) -> Node:
    """The phase, its maps over the block's: ``sampling.rate`` alone leaves the block's scheme."""
    assert isinstance(phase.value, dict)
    entries = dict(phase.value)
    for key, own in entries.items():
        shared = block.get(key)
        if shared is not None and isinstance(shared.value, dict) and isinstance(own.value, dict):
            entries[key] = replace(own, value={**shared.value, **own.value})
    return replace(phase, value=entries)
