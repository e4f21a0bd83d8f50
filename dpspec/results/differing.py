"""Differences of two results: the places at which their JSON differs, for ``diff``, ``verify`` and the suites.

>>> list(differing({"epsilon": 1.0, "steps": [1, 2]}, {"epsilon": 1.0 + 1e-12, "steps": [1, 3]}))
[('steps[1]', '2', '3')]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpspec.contract import Json, thaw
from dpspec.text import shortened

#: Length of the text of a value.
_LONGEST = 100

#: Relative difference up to which numbers are equal, because machines round differently.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """A value of an audit in two results, or in a result and its recomputation.

    Attributes:
        audit: The name of the audit; empty for a value of the whole result.
        what: The value: its path in the result, or words.
        before: The text of the first value; of ``verify`` the recorded one.
        after: The text of the second value; of ``verify`` the recomputed one.
    """

    audit: str
    what: str
    before: str
    after: str


def differing(before: Json, after: Json, path: str = "") -> Iterator[tuple[str, str, str]]:
    """The places at which two JSON values differ, with both texts."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            key_path = f"{path}.{key}" if path else key
            if key in before and key in after:
                yield from differing(before[key], after[key], key_path)
            else:
                old_text, new_text = (short(side[key]) if key in side else "absent" for side in (before, after))
                yield key_path, old_text, new_text
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for i, (old_item, new_item) in enumerate(zip(before, after, strict=True)):
            yield from differing(old_item, new_item, f"{path}[{i}]")
    elif not equal(before, after):
        yield path, short(before), short(after)


def equal(a: Json, b: Json) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return type(a) is type(b) and bool(a == b)
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and math.isclose(a, b, rel_tol=TOLERANCE))


def short(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(thaw(value))
    return f"a list of {len(value)}" if isinstance(value, list) and len(text) > _LONGEST else shortened(text, _LONGEST)
