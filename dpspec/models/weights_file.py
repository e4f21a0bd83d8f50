"""Initial weights from a safetensors file, which is compared with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from dpspec.contract import DataError, ModelFactory
from dpspec.regular_files import NotRegularError, read_regular
from dpspec.text import closest, did_you_mean, quoted, shortened

if TYPE_CHECKING:
    import torch

#: The maximum size of a file.
MOST_BYTES = 2**30

#: Path of the key that names the file.
PLACE = "model.initial.path"

#: Maximum number of mismatches, and of the model's tensors, in a message.
_SHOWN, _EXPECTED = 3, 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    digest: str  # SHA-256 of the file
    tensors: Mapping[str, torch.Tensor]


#: Weights in use by SHA-256, shared by the cells of a matrix.
_IN_USE: WeakValueDictionary[str, Weights] = WeakValueDictionary()


class FromFile:
    """A :class:`~dpspec.contract.ModelFactory` whose modules have the weights of a file, which is read once."""

    def __init__(self, factory: ModelFactory, path: Path) -> None:
        if factory.parameters() > MOST_BYTES // 4:  # check before building allocates the memory
            most = f"files support at most {MOST_BYTES // 4}"
            raise ValueError(f"the model has {factory.parameters()} parameters; {most}")
        self._factory, self._path, self._weights = factory, path, _read(path)
        self.digest = self._weights.digest
        module = factory.build(0)
        check_tensors(path, self._weights.tensors, module)
        load_into(module, self._weights.tensors, path)  # checks that tied tensors are equal

    def parameters(self) -> int:
        return self._factory.parameters()

    def build(self, seed: int) -> torch.nn.Module:
        module = self._factory.build(seed)
        load_into(module, self._weights.tensors, self._path)
        return module


def check_tensors(path: Path, tensors: Mapping[str, torch.Tensor], module: torch.nn.Module) -> None:
    """Raise ``ValueError`` if tensors are missing, unknown, or of another type or shape, ``DataError`` if not finite.

    A tied parameter needs only one of its names.
    """
    expected_tensors = {name: _entry(tensor) for name, tensor in module.state_dict().items()}
    missing = [names[0] for names in _tied(module) if not tensors.keys() & set(names)]
    wrong = [f"it lacks {quoted(name)}" for name in missing]
    for name, tensor in sorted(tensors.items()):
        if name not in expected_tensors:
            wrong.append(f"the model has no {quoted(name)}{did_you_mean(closest(name, missing))}")
        elif _entry(tensor) != expected_tensors[name]:
            wrong.append(f"{quoted(name)} is {_entry(tensor)} and must be {expected_tensors[name]}")
    if wrong:
        expected = _some([f"{quoted(name)} {entry}" for name, entry in expected_tensors.items()], _EXPECTED)
        faults = _some(wrong, _SHOWN)
        raise ValueError(f"{path} does not contain this model's weights: {faults}. It must contain {expected}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {quoted(name)} contains values that are not finite", PLACE)


def load_into(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    import torch

    state = module.state_dict()
    with torch.no_grad():
        for names in _tied(module):
            first, *tied_names = [name for name in names if name in tensors]
            for name in tied_names:
                if not torch.equal(tensors[first], tensors[name]):
                    raise ValueError(f"{path}: {quoted(first)} and {quoted(name)} are tied in the model but differ")
            state[first].copy_(tensors[first])


def _read(path: Path) -> Weights:
    from safetensors.torch import load

    try:
        content = read_regular(path, MOST_BYTES)
    except NotRegularError as error:
        raise DataError(f"{path}: {error.strerror}", PLACE) from error
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", PLACE) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", PLACE) from error
    digest = hashlib.sha256(content).hexdigest()
    in_use = _IN_USE.get(digest)
    if in_use is not None:
        return in_use
    try:
        tensors = load(content)
    except MemoryError:
        raise
    except Exception as error:  # safetensors raises many kinds for invalid headers
        raise DataError(f"{path}: not a readable safetensors file: {error}", PLACE) from error
    return _IN_USE.setdefault(digest, Weights(digest=digest, tensors=tensors))


def _tied(module: torch.nn.Module) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _entry(tensor: torch.Tensor) -> str:
    """The dtype as safetensors names it (F32, BF16, I64, U8, BOOL), and the shape."""
    kind = str(tensor.dtype).removeprefix("torch.").upper()
    return f"{kind.replace('FLOAT', 'F').replace('UINT', 'U').replace('INT', 'I')} {list(tensor.shape)}"


def _some(items: list[str], most: int) -> str:
    omitted = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(shortened(item, 200) for item in items[:most]) + omitted
