"""Device selection, full float32 precision, and generators by seed and purpose.

The device is chosen once and passed along, never set globally. On it, TF32, autocast and benchmarked algorithms are
disabled whatever the process has enabled.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch

from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean


def resolve_device(name: str) -> str:
    """Resolve ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` to an available device. ``auto`` prefers ``cuda``."""
    wanted = name.strip().lower()
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return wanted
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", wanted)
    if match is None:
        hint = did_you_mean(closest(wanted, ["auto", "cpu", "cuda"]))
        raise UsageError(f"{name!r} is not a device{hint} (valid: auto, cpu, cuda, cuda:0, cuda:1, ...)")
    if not torch.cuda.is_available():
        raise UsageError(f"device {wanted!r} is not available: torch finds no CUDA device; use 'cpu' or 'auto'")
    present = torch.cuda.device_count()
    if match[1] is not None and int(match[1]) >= present:
        names = ", ".join(f"cuda:{i}" for i in range(present))
        raise UsageError(f"device {wanted!r} does not exist here (valid: cpu, {names})")
    return wanted


def devices(name: str) -> tuple[str, ...]:
    """All devices that ``name`` can refer to: several only for ``auto`` and ``cuda`` with several GPUs."""
    device = resolve_device(name)
    count = torch.cuda.device_count() if device == "cuda" else 1
    return tuple(f"cuda:{i}" for i in range(count)) if count > 1 else (device,)


def tensors(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], device: str | torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(x, dtype=torch.float32, device=device), torch.tensor(y, dtype=torch.int64, device=device)


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
        stack.enter_context(_nothing_rounded())
        cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = algorithms


@contextmanager
def _nothing_rounded() -> Iterator[None]:
    """Disable reduced precision in both of torch's interfaces, the old one and ``fp32_precision`` of torch 2.9.

    Old settings change the new ones and cannot be read if only new ones were used. New settings are hierarchical (all,
    library, operation); an unset one inherits and reads as its parent. They are therefore read top-down, unsetting
    each, and restored last and bottom-up, because setting mkldnn's also sets the global one (torch 2.13).
    """
    places, new = _precision_settings(), []
    try:
        old = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch reports the new settings
        old = None
    for place in places:
        new.append(place.fp32_precision)
        place.fp32_precision = "none"
    if old is not None:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    for place in places:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old[0])
            torch.backends.cudnn.allow_tf32 = old[1]
        for place, value in reversed(list(zip(places, new, strict=True))):
            place.fp32_precision = value


@cache
def _precision_settings() -> tuple[Any, ...]:
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return ()
    libraries, names = (backends.cudnn, backends.mkldnn), ("matmul", "conv", "rnn")
    operations = [(backends.cuda, "matmul"), *itertools.product(libraries, names)]
    found = [getattr(library, operation, None) for library, operation in operations]
    return (backends, backends.cudnn, backends.mkldnn, *(place for place in found if hasattr(place, "fp32_precision")))


def derive(seed: int, purpose: str) -> int:
    text = f"{seed}:{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
    """Create a generator for one purpose on ``device``, independent of torch's global generators.

    Streams differ between device types, so equal seeds give equal results only on the same type. torch's CPU generator
    uses the low 32 bits of its seed, which distinguishes runs but is not secret.
    """
    made = torch.Generator(device=device)
    made.manual_seed(derive(seed, purpose))
    return made


Array: TypeAlias = np.ndarray[Any, Any]
