"""Expand ``mechanism.phases`` from a formula into a list of phases.

``phases: {steps: 1000, every: 10, noise_multiplier: {from: 2.0, to: 1.0, shape: geometric}}`` are phases of ``every``
steps, with a shorter last phase if needed. In phase i = 0, ..., n - 1 of n, with f = i / (n - 1), or 0 if n = 1, the
value is

    linear     from + (to - from) f
    geometric  from^(1 - f) to^f, both above 0
    cosine     to + (from - to) (1 + cos(pi f)) / 2

Other keys are equal in all phases. A map in a phase is merged over the same map of the block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dpspec.contract import Diagnostic, Json, Path
from dpspec.language.tree import Node, child, plain, value_at
from dpspec.text import quoted, shown

MAX_PHASES = 1000

_PLACE = ("mechanism", "phases")

_SHAPES = ("linear", "geometric", "cosine")


class _ScheduleError(Exception):
    def __init__(self, message: str, node: Node, help: str | None = None) -> None:
        self.diagnostic = Diagnostic(code="bad-value", message=message, path=_PLACE, span=node.span, help=help)


def expand(root: Node) -> tuple[Node, list[Diagnostic]]:
    """Replace a formula by the list of phases."""
    mechanism = child(root, "mechanism")
    phases = None if mechanism is None else child(mechanism, "phases")
    if mechanism is None or phases is None or not isinstance(phases.value, dict):
        return root, []
    assert isinstance(root.value, dict)
    assert isinstance(mechanism.value, dict)
    merged = []
    try:
        for entries, length in _evaluated(phases):
            for key, own in entries.items():  # a phase with only ``sampling.rate`` keeps the block's scheme
                shared = mechanism.value.get(key)
                if shared is not None and isinstance(shared.value, dict) and isinstance(own.value, dict):
                    entries[key] = replace(own, value={**shared.value, **own.value})
            entries["steps"] = replace(phases.value["steps"], value=length)
            merged.append(Node(entries, phases.span))
    except _ScheduleError as wrong:
        return root, [wrong.diagnostic]
    block = {**mechanism.value, "phases": replace(phases, value=list(merged))}
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


def _evaluated(phases: Node) -> Iterator[tuple[dict[str, Node], int]]:
    """The keys of each phase, and its number of steps."""
    assert isinstance(phases.value, dict)
    steps, every = _count(phases, "steps"), _count(phases, "every", 1)
    number = -(-steps // every)
    if number > MAX_PHASES:
        message = f"{steps} steps in phases of {every} are {number} phases; the maximum is {MAX_PHASES}"
        raise _ScheduleError(message, phases, f"write every: {-(-steps // MAX_PHASES)} or more")
    for i in range(number):
        fraction = i / (number - 1) if number > 1 else 0.0
        entries = {key: _evaluate(node, fraction) for key, node in phases.value.items() if key != "every"}
        yield entries, min(every, steps - i * every)


def _count(phases: Node, key: str, default: int | None = None) -> int:
    assert isinstance(phases.value, dict)
    node = phases.value.get(key)
    value = default if node is None else node.value
    if value is None:
        message = "phases given as a map need steps"
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
