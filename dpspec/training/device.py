"""Which device to compute on, decided once and then passed along, never set globally."""

from __future__ import annotations

import difflib
import re

import torch

from dpspec.errors import UsageError

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
        close = difflib.get_close_matches(wanted, ["auto", "cpu", "cuda"], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
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
