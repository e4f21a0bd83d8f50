"""Copies and fingerprints of tensors, and digests of any Python value.

A fingerprint is equal for equal bits, and differs for other bits except by a random collision. In the host's memory it
is XXH3 of 128 bits with a secret random seed; no way is known to make a collision without the seed. On other devices it
is two sums modulo 2^64 over the bits of each number as an integer x: sum x, and sum x w with odd weights w that depend
on the place and on random numbers.
"""

import ctypes
import functools
import hashlib
import io
import logging
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from xxhash import xxh3_128_digest

from dpspec.recording.ranks.shards import local

#: Integers of the same size as a number, or as half of one.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

#: Types of dense tensors whose memory has their bits; others are reinterpreted.
_DENSE = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}

_STRIDED = torch.strided

#: Numbers that are read in one piece.
_CHUNK = 2**20

#: Largest number of bytes in all that are kept as copies.
_EXACT = 2**20

#: The key of fingerprints: a seed, and odd factors of the weights.
Key: TypeAlias = tuple[int, int, int]


def key_of(secret: bytes) -> Key:
    """The key from 24 random bytes."""
    seed, first, second = (int.from_bytes(secret[start : start + 8], "little") for start in (0, 8, 16))
    return seed, first // 4 * 2 + 1 - 2**62, second // 4 * 2 + 1 - 2**62


#: The key of this process, and the fingerprint of bytes in the host's memory by it.
_KEY = key_of(secrets.token_bytes(24))
_hashed = functools.partial(xxh3_128_digest, seed=_KEY[0])

#: Limits of one digest: values, depth of nesting, and bytes of arrays and strings.
MOST_VALUES, MOST_DEPTH, MOST_BYTES = 100_000, 50, 1 << 30

#: Objects that work on a training and are not part of its state.
_OPAQUE = (
    *(torch.optim.Optimizer, torch.utils.data.DataLoader, torch.device, torch.dtype, type),
    *(ModuleType, logging.Logger, logging.Handler),
)

#: The digest of a value that cannot be compared.
UNREAD = ""

#: Classes of tensors whose arithmetic runs no code of the script.
_PLAIN = frozenset((Tensor, nn.Parameter, type(None)))


class Chances:
    """Uniform numbers in [0, 1) of the operating system's randomness, read many at once."""

    def __init__(self) -> None:
        self._waiting: list[float] = []

    def random(self) -> float:
        if not self._waiting:
            self._waiting = (np.frombuffer(os.urandom(2048), dtype=np.uint64) >> 11).astype(float).tolist()
        return self._waiting.pop() * 2.0**-53


class Tally:
    """A count of events. Events on a device are read when the count is."""

    def __init__(self) -> None:
        self._known, self._waiting = 0, dict[torch.device, Tensor]()

    def add(self, event: bool | Tensor) -> None:
        if isinstance(event, Tensor):
            before = self._waiting.get(event.device)
            self._waiting[event.device] = event.long() if before is None else before + event
        else:
            self._known += event

    def __int__(self) -> int:
        return self._known + sum(int(count) for count in self._waiting.values())


def require_plain(tensors: Iterable[Tensor | None]) -> None:
    """Raise ``TypeError`` for a tensor of the script's own class, whose arithmetic runs the script's code."""
    given = tensors if isinstance(tensors, list) else list(tensors)
    if not _PLAIN.issuperset(map(type, given)):
        strange = next((kind for one in given if (kind := type(local(one))) not in _PLAIN), None)
        if strange is not None:
            raise TypeError(
                f"a parameter or gradient is of class {strange.__name__}: the recorder knows torch's own only"
            )


def overlap(tensors: Iterable[Tensor]) -> bool:
    """Whether two tensors use the same memory."""
    spans = []
    for one in tensors:
        if one.numel() and one.layout is _STRIDED:
            last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
            start = one.data_ptr()
            spans.append((str(one.device), start, start + (last + 1) * one.element_size()))
    spans.sort()
    return any(a[0] == b[0] and a[2] > b[1] for a, b in pairwise(spans))


