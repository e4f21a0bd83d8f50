"""What is really added up when Opacus clips: seen where it is summed, not read off an option.

``clip_and_accumulate`` sums each parameter's per-sample gradients g, weighted by factors f, by one
``torch.einsum("i,i...", f, g)``. Both are looked at in that call. The norm of f_i g_i over all parameters is what
record i contributes. The norms of g that the optimizer computed before, by torch, of the very same memory and unchanged
since, are used again; all others are computed, and so are those in half precision, which are rounded to a percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NORMS = (torch.Tensor.norm, torch.norm)

#: Types of numbers with eleven or eight significant bits.
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Contributions(TorchFunctionMode):
    """Watches one call of ``clip_and_accumulate``; it changes no argument and no result."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        kept = [getattr(p, "grad_sample", None) for p in parameters]
        # Memory that these tensors hold is not given to others meanwhile, so that an address names a gradient.
        self._lasting = {_address(g) for g in kept if isinstance(g, Tensor)}
        self._known: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._squares: Tensor | None = None
        self._fault: Exception | None = None
        self.summed = 0
        #: In which half precision norms were computed, and sums made; "" for neither.
        self.norm_type, self.sum_type = "", ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call what was called, and look at norms and sums."""
        result = func(*args, **(kwargs or {}))
        try:
            if func in _NORMS and args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
                self._norms(args, kwargs or {}, result)
            elif func is torch.einsum and len(args) == 3 and args[0] == "i,i...":
                self._sum(args[1], args[2])
        except Exception as error:  # it must not reach the training that is looked at
            self._fault = error
        return result

    def norms(self) -> Tensor | None:
        """(b,) what each record contributed; None where nothing was seen to be summed. Raises what went wrong."""
        if self._fault is not None:
            raise self._fault
        return None if self._squares is None else self._squares.sqrt()

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
        squares = (factors.detach().to(norms.dtype) * norms.detach()).double() ** 2
        self._squares = squares if self._squares is None else self._squares + squares.to(self._squares.device)
        self.summed += 1


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
