"""Whether the document inside a result could be a spec: the types of what every spec may hold, whoever wrote it.

Kinds and keys of plugins that are not installed here pass; ``verify``, which makes a spec of it, finds the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dpspec.contract import Json
from dpspec.text import shortened

#: The parts of a spec that are mappings, and the key of each that names its kind.
_BLOCKS = {"mechanism": "kind", "data": "kind", "model": "kind", "training": "backend", "threat_model": "", "audit": ""}

_TEXTS = frozenset({"adjacency", "unit", "access", "direction", "neighbours", "over", "refuted_by", "id", "kind"})
_COUNTS = frozenset({"record", "min_records"})
_NUMBERS = frozenset({"epsilon", "delta", "alpha", "mu", "kappa", "gamma", "fpr", "tpr", "value", "fraction"})


def of_document(document: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """What is wrong with a document, as the path in it and a sentence's end."""
    for key in ("name", "description", "system", "owner", "contact"):
        if key in document and not isinstance(document[key], str):
            yield key, f"must be a text, got {_quoted(document[key])}"
    for key, names in _BLOCKS.items():
        block = document.get(key)
        if block is None and (key not in document or key in ("model", "audit", "training", "threat_model")):
            continue
        if not isinstance(block, Mapping):
            yield key, f"must be a mapping, got {_quoted(block)}"
        elif names in block and not isinstance(block[names], str):
            yield f"{key}.{names}", f"must be a text, got {_quoted(block[names])}"
    threat = document.get("threat_model")
    if isinstance(threat, Mapping):
        yield from (("threat_model." + key, wrong) for key, wrong in _of_values(threat))
    claims = document.get("claims", ())
    if not isinstance(claims, tuple | list):
        yield "claims", f"must be a list, got {_quoted(claims)}"
        return
    for i, claim in enumerate(claims):
        if not isinstance(claim, Mapping):
            yield f"claims[{i}]", f"must be a mapping, got {_quoted(claim)}"
        else:
            yield from ((f"claims[{i}].{key}", wrong) for key, wrong in (*_of_values(claim), *_of_points(claim)))


def _of_values(block: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """What is wrong with the keys of core in a claim or a threat model; what is null is left out."""
    for key, value in block.items():
        if value is None:
            continue
        if key in _TEXTS and not isinstance(value, str):
            yield key, f"must be a text, got {_quoted(value)}"
        elif key in _NUMBERS and not is_number(value):
            yield key, f"must be a number, got {_quoted(value)}"
        elif key in _COUNTS and not is_count(value, 0):
            yield key, f"must be a count, got {_quoted(value)}"
        elif key == "group_size":
            sizes = value if isinstance(value, tuple | list) else (value,)
            if not sizes or not all(is_count(size, 1) for size in sizes):
                yield key, f"must be a count or counts from 1, got {_quoted(value)}"
        elif key == "expect":
            expected = value if isinstance(value, tuple | list) else (value,)
            if not all(isinstance(each, str) for each in expected):
                yield key, f"must be verdicts, got {_quoted(value)}"


def _of_points(claim: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """What is wrong with a claim's curve; a threat model's points are its plugin's."""
    if claim.get("points") is None:
        return
    points: Any = claim["points"] if isinstance(claim["points"], tuple | list) else (None,)
    for point in points:
        if not isinstance(point, Mapping) or next(_of_values(point), None) is not None:
            yield "points", f"must be points of a curve, got {_quoted(point)}"
            return


def is_number(value: Json) -> bool:
    """Whether a value of JSON is a number, infinity as it is written there included."""
    if value in ("inf", "-inf"):  # as JSON has it
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Json, least: int) -> bool:
    """Whether a value of JSON is a whole number from ``least`` on, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _quoted(value: Json) -> str:
    return repr(shortened(str(value), 60))
