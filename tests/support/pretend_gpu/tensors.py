"""Tensors of a simulated GPU with numbers in main memory; the CPU computes their operations after checks and counts.

In C++ their device is ``PrivateUse1``, which torch reserves for external backends. Autograd, functorch and views
therefore do not treat them as CPU tensors. Operations are dispatched here below all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from support.pretend_gpu.cards import Card, Lease

#: Operations that synchronize, because the host needs a shape or an error code.
WAITING = {
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "histc", "equal"),
    *("is_nonzero", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq", "multinomial"),
}

#: Operations that accept a CPU scalar as all pointwise ones do, and pointwise ones whose kernels reject one.
NUMBERS_TOO = {"where", "fill", "masked_fill"}
NO_NUMBERS = {"logaddexp", "logaddexp2", "clamp", "clamp_min", "clamp_max", "lerp", "polar", "complex"}

#: Tensor cores compute these, with float32 rounded to TF32 if that is enabled.
PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "addmv", "addbmm", "baddbmm"}
CONVOLUTIONS = {"convolution", "convolution_backward"}

#: Operations that need a generator on their device.
DRAWING = {
    *("rand", "randn", "randint", "randperm", "normal", "uniform", "exponential", "bernoulli", "random", "poisson"),
    *("multinomial", "rand_like", "randn_like", "randint_like", "cauchy", "geometric", "log_normal"),
}

INDEXING = {"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"}

#: The device of such tensors in C++.
SLOT = "pretended"


#: The current machine, at most one.
MACHINES: list[Any] = []

#: Generators of cards, by the address of their C++ object.
GENERATORS: WeakValueDictionary[int, CardGenerator] = WeakValueDictionary()


class CardGenerator(torch.Generator):
    """A card's generator with the draws of the CPU for the same seed."""

    def __new__(cls, card: Card) -> CardGenerator:
        made = super().__new__(cls, device="cpu")
        made.card = card
        GENERATORS[made._cdata] = made
        return made

    def __init__(self, card: Card) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(self.card.name)


class GpuTensor(torch.Tensor):
    """A tensor that reports the device ``card``, with its ``numbers`` on the CPU."""

    numbers: Tensor
    card: Card
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor, card: Card) -> GpuTensor:
        lease = Lease(card, numbers.untyped_storage(), forced=_machine().pending is not None)
        made = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(SLOT, card.index),
        )
        made.numbers, made.card, made.lease = numbers, card, lease
        return made

    def __init__(self, numbers: Tensor, card: Card) -> None:
        pass

    device = property(lambda self: torch.device(self.card.name))  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return self.card.index

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.card.name} device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:  # type: ignore[override]
        return self.numbers.untyped_storage()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, GpuTensor) or (other.shape, other.dtype) != (self.shape, self.dtype):
            raise RuntimeError("a pretended tensor takes over one of its own device, shape and type alone")
        self.numbers, self.card, self.lease = other.numbers, other.card, other.lease

    def __deepcopy__(self, known: dict[int, Any]) -> Tensor:
        made = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made)
        known[id(self)] = made.requires_grad_(self.requires_grad)
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.numbers!r} on {self.card.name}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Dispatches operations without a GPU tensor as argument: factories and CPU operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def on_a_card(device: object) -> bool:
    """Whether a device belongs to the machine, by either name."""
    return device is not None and torch.device(device).type in ("cuda", SLOT)  # type: ignore[arg-type]


