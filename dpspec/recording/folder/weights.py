"""``weights.json``: digests of a model's tensors at the end of a recording, and the comparison of a released model.

A digest is SHA-256 of a tensor's values in row-major, little-endian order, as a safetensors file holds them. The module
reads safetensors itself: a header in JSON, then the values. Nothing is unpickled.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from dpspec.errors import RecordingError, UsageError
from dpspec.regular_files import open_regular, read_regular
from dpspec.text import shortened

#: The file in the folder of a recording.
WEIGHTS = "weights.json"

#: Limits: bytes of a table or a header, tensors, bytes of a file of weights, and bytes that are read in one piece.
_MOST_TABLE, _MOST_TENSORS, MOST_FILE, _CHUNK = 1 << 26, 100_000, 1 << 40, 1 << 24

#: Bytes of a number, by the name of its type in safetensors.
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

#: Prefixes that wrappers of a model add to names: torch.compile, DDP, and Opacus' GradSampleModule.
_WRAPPERS = ("_orig_mod.", "module.", "_module.")

#: Maximum number of tensors in a sentence, and characters of a name.
_SHOWN, _LONGEST = 3, 100


@dataclass(frozen=True)
class TensorDigest:
    """dtype: as safetensors names it. sha256: of the values, in hexadecimal digits."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Table = Mapping[str, TensorDigest]


@dataclass(frozen=True)
class ReleasedModel:
    """A model to be released. name: of its file."""

    name: str
    tensors: Table

    def differences(self, recorded: Table) -> list[str]:
        """The tensors that no tensor of a recording's end equals, each with the reason.

        A name may have the prefixes of wrappers. A tensor of another name is equal if a recorded tensor has its values,
        as tied or renamed tensors do. Recorded tensors that are not released do not matter.
        """
        values = set(recorded.values())
        reasons = []
        for name, tensor in self.tensors.items():
            same_name = recorded.get(_recorded_name(name, recorded))
            if tensor in values and (same_name is None or same_name == tensor):
                continue
            reason = "no recorded tensor has its name or values"
            if same_name is not None:
                same_kind = (same_name.dtype, same_name.shape) == (tensor.dtype, tensor.shape)
                reason = "other values" if same_kind else f"{tensor} instead of {same_name}"
            reasons.append(f"{shortened(name, _LONGEST)} ({reason})")
        return reasons

    def sentence(self, recorded: Table) -> tuple[bool, str]:
        """Whether all tensors are recorded ones, and a sentence on it without a full stop."""
        count, differences = len(self.tensors), self.differences(recorded)
        if not differences:
            tensors = "the tensor" if count == 1 else f"all {count} tensors"
            return True, f"{tensors} of {self.name} {'has' if count == 1 else 'have'} the values at the recording's end"
        shown = ", ".join(differences[:_SHOWN])
        further = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        differ = "differs" if len(differences) == 1 else "differ"
        return False, (
            f"{len(differences)} of {count} tensors of {self.name} {differ} from the recording's end: {shown}{further}"
        )


def _recorded_name(name: str, recorded: Table) -> str:
    while name not in recorded:
        wrapper = next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), None)
        if wrapper is None:
            return name.replace("._orig_mod.", ".")
        name = name.removeprefix(wrapper)
    return name


def write_table(tensors: Table) -> bytes:
    """The content of ``weights.json``."""
    rows = {name: [tensor.dtype, list(tensor.shape), tensor.sha256] for name, tensor in tensors.items()}
    return json.dumps({"tensors": rows}, indent=0).encode("utf-8")


def read_table(path: Path) -> Table | None:
    """The digests of a recording; None without the file, ``RecordingError`` for content that no recorder writes."""
    if not path.exists():
        return None
    try:
        rows = json.loads(read_regular(path, _MOST_TABLE, follow=False))["tensors"]
        if not isinstance(rows, dict) or len(rows) > _MOST_TENSORS:
            raise ValueError("no table of tensors")
        return {name: _row(*row) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(f"{path}: not the digests of a model: {shortened(str(error), 80)}") from None


def _row(dtype: Any, shape: Any, sha256: Any) -> TensorDigest:
    if not (isinstance(dtype, str) and isinstance(sha256, str) and all(type(size) is int for size in shape)):
        raise ValueError("a row must have a type, a shape and a digest")
    return TensorDigest(dtype[:20], tuple(shape), sha256)


def read_safetensors(path: Path) -> ReleasedModel:
    """The digests of a safetensors file; ``UsageError`` for any other file."""
    try:
        with open_regular(path, MOST_FILE) as file:
            tensors = _digests(file)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a safetensors file: {shortened(str(error), 120)}") from None
    if not tensors:
        raise UsageError(f"{path}: holds no tensor")
    return ReleasedModel(path.name, tensors)


def _digests(file: BufferedReader) -> Table:
    length = int.from_bytes(file.read(8), "little")
    content = file.read(length) if length <= _MOST_TABLE else b""
    if not content or len(content) < length:
        raise ValueError("its header is missing or too long")
    header = json.loads(content)
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    if len(entries) > _MOST_TENSORS:
        raise ValueError(f"more than {_MOST_TENSORS} tensors")
    tensors, end = dict[str, TensorDigest](), 0
    for name, entry in sorted(entries, key=lambda named: tuple(named[1]["data_offsets"])):
        (start, stop), shape = entry["data_offsets"], tuple(entry["shape"])
        size = ITEM_BYTES[entry["dtype"]] * math.prod(shape)
        if start != end or stop - start != size or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"tensor {shortened(name, _LONGEST)} has other offsets than its shape needs")
        tensors[name], end = TensorDigest(entry["dtype"], shape, _digest_of(file, size)), stop
    if file.read(1):
        raise ValueError("bytes follow the last tensor")
    return tensors


def _digest_of(file: BufferedReader, size: int) -> str:
    whole = hashlib.sha256()
    while size:
        part = file.read(min(size, _CHUNK))
        if not part:
            raise ValueError("the file is cut short")
        whole.update(part)
        size -= len(part)
    return whole.hexdigest()
