"""The arrays of a trial's record, one ``.npy`` file each, validated before they are used."""

from __future__ import annotations

import hashlib
import io
import math
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from dpspec.contract import Json
from dpspec.regular_files import NotRegularError, open_private, open_regular

if TYPE_CHECKING:
    import numpy as np

#: Kinds of numpy types of trial arrays: booleans, integers and floats.
KINDS = "biuf"

#: Maximum size of an array.
MOST_BYTES = 1 << 32

#: Size from which arrays are mapped. A mapped array keeps its file open, which systems limit.
_MAPPED = 1 << 18

#: Maximum size of a header and its prefix, and the size of the prefix, which ends with the size of the rest.
_HEADER, _PREFIX = 4096, 10

#: Number of bytes that are read at once for a digest.
_AT_ONCE = 1 << 20

#: The start and the size of a part of a file.
Part: TypeAlias = tuple[int, int]


class DamageError(Exception):
    """A record that must not be used; the text says why."""


def write_array(file: Path, array: np.ndarray) -> dict[str, Json]:
    import numpy as np

    array = np.ascontiguousarray(array)
    if array.dtype.kind not in KINDS or array.nbytes > MOST_BYTES:
        raise ValueError(
            f"array {file.stem!r} holds {array.nbytes} bytes of {array.dtype}; arrays of trials hold at most "
            f"{MOST_BYTES} bytes of numbers that are not complex"
        )
    with open_private(file) as out:
        np.save(out, array, allow_pickle=False)
    return {"digest": file_digest(file), "shape": list(array.shape), "dtype": str(array.dtype)}


def array_file(name: str) -> str:
    """The file of an array. Only identifiers are safe names."""
    if not name.isidentifier():
        raise ValueError(f"array name {name!r} is not an identifier")
    return f"{name}.npy"


def read_array(
    file: Path, dtype: object, shape: object, digest: object, part: Part | None = None
) -> np.ndarray[Any, Any]:
    """Read an array from a file, or from a part of it. A large array is mapped.

    Raises:
        DamageError: The file does not hold the array of the record.
    """
    import numpy as np

    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n <= MOST_BYTES for n in shape):
        raise DamageError(f"{file.name} has no shape that an array could have")
    try:
        stream = open_regular(file, MOST_BYTES + _HEADER, follow=False)
    except NotRegularError as error:
        raise DamageError(f"{file.name}: {error.strerror}") from None
    with stream:
        begin, length = part or (0, os.fstat(stream.fileno()).st_size)
        stream.seek(begin)
        try:
            prefix = stream.read(_PREFIX)
            read_shape, fortran, kind = _parsed(prefix + stream.read(int.from_bytes(prefix[-2:], "little")))
        except Exception:  # numpy parses the header as Python and raises many kinds
            raise DamageError(f"{file.name} has no header of an array") from None
        if kind.kind not in KINDS or str(kind) != dtype or list(read_shape) != shape:
            raise DamageError(
                f"{file.name} is {kind} of shape {list(read_shape)}, and its record says {dtype!s:.20} of {shape!s:.60}"
            )
        start, size = stream.tell(), math.prod(shape) * kind.itemsize
        if start + size != begin + length:
            raise DamageError(f"{file.name} is not as long as its numbers")
        stream.seek(begin)
        if _digest_of(stream, length) != digest:
            raise DamageError(f"{file.name} does not match its digest")
        order: Any = "F" if fortran else "C"
        if size > _MAPPED:
            return np.memmap(stream, kind, "r", start, read_shape, order)
        stream.seek(start)
        array = np.frombuffer(stream.read(size), kind).reshape(read_shape, order=order)
        array.flags.writeable = False
        return array


@lru_cache(maxsize=256)  # trials of an audit have arrays of the same types and shapes
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, the Fortran order and the type in the first bytes of a file."""
    import numpy as np

    stream = io.BytesIO(header)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER)


def _digest_of(stream: BinaryIO, length: int) -> str:
    """The SHA-256 of the next ``length`` bytes of a stream, or of those until its end."""
    whole = hashlib.sha256()
    while content := stream.read(min(length, _AT_ONCE)):
        whole.update(content)
        length -= len(content)
    return whole.hexdigest()


def file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
