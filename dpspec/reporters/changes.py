"""Changes between two results as text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from dpspec.engine.results.diff import Change
from dpspec.text import json_text, markdown, plain

#: How a change reads at the start of a line.
MARKS = {"better": "+", "worse": "-", "other": "~"}


def text(changes: Sequence[Change]) -> str:
    """A line per change: ``- demo / one: verdict proved -> refuted``."""
    return "\n".join(map(line, changes)) if changes else "no change"


def line(change: Change) -> str:
    """One change on one line."""
    return (
        f"{MARKS[change.trend]} {plain(_place(change))}: {change.what} {plain(change.before)} -> {plain(change.after)}"
    )


def as_markdown(changes: Sequence[Change]) -> str:
    """A table, for a comment on a pull request."""
    if not changes:
        return "No change."
    rows = [
        f"| {change.trend} | {markdown(_place(change))} | {change.what} | {markdown(change.before)} | "
        f"{markdown(change.after)} |"
        for change in changes
    ]
    return "\n".join(["| Trend | Where | What | Before | After |", "|---|---|---|---|---|", *rows])


def as_json(changes: Sequence[Change]) -> str:
    """A list of objects with the fields of :class:`~dpspec.engine.results.diff.Change`."""
    return json_text(json.dumps([asdict(change) for change in changes], indent=2))


FORMATS: Mapping[str, Callable[[Sequence[Change]], str]] = {"text": text, "markdown": as_markdown, "json": as_json}


def _place(change: Change) -> str:
    return f"{change.audit} / {change.claim}" if change.claim else change.audit