def run(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run an operation as CUDA does. Errors within a backward pass are raised after the pass."""
    try:
        return _done(func, args, kwargs)
    except RuntimeError as error:
        if torch._C._current_graph_task_id() < 0:
            raise
        machine = _machine()
        machine.pending = machine.pending or error
        cards = [t.card for t in _tensors(args, kwargs) if isinstance(t, GpuTensor)] or machine.cards
        return _wrapped(func, args, kwargs, _computed(func, args, kwargs), cards[0])


def _done(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = func.overloadpacket.__name__.rstrip("_")
    tensors = _tensors(args, kwargs)
    if not on_a_card(kwargs.get("device")) and not any(isinstance(t, GpuTensor) for t in tensors):
        _check_generator(name, args, kwargs, "cpu")
        return func(*args, **kwargs)
    account = _machine().account
    if name == "_to_copy":
        return _moved(func, args[0], kwargs)
    if func._schema.name == "aten::copy_":
        return _overwritten(func, args, kwargs)
    if name == "_local_scalar_dense":
        account.wait()
        return args[0].numbers.item()
    if name == "lift_fresh":
        return args[0]
    if name in INDEXING and not isinstance(args[0], GpuTensor):
        return _into_the_cpu(func, name, args, kwargs)
    card = _card_of_index(name, args) if name in INDEXING else _card_of(func, name, tensors, kwargs)
    _check_generator(name, args, kwargs, card.name)
    if name in WAITING:
        account.wait()
    if name in PRODUCTS | CONVOLUTIONS and _rounds(name in CONVOLUTIONS, tensors):
        account.product()
    return _wrapped(func, args, kwargs, _computed(func, args, kwargs), card)


def _card_of(func: Any, name: str, tensors: Iterable[Tensor], kwargs: Mapping[str, Any]) -> Card:
    """Return the card of an operation; raise ``RuntimeError`` for mixed devices."""
    ours = [t for t in tensors if isinstance(t, GpuTensor)]
    others = [t for t in tensors if not isinstance(t, GpuTensor)]
    if not ours:
        return _machine().card(kwargs["device"])
    if others:
        number = len(others) == 1 and others[0].ndim == 0
        if not number or not (torch.Tag.pointwise in func.tags or name in NUMBERS_TOO):
            raise _mixed(name, [*ours, *others])
        if name in NO_NUMBERS:
            raise RuntimeError(f"{name}: INTERNAL ASSERT FAILED: a number on the CPU among operands on the device")
        if func._schema.is_mutable and tensors[0] is others[0]:  # type: ignore[index]
            raise _mixed(name, [*ours, *others])
        if name == "where":
            _machine().account.copy(waits=True)
    if len({t.card.index for t in ours}) > 1:
        raise _mixed(name, ours)
    return ours[0].card


def _card_of_index(name: str, args: Any) -> Card:
    """Return the card of an indexing operation: indices may be on the CPU, values only if scalar."""
    account, base = _machine().account, args[0]
    for index in (part for part in args[1] if isinstance(part, Tensor)):
        if not isinstance(index, GpuTensor):
            account.copy(waits=True)
        elif index.card is not base.card:
            raise _mixed(name, [base, index])
        elif index.dtype in (torch.bool, torch.uint8):
            account.wait()
    values = args[2] if len(args) > 2 else None
    if isinstance(values, GpuTensor) and values.card is not base.card:
        raise _mixed(name, [base, values])
    if isinstance(values, Tensor) and not isinstance(values, GpuTensor):
        if values.ndim:
            raise _mixed(name, [base, values])
        account.copy(waits=True)
    return base.card  # type: ignore[no-any-return]


def _into_the_cpu(func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Index or update a CPU tensor with an operand on a card."""
    if any(isinstance(part, GpuTensor) for part in args[1]):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if len(args) > 2 and args[2].ndim:
        raise _mixed(name, [args[0], args[2]])
    _machine().account.copy(waits=True)
    return _computed(func, args, kwargs)


def _moved(func: Any, source: Tensor, kwargs: Mapping[str, Any]) -> Tensor:
    machine, device = _machine(), kwargs.get("device")
    rest = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
    if isinstance(source, GpuTensor) and (device is None or on_a_card(device)):
        return GpuTensor(func(source.numbers, **rest), source.card if device is None else machine.card(device))
    if isinstance(source, GpuTensor):
        # Copies to memory that is not pinned are always synchronous.
        machine.account.copy(waits=True)
        return func(source.numbers, device=device, **rest)  # type: ignore[no-any-return]
    machine.account.copy(waits=not kwargs.get("non_blocking"))
    return GpuTensor(func(source, **rest), machine.card(device))


def _overwritten(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    target, source = args[:2]
    if not isinstance(target, GpuTensor) or not isinstance(source, GpuTensor):
        lazily = isinstance(target, GpuTensor) and (kwargs.get("non_blocking") or args[2:3] == (True,))
        _machine().account.copy(waits=not lazily)
    _computed(func, args, kwargs)
    return target


def _computed(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    inside = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if on_a_card(inside.get("device")):
        inside["device"] = "cpu"
    return func(*tree_map(_numbers, args), **tree_map(_numbers, inside))


def _wrapped(func: Any, args: Any, kwargs: Mapping[str, Any], found: Any, card: Card) -> Any:
    """Put new tensors on the card, and return the given tensor for in-place operations."""
    if torch.Tag.inplace_view in func.tags:  # C++ has to change the shape of the outer tensor as well
        with torch._C._DisableTorchDispatch():
            before = torch._C._meta_in_tls_dispatch_include()
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                func(*args, **kwargs)
            finally:
                torch._C._set_meta_in_tls_dispatch_include(before)
        return args[0]
    parts = list(found) if len(func._schema.returns) > 1 else [found]
    for place, (part, declared) in enumerate(zip(parts, func._schema.returns, strict=False)):
        if declared.alias_info is not None and declared.alias_info.is_write:
            parts[place] = _given(func, args, kwargs, declared.alias_info.before_set)
        else:
            parts[place] = tree_map(lambda x: GpuTensor(x, card) if isinstance(x, Tensor) else x, part)
    return tuple(parts) if len(func._schema.returns) > 1 else parts[0]


def _given(func: Any, args: Any, kwargs: Mapping[str, Any], alias: set[str]) -> Any:
    for place, declared in enumerate(func._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.before_set == alias:
            return kwargs[declared.name] if declared.name in kwargs else args[place]
    raise AssertionError(f"{func} returns an unknown argument")


def _check_generator(name: str, args: Any, kwargs: Mapping[str, Any], device: str) -> None:
    if name in DRAWING:
        for given in (*args, *kwargs.values()):
            if isinstance(given, torch._C.Generator):
                ours = GENERATORS.get(given._cdata)
                found = "cpu" if ours is None else ours.card.name
                if found != device:
                    raise RuntimeError(f"Expected a '{device}' device type for generator but found '{found}'")


def _rounds(convolution: bool, tensors: Iterable[Tensor]) -> bool:
    backend: Any = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul
    return backend.fp32_precision == "tf32" and any(t.dtype == torch.float32 for t in tensors)


def _mixed(name: str, tensors: Iterable[Tensor]) -> RuntimeError:
    places = " and ".join(sorted({str(t.device) for t in tensors}))
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two: {places} ({name})")


def _tensors(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]


def _numbers(x: Any) -> Any:
    return x.numbers if isinstance(x, GpuTensor) else x


def _machine() -> Any:
    if not MACHINES:
        raise RuntimeError("a pretended tensor has outlived its machine")
    return MACHINES[0]
