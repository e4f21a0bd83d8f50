"""What a model holds apart from its trained parameters, and whether it changed during a recording.

Buffers and frozen parameters are compared at each step, and with everything else at the end: the attributes of all
modules, and the entries of ``state_dict()``, extra state included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.side_state.digests import digest

#: Attributes of every module: its parts, which are compared apart, its hooks, and its mode.
_OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook", "_compiled_call_impl", "_forward_hooks_with_kwargs"}

#: What Opacus keeps of a batch while it computes gradients.
_OF_OPACUS = {
    *("trainable_parameters", "_per_sample_gradient_norms", "per_sample_gradient_norms", "autograd_grad_sample_hooks"),
    *("hooks_enabled", "grad_accumulation_allowed", "grad_accumulation_hook", "ddp_hooks"),
}
_OF_PARAMETERS = {"grad_sample", "summed_grad", "_forward_counter", "_norm_sample"}

#: Stands for a value that cannot be compared.
_UNREAD = ""

#: At most so many names are written of each kind.
_MOST_NAMES = 20


class ModelState:
    """Compares the state of a model with the one at the beginning; nothing is written to it."""

    def __init__(self, model: nn.Module, trained: Sequence[Tensor]) -> None:
        """Digest everything. ``trained``: the parameters that are observed step by step, which are no part of it."""
        self._model, self._trained = model, {id(p) for p in trained}
        self._tensors = self._held_tensors()
        self._attributes, self._state = self._held_attributes(), self._held_state()
        self._places = {name: place for name, place, _ in self._named_tensors()}
        self._versions: dict[str, tuple[Any, ...]] = {}
        self._moved: set[str] = set()

    def look(self) -> None:
        """The parameters are about to be moved: compare the buffers and frozen parameters that were written to."""
        for name, (holder, key) in self._places.items():
            tensor = holder.get(key)
            if name in self._moved or not isinstance(tensor, Tensor):
                continue
            version = id(tensor), _version(tensor), tensor.shape
            if self._versions.get(name) != version:
                self._versions[name] = version
                if _tensor_digest(tensor) != self._tensors[name]:
                    self._moved.add(name)

    def changed(self) -> dict[str, list[str]]:
        """Names of what is not what it was, is new or is gone, at most 20 of each kind.

        Returns:
            ``buffers``: buffers and frozen parameters, at any step. ``state``: other entries of ``state_dict()``.
            ``attributes``: attributes of modules that are in no ``state_dict()``. ``unread``: what is too large to be
            compared, or cannot be read.
        """
        attributes, state = self._held_attributes(), self._held_state()
        both = ((attributes, self._attributes), (state, self._state))
        unread = [name for now, before in both for name in now if _UNREAD in (now[name], before.get(name))]
        found = {
            "buffers": _different(self._held_tensors(), self._tensors) | self._moved,
            "state": _different(state, self._state),
            "attributes": _different(attributes, self._attributes),
            "unread": set(unread),
        }
        return {kind: sorted(name[:100] for name in names)[:_MOST_NAMES] for kind, names in found.items()}

    def _named_tensors(self) -> Iterator[tuple[str, tuple[dict[str, Any], str], Tensor]]:
        """Buffers, and parameters that are not trained: the name, where the module holds it, and the tensor."""
        seen = set(self._trained)
        for prefix, module in self._model.named_modules():
            for holder in (module._parameters, module._buffers):
                for key, tensor in holder.items():
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield f"{prefix}.{key}" if prefix else key, (holder, key), tensor

    def _held_tensors(self) -> dict[str, str]:
        return {name: _tensor_digest(tensor) for name, _, tensor in self._named_tensors()}

    def _held_attributes(self) -> dict[str, str]:
        modules = dict(self._model.named_modules())
        parts = [*self._model.parameters(), *self._model.buffers(), *modules.values()]
        skip = self._trained | {id(part) for part in parts}
        found = {}
        for prefix, module in modules.items():
            for key, value in list(vars(module).items()):
                if not _is_known(module, key, value):
                    found[f"{prefix}.{key}" if prefix else key] = _digest(value, skip)
        for name, parameter in self._model.named_parameters():
            for key, value in list(vars(parameter).items()):
                if key not in _OF_PARAMETERS:
                    found[f"{name}.{key}"] = _digest(value, skip)
        return found

    def _held_state(self) -> dict[str, str]:
        """Entries of ``state_dict()`` that are neither parameters nor buffers."""
        known = self._trained | {id(tensor) for tensor in [*self._model.parameters(), *self._model.buffers()]}
        try:
            entries = dict(self._model.state_dict(keep_vars=True))
        except Exception:  # code of the model, whose faults are the script's to see
            return {"state_dict()": _UNREAD}
        return {str(name): _digest(value, known) for name, value in entries.items() if id(value) not in known}


def _is_known(module: nn.Module, key: str, value: Any) -> bool:
    """Whether an attribute is one of torch's or Opacus' own, which holds no record after a step."""
    of_a_batch = {"activations": isinstance(value, list) and not value, "max_batch_len": type(value) is int}
    if key in _OF_EVERY_MODULE or of_a_batch.get(key, False):
        return True
    return key in _OF_OPACUS and type(module).__module__.partition(".")[0] == "opacus"


def _digest(value: Any, skip: set[int]) -> str:
    try:
        return digest(value, skip)
    except Exception:  # code of the value's own class
        return _UNREAD


def _different(now: dict[str, str], before: dict[str, str]) -> set[str]:
    return {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}


def _version(tensor: Tensor) -> int:
    """A number that grows whenever the tensor is written to; the same of all inference tensors."""
    return -1 if tensor.is_inference() else tensor._version


def _tensor_digest(tensor: Tensor) -> str:
    """Of type, shape and bytes."""
    plain = tensor.detach()
    plain = plain if plain.layout == torch.strided and not plain.is_quantized else plain.to_dense()
    rows = plain.cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + rows.numpy().tobytes()).hexdigest()
