"""Fingerprints of tensors: equal for equal bits, and different for different ones except by a random collision.

In the host's memory a fingerprint is Python's hash of a secret key and the bytes, 64 bits. On other devices it is two
sums modulo 2^64 over the bits of each number as an integer x: sum x, and sum x w with odd weights w that depend on the
place and on random numbers of this process. These sums do not depend on the order of summation, and stay on the device.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

#: Integers of the same size as a number, or as half of one.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}

#: Types whose tensors numpy shares the memory of; others are reinterpreted.
_NUMPY = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool}

#: Numbers that are read in one piece.
_CHUNK = 2**20

#: The key of the hashes: Python's own is public if ``PYTHONHASHSEED`` is set.
_KEY = secrets.token_bytes(32)

#: Random numbers of this process, odd, for the weights.
_FIRST, _SECOND = (secrets.randbits(62) * 2 + 1 - 2**62 for _ in range(2))

#: The hashes of values in the host's memory, and the sums of the others.
Fingerprint: TypeAlias = tuple[list[Any], list[Tensor]]


class Tally:
    """A count of events. Events on a device are read when the count is."""

    def __init__(self) -> None:
        self._known, self._waiting = 0, dict[torch.device, Tensor]()

    def add(self, event: bool | Tensor) -> None:
        """Count an event if it is true."""
        if isinstance(event, Tensor):
            before = self._waiting.get(event.device)
            self._waiting[event.device] = event.long() if before is None else before + event
        else:
            self._known += event

    def __int__(self) -> int:
        return self._known + sum(int(count) for count in self._waiting.values())


def fingerprint(values: Iterable[Any]) -> Fingerprint:
    """The fingerprint of tensors and numbers, which may be nested in lists and mappings; other objects are skipped."""
    host: list[Any] = []
    device: list[Tensor] = []
    _collect(values, host, device)
    return host, device


def differs(one: Fingerprint, other: Fingerprint) -> bool | Tensor:
    """Whether two fingerprints differ; a boolean tensor if sums on a device decide."""
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return True
    if not one[1]:
        return False
    device = one[1][0].device
    now, then = (torch.stack([sums.to(device) for sums in side[1]]) for side in (one, other))
    return (now != then).any()


def _collect(values: Iterable[Any], host: list[Any], device: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cpu:
                host.append(_hash(value))
            elif value.is_meta:
                host.append(None)
            else:
                device.append(_sums(value))
        elif isinstance(value, float):
            host.append(struct.pack("<d", value))
        elif isinstance(value, int):
            host.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), host, device)
        elif isinstance(value, list | tuple):
            _collect(value, host, device)


def _hash(value: Tensor) -> tuple[Any, ...]:
    """Type, shape and hashes of a tensor in the host's memory."""
    known = value.dtype in _NUMPY and value.layout == torch.strided
    array = (value if known else _integers(value.detach())).numpy(force=True)
    if array.size <= _CHUNK:
        return value.dtype, value.shape, _keyed(array)
    flat = array.reshape(-1)
    hashes = [_keyed(flat[start : start + _CHUNK]) for start in range(0, flat.size, _CHUNK)]
    return value.dtype, value.shape, *hashes


def _keyed(array: np.ndarray) -> int:
    """The hash of the key and the bytes of an array, in row-major order."""
    return hash(b"".join((_KEY, np.ascontiguousarray(array).data)))


def _sums(value: Tensor) -> Tensor:
    """(2,) the sums of a tensor on another device."""
    found = torch.zeros(2, dtype=torch.int64, device=value.device)
    for start, part in enumerate(torch.split(_integers(value.detach()), _CHUNK)):
        bits = part.to(torch.int64)
        places = (torch.arange(len(bits), device=bits.device) + start * _CHUNK) * _FIRST
        weights = ((places ^ (places >> 31)) * _SECOND) | 1
        found += torch.stack([bits.sum(), (bits * weights).sum()])
    return found


def _integers(value: Tensor) -> Tensor:
    """The bits of a tensor's numbers in a row, as integers."""
    if value.is_quantized:
        value = value.int_repr()
    dense = value if value.layout == torch.strided else value.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.resolve_neg().contiguous().reshape(-1).view(_BITS[real.element_size()])
