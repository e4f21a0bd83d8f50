"""The clipped sum of a step, and its contributions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpspec_recording.shards import local

#: Types of numbers with eleven or eight significant bits.
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def summed_gradients(optimizer: Any, parameters: Sequence[Any]) -> list[Tensor | None]:
    """The sums of clipped gradients, of sharded parameters the rows of this process; None before the first pass."""
    state = getattr(optimizer, "grad_state", None)  # of Opacus' optimizer for sharded parameters
    if state is None:
        return [getattr(p, "summed_grad", None) for p in parameters]
    return [local(state[p]["summed_grad"]) for p in parameters]


class ClippedGradients:
    """Observes the per-sample gradients that Opacus' optimizer clips and adds.

    Attributes:
        passes: None: one backward pass computes them, and ghost clipping makes two.
        norm_type: The half precision in which Opacus computed norms, or "".
        sum_type: The half precision in which Opacus computed sums, or "".
    """

    passes = None

    def __init__(self, optimizer: Any, clipping: str) -> None:
        """clipping: ``flat``, ``per-layer`` or ``adaptive``."""
        self._optimizer, self._clipping, self._parameters = optimizer, clipping, list(optimizer.params)
        self.norm_type = ""
        self.sum_type = next((HALVES[p.dtype] for p in self._parameters if p.dtype in HALVES), "")

    def count(self) -> int:
        """The number of rows of this call, whose precision is noted."""
        rows = [p.grad_sample for p in self._parameters]
        for kind in {(part[0] if isinstance(part, list) else part).dtype for part in rows} & HALVES.keys():
            self.norm_type = HALVES[kind]
        self.sum_type = product_type() or self.sum_type
        return sum(map(len, rows[0])) if isinstance(rows[0], list) else len(rows[0])

    @torch.no_grad()
    def clipped_norms(self) -> Tensor:
        """(b,) the norms after clipping.

        Opacus computes the norms of gradients in half precision in that precision, so a contribution can exceed the
        clip norm.
        """
        gradients = [g.detach() if g.dim() > 1 else g.detach()[:, None] for g in self._optimizer.grad_samples]
        dimensions = [tuple(range(1, g.dim())) for g in gradients]
        with torch.autocast(gradients[0].device.type, enabled=False):
            rounded = [torch.linalg.vector_norm(g, dim=dim) for g, dim in zip(gradients, dimensions, strict=True)]
            exact = [
                torch.linalg.vector_norm(g, dim=dim, dtype=torch.float32) if g.dtype in HALVES else norm
                for g, dim, norm in zip(gradients, dimensions, rounded, strict=True)
            ]
            factors = clip_factors(self._optimizer, self._clipping, rounded)
            device = exact[0].device
            clipped = [
                (factor.to(device).double() * norm.to(device)) for factor, norm in zip(factors, exact, strict=True)
            ]
            lengths: Tensor = torch.linalg.vector_norm(torch.stack(clipped), dim=0)
        return lengths


def rows_of(parameter: Any) -> list[Tensor]:
    """The per-sample gradients of a parameter, one tensor for each backward pass."""
    rows = parameter.grad_sample
    return rows if isinstance(rows, list) else [rows]


def clip_factors(optimizer: Any, clipping: str, norms: Sequence[Tensor]) -> list[Tensor]:
    """Opacus' clipping factors (b,) of each parameter, from the norms (b,) of its per-sample gradients."""
    if clipping == "per-layer":
        limits = [float(limit) for limit in optimizer.max_grad_norms]
        return [(limit / (norm + 1e-6)).clamp(max=1.0) for limit, norm in zip(limits, norms, strict=True)]
    whole = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), dim=0)
    factors = (float(optimizer.max_grad_norm) / (whole + 1e-6)).clamp(max=1.0)
    return [factors.to(norm) for norm in norms]


def product_type() -> str:
    """The type to which torch may round factors of float32 products: TF32 or bfloat16; empty if it does not."""
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends have different settings
        host = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        setting = "medium" if host == "bf16" else "high"
    return {"high": "TF32", "medium": "bfloat16"}.get(setting, "")
