"""Which device to compute on, decided once and passed along, never set globally; rows and full precision on it.

float32 is full there, whatever the process allows elsewhere: no TF32, no autocast, no algorithms chosen by the clock.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean

_VALID = "auto, cpu, cuda, cuda:0, cuda:1, ..."

#: What a library computes in a precision of its own choice, as torch names it.
_OPERATIONS = ("matmul", "conv", "rnn")


def resolve_device(name: str) -> str:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device that exists here.

    ``auto`` is ``cuda`` where there is one and ``cpu`` elsewhere. Raises ``UsageError`` for any other name and for a
    CUDA device that this machine does not have.
    """
    wanted = name.strip().lower()
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return wanted
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", wanted)
    if match is None:
        hint = did_you_mean(closest(wanted, ["auto", "cpu", "cuda"]))
        raise UsageError(f"{name!r} is not a device{hint} (valid: {_VALID})")
    if not torch.cuda.is_available():
        raise UsageError(f"device {wanted!r} was asked for, but torch sees no CUDA device here; use 'cpu' or 'auto'")
    present = torch.cuda.device_count()
    if match[1] is not None and int(match[1]) >= present:
        names = ", ".join(f"cuda:{i}" for i in range(present))
        raise UsageError(f"device {wanted!r} does not exist here (valid: cpu, {names})")
    return wanted


def devices(name: str) -> tuple[str, ...]:
    """Every device of this machine that ``name`` can mean: several only for ``auto`` and ``cuda`` among several GPUs.

    Raises ``UsageError`` as :func:`resolve_device` does.
    """
    one = resolve_device(name)
    count = torch.cuda.device_count() if one == "cuda" else 1
    return tuple(f"cuda:{i}" for i in range(count)) if count > 1 else (one,)


def tensors(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], device: str | torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the rows on a device: float32 features (n, ...), int64 labels (n,)."""
    return torch.tensor(x, dtype=torch.float32, device=device), torch.tensor(y, dtype=torch.int64, device=device)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Within it float32 is float32 on ``device``; what the process had set before comes back at the end.

    On a GPU torch lets cuDNN's convolutions round their inputs to TF32 (10 bits) unless told otherwise, and either of
    its two interfaces can allow the same of products, there and on a CPU.
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
    """Neither ``set_float32_matmul_precision`` and ``allow_tf32``, nor what came with torch 2.9, ``fp32_precision``.

    The old settings change the new ones, and cannot be read where only the new were used. The new ones are for
    everything, a library, or an operation: what is not set follows what is above it, and is read as that. So they are
    read from above, each taken away in turn, and come back last and from below, as to set mkldnn's as a whole is to set
    that of everything (torch 2.13).
    """
    old, places = _old_settings(), _precision_settings()
    new = []
    for place in places:
        new.append(place.fp32_precision)
        place.fp32_precision = "none"
    if old is not None:
        _set_old("highest", False)
    for place in places:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        if old is not None:
            _set_old(*old)
        for place, value in reversed(list(zip(places, new, strict=True))):
            place.fp32_precision = value


def _old_settings() -> tuple[str, bool] | None:
    """Of products, and whether convolutions may use TF32; None where torch says that the new settings are in use."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_old(products: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


@cache
def _precision_settings() -> tuple[Any, ...]:
    """Whatever has an ``fp32_precision``, the more general first; none in older versions of torch."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return ()
    operations = [(backends.cuda, "matmul"), *itertools.product((backends.cudnn, backends.mkldnn), _OPERATIONS)]
    found = [getattr(library, operation, None) for library, operation in operations]
    return (backends, backends.cudnn, backends.mkldnn, *(place for place in found if hasattr(place, "fp32_precision")))
