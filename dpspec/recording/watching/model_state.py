"""The state of a model apart from its trained parameters, and whether it changed during a recording.

Buffers and frozen parameters are compared at each step, and with everything else at the end: the classes and attributes
of all modules, the entries of ``state_dict()`` with extra state and metadata, and the bytes of storages that no
parameter or buffer uses, which ``torch.save`` writes nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import MOST_BYTES, UNREAD, digest, readable_digest, tensor_digest
from dpspec.recording.ranks.shards import local
from dpspec.recording.recognized import is_fsdp2

#: Attributes of every module: its parts, which are compared separately, its hooks, and its mode.
_OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook", "_compiled_call_impl", "_forward_hooks_with_kwargs"}

#: Attributes of Opacus that hold a batch while it computes gradients.
_OF_OPACUS = {
    *("trainable_parameters", "_per_sample_gradient_norms", "per_sample_gradient_norms", "autograd_grad_sample_hooks"),
    *("hooks_enabled", "grad_accumulation_allowed", "grad_accumulation_hook", "ddp_hooks"),
}
#: Attributes of torch's wrapper for several processes that change at its first passes.
_OF_PROCESSES = {"_has_rebuilt_buckets", "_lazy_init_ran"}

#: Attributes of the modules of a sharded model: the state of FSDP2, and what Opacus keeps of the last batch.
_OF_SHARDS = ("__composable_api_state_key", "_forward_counter", "norm_sample", "ft_compute_sample_grad")
#: Attributes of the wrapper that ``torch.compile`` returns, which its first passes change.
_OF_COMPILED = {"dynamo_ctx", "forward", "get_compiler_config"}

_OF_PARAMETERS = {"grad_sample", "summed_grad", "_forward_counter", "_norm_sample"}

#: The attribute that torch.compile adds to parameters, with its values.
_OF_COMPILER = {"_dynamo_static_input_type": ("guarded", "unguarded")}

#: Largest number of names that are written of each kind.
_MOST_NAMES = 20


class ModelState:
    def __init__(self, model: nn.Module, trained: Sequence[Tensor]) -> None:
        self._model, self._trained = model, {id(p) for p in trained}
        self._tensors = self._held_tensors()
        self._kinds = [
            (type(module), type(module).forward) for module in model.modules()
        ]  # so that no id is used again
        self._attributes, self._state = self._held_attributes(), self._held_state()
        self._places = {name: place for name, place, _ in self._named_tensors()}
        self._versions: dict[str, tuple[Any, ...]] = {}
        self._moved: set[str] = set()

    def digest(self) -> str:
        """Of buffers and frozen parameters at the beginning, and of other entries of ``state_dict()``."""
        return digest([self._tensors, self._state])

    def before_step(self) -> None:
        for name, (holder, key) in self._places.items():
            tensor = holder.get(key)
            if name in self._moved or not isinstance(tensor, Tensor):
                continue
            version = id(tensor), -1 if tensor.is_inference() else tensor._version, tensor.shape
            if self._versions.get(name) != version:
                self._versions[name] = version
                if tensor_digest(tensor) != self._tensors[name]:
                    self._moved.add(name)

    def changed(self) -> dict[str, list[str]]:
        """Names of changed, new and removed values, at most 20 of each kind.

        Returns:
            ``buffers``: buffers and frozen parameters, at any step. ``state``: other entries of ``state_dict()``, and
            unused parts of storages. ``attributes``: attributes of modules that are in no ``state_dict()``, and
            classes. ``unread``: values that are too large or cannot be read.
        """
        attributes, state = self._held_attributes(), self._held_state()
        both = ((attributes, self._attributes), (state, self._state))
        unread = [name for now, before in both for name in now if UNREAD in (now[name], before.get(name))]
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
        return {name: tensor_digest(tensor) for name, _, tensor in self._named_tensors()}

    def _held_attributes(self) -> dict[str, str]:
        modules = dict(self._model.named_modules())
        sharded = any(map(is_fsdp2, modules.values()))
        parts = [*self._model.parameters(), *self._model.buffers(), *modules.values()]
        skip = self._trained | {id(part) for part in parts}
        found = {}
        for prefix, module in modules.items():
            kind = type(module)
            found[f"class of {prefix or 'the model'}"] = f"{id(kind)} {id(getattr(kind.forward, '__code__', None))}"
            for key, value in list(vars(module).items()):
                if not (_is_known(module, key, value) or (sharded and key.startswith(_OF_SHARDS))):
                    found[f"{prefix}.{key}" if prefix else key] = readable_digest(value, skip)
        for name, parameter in self._model.named_parameters():
            for key, value in list(vars(parameter).items()):
                if key not in _OF_PARAMETERS and value not in _OF_COMPILER.get(key, ()):
                    found[f"{name}.{key}"] = readable_digest(value, skip)
        return found

    def _held_state(self) -> dict[str, str]:
        """The values that ``torch.save(state_dict())`` writes, other than parameters and buffers."""
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        tensors: dict[str, Tensor] = {name: local(tensor) for name, tensor in named}
        places = {_place(tensor) for tensor in tensors.values()}
        found = _unused_bytes(tensors)
        found |= {f"layout of {name}": str(_place(tensor)[2:]) for name, tensor in tensors.items()}
        for model in (self._model, getattr(self._model, "_module", None)):
            if not isinstance(model, nn.Module):
                continue
            try:
                entries = model.state_dict()
            except Exception:  # code of the model, whose faults are the script's to see
                return {**found, "state_dict()": UNREAD}
            for name, value in entries.items():
                if not isinstance(value, Tensor) or _place(local(value)) not in places:
                    found[str(name)] = readable_digest(value)
            for name, value in vars(entries).items():
                found[f"state_dict().{name}"] = readable_digest(value)
        return found


def _is_known(module: nn.Module, key: str, value: Any) -> bool:
    of_a_batch = {"activations": isinstance(value, list) and not value, "max_batch_len": type(value) is int}
    if isinstance(value, MethodType) and str(value.__func__.__module__).startswith("dpspec.recording."):
        return True  # the recorder's own, while it records
    if key in _OF_EVERY_MODULE or of_a_batch.get(key, False):
        return True
    package = type(module).__module__
    if package == "torch.nn.parallel.distributed":
        return key in _OF_PROCESSES
    if package == "torch._dynamo.eval_frame":
        return key in _OF_COMPILED
    return key in _OF_OPACUS and package.partition(".")[0] == "opacus"


def _different(now: dict[str, str], before: dict[str, str]) -> set[str]:
    return {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    if tensor.is_meta or tensor.layout != torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors with the same view of the same memory."""
    storage = _storage(tensor)
    if storage is None:
        return (id(tensor),)
    return storage.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _unused_bytes(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Digests of the bytes of storages that belong to none of the tensors, by the first name of each storage."""
    sharing: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if (storage := _storage(tensor)) is not None:
            sharing.setdefault(storage.data_ptr(), {})[name] = tensor.detach()
    found = {}
    for together in sharing.values():
        first, one = next(iter(together.items()))
        size = one.untyped_storage().nbytes()
        if any(t.is_contiguous() and t.numel() * t.element_size() == size for t in together.values()):
            continue
        if size > MOST_BYTES:
            found[f"storage of {first}"] = UNREAD
            continue
        content = torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage()).cpu()
        unused = torch.ones(size, dtype=torch.bool)
        for tensor in together.values():
            width = tensor.element_size()
            for byte in unused[: size - size % width].view(-1, width).unbind(1):
                strides = [width * stride for stride in tensor.stride()]
                start = byte.storage_offset() + width * tensor.storage_offset()
                byte.as_strided(tensor.shape, strides, start).fill_(False)
        if unused.any():
            found[f"storage of {first}"] = tensor_digest(content[unused])
    return found
