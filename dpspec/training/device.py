"""Device selection, transfers without a synchronization at every step, and full float32 precision.

Reading one number from a GPU waits for all of its queued work. Observers therefore keep per-step measurements on the
GPU and fetch them in blocks, with identical bits.
"""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean

Array: TypeAlias = np.ndarray[Any, Any]


def resolve_device(name: str) -> str:
    """Resolve ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` to an available device. ``auto`` prefers ``cuda``."""
    device_name = name.strip().lower()
    if device_name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device_name == "cpu":
        return device_name
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", device_name)
    if match is None:
        hint = did_you_mean(closest(device_name, ["auto", "cpu", "cuda"]))
        raise UsageError(f"{name!r} is not a device{hint} (valid: auto, cpu, cuda, cuda:0, cuda:1, ...)")
    if not torch.cuda.is_available():
        raise UsageError(f"device {device_name!r} is not available: torch finds no CUDA device; use 'cpu' or 'auto'")
    present = torch.cuda.device_count()
    if match[1] is not None and int(match[1]) >= present:
        names = ", ".join(f"cuda:{i}" for i in range(present))
        raise UsageError(f"device {device_name!r} does not exist here (valid: cpu, {names})")
    return device_name


def devices(name: str) -> tuple[str, ...]:
    """All devices that ``name`` can refer to: several only for ``auto`` and ``cuda`` with several GPUs."""
    device = resolve_device(name)
    count = torch.cuda.device_count() if device == "cuda" else 1
    return tuple(f"cuda:{i}" for i in range(count)) if count > 1 else (device,)


def tensors(x: Array, y: Array, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Features as float32, and labels as int64 or real-valued targets as float32."""
    of_target = torch.float32 if y.dtype.kind == "f" else torch.int64
    return torch.tensor(x, dtype=torch.float32, device=device), torch.tensor(y, dtype=of_target, device=device)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in full float32 on ``device`` within this context, and restore the process's settings afterwards.

    By default, torch lets cuDNN round the inputs of convolutions to TF32 (10 bits).
    """
    cudnn = torch.backends.cudnn
    algorithms = cudnn.benchmark, cudnn.deterministic
    with contextlib.ExitStack() as stack:
        for kind in {device.type, "cpu"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_full_float32())
        cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = algorithms


@contextmanager
def _full_float32() -> Iterator[None]:
    """Disable reduced precision in both of torch's interfaces, the old one and ``fp32_precision`` of torch 2.9.

    Old settings change the new ones and cannot be read if only new ones were used. New settings are hierarchical (all,
    library, operation); an unset one inherits and reads as its parent. They are therefore read top-down, unsetting
    each, and restored last and bottom-up, because setting mkldnn's also sets the global one (torch 2.13).
    """
    settings, new = _precision_settings(), []
    try:
        old = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch reports the new settings
        old = None
    for setting in settings:
        new.append(setting.fp32_precision)
        setting.fp32_precision = "none"
    if old is not None:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    for setting in settings:
        setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old[0])
            torch.backends.cudnn.allow_tf32 = old[1]
        for setting, value in reversed(list(zip(settings, new, strict=True))):
            setting.fp32_precision = value


@cache
def _precision_settings() -> tuple[Any, ...]:
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return ()
    libraries, names = (backends.cudnn, backends.mkldnn), ("matmul", "conv", "rnn")
    operations = [(backends.cuda, "matmul"), *itertools.product(libraries, names)]
    settings = [getattr(library, operation, None) for library, operation in operations]
    settings = [setting for setting in settings if hasattr(setting, "fp32_precision")]
    return backends, backends.cudnn, backends.mkldnn, *settings


def derive(seed: int, purpose: str) -> int:
    text = f"{seed}:{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
    """Create a generator for one purpose on ``device``. Streams differ between device types, and are not secret."""
    random = torch.Generator(device=device)
    random.manual_seed(derive(seed, purpose))
    return random


#: A float, or a 0-dimensional tensor on a GPU that may still be computing it.
Number: TypeAlias = float | Tensor

#: Maximum number of entries and bytes in the queue before it is flushed.
_ENTRIES, _BYTES = 256, 16 * 2**20

T = TypeVar("T")


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a tensor to a device. A copy from the CPU does not block: unpinned memory is staged first."""
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def float_on_cpu(tensor: Tensor) -> Number:
    """Return a 0-dimensional CPU tensor as a float, and a GPU tensor unchanged to avoid a synchronization."""
    return float(tensor) if tensor.device.type == "cpu" else tensor


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Copy tensors into arrays with identical bits, with a single device-to-host transfer for all GPU tensors."""
    away = [tensor.detach() for tensor in tensors if tensor.device.type != "cpu"]
    if away:
        flat = [tensor.reshape(-1).view(torch.uint8) for tensor in away]
        pieces = iter(torch.split(torch.cat(flat).cpu(), [len(piece) for piece in flat]))
    return [
        tensor.detach().numpy().copy()
        if tensor.device.type == "cpu"
        else next(pieces).clone().view(tensor.dtype).view(tensor.shape).numpy()
        for tensor in tensors
    ]


class TransferQueue:
    """Queue of callbacks with tensor arguments, run in order: immediately on a CPU, in blocks on a GPU."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._bytes = 0

    def add(self, take: Callable[..., None], *values: Any) -> None:
        """Call ``take(*values)`` later, with tensors replaced by arrays. The tensors must not change in between."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        self._waiting.append((take, values))
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        full = len(self._waiting) >= _ENTRIES or self._bytes >= _BYTES
        if full or all(tensor.device.type == "cpu" for tensor in tensors):
            self.flush()

    def flush(self) -> None:
        waiting = self._waiting
        self.clear()
        arrays = iter(fetch([value for _, values in waiting for value in values if isinstance(value, Tensor)]))
        for take, values in waiting:
            take(*[next(arrays) if isinstance(value, Tensor) else value for value in values])

    def clear(self) -> None:
        self._waiting, self._bytes = [], 0


class SyncedAttribute(Generic[T]):
    """Attribute written by queued callbacks: flushes the ``transfers`` of its object before each read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_settled_{name}"

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            raise AttributeError(self._name)
        instance.transfers.flush()
        value: T = getattr(instance, self._name)
        return value

    def __set__(self, instance: Any, value: T) -> None:
        setattr(instance, self._name, value)
