"""Initial weights from a safetensors file: its header is compared with the model before any tensor is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from dpspec.contract import DataError, ModelFactory
from dpspec.regular_files import NotRegularError, open_regular, read_regular
from dpspec.text import closest, did_you_mean, quoted, shortened

if TYPE_CHECKING:
    import torch

#: The maximum size of a file.
MOST_BYTES = 2**30

#: Where a spec names the file.
PLACE = "model.initial.path"

#: Names that a message lists at most, of each sort, and of those that the model has.
_SHOWN, _EXPECTED = 3, 12

#: The types of tensors by their names in safetensors.
_TYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


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
    """Return the types and shapes of a file's tensors by name, without reading a tensor; raises ``DataError``."""
    from safetensors import SafetensorError, safe_open

    try:
        open_regular(path, MOST_BYTES).close()
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: Entry(type=s.get_dtype(), shape=tuple(s.get_shape())) for name, s in slices.items()}
    except NotRegularError as error:
        raise DataError(f"{path}: {error.strerror}", PLACE) from error
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", PLACE) from None
    except SafetensorError as error:
        raise _unreadable(path, str(error)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", PLACE) from error


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(f"{path}: not a readable safetensors file: {why}", PLACE)


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
    return Entry(type=_TYPES.get(str(tensor.dtype), str(tensor.dtype)), shape=tuple(tensor.shape))


def _some(told: list[str], most: int = _SHOWN) -> str:
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(shortened(one, 200) for one in told[:most]) + more
