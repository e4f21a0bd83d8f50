"""The simulated machine: its ``torch.cuda``, and the transfer of tensors to its cards."""

import contextlib
import os
import types
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from support.pretend_gpu.cards import Account, Card
from support.pretend_gpu.tensors import MACHINES, SLOT, CardGenerator, Factories, GpuTensor, on_a_card

_GENERATOR, _TENSOR, _AS_TENSOR, _TO = torch.Generator, torch.tensor, torch.as_tensor, Tensor.to
_ENGINE = torch.autograd.graph._engine_run_backward


class Machine:
    """The ``cards``, the ``account`` of their operations, and the index of the ``current`` card."""

    def __init__(self, cards: int, memory: int) -> None:
        self.account = Account()
        self.cards = [Card(index, memory) for index in range(cards)]
        self.current = 0
        self.pending: RuntimeError | None = None

    def card(self, device: object = None) -> Card:
        """Return the card of ``cuda``, ``cuda:1`` or 1, and for None the current card."""
        index = device if isinstance(device, int) or device is None else torch.device(device).index  # type: ignore[arg-type]
        index = self.current if index is None else index
        if not 0 <= index < len(self.cards):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return self.cards[index]

    def place(self, device: object = None) -> torch.device:
        """Return that card as a device with an index."""
        return torch.device(self.card(device).name)

    def faces(self) -> dict[str, Any]:
        """Return the replacements in ``torch.cuda``, by name."""

        @contextlib.contextmanager
        def used(device: object) -> Iterator[None]:
            before, self.current = self.current, self.card(device).index
            try:
                yield
            finally:
                self.current = before

        def empty() -> None:
            for card in self.cards:
                card.reserved = card.allocated

        quiet = dict.fromkeys(("_lazy_init", "init", "manual_seed", "manual_seed_all"), lambda *_: None)
        return {
            **quiet,
            "is_available": lambda: True,
            "_is_in_bad_fork": lambda: False,
            "device_count": lambda: len(self.cards),
            "current_device": lambda: self.current,
            "device": used,
            "get_device_name": lambda device=None: f"Pretended GPU {self.card(device).index}",
            "get_device_capability": lambda device=None: (9, 0),
            "synchronize": lambda device=None: self.account.wait(),
            "mem_get_info": lambda device=None: (self.card(device).free(), self.card(device).capacity),
            "memory_allocated": lambda device=None: self.card(device).allocated,
            "memory_reserved": lambda device=None: self.card(device).reserved,
            "empty_cache": empty,
        }

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to`` without the driver that C++ needs to resolve "cuda"."""
        device = kwargs.get("device", args[0] if args else None)
        named = isinstance(device, str | torch.device) or type(device) is int
        if not named or (type(device) is not int and not on_a_card(device)):
            return _TO(tensor, *args, **kwargs)
        place = self.place(device)
        if isinstance(tensor, GpuTensor) and tensor.device == place:
            dtype = kwargs.get("dtype", args[1] if len(args) > 1 and isinstance(args[1], torch.dtype) else None)
            return _TO(tensor, tensor.dtype if dtype is None else dtype, copy=kwargs.get("copy", False))
        rest = {key: value for key, value in kwargs.items() if key != "device"}
        return _TO(tensor, place, *(args[1:] if "device" not in kwargs else args), **rest)

    def made(self, real: Any) -> Any:
        """Replace ``torch.tensor`` or ``torch.as_tensor``, which bypass dispatch modes: make on the CPU, then copy."""

        def make(data: Any, *, device: Any = None, dtype: Any = None, requires_grad: bool = False) -> Tensor:
            if device is None and isinstance(data, Tensor):
                device = data.device
            if isinstance(data, Tensor):
                found = self.to(data.detach(), device, dtype=dtype or data.dtype, copy=real is _TENSOR)
            else:
                found = real(data, dtype=dtype)
                found = found if device is None else self.to(found, device)
            return found.requires_grad_() if requires_grad else found

        return make

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, then raise its pending error."""
        try:
            return _ENGINE(*args, **kwargs)
        finally:
            if self.pending is not None and torch._C._current_graph_task_id() < 0:
                error, self.pending = self.pending, None
                try:
                    raise error
                finally:
                    del error  # its traceback keeps the tensors of the pass


def _generators(machine: Machine) -> type:
    class Kind(type):
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            return CardGenerator(machine.card(device)) if on_a_card(device) else _GENERATOR(device=device)

        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, _GENERATOR)

    return Kind("Generator", (), {})


@contextlib.contextmanager
def pretend_gpu(cards: int = 1, memory: int = 2**40) -> Iterator[Machine]:
    """Simulate ``cards`` GPUs of ``memory`` bytes each."""
    if MACHINES:
        raise RuntimeError("a pretended machine is active already")
    import torch._dynamo  # dispatch modes import it, which fails where functions of torch are replaced

    _register()
    machine = Machine(cards, memory)
    MACHINES.append(machine)
    with contextlib.ExitStack() as stack:
        stack.callback(MACHINES.clear)
        for name, face in machine.faces().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, face))
        stack.enter_context(mock.patch.object(torch, "Generator", _generators(machine)))
        stack.enter_context(mock.patch.object(torch, "tensor", machine.made(_TENSOR)))
        stack.enter_context(mock.patch.object(torch, "as_tensor", machine.made(_AS_TENSOR)))
        stack.enter_context(mock.patch.object(Tensor, "to", lambda self, *a, **k: machine.to(self, *a, **k)))
        stack.enter_context(mock.patch.object(Tensor, "cuda", lambda self, d=None: machine.to(self, machine.place(d))))
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", machine.backward))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(Factories())
        yield machine


@cache
def _register() -> tuple[object, ...]:
    """Register the device in C++, with the guard that autograd needs.

    The first backward pass of a process starts a thread for each known device. It runs before the registration, so
    that later passes stay on the calling thread.
    """
    one = torch.ones(1, requires_grad=True)
    torch.autograd.grad(one * 2.0, one)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")

    class Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
        def is_available(self) -> bool:
            return bool(MACHINES)

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, index: int) -> bool:
            return True

    class Guard(torch._C._acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    torch.utils.rename_privateuse1_backend(SLOT)
    module = types.ModuleType(f"torch.{SLOT}")
    module.__dict__.update(
        is_initialized=lambda: True,
        is_available=lambda: bool(MACHINES),
        device_count=lambda: len(MACHINES[0].cards) if MACHINES else 0,
        current_device=lambda: 0,
        # Draws without a generator use the CPU's, whose state torch saves and restores anyway.
        get_rng_state=lambda device=None: torch.empty(0, dtype=torch.uint8),
        set_rng_state=lambda state, device=None: None,
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    torch._register_device_module(SLOT, module)
    kept = Hooks(), Guard()
    torch._C._acc.register_python_privateuseone_hook(kept[0])
    torch._C._acc.register_python_privateuseone_device_guard(kept[1])
    return kept
