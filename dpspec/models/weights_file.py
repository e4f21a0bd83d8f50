"""Weights in a safetensors file: held against a model by the file's header, then read, and never unpickled.

The file begins with the length of its header (8 bytes, little-endian) and the header, JSON: by name the type, the shape
and the place of each tensor. Nothing else of it is read before names, shapes and types are known to be the model's; the
tensors themselves the ``safetensors`` package reads, which checks the places once more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from dpspec.contract import DataError, ModelFactory
from dpspec.regular_files import NotRegularError, open_regular, read_regular
from dpspec.text import closest, did_you_mean, quoted, shortened

if TYPE_CHECKING:
    import torch

#: No file may be larger, and no header: a tensor takes about 100 bytes of it.
MOST_BYTES = 2**30
MOST_HEADER = 2**20

#: Where a spec names the file.
PLACE = "model.initial.path"

#: Names that a message lists at most, of each sort, and of those that the model has.
_SHOWN, _EXPECTED = 3, 12

#: The types that models have: as safetensors calls them, and the bytes that one value takes.
_TYPES = {
    "torch.float64": ("F64", 8),
    "torch.float32": ("F32", 4),
    "torch.float16": ("F16", 2),
    "torch.bfloat16": ("BF16", 2),
    "torch.int64": ("I64", 8),
    "torch.int32": ("I32", 4),
    "torch.int16": ("I16", 2),
    "torch.int8": ("I8", 1),
    "torch.uint8": ("U8", 1),
    "torch.bool": ("BOOL", 1),
}
_SIZES = dict(_TYPES.values())


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor as a header, or a model, has it: the name of its type in safetensors, and its shape."""

    type: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.type} {list(self.shape)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """What a file holds: its SHA-256, and its tensors by name."""

    digest: str
    tensors: Mapping[str, torch.Tensor]


#: The files whose weights are in use, so that the cells of a matrix share them.
_IN_USE: WeakValueDictionary[str, Weights] = WeakValueDictionary()


class FromFile:
    """A :class:`~dpspec.contract.ModelFactory` whose modules all start from the weights of one file.

    digest: the SHA-256 of the bytes that were read, once; later changes of the file change nothing.
    """

    def __init__(self, factory: ModelFactory, path: Path) -> None:
        """Raises ``DataError`` where the file cannot be read, ``ValueError`` where it holds another model's weights."""
        self._factory = factory
        header = header_of(path)
        if factory.parameters() > MOST_BYTES // 4:  # before it is built, which takes as much
            most = f"at most {MOST_BYTES // 4} can be read from a file"
            raise ValueError(f"the model has {factory.parameters()} parameters; {most}")
        module = factory.build(0)
        require_alike(path, header, module)
        self._weights = _read(path)
        if {name: _entry(tensor) for name, tensor in self._weights.tensors.items()} != header:
            raise DataError(f"{path}: changed while it was read", PLACE)
        self.digest = self._weights.digest
        load_into(module, self._weights.tensors, path)  # of a name that is tied, all values have to agree
        self._path = path

    def parameters(self) -> int:
        """As many as without the file."""
        return self._factory.parameters()

    def build(self, seed: int) -> torch.nn.Module:
        """The module with the file's weights; the seed decides nothing that they do."""
        module = self._factory.build(seed)
        load_into(module, self._weights.tensors, self._path)
        return module


def header_of(path: Path) -> dict[str, Entry]:
    """Types and shapes by name, from the header alone; raises ``DataError``."""
    try:
        with open_regular(path, MOST_BYTES) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MOST_HEADER:
                raise _unreadable(path, f"its header is said to have {length} bytes; at most {MOST_HEADER} are read")
            header = file.read(length)
            rest = file.seek(0, 2) - 8 - length
    except NotRegularError as error:
        raise DataError(f"{path}: {error.strerror}", PLACE) from error
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", PLACE) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", PLACE) from error
    if rest < 0:
        raise _unreadable(path, f"its header is said to have {length} bytes, the file has fewer")
    try:
        parsed = json.loads(header, object_pairs_hook=_unique)
        entries = dict(_entries(parsed, rest))
    except _BrokenError as error:
        raise _unreadable(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"its header is not JSON: {error}") from None
    if not entries:
        raise _unreadable(path, "it holds no tensors")
    return entries


class _BrokenError(Exception):
    """A header that is none."""


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not a readable safetensors file: {why}", PLACE)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BrokenError(f"{quoted(twice)} stands twice in its header")
    return found


