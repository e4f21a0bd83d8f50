"""Whether a tensor changed by rounding alone, as frozen weights do when adapters are merged into them and taken out."""

from __future__ import annotations

import torch
from torch import Tensor

#: Coordinates of a block, and those that are multiplied at one time.
_BLOCK, _CHUNK = 256, 2**20

#: The largest change that is rounding, relative to the coordinates: eight times the error of one operation.
_LARGEST = {torch.float32: 2.0**-21, torch.float64: 2.0**-50, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}

#: Types whose rounding may hold a training.
_COARSE = (torch.float16, torch.bfloat16)


class BlockSums:
    """One sum, with secret factors, of each block of a tensor's coordinates: 1 % of its memory.

    Merging computes fl(fl(W + M) - M), which moves each coordinate by at most 2^-24 (2 |W| + |M|) in float32. A change
    of any coordinate, or of their order, changes the sum of its block.
    """

    def __init__(self, tensor: Tensor) -> None:
        """Keep the sums. tensor: of a type in which :meth:`is_kept` says so."""
        generator = torch.Generator()
        generator.seed()
        self._factors = torch.randn(_BLOCK, dtype=torch.float64, generator=generator).to(tensor.device)
        self._kind, self._sums = tensor.dtype, _products(tensor, self._factors)

    @staticmethod
    def is_kept(tensor: Tensor) -> bool:
        """Whether the rounding of the tensor's type is known."""
        return tensor.dtype in _LARGEST and type(tensor.data) in (Tensor, torch.nn.Parameter)

    @property
    def is_coarse(self) -> bool:
        """Whether a change by rounding may hold a training, in half precision."""
        return self._kind in _COARSE

    def differ_by_rounding(self, tensor: Tensor) -> bool:
        """Whether each block's sum differs from the kept one by rounding at most."""
        if tensor.dtype != self._kind or tensor.device != self._factors.device:
            return False
        sums = _products(tensor, self._factors)
        if sums.shape != self._sums.shape:
            return False
        limits = _LARGEST[tensor.dtype] * _products(tensor, self._factors.abs(), lengths=True)
        return bool(((sums - self._sums).abs() <= limits).all())


@torch.no_grad()
def _products(tensor: Tensor, factors: Tensor, *, lengths: bool = False) -> Tensor:
    """(blocks,) the sums of coordinates, or of their lengths, times factors (_BLOCK,); the last block may be short."""
    products = []
    for chunk in torch.split(tensor.detach().reshape(-1), _CHUNK):
        doubles = chunk.double().abs() if lengths else chunk.double()
        whole = len(doubles) // _BLOCK * _BLOCK
        products.append(doubles[:whole].view(-1, _BLOCK) @ factors)
        products.append((doubles[whole:] @ factors[: len(doubles) - whole])[None])
    return torch.cat(products) if products else tensor.new_zeros(0, dtype=torch.float64)
