"""The contribution of each record to the clipped sum, observed where Opacus adds it up.

``clip_and_accumulate`` sums the per-sample gradients g of each parameter, weighted by factors f, with one call of
``torch.einsum("i,i...", f, g)``. The recorder observes both arguments. The norm of f_i g_i over all parameters is the
contribution of record i. Norms of g that the optimizer computed just before, from the same unchanged memory, are used
again; the recorder computes all others, and those in half precision, which are rounded to a percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NORMS = (torch.Tensor.norm, torch.norm)
_OBSERVED = frozenset((*_NORMS, torch.einsum))

#: Types of numbers with eleven or eight significant bits.
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Contributions(TorchFunctionMode):
    """Watches one call of ``clip_and_accumulate``; it changes no argument and no result."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        kept = [getattr(p, "grad_sample", None) for p in parameters]
        # The memory of these tensors is not reused during the call, so an address identifies a gradient.
        self._lasting = {_address(g) for g in kept if isinstance(g, Tensor)}
        self._known: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._factors: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._fault: Exception | None = None
        #: In which half precision norms were computed, and sums made; "" for neither.
        self.norm_type, self.sum_type = "", ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and observe norms and sums."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in _OBSERVED:
            self._observe(func, args, kwargs or {}, result)
        return result

    @property
    def summed(self) -> int:
        """The number of sums."""
        return len(self._lengths)

    def norms(self) -> tuple[Tensor, Tensor] | None:
        """(b,) the norm of each contribution, and of each gradient before clipping; None without a sum.

        Raises the fault of the recorder, if there was one.
        """
        if self._fault is not None:
            raise self._fault
        if not self._lengths:
            return None
        device = self._lengths[0].device
        lengths = torch.stack([one.to(device) for one in self._lengths]).double()
        shared = all(one is self._factors[0] for one in self._factors)
        factors = self._factors[0] if shared else torch.stack([one.to(device) for one in self._factors])
        return (factors.to(lengths) * lengths).square_().sum(0).sqrt_(), lengths.square_().sum(0).sqrt_()

    def _observe(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        try:
            if func is torch.einsum:
                if len(args) == 3 and args[0] == "i,i...":
                    self._sum(args[1], args[2])
            elif args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
                self._norms(args, options, result)
        except Exception as error:  # a fault of the recorder must not reach the training
            self._fault = error

    def _norms(self, args: tuple[Any, ...], options: Mapping[str, Any], result: Tensor) -> None:
        of, order = args[0], args[1] if len(args) > 1 else options.get("p", "fro")
        whole = of.dim() > 1 and result.dim() == 1 and len(result) == len(of) and order == 2
        if whole and of.dtype in HALVES:
            self.norm_type = HALVES[of.dtype]
        elif whole and _address(of) in self._lasting:
            self._known[_address(of), of.numel()] = (of._version, result)

    def _sum(self, factors: Tensor, gradients: Tensor) -> None:
        self.sum_type = HALVES.get(gradients.dtype, self.sum_type)
        version, norms = self._known.get((_address(gradients), gradients.numel()), (-1, None))
        if norms is None or version != gradients._version or len(norms) != len(gradients):
            gradients = gradients if gradients.dim() > 1 else gradients[:, None]
            exact = torch.float32 if gradients.dtype in HALVES else None
            norms = torch.linalg.vector_norm(gradients.detach().flatten(1), dim=1, dtype=exact)
        self._factors.append(factors)
        self._lengths.append(norms.detach())


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