def _entries(parsed: object, rest: int) -> Iterator[tuple[str, Entry]]:
    """The tensors of a header, every one within the ``rest`` bytes behind it, and the last one at their end."""
    if not isinstance(parsed, dict):
        raise _BrokenError("its header is no mapping")
    end = 0
    for name, about in parsed.items():
        if name == "__metadata__":
            continue
        if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
            raise _BrokenError(f"{quoted(name)} is not described by dtype, shape and data_offsets")
        shape, places = about["shape"], about["data_offsets"]
        if not isinstance(about["dtype"], str) or not (_counts(shape) and _counts(places) and len(places) == 2):
            raise _BrokenError(f"{quoted(name)} has a type, a shape or a place that is none")
        size = _SIZES.get(about["dtype"])
        if size is None:
            raise _BrokenError(f"{quoted(name)} is of type {quoted(about['dtype'])}, which no model here has")
        if places[1] > rest or places[1] - places[0] != size * prod(shape):
            raise _BrokenError(f"{quoted(name)} is not within the file, or not of its own size")
        end = max(end, places[1])
        yield name, Entry(type=about["dtype"], shape=tuple(shape))
    if end < rest:
        raise _BrokenError(f"{rest - end} bytes at its end belong to no tensor")


def _counts(values: object) -> bool:
    """Whether these are a few counts, none beyond what a file can hold."""
    if not isinstance(values, list) or len(values) > 16:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_BYTES for n in values)


def require_alike(path: Path, header: Mapping[str, Entry], module: torch.nn.Module) -> None:
    """Raise ``ValueError`` naming what is missing, what is too much, what has another shape or type, and what is asked.

    Of the names of a tied parameter one is enough.
    """
    wanted = {name: _entry(tensor) for name, tensor in module.state_dict().items()}
    missing = [names for names in _tied(module) if not header.keys() & set(names)]
    surplus = [name for name in header if name not in wanted]
    others = [name for name in header if name in wanted and header[name] != wanted[name]]
    wrong = []
    if missing:
        wrong.append(f"it has no {_some([quoted(names[0]) for names in missing])}")
    if surplus:
        same = [name for names in missing for name in names if wanted[name] == header[surplus[0]]]
        guess = did_you_mean(closest(surplus[0], same))
        wrong.append(f"the model has no {_some([quoted(name) for name in surplus])}{guess}")
    if others:
        told = [f"{quoted(name)} is {header[name]} and has to be {wanted[name]}" for name in others]
        wrong.append(_some(told))
    if wrong:
        asked = _some([f"{quoted(name)} {entry}" for name, entry in wanted.items()], _EXPECTED)
        raise ValueError(f"{path} does not hold this model's weights: {'; '.join(wrong)}. It has to hold {asked}")


def load_into(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors into a module that they are known to fit; raises ``ValueError`` where tied ones differ."""
    import torch

    state = module.state_dict()
    with torch.no_grad():
        for names in _tied(module):
            first, *others = [name for name in names if name in tensors]
            for other in others:
                if not torch.equal(tensors[first], tensors[other]):
                    raise ValueError(f"{path}: {quoted(first)} and {quoted(other)} are one tensor here, and differ")
            state[first].copy_(tensors[first])


def _read(path: Path) -> Weights:
    """The tensors, finite all of them; raises ``DataError``."""
    from safetensors.torch import load

    try:
        content = read_regular(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", PLACE) from error
    digest = hashlib.sha256(content).hexdigest()
    known = _IN_USE.get(digest)
    if known is not None:
        return known
    try:
        tensors = load(content)
    except MemoryError:
        raise
    except Exception as error:  # whatever a foreign header makes of the package
        raise _unreadable(path, str(error)) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {quoted(name)} holds values that are not finite", PLACE)
    return _IN_USE.setdefault(digest, Weights(digest=digest, tensors=tensors))


def _tied(module: torch.nn.Module) -> list[list[str]]:
    """The names of a module's state, those of one tensor together."""
    groups: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _entry(tensor: torch.Tensor) -> Entry:
    name, _ = _TYPES.get(str(tensor.dtype), (str(tensor.dtype), 0))
    return Entry(type=name, shape=tuple(tensor.shape))


def _some(told: list[str], most: int = _SHOWN) -> str:
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(shortened(one, 200) for one in told[:most]) + more
