"""Imitation of a processor whose kernels round products and sums differently for each shape of their arguments.

Libraries choose kernels by processor, thread count and shape, so the last bits of a row's result can depend on the
number of rows in the batch. Few machines show this. Under this mode every machine does: each entry of a product or sum
changes by up to two units in the last place, in a pattern that depends on the shapes alone. Integers stay exact, and a
repeated call with equal shapes gives equal bits.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution, _aten.convolution_backward}
_SUMS = {_aten.sum, _aten.mean, _aten.linalg_vector_norm, _aten.dot, _aten.mv, _aten.addmv, _aten.native_layer_norm}
_OPERATORS = _PRODUCTS | _SUMS


class OtherRounding(TorchDispatchMode):
    """Perturb the last bits of products and sums, as a function of their arguments' shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket not in _OPERATORS or func._schema.is_mutable:
            return found
        sizes = sum((i + 1) * n for i, t in enumerate(args) if isinstance(t, torch.Tensor) for n in t.shape)
        if isinstance(found, tuple):
            return tuple(_rounded(each, sizes) for each in found)
        return _rounded(found, sizes)


def _rounded(value: Any, sizes: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float64):
        return value  # products in half precision are sums of float32, rounded once
    places = (torch.arange(value.numel(), device=value.device) * 7919 + sizes * 104729) % 3 - 1
    factors = 1.0 + places.to(value.dtype) * torch.finfo(value.dtype).eps
    return torch.where(value == value.round(), value, value * factors.view(value.shape))
