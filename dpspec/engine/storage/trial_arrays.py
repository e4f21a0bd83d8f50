"""Arrays of stored trials, read only if file, header and record agree and contain numbers.

The header of a ``.npy`` file is Python source. It is compared with dpspec's own form and never evaluated, and the
file's size is checked before anything is allocated, mapped or digested.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.regular_files import NotRegularError, open_regular

if TYPE_CHECKING:
    import numpy as np

#: Kinds of numpy types of trial arrays: booleans, integers and floats.
KINDS = "biuf"

#: Maximum size of an array.
MOST_BYTES = 1 << 32

#: Size from which arrays are mapped. A mapped array keeps its file open, which systems limit.
_MAPPED = 1 << 18

#: Maximum size of a header and its prefix.
_HEADER = 4096

_FORM = re.compile(
    rb"\{'descr': '([<>|=]?[biuf]\d{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12},?)?)\), \} *\n"
)


class ArrayError(Exception):
    """A file that is not the array of its record; the text says why."""


def read_array(file: Path, dtype: object, shape: object, digest: object) -> np.ndarray[Any, Any]:
    """A large array is mapped. Raises ``ArrayError`` if the file does not hold the array of the record."""
    import numpy as np

    count = _count(shape)
    try:
        stream = open_regular(file, MOST_BYTES + _HEADER, follow=False)
    except NotRegularError as error:
        raise ArrayError(error.strerror) from None
    with stream:
        kind, fortran, found, start = _header(stream.read(_HEADER))
        if str(kind) != dtype or list(found) != list(shape):  # type: ignore[call-overload]
            raise ArrayError(f"is {kind} of shape {list(found)}, and its record says {dtype!s:.20} of {shape!s:.60}")
        if os.fstat(stream.fileno()).st_size != start + count * kind.itemsize:
            raise ArrayError("is not as long as its numbers")
        stream.seek(0)
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise ArrayError("does not match its digest")
        order: Any = "F" if fortran else "C"
        if count * kind.itemsize > _MAPPED:
            return np.memmap(stream, kind, "r", start, tuple(found), order)
        stream.seek(start)
        array = np.frombuffer(stream.read(), kind, count).reshape(tuple(found), order=order)
        array.flags.writeable = False
        return array


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _count(shape: object) -> int:
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n <= MOST_BYTES for n in shape):
        raise ArrayError("has no shape that an array could have")
    return math.prod(shape)


def _header(begins: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    import numpy as np

    lengths = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4, b"\x93NUMPY\x03\x00": 4}
    width = lengths.get(begins[:8])
    if width is None:
        raise ArrayError("is not an array file")
    start = 8 + width + int.from_bytes(begins[8 : 8 + width], "little")
    form = _FORM.fullmatch(begins[8 + width : start]) if start <= _HEADER else None
    if form is None:
        raise ArrayError("has a header that is not of numbers")
    try:
        kind = np.dtype(form[1].decode("ascii"))
    except TypeError:
        raise ArrayError("has a header that is not of numbers") from None
    return kind, form[2] == b"True", tuple(int(n) for n in form[3].split(b",") if n.strip()), start
