"""Which device to compute on, decided once and passed along, never set globally; rows and full precision on it.

float32 is full there, whatever the process allows elsewhere: no TF32, no autocast, no algorithms chosen by the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean

_VALID = "auto, cpu, cuda, cuda:0, cuda:1, ..."


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

    On a GPU torch lets cuDNN's convolutions round their inputs to TF32 (10 bits) unless told otherwise.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(
                enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
            ),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
