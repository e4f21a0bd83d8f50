"""Weights that a client of a federation received from its server, compared with the model that it trains on."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec_recording.fingerprints import tensor_digest
from dpspec_recording.recognized import inner_module
from dpspec_recording.released_model import tensors_of_state


class ReceivedWeights:
    """A server's message: tensors or arrays by name, or in the order of ``state_dict()``."""

    def __init__(self, weights: Mapping[str, Any] | Iterable[Any]) -> None:
        """Raises ``UsageError`` for values other than tensors or arrays."""
        named = isinstance(weights, Mapping)
        items = dict(weights) if isinstance(weights, Mapping) else dict(enumerate(weights))
        try:
            tensors = {name: torch.as_tensor(value).detach().clone() for name, value in items.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"received must be the tensors or arrays that the server sent: {error}") from None
        self._by_name = {_plain(str(name)): tensor for name, tensor in tensors.items()} if named else None
        self._in_order = list(tensors.values())

    def are_in(self, model: nn.Module) -> bool:
        """Whether each tensor in the model's ``state_dict()`` has exactly the received values."""
        tensors = {_plain(name): tensor for name, tensor in tensors_of_state(inner_module(model)).items()}
        if self._by_name is None:
            order = list(map(_plain, inner_module(model).state_dict()))
            sent = dict(zip(order, self._in_order, strict=False)) if len(order) == len(self._in_order) else {}
        else:
            sent = self._by_name
        return bool(tensors) and all(name in sent and _equal(tensor, sent[name]) for name, tensor in tensors.items())


class LoadedTensors:
    """Digests of the tensors that ``load_state_dict`` filled last, as long as these exist."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def note(self, module: nn.Module, state: Collection[str]) -> None:
        """Note the tensors of a module into which the script has loaded weights. state: the names of these weights."""
        self._by_id = {number: entry for number, entry in self._by_id.items() if entry[0]() is not None}
        for name, tensor in tensors_of_state(module).items():
            if name in state:  # strict=False leaves others as they were
                self._by_id[id(tensor)] = weakref.ref(tensor), tensor_digest(tensor)
            else:
                self._by_id.pop(id(tensor), None)

    def are_in(self, model: nn.Module) -> bool:
        """Whether each tensor in the model's ``state_dict()`` has the values that were loaded into it."""
        tensors = tensors_of_state(inner_module(model)).values()
        return bool(tensors) and all(self._is_loaded(tensor) for tensor in tensors)

    def _is_loaded(self, tensor: Tensor) -> bool:
        reference, digest = self._by_id.get(id(tensor), (lambda: None, ""))
        return reference() is tensor and digest != "" and digest == tensor_digest(tensor)


def _equal(tensor: Tensor, sent: Tensor) -> bool:
    return sent.shape == tensor.shape and torch.equal(sent.to(tensor.dtype).cpu(), tensor.detach().cpu())


def _plain(name: str) -> str:
    return name.removeprefix("_module.").replace("_orig_mod.", "")
