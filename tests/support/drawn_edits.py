"""Edits of JSON and of bytes that hypothesis draws: other types, ends of ranges, and values that are no numbers."""

import copy
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

#: What replaces a value of JSON.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 1e-320, 1e308, -1e308, math.inf, math.nan, "", "x", [], {}, [[]]]),
    st.integers(-(10**6), 10**6),
    st.floats(),
    st.text(max_size=5),
)

#: What replaces bytes of a step.
BYTES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from([math.inf, math.nan, 1e308, -1.0, 0.0, 1e-300]).map(lambda value: struct.pack("<d", value)),
    st.sampled_from([b"\0" * 8, b"\xff" * 8, struct.pack("<q", 2**63 - 1)]),
)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values below a value of JSON, containers included."""
    if place:
        yield place
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(part, (*place, key))


def edited(document: Any, data: st.DataObject) -> Any:
    """Return a copy of a value of JSON in which one value is another or removed."""
    document = copy.deepcopy(document)
    *outer, last = data.draw(st.sampled_from(list(leaves(document))), "place")
    holder = document
    for key in outer:
        holder = holder[key]
    if data.draw(st.integers(0, 9), "removed") == 0:
        del holder[last]
    else:
        holder[last] = data.draw(VALUES, "value")
    return document


def edited_json(content: bytes, data: st.DataObject) -> bytes:
    return json.dumps(edited(json.loads(content), data)).encode("utf-8")


def edited_bytes(content: bytes, data: st.DataObject) -> bytes:
    start = data.draw(st.integers(0, max(0, len(content) - 1)), "start")
    new = data.draw(BYTES, "bytes")
    return content[:start] + new + content[start + len(new) :]
