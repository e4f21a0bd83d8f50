"""Exact fingerprints of tensors under secret weights.

The numbers are read as integers of at most 32 bits, and their weighted sum is taken modulo 2^64. The weight of a place
is a product of up to three random integers from the system's randomness. A script cannot compute which changes keep the
sum, and any other change, a permutation included, keeps it with probability below 2^-20. Integer sums do not depend on
the number of threads, the order of summation or the layout in memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

#: Integers of as many bytes as a number of a tensor; eight bytes are read as two integers.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

#: Integers in a row, rows in a block, and blocks with different weights.
_ROW, _ROWS, _BLOCKS = 1024, 64, 4096


class Fingerprint:
    """Weights that are drawn once, and the sums under them."""

    def __init__(self) -> None:
        """Draw the weights; no generator of torch, numpy or Python is used."""
        self._weights = {torch.device("cpu"): (_random(_ROW), _random(_ROWS) | 1, _random(_BLOCKS) | 1)}

    @torch.no_grad()
    def of(self, value: Tensor) -> Tensor:
        """The fingerprint of a tensor of any type and layout, () int64."""
        if value.is_meta:
            return torch.zeros((), dtype=torch.int64)
        if value.is_quantized:
            value = value.int_repr()
        dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
        real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        flat = real.resolve_neg().reshape(-1)
        bits = flat.view(_BITS[flat.element_size()])
        across, down, blocks = self._on(bits.device)
        found = torch.zeros((), dtype=torch.int64, device=bits.device)
        for number, block in enumerate(torch.split(bits, _ROW * _ROWS)):
            whole = len(block) // _ROW
            rest = block[whole * _ROW :]
            total = (block[: whole * _ROW].view(whole, _ROW) * across).sum(1).mul_(down[:whole]).sum()
            if len(rest):
                total += (rest * across[: len(rest)]).sum() * down[whole]
            found += total * blocks[number % _BLOCKS]
        return found

    def of_all(self, values: Sequence[Tensor]) -> Tensor:
        """The fingerprint of several tensors in a row, on the device of the first, () int64."""
        if not values:
            return torch.zeros((), dtype=torch.int64)
        return self.of(torch.cat([value.detach().reshape(-1).to(values[0].device) for value in values]))

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        if device not in self._weights:
            across, down, blocks = self._weights[torch.device("cpu")]
            self._weights[device] = across.to(device), down.to(device), blocks.to(device)
        return self._weights[device]


def _random(count: int) -> Tensor:
    """Uniform 64-bit integers of the system's randomness, (count,)."""
    return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