class Bits:
    """The bits of tensors and numbers as of the last :meth:`keep`: copies if they are small, otherwise fingerprints."""

    def __init__(self) -> None:
        self._contents: list[Any] | None = None
        # Of dense tensors of the host: their memory, how it is read, and what makes copies or fingerprints.
        self._memories: list[Any] = []
        self._kept: Any = bytearray
        self._layouts: list[Any] | None = None

    @property
    def known(self) -> bool:
        return self._contents is not None

    @property
    def copies(self) -> list[bytearray]:
        """The copies of all values, which are not written to again; none of fingerprints."""
        return [] if self._layouts is None or self._kept is not bytearray else self._contents or []

    def pick(self, places: Iterable[int]) -> "Bits":
        """Like this one, for the values at these places."""
        picked, places = Bits(), list(places)
        for name, every in vars(self).items():
            setattr(picked, name, [every[one] for one in places] if type(every) is list else every)
        return picked

    def forget(self) -> None:
        self._contents = None

    def keep(self, values: Iterable[Any]) -> None:
        leaves = _leaves(values)
        layouts = _layouts(leaves)
        if layouts is None or layouts != self._layouts:
            if layouts is None or not _are_dense(leaves):
                self._contents, self._memories, self._layouts = list(map(fingerprint, leaves)), [], None
                return
            self._memories = [(ctypes.c_char * one.nbytes).from_address(one.data_ptr()) for one in leaves]
            self._kept = bytearray if sum(map(len, self._memories)) <= _EXACT else _hashed
            self._layouts = layouts
        self._contents = list(map(self._kept, self._memories))

    def replace(self, values: Iterable[Any]) -> bool | Tensor:
        """Keep these values, and return whether they differ from those before."""
        contents, layouts = self._contents, self._layouts
        self.keep(values)
        if self._contents is None or contents is None or len(self._contents) != len(contents):
            return True
        if layouts is not None and self._layouts is layouts:
            return self._contents != contents
        return _any_other(_told(self._contents, self._layouts), _told(contents, layouts))

    def differ(self, values: Iterable[Any], *, apart: bool = False) -> bool | Tensor:
        """Whether a value has other bits than it had, or none were kept.

        apart: also whether two tensors share memory that was not kept, so that a change of one would change the other.
        """
        leaves = _leaves(values)
        if self._contents is None or len(leaves) != len(self._contents):
            return True
        if self._layouts is not None and _layouts(leaves) == self._layouts:
            now = self._memories if self._kept is bytearray else list(map(self._kept, self._memories))
            return self._contents != now
        if apart and overlap(one for one in leaves if isinstance(one, Tensor)):
            return True
        return _any_other(map(fingerprint, leaves), _told(self._contents, self._layouts))


def _layouts(leaves: Iterable[Any]) -> list[Any] | None:
    """Of each tensor its address and how numbers are read there; None unless all values are tensors with memory."""
    try:
        return [(one.data_ptr(), one.dtype, one.shape, one.stride(), one.is_neg()) for one in leaves]
    except (AttributeError, RuntimeError, TypeError):
        return None


