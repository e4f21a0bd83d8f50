"""The state of a model apart from its trained parameters, and whether it changed during a recording.

Buffers, frozen parameters and the names of parameters are compared in passes, at each step, and with everything else
at the end: the classes and attributes of all modules, the names, order, attributes and layout of the entries of
``state_dict()``, extra state and metadata, and the bytes of storages that no parameter or buffer uses, which
``torch.save`` writes.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import MOST_BYTES, UNREAD, digest, readable_digest, sparse_parts, tensor_digest
from dpspec.recording.ranks.shards import local
from dpspec.recording.recognized import inner_module, is_fsdp2, is_registered

#: Attributes of every module: its parts, which are compared separately, its hooks, and its mode.
_OF_EVERY_MODULE = {*vars(nn.Module()), "_is_full_backward_hook", "_compiled_call_impl", "_forward_hooks_with_kwargs"}

#: The mark that accelerate sets on models that it prepared.
_OF_ACCELERATE = "_is_accelerate_prepared"

#: Attributes of Opacus that hold a batch while it computes gradients.
_OF_OPACUS = {
    *("trainable_parameters", "_per_sample_gradient_norms", "per_sample_gradient_norms", "autograd_grad_sample_hooks"),
    *("hooks_enabled", "grad_accumulation_allowed", "grad_accumulation_hook", "ddp_hooks"),
}
#: Attributes of torch's wrapper for several processes that change at its first passes, or by ``no_sync``.
_OF_PROCESSES = {
    *("_has_rebuilt_buckets", "_lazy_init_ran", "require_forward_param_sync", "require_backward_grad_sync"),
    "_static_graph_delay_allreduce_enqueued",
}

#: Attributes of the modules of a sharded model that hold FSDP2's state, and of its layers, what Opacus keeps of the
#: last batch.
_OF_FSDP2 = ("STATE_KEY", "REGISTRY_KEY")
_OF_SHARDS = {"_forward_counter", "norm_sample", "ft_compute_sample_grad"}
#: Attributes of the wrapper that ``torch.compile`` returns, which its first passes change.
_OF_COMPILED = {"dynamo_ctx", "forward", "get_compiler_config"}

_OF_PARAMETERS = {"grad_sample", "summed_grad", "_forward_counter", "_norm_sample"}

#: The attribute that torch.compile adds to parameters, with its values.
_OF_COMPILER = {"_dynamo_static_input_type": ("guarded", "unguarded")}

#: Bytes of a tensor in a pass that are read on average at most.
_READ = 2**20

#: Largest number of names that are written of each kind.
_MOST_NAMES = 20


class ModelState:
    def __init__(self, model: nn.Module, trained: Sequence[Tensor]) -> None:
        self._model, self._trained = model, {id(p) for p in trained}
        self._tensors = self._held_tensors()
        # Kept so that no id is used again.
        self._kinds = [(type(module), type(module).forward) for module in model.modules()]
        self._attributes, self._state = self._held_attributes(), self._held_state()
        self._places = {name: place for name, place, _ in self._named_tensors()}
        self._shards = {name: tensor for name, _, tensor in self._named_tensors() if local(tensor) is not tensor}
        self._named = dict(model.named_parameters(remove_duplicate=False))
        self._holders = [(module, module._modules, module._parameters) for module in model.modules()]
        holders = [holder for _, parts, own in self._holders for holder in (parts, own)]
        self._tree = [(holder, key, part) for holder in holders for key, part in holder.items()]
        self._renamed: set[str] = set()
        self._versions: dict[str, tuple[Any, ...]] = {}
        self._moved: set[str] = set()

    def digest(self) -> str:
        """Of buffers and frozen parameters at the beginning, and of other entries of ``state_dict()``."""
        return digest([self._tensors, self._state])

    def before_step(self) -> None:
        self.compare_names()
        self.compare_tensors()

    def compare_tensors(self, *, in_pass: bool = False) -> None:
        """Compare buffers and frozen parameters that torch counts as written, in a pass also a random one."""
        drawn = random.SystemRandom().choice(list(self._places)) if in_pass and self._places else None
        for name, (holder, key) in self._places.items():
            # FSDP2 replaces its shards in a pass
            tensor = self._shards[name] if in_pass and name in self._shards else holder.get(key)
            if name in self._moved or not isinstance(tensor, Tensor):
                continue
            own = local(tensor)
            version = id(own), -1 if own.is_inference() else own._version, own.shape
            read = name == drawn and random.SystemRandom().random() * tensor.nbytes < _READ
            if read or self._versions.get(name) != version:
                self._versions[name] = version
                if tensor_digest(tensor) != self._tensors[name]:
                    self._moved.add(name)

    def compare_names(self, *, in_pass: bool = False) -> None:
        """Compare the parameter of each name: the order of equal layers may depend on a record.

        in_pass: whether the model computes now. Other parameters than at the beginning are not counted then, because
        ``torch.func`` and FSDP2 replace parameters during a pass.
        """
        same = all(module._modules is parts and module._parameters is own for module, parts, own in self._holders)
        if same and all(holder.get(key) is part for holder, key, part in self._tree):
            return
        known, now = set(map(id, self._named.values())), dict(self._model.named_parameters(remove_duplicate=False))
        other = {name: now.get(name) for name, parameter in self._named.items() if now.get(name) is not parameter}
        self._renamed |= {name for name, found in other.items() if not in_pass or id(found) in known}

    def changed(self) -> dict[str, list[str]]:
        """Names of changed, new and removed values, at most 20 of each kind.

        Returns:
            ``buffers``: buffers and frozen parameters, at any step. ``state``: other entries of ``state_dict()``, names
            of other parameters than at the beginning, at any step, and unused parts of storages. ``attributes``:
            attributes and buffers that are in no ``state_dict()``, and classes. ``unread``: values that are too large
            or cannot be read.
        """
        attributes, state = self._held_attributes(), self._held_state()
        self.compare_names()
        moved, unsaved = _different(self._held_tensors(), self._tensors) | self._moved, self._unsaved_buffers()
        both = ((attributes, self._attributes), (state, self._state))
        unread = [name for now, before in both for name in now if UNREAD in (now[name], before.get(name))]
        found = {
            "buffers": moved - unsaved,
            "state": _different(state, self._state) | self._renamed,
            "attributes": _different(attributes, self._attributes) | (moved & unsaved),
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

    def _unsaved_buffers(self) -> set[str]:
        """The names of the buffers that ``state_dict()`` omits."""
        return {
            f"{prefix}.{key}" if prefix else key
            for prefix, module in self._model.named_modules()
            for key in set(module._non_persistent_buffers_set) - module._parameters.keys()
        }

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
                if not (_is_known(module, key, value) or (sharded and _is_of_shards(module, key))):
                    found[f"{prefix}.{key}" if prefix else key] = readable_digest(value, skip)
        for name, parameter in self._model.named_parameters():
            for key, value in list(vars(parameter).items()):
                if key not in _OF_PARAMETERS and value not in _OF_COMPILER.get(key, ()):
                    found[f"{name}.{key}"] = readable_digest(value, skip)
        return found

    def _held_state(self) -> dict[str, str]:
        """What ``torch.save(state_dict())`` writes, except for the numbers of parameters and buffers."""
        levels = (self._model, getattr(self._model, "_module", None), inner_module(self._model))
        models = {id(model): model for model in levels if isinstance(model, nn.Module)}.values()
        try:
            states = [(type(model).__name__, model.state_dict()) for model in models]
        except Exception:  # code of the model, whose faults are the script's to see
            return {"state_dict()": UNREAD}
        unsaved, buffers = self._unsaved_buffers(), self._model.named_buffers()  # state_dict() can replace them
        named = [*self._model.named_parameters(), *(one for one in buffers if one[0] not in unsaved)]
        tensors = [part for name, tensor in named for part in _named_parts(name, local(tensor))]
        shown = {_place(tensor): name for name, tensor in reversed(tensors) if not tensor.is_quantized}
        found: list[tuple[str, str]] = []
        for model, entries in states:
            kind = type(entries)
            found.append(("order of state_dict()", readable_digest([kind.__module__, kind.__qualname__, *entries])))
            for key, value in entries.items():
                name = shown.get(_place(local(value))) if isinstance(value, Tensor) else None
                if isinstance(value, Tensor) and name is None:
                    tensors += _named_parts(f"{model}.state_dict().{key}", local(value))
                found.append((str(key), _described(value, name)))
            for attribute, value in getattr(entries, "__dict__", {}).items():
                found.append((f"state_dict().{attribute}", readable_digest(value)))
        together: dict[str, list[str]] = {}
        for name, content in [*found, *_unused_bytes(tensors), *_layouts(tensors)]:
            together.setdefault(name, []).append(content)
        return {name: UNREAD if UNREAD in contents else " ".join(contents) for name, contents in together.items()}


def _described(value: Any, shown: str | None) -> str:
    """The digest of an entry of ``state_dict()``; with ``shown``, the parameter that it shows, without its numbers."""
    if not isinstance(value, Tensor):
        return readable_digest(value)
    kind, own = type(value), local(value)
    flags = own.is_neg(), own.is_conj(), value.requires_grad
    content = value if shown is None else shown
    return readable_digest([content, kind.__module__, kind.__qualname__, flags, vars(value), vars(own)])


def _named_parts(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    parts = sparse_parts(tensor)
    return [(name, tensor)] if len(parts) == 1 else [(f"{name}[{i}]", part) for i, part in enumerate(parts)]


def _is_of_shards(module: nn.Module, key: str) -> bool:
    contract = sys.modules.get("torch.distributed._composable.contract")
    if key in [getattr(contract, name, None) for name in _OF_FSDP2]:
        return True
    return key in _OF_SHARDS and any(p is not None and p.requires_grad for p in module._parameters.values())


def _is_known(module: nn.Module, key: str, value: Any) -> bool:
    if isinstance(value, MethodType) and str(value.__func__.__module__).startswith("dpspec.recording."):
        return True  # the recorder's own, while it records
    if key == _OF_ACCELERATE and type(value) is bool:
        return True
    if key in _OF_EVERY_MODULE or (key == "activations" and type(value) is list and not value):
        return True
    package = type(module).__module__ if is_registered(type(module)) else ""
    if package == "torch.nn.parallel.distributed":
        return key in _OF_PROCESSES
    if package == "torch._dynamo.eval_frame":
        return key in _OF_COMPILED
    of_opacus = key in _OF_OPACUS or (key == "max_batch_len" and type(value) is int)
    return of_opacus and package.partition(".")[0] == "opacus"


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


def _layouts(tensors: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """The layout of each tensor in its storage, and the first tensor in the same storage."""
    first: dict[int, str] = {}
    for name, tensor in tensors:
        storage = _storage(tensor)
        sharing = None if storage is None else first.setdefault(storage._cdata, name)
        yield f"layout of {name}", f"{sharing} {_place(tensor)[1:]}"


def _unused_bytes(tensors: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Digests of the bytes of storages that belong to none of the tensors, by the first name of each storage."""
    sharing: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        if (storage := _storage(tensor)) is not None:
            sharing.setdefault(storage.data_ptr(), []).append((name, tensor.detach()))
    for together in sharing.values():
        first, one = together[0]
        size = one.untyped_storage().nbytes()
        if any(t.is_contiguous() and t.numel() * t.element_size() == size for _, t in together):
            continue
        if size > MOST_BYTES:
            yield f"storage of {first}", UNREAD
            continue
        content = torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage()).cpu()
        unused = torch.ones(size, dtype=torch.bool)
        for _, tensor in together:
            width = tensor.element_size()
            for byte in unused[: size - size % width].view(-1, width).unbind(1):
                strides = [width * stride for stride in tensor.stride()]
                start = byte.storage_offset() + width * tensor.storage_offset()
                byte.as_strided(tensor.shape, strides, start).fill_(False)
        if unused.any():
            yield f"storage of {first}", tensor_digest(content[unused])
