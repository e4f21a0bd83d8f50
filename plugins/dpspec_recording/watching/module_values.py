"""The state of a model apart from its trained parameters, and whether it changed during a recording.

Buffers and frozen parameters are compared at each step if torch counts them as written, and by value at audited steps
and at the end. At the end the recorder also compares the names of parameters and buffers, and the plain attributes of
modules of the script's own classes, such as running averages outside of buffers. Audited steps compare the numbers of
layers of torch, such as the rate of a dropout.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from dpspec_recording.fingerprints import digest, readable_digest, tensor_digest
from dpspec_recording.shards import local
from dpspec_recording.watching.moving_buffers import MovingBuffers
from dpspec_recording.watching.rounding import BlockSums

#: Attributes of every module: its parts, which are compared separately, its hooks, and its mode.
_OF_EVERY_MODULE = {*vars(nn.Module()), "_forward_hooks_with_kwargs"}

#: Packages whose modules keep no records in attributes.
_LIBRARIES = ("torch", "opacus", "builtins", "abc", "typing")

#: Attributes in which Opacus keeps the last batch of any layer.
OF_OPACUS = frozenset(("activations", "max_batch_len", "norm_sample"))

#: Types of attributes that are compared.
_VALUES = (Tensor, int, float, list, tuple, dict)

#: Bytes of a tensor that an audited step reads on average at most.
_READ = 2**20

#: Largest number of names that are written of each kind.
_MOST_NAMES = 20


class ModuleValues:
    def __init__(self, model: nn.Module, trained: Sequence[Tensor]) -> None:
        self._model, self._trained = model, {id(p) for p in trained}
        self._random = random.SystemRandom()
        self._digests = {name: tensor_digest(tensor) for name, _, tensor in self._named_tensors()}
        self._places = {name: holder for name, holder, _ in self._named_tensors()}
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._attributes = dict(self._held_attributes())
        self._options, self._moved_options = dict(self._layer_options()), set[str]()
        self._versions: dict[str, tuple[Any, ...]] = {}
        self._sums = {
            name: BlockSums(tensor)
            for name in self._places
            if isinstance(tensor := self._tensor(name), nn.Parameter) and BlockSums.is_kept(tensor)
        }
        self._changed, self._replaced, self._rounded = set[str](), set[str](), set[str]()
        self.moving = MovingBuffers(model)
        self._moving = set[str]()

    def digest(self) -> str:
        """Of buffers and frozen parameters at the beginning."""
        return digest(self._digests)

    def compare(self, *, audited: bool) -> None:
        """Compare buffers and frozen parameters that torch counts as written; if ``audited`` also others by value."""
        if audited:
            self._compare_names()
            self._compare_options()
        moved = set[str]()
        for name, (holder, key) in self._places.items():
            tensor = holder.get(key)
            if name in self._changed or not isinstance(tensor, Tensor):
                continue
            rows = local(tensor)
            version = id(rows), -1 if rows.is_inference() else rows._version, rows.shape
            read = audited and self._random.random() * tensor.nbytes < _READ
            if read or self._versions.get(name) != version:
                self._versions[name] = version
                if tensor_digest(tensor) != self._digests[name]:
                    (self._rounded if self._is_rounded(name) else moved).add(name)
        moving = moved - self._changed
        if moving:
            if not moving <= self._moving or audited:
                explained = {name for name in moving if self.moving.reads_no_record([name])}
                self._changed |= moving - explained
                self._moving |= explained
            self.moving.keep()

    def changed(self) -> dict[str, list[str]]:
        """Names of changed, new and removed values, at most 20 of each kind.

        Returns:
            ``buffers``: buffers in ``state_dict()`` and frozen parameters, at any step. ``state``: names of other
            parameters than at the beginning. ``attributes``: other buffers, and attributes of modules. ``rounded``:
            frozen parameters that changed by rounding alone; ``coarse``: by rounding of half precision.
            ``unread``: buffers that moved without reading a record. ``options``: numbers of layers of torch, at any
            audited step.
        """
        digests = {name: tensor_digest(tensor) for name, _, tensor in self._named_tensors()}
        different = _different(digests, self._digests)
        unread = {name for name in (self._moving & different) - self._changed if self._is_settled(name)}
        different -= unread
        rounded = {name for name in different if self._is_rounded(name)}
        changed, attributes = (different - rounded) | self._changed, dict(self._held_attributes())
        unsaved = set(self._unsaved_buffers())
        self._compare_names()
        self._compare_options()
        within = (rounded | self._rounded) - changed
        names = {
            "buffers": changed - unsaved,
            "state": self._replaced,
            "attributes": _different(attributes, self._attributes) | (changed & unsaved),
            "unread": unread,
            "options": self._moved_options,
            "rounded": {name for name in within if not self._sums[name].is_coarse},
            "coarse": {name for name in within if self._sums[name].is_coarse},
        }
        return {
            kind: sorted(name[:100] for name in changed_names)[:_MOST_NAMES] for kind, changed_names in names.items()
        }

    def _is_rounded(self, name: str) -> bool:
        """Whether a tensor, which differs from the beginning, is a frozen parameter that differs by rounding alone."""
        tensor, sums = self._tensor(name), self._sums.get(name)
        return sums is not None and tensor is not None and sums.differ_by_rounding(tensor)

    def _is_settled(self, name: str) -> bool:
        """Whether a buffer has the value that the last pass of a step left."""
        tensor = self._tensor(name)
        return tensor is not None and self.moving.is_kept(name, tensor)

    def _tensor(self, name: str) -> Tensor | None:
        """The tensor that has this name now."""
        holder, key = self._places.get(name, ({}, ""))
        tensor = holder.get(key)
        return tensor if isinstance(tensor, Tensor) else None

    def _compare_names(self) -> None:
        """Compare the parameter of each name: the order of equal layers may depend on a record."""
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        both = self._parameters.keys() | parameters.keys()
        self._replaced |= {name for name in both if parameters.get(name) is not self._parameters.get(name)}

    def _compare_options(self) -> None:
        """Compare the numbers of layers of torch with those at the beginning: a loss may decide a rate of dropout."""
        options = dict(self._layer_options())
        both = self._options.keys() | options.keys()
        self._moved_options |= {name for name in both if options.get(name) != self._options.get(name)}

    def _named_tensors(self) -> Iterator[tuple[str, tuple[dict[str, Any], str], Tensor]]:
        """Buffers, and parameters that are not trained: the name, where the module holds it, and the tensor."""
        visited = set(self._trained)
        for prefix, module in self._model.named_modules():
            for holder in (module._parameters, module._buffers):
                for key, tensor in holder.items():
                    if tensor is not None and id(tensor) not in visited:
                        visited.add(id(tensor))
                        yield f"{prefix}.{key}" if prefix else key, (holder, key), tensor

    def _unsaved_buffers(self) -> Iterator[str]:
        """The names of the buffers that ``state_dict()`` omits."""
        for prefix, module in self._model.named_modules():
            for key in module._non_persistent_buffers_set:
                yield f"{prefix}.{key}" if prefix else key

    def _layer_options(self) -> Iterator[tuple[str, float]]:
        """The numbers in attributes of modules of libraries, by name; not switches (bool)."""
        for prefix, module in self._model.named_modules():
            if _is_of_library(module):
                for key, value in vars(module).items():
                    is_number = isinstance(value, int | float) and not isinstance(value, bool)
                    if is_number and key not in _OF_EVERY_MODULE | OF_OPACUS:
                        yield f"{prefix}.{key}" if prefix else key, value

    def _held_attributes(self) -> Iterator[tuple[str, str]]:
        """Digests of the attributes of modules whose class is the script's own, by name; not of switches (bool)."""
        for prefix, module in self._model.named_modules():
            if _is_of_library(module):
                continue
            for key, value in vars(module).items():
                is_compared = isinstance(value, _VALUES) and not isinstance(value, bool)
                if is_compared and key not in _OF_EVERY_MODULE | OF_OPACUS:
                    yield f"{prefix}.{key}" if prefix else key, readable_digest(value)


def _is_of_library(module: nn.Module) -> bool:
    return all(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(module).__mro__)


def _different(now: dict[str, str], before: dict[str, str]) -> set[str]:
    return {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
