"""Canonical JSON for digests and cache keys."""

from __future__ import annotations

import hashlib
import json
import math

from dpspec.contract.frozen import Json, thaw


def canonical_json(value: Json) -> str:
    """Write a JSON value with sorted keys, without spaces, in ASCII.

    Raises:
        ValueError: NaN or infinity; the message names the place.
        TypeError: Not a JSON value; the message names the place.
    """
    plain = thaw(value)
    try:
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(_unfit(plain, "") or str(error)) from None


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def _unfit(value: Json, place: str) -> str:
    """Describe the first value that JSON cannot represent, or return an empty string."""
    if value is None or isinstance(value, bool | int | str):
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{place or 'it'} is {value}, which JSON cannot hold"
    if isinstance(value, dict):
        parts = ((f"{place}.{key}" if place else str(key), part) for key, part in value.items())
    elif isinstance(value, list):
        parts = ((f"{place}[{i}]", part) for i, part in enumerate(value))
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        return f"{place or 'it'} is a {kind}; JSON holds numbers, texts, truth values, lists and maps of Python's own"
    return next((text for at, part in parts if (text := _unfit(part, at))), "")