def _are_dense(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors are dense rows of numbers in the host's memory."""
    return all(
        (one.is_cpu and one.dtype in _DENSE and one.is_contiguous() and not one.is_neg())
        and one.untyped_storage().nbytes() >= one.storage_offset() * one.element_size() + one.nbytes
        for one in tensors
    )


def _told(contents: Iterable[Any], layouts: Iterable[Any] | None) -> Iterable[Any]:
    """The fingerprints of values that were kept."""
    if layouts is None:
        return contents
    hashes = (_hashed(one) if type(one) is bytearray else one for one in contents)
    return [(kind, shape, False, False, one) for one, (_, kind, shape, *_) in zip(hashes, layouts, strict=True)]


def _any_other(found: Iterable[Any], then: Iterable[Any]) -> bool | Tensor:
    """Whether a fingerprint differs from the one before."""
    sums: list[Tensor] = []
    for one, two in zip(found, then, strict=True):
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            sums.append((one != two.to(one.device)).any())
        elif type(one) is not type(two) or one != two:
            return True
    return torch.stack([one.to(sums[0].device) for one in sums]).any() if sums else False


def _leaves(values: Iterable[Any]) -> list[Any]:
    if type(values) is list and _PLAIN.issuperset(map(type, values)):
        return values
    found: list[Any] = []
    for value in values:
        if type(value) in _PLAIN:
            found.append(value)
        elif isinstance(value, dict):
            found += _leaves([*value, *value.values()])
        elif isinstance(value, list | tuple):
            found += _leaves(value)
        else:
            found.append(local(value))
    return found


def fingerprint(value: Any, key: Key = _KEY) -> Any:
    """The fingerprint of a value; a tensor on the device of a tensor that is not in the host's memory."""
    if not isinstance(value, Tensor):
        return value if type(value) is int else repr(value) if type(value) is float else readable_digest(value)
    if value.is_meta:
        return None
    if not value.is_cpu:
        return _sums(value, key)
    known = value.dtype in _DENSE and value.layout == torch.strided and not value.is_neg()
    memory = memory_of(value.detach().contiguous() if known else integers(value))
    return value.dtype, value.shape, value.is_neg(), value.is_conj(), xxh3_128_digest(memory, key[0])


def _sums(value: Tensor, key: Key) -> Tensor:
    """(2,) the sums of a tensor on another device."""
    found = torch.zeros(2, dtype=torch.int64, device=value.device)
    for start, part in enumerate(torch.split(integers(value), _CHUNK)):
        bits = part.to(torch.int64)
        places = (torch.arange(len(bits), device=bits.device) + start * _CHUNK) * key[1]
        weights = ((places ^ (places >> 31)) * key[2]) | 1
        found += torch.stack([bits.sum(), (bits * weights).sum()])
    return found


def memory_of(value: Tensor) -> Any:
    """The bytes of a contiguous tensor, which is copied from another device.

    ``Tensor.numpy`` would forbid the training to resize the tensor's storage.
    """
    host = value if value.is_cpu else value.cpu()
    width, size = host.element_size(), host.numel()
    if host.untyped_storage().nbytes() < (host.storage_offset() + size) * width:
        raise ValueError("a tensor's memory was freed")
    memory: Any = (ctypes.c_char * (size * width)).from_address(host.data_ptr())
    memory.owner = host  # lives as long as its memory is used
    return memory


def integers(value: Tensor) -> Tensor:
    """The bits of a tensor's numbers in a row, as integers; of all stored parts of a sparse or quantized tensor."""
    parts = [_integers(part) for part in _stored_parts(local(value).detach())]
    return parts[0] if len(parts) == 1 else torch.cat([part.view(torch.uint8) for part in parts])


def _integers(value: Tensor) -> Tensor:
    dense = value if value.layout == torch.strided else value.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.resolve_neg().contiguous().reshape(-1).view(_BITS[real.element_size()])


def _stored_parts(value: Tensor) -> tuple[Tensor, ...]:
    """The tensors that represent a tensor: equal values can have several representations."""
    if not value.is_quantized:
        return sparse_parts(value)
    if "channel" in str(value.qscheme()):
        axis = torch.tensor(value.q_per_channel_axis(), device=value.device)
        return value.int_repr(), value.q_per_channel_scales(), value.q_per_channel_zero_points(), axis
    step = torch.tensor([value.q_scale(), value.q_zero_point()], dtype=torch.float64, device=value.device)
    return value.int_repr(), step


def sparse_parts(value: Tensor) -> tuple[Tensor, ...]:
    """The indices and values of a sparse tensor, or the tensor itself."""
    if value.layout == torch.sparse_coo:
        return value._indices(), value._values()
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return value.crow_indices(), value.col_indices(), value.values()
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return value.ccol_indices(), value.row_indices(), value.values()
    return (value,)


def _kind(value: Tensor) -> str:
    """All of a tensor that is saved apart from its numbers and attributes."""
    own = local(value)
    found = [value.dtype, tuple(value.shape), own.layout, own.is_neg(), own.is_conj()]
    if own.is_quantized:
        found.append(own.qscheme())
    if own.layout == torch.sparse_coo:
        found.append(own.is_coalesced())
    if len(parts := sparse_parts(own)) > 1:
        found += [(part.dtype, tuple(part.shape)) for part in parts]
    return " ".join(map(str, found))


def tensor_digest(value: Tensor) -> str:
    whole = hashlib.sha256(f"{_kind(value)} ".encode())
    for part in torch.split(integers(value), _CHUNK):  # frozen parameters may be too large for a second copy
        whole.update(memory_of(part))
    return whole.hexdigest()


class TooLargeError(ValueError):
    """A value exceeds the limits of a digest."""


def digest(value: Any, skip: Collection[int] = (), *, functions: bool = False) -> str:
    """SHA-256 of numbers, strings, tensors, arrays, containers, and the attributes of other objects.

    Classes, optimizers and loaders count by name, random generators by seed, and objects whose ``id`` is in ``skip`` by
    type. Functions count by name, or with ``functions`` also by their defaults, enclosed variables and bound object.
    Values may contain themselves. Raises :class:`TooLargeError` beyond the limits.
    """
    walk = _Walk(skip, functions)
    walk.add(value, 0)
    return walk.hash.hexdigest()


def readable_digest(value: Any, skip: Collection[int] = ()) -> str:
    """The digest of a value with the contents of its functions; ``UNREAD`` if it is too large or its class fails."""
    try:
        return digest(value, skip, functions=True)
    except Exception:  # code of the value's own class
        return UNREAD


class _Walk:
    def __init__(self, skip: Collection[int], functions: bool) -> None:
        self.hash, self._functions = hashlib.sha256(), functions
        self._skip, self._seen, self._bytes = skip, dict[int, int](), 0
        self._kept: list[Any] = []

    def add(self, value: Any, depth: int) -> None:
        if depth > MOST_DEPTH or len(self._seen) > MOST_VALUES:
            raise TooLargeError(f"more than {MOST_VALUES} values, or nested deeper than {MOST_DEPTH}")
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray | np.generic):
            self._write(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
        elif id(value) in self._skip or isinstance(value, _OPAQUE):
            self._write("opaque", _name(value).encode("utf-8", "surrogatepass"))
        elif id(value) in self._seen:
            self._write("again", str(self._seen[id(value)]).encode())
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)  # so that no other object gets its identity meanwhile
            self._add_object(value, depth + 1)

    def _add_object(self, value: Any, depth: int) -> None:
        name, parts = type(value).__qualname__, list[Any]()
        if isinstance(value, Tensor):
            self._write(_kind(value), b"" if value.is_meta else bytes(memory_of(integers(value))))
            return self.add(vars(value), depth) if vars(value) else None
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._write(f"{value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
        if isinstance(value, set | frozenset):
            members = sorted(digest(one, self._skip, functions=self._functions) for one in value)
            return self._write("set", "".join(members).encode())
        if isinstance(value, torch.Generator):
            return self._write("generator", str(value.initial_seed()).encode())
        if isinstance(value, PurePath):
            return self._write(name, str(value).encode("utf-8", "surrogatepass"))
        if isinstance(value, Mapping):
            name, parts = "mapping", [part for item in list(value.items()) for part in item]
        elif isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, io.BytesIO | io.StringIO):
            parts = [value.tell(), value.getvalue()]
        elif isinstance(value, CellType):
            parts = [value.cell_contents] if value != CellType() else []
        elif callable(value) and hasattr(value, "__qualname__"):
            self._write("function", f"{getattr(value, '__module__', '')}.{value.__qualname__}".encode())
            name, parts = "enclosed", _enclosed(value) if self._functions else []
        elif hasattr(value, "__dict__") or _slots(value):
            kept = list(value) if isinstance(value, list | tuple) else []
            parts = [{**getattr(value, "__dict__", {}), **_slots(value)}, kept]
        elif hasattr(type(value), "__iter__") and hasattr(type(value), "__len__"):
            parts = list(value)
        self._write(name, str(len(parts)).encode())
        for one in parts:
            self.add(one, depth)
        return None

    def _write(self, kind: str, content: bytes) -> None:
        self._bytes += len(content)
        if self._bytes > MOST_BYTES:
            raise TooLargeError(f"more than {MOST_BYTES} bytes")
        self.hash.update(f"{kind} {len(content)} ".encode() + content)


def _name(value: Any) -> str:
    """What ``pickle`` writes of an object that it saves by name; the class of another one."""
    name = type(value).__qualname__
    if isinstance(value, torch.device | torch.dtype):
        return f"{name} {value}"
    if isinstance(value, type):
        return f"{name} {value.__module__}.{value.__qualname__}"
    return f"{name} {value.name}" if isinstance(value, logging.Logger) else name


def _enclosed(function: Any) -> list[Any]:
    if isinstance(function, MethodType | BuiltinFunctionType):
        return [getattr(function, "__func__", None), function.__self__]
    if isinstance(function, FunctionType):
        held = (function.__closure__, function.__defaults__, function.__kwdefaults__)
        return [*held, dict(vars(function))]
    return []


def _slots(value: Any) -> dict[str, Any]:
    found = {}
    for kind in type(value).__mro__:
        given = vars(kind).get("__slots__", ())
        for name in (given,) if isinstance(given, str) else given:
            place = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            if hasattr(value, place):
                found[place] = getattr(value, place)
    found.pop("__dict__", None)
    found.pop("__weakref__", None)
    return found
