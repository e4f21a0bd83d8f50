"""The options of an optimizer that changed at a step, as bytes: JSON, read with limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

#: Most bytes of one step, most options, most parameter groups, and the longest name or word.
MOST_BYTES, MOST_OPTIONS, MOST_GROUPS, _LONGEST = 1 << 18, 1000, 10_000, 200

#: How the value of an option begins whose type the recorder does not know; the name of the type follows.
UNREAD = "unread "


@dataclass(frozen=True)
class OptionChange:
    """The new values of one option.

    Attributes:
        by: The class of the scheduler that set it, ``start`` at the first step, "" for other code.
        values: One for each parameter group.
    """

    by: str
    values: tuple[float | str | None, ...]


def encode(changes: Mapping[str, OptionChange]) -> bytes:
    """The bytes of the changes, none if there is none: ``[[0.1, 2]]`` means that two groups have the value 0.1.

    Raises ``ValueError`` if they are too many.
    """
    written = {name: [one.by, _runs(one.values)] for name, one in changes.items()}
    content = json.dumps(written, separators=(",", ":")).encode("utf-8") if changes else b""
    if len(content) > MOST_BYTES:
        raise ValueError(f"the options of a step have at most {MOST_BYTES} bytes, got {len(content)}")
    return content


def decode(content: bytes) -> dict[str, OptionChange]:
    """The changes; ``ValueError`` if the bytes are none."""
    if not content:
        return {}
    try:
        read = json.loads(content) if len(content) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or len(read) > MOST_OPTIONS:
        raise ValueError("the options of a step are not a mapping")
    return {_word(name): _change(change) for name, change in read.items()}


def _change(read: Any) -> OptionChange:
    if not (isinstance(read, list) and len(read) == 2 and isinstance(read[1], list)):
        raise ValueError("an option of a step is not what set it and its values")
    values: list[float | str | None] = []
    for run in read[1]:
        if not (isinstance(run, list) and len(run) == 2 and type(run[1]) is int and 0 < run[1] <= MOST_GROUPS):
            raise ValueError("an option of a step has values that are not counted")
        value = run[0]
        if isinstance(value, int) and not -(2**63) < value < 2**63:
            raise ValueError("an option of a step is too large an integer")
        values += [value if value is None or isinstance(value, int | float) else _word(value)] * run[1]
        if len(values) > MOST_GROUPS:
            raise ValueError(f"an option of a step has more than {MOST_GROUPS} values")
    return OptionChange(_word(read[0]), tuple(values))


def _runs(values: tuple[float | str | None, ...]) -> list[list[Any]]:
    """Runs of equal values, each with its length."""
    return [[next(same), 1 + sum(1 for _ in same)] for _, same in groupby(values, key=repr)]


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"a name in the options of a step is not a string of at most {_LONGEST} characters")
    return value
