"""One spelling for one value: the canonical JSON under every digest and cache key."""

from __future__ import annotations

import hashlib
import json

from dpspec.contract.frozen import Json, thaw


def canonical_json(value: Json) -> str:
    """Write a JSON value with sorted keys, no spaces and ASCII only; raises ``ValueError`` on NaN and infinities."""
    return json.dumps(thaw(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Json) -> str:
    """The SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()
