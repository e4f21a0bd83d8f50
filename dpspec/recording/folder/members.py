"""Who was drawn, as bytes: sorted record numbers as differences, seven bits of each in a byte (LEB128).

A record that was drawn at rate q is about 1/q away from the next, so that most take one byte or two.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: A record's number needs at most so many bytes of seven bits.
_BYTES = 5

#: Larger numbers of records are in no data set that was trained on.
MOST_RECORDS = 2**34


def encode(indices: Indices) -> bytes:
    """The bytes of record numbers, each in [0, 2**34), in any order and repeated or not; order is not kept."""
    ordered = np.sort(np.asarray(indices, dtype=np.int64))
    if len(ordered) == 0:
        return b""
    if ordered[0] < 0 or ordered[-1] >= MOST_RECORDS:
        raise ValueError(f"record numbers must lie in [0, {MOST_RECORDS}), got {ordered[0]} to {ordered[-1]}")
    gaps = np.diff(ordered, prepend=0)
    parts = (gaps[:, None] >> (7 * np.arange(_BYTES))) & 0x7F
    lengths = 1 + (gaps[:, None] >= (1 << (7 * np.arange(1, _BYTES)))).sum(axis=1)
    place = np.arange(_BYTES)[None, :]
    more = place < lengths[:, None] - 1
    return bytes((parts | (more * 0x80)).astype(np.uint8)[place < lengths[:, None]].tobytes())


def decode(data: bytes) -> Indices:
    """Sorted record numbers from their bytes; raises ``ValueError`` where bytes are none."""
    read = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    if len(read) == 0:
        return np.zeros(0, dtype=np.int64)
    last = (read & 0x80) == 0
    if not last[-1]:
        raise ValueError("record numbers are cut short")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if int((ends - starts).max()) >= _BYTES:
        raise ValueError("a record number is too long")
    place = np.arange(len(read)) - np.repeat(starts, ends - starts + 1)
    gaps = np.add.reduceat((read & 0x7F) << (7 * place), starts)
    if float(gaps.astype(np.float64).sum()) >= MOST_RECORDS:
        raise ValueError(f"record numbers must be below {MOST_RECORDS}")
    found: Indices = np.cumsum(gaps)
    return found
