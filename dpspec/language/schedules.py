"""Expand ``mechanism.phases`` from a table or a formula into a list of phases.

*Table*, ``phases: {table: schedule.csv}``: one phase per row and one key per column. Keys inside maps have dotted
names: ``steps,noise_multiplier,sampling.rate``.

*Formula*, ``phases: {steps: 1000, every: 10, noise_multiplier: {from: 2.0, to: 1.0, shape: geometric}}``: phases of
``every`` steps, with a shorter last phase if needed. In phase i = 0, ..., n - 1 of n, with f = i / (n - 1), or 0 if
n = 1, the value is

    linear     from + (to - from) f
    geometric  from^(1 - f) to^f, both above 0
    cosine     to + (from - to) (1 + cos(pi f)) / 2

Other keys are equal in all phases. A map in a phase is merged over the same map of the block.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path as FilePath

from dpspec.contract import Diagnostic, Json, Path, Span
from dpspec.language.tree import Node, plain, value_at
from dpspec.regular_files import read_text
from dpspec.text import quoted, shown

TABLE = ".csv"
MAX_PHASES = 1000
_MAX_TABLE_BYTES = 2**17

_PLACE = ("mechanism", "phases")

_MAX_COLUMN_KEYS = 8

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")

#: Characters of a number. Without this check, ``float`` accepts underscores and digits of other scripts.
_NUMBER = re.compile(r"[0-9.eE+-]+")

_SHAPES = ("linear", "geometric", "cosine")


class _ScheduleError(Exception):
    def __init__(self, message: str, node: Node, help: str | None = None) -> None:
        self.diagnostic = Diagnostic(code="bad-value", message=message, path=_PLACE, span=node.span, help=help)


def expand(root: Node, directory: FilePath) -> tuple[Node, list[Diagnostic]]:
    """Replace a table or formula by the list of phases; ``directory`` is the base of the table's path."""
    mechanism = root.value.get("mechanism") if isinstance(root.value, dict) else None
    phases = mechanism.value.get("phases") if mechanism is not None and isinstance(mechanism.value, dict) else None
    if phases is None or not isinstance(phases.value, dict):
        return root, []
    assert mechanism is not None
    assert isinstance(root.value, dict)
    assert isinstance(mechanism.value, dict)
    try:
        found = list(_phases_from_table(phases, directory) if "table" in phases.value else _phases_from_formula(phases))
    except _ScheduleError as wrong:
        return root, [wrong.diagnostic]
    merged = []
    for phase in found:  # a phase with only ``sampling.rate`` keeps the block's scheme
        assert isinstance(phase.value, dict)
        entries = dict(phase.value)
        for key, own in phase.value.items():
            shared = mechanism.value.get(key)
            if shared is not None and isinstance(shared.value, dict) and isinstance(own.value, dict):
                entries[key] = replace(own, value={**shared.value, **own.value})
        merged.append(replace(phase, value=entries))
    block = {**mechanism.value, "phases": replace(phases, value=merged)}
    return replace(root, value={**root.value, "mechanism": replace(mechanism, value=block)}), []


def unused_settings(document: Json, chosen: Iterable[Path], *, merged: bool) -> Iterator[Diagnostic]:
    """The report would default show a value that the audit did not use, because each phase overrides it."""
    mechanism = document.get("mechanism") if isinstance(document, dict) else None
    phases = mechanism.get("phases") if isinstance(mechanism, dict) else None
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        return
    assert isinstance(mechanism, dict)
    for path in chosen:
        if len(path) < 2 or path[0] != "mechanism" or path[1] in ("phases", "steps"):
            continue  # the validator rejects steps together with phases
        value = value_at(mechanism, path[1:])
        effective = [value_at(phase if path[1] in phase else mechanism, path[1:]) for phase in phases]
        own = all(path[1] in phase for phase in phases) and not (merged and isinstance(mechanism.get(path[1]), dict))
        differ = [used != value for used in effective]
        if value is not None and (all(differ) or (own and any(differ))):
            name = ".".join(map(str, path))
            yield Diagnostic(
                code="conflicting-key",
                message=f"{quoted(name)} is set but has no effect: each phase sets its own value",
                path=path,
                help=f"set {quoted(f'mechanism.phases.0.{path[1]}')} and so on, or take it out of the phases",
            )


def _phases_from_table(phases: Node, directory: FilePath) -> Iterator[Node]:
    assert isinstance(phases.value, dict)
    table = phases.value["table"]
    if len(phases.value) > 1:
        other = next(key for key in phases.value if key != "table")
        raise _ScheduleError(f"{quoted(other)} cannot be combined with 'table'", phases, "write it as a column")
    if not isinstance(table.value, str) or not table.value.endswith(TABLE) or os.path.isabs(table.value):
        message = f"table must be the path of a {TABLE} file, relative to the spec, got {shown(plain(table))}"
        raise _ScheduleError(message, table)
    try:
        text = read_text(directory / table.value, _MAX_TABLE_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise _ScheduleError(f"table {quoted(table.value)} cannot be read: {why}", table) from None
    file = str(directory / table.value)
    try:
        reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise _ScheduleError(f"table {quoted(table.value)} is not valid CSV: {error}", table) from None
    if len(rows) < 2:
        message = f"table {quoted(table.value)} must have a header line and one line per phase"
        raise _ScheduleError(message, table)
    (_, names), *lines = rows
    names = [name.strip() for name in names]
    if len(set(names)) < len(names) or "" in names:
        raise _ScheduleError(f"table {quoted(table.value)} must have distinct, non-empty column names", table)
    for name in names:
        pieces = name.split(".")
        if len(pieces) > _MAX_COLUMN_KEYS:
            raise _ScheduleError(f"column {quoted(name)} has {len(pieces)} keys, at most {_MAX_COLUMN_KEYS}", table)
        if (whole := next((w for w in names if name.startswith(f"{w}.")), None)) is not None:
            message = f"columns {quoted(whole)} and {quoted(name)} conflict: the first contains the second"
            raise _ScheduleError(message, table)
    if len(lines) > MAX_PHASES:
        message = f"table {quoted(table.value)} has {len(lines)} phases; the maximum is {MAX_PHASES}"
        raise _ScheduleError(message, table)
    for number, row in lines:
        span = Span(file=file, line=number, column=1, end_line=number, end_column=2)
        if len(row) != len(names):
            raise _ScheduleError(f"the line has {len(row)} values for {len(names)} columns", Node(None, span))
        phase: dict[str, Node] = {}
        for name, value in zip(names, row, strict=True):
            if value.strip():  # an empty cell keeps the block's value
                _set_value(phase, name, Node(_scalar(value.strip()), span, span))
        yield Node(phase, span)


def _scalar(text: str) -> str | int | float:
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _set_value(phase: dict[str, Node], name: str, value: Node) -> None:
    first, _, rest = name.partition(".")
    if not rest:
        phase[first] = value
        return
    there = phase.get(first)
    inner = dict(there.value) if there is not None and isinstance(there.value, dict) else {}
    _set_value(inner, rest, value)
    phase[first] = Node(inner, value.span, value.key)


def _phases_from_formula(phases: Node) -> Iterator[Node]:
    assert isinstance(phases.value, dict)
    steps, every = _count(phases, "steps"), _count(phases, "every", 1)
    number = -(-steps // every)
    if number > MAX_PHASES:
        most = -(-steps // MAX_PHASES)
        message = f"{steps} steps in phases of {every} are {number} phases; the maximum is {MAX_PHASES}"
        raise _ScheduleError(message, phases, f"write every: {most} or more")
    for i in range(number):
        fraction = i / (number - 1) if number > 1 else 0.0
        entries = {key: _evaluate(node, fraction) for key, node in phases.value.items() if key != "every"}
        length = min(every, steps - i * every)
        yield Node({**entries, "steps": replace(phases.value["steps"], value=length)}, phases.span)


def _count(phases: Node, key: str, default: int | None = None) -> int:
    assert isinstance(phases.value, dict)
    node = phases.value.get(key)
    value = default if node is None else node.value
    if value is None:
        message = "phases given as a map need steps or table"
        raise _ScheduleError(message, phases, "for example phases: {steps: 1000, every: 10, ...}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _ScheduleError(
            f"{key} must be an integer of at least 1, got {shown(plain(node or phases))}", node or phases
        )
    return value


def _evaluate(node: Node, fraction: float) -> Node:
    """At ``fraction`` of the schedule; ``{from, to}`` maps become numbers."""
    if not isinstance(node.value, dict):
        return node
    if not {"from", "to"} & node.value.keys():
        return replace(node, value={key: _evaluate(inner, fraction) for key, inner in node.value.items()})
    unknown = sorted(node.value.keys() - {"from", "to", "shape"})
    if unknown:
        raise _ScheduleError(f"{quoted(unknown[0])} cannot be combined with 'from' and 'to'", node)
    first, last = (_number(node, key) for key in ("from", "to"))
    shape = node.value["shape"].value if "shape" in node.value else "linear"
    if shape == "linear":
        value = first + (last - first) * fraction
    elif shape == "geometric":
        if first <= 0.0 or last <= 0.0:
            raise _ScheduleError("a geometric schedule needs from and to above 0", node)
        value = first ** (1.0 - fraction) * last**fraction
    elif shape == "cosine":
        value = last + (first - last) * (1.0 + math.cos(math.pi * fraction)) / 2.0
    else:
        raise _ScheduleError(
            f"shape must be one of {', '.join(_SHAPES)}, got {shown(plain(node.value['shape']))}", node
        )
    return replace(node, value=first if fraction == 0.0 else last if fraction == 1.0 else value)


def _number(node: Node, key: str) -> float:
    assert isinstance(node.value, dict)
    found = node.value.get(key)
    value = None if found is None else found.value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise _ScheduleError(f"{key} of a schedule must be a number, got {shown(value)}", found or node)
    return float(value)
