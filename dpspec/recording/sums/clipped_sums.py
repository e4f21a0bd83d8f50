"""The clipped sum of a step: its contributions, and whether it is changed between calls."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec.recording.fingerprints import Tally, TensorSnapshot
from dpspec.recording.pending_step import Scalar, together
from dpspec.recording.ranks.shards import local

#: Types of numbers with eleven or eight significant bits.
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: Medians that wait on the device before they are read.
_WAITING = 64

#: Standard error of the slope below which sums and means are distinguished.
_DECIDED = 0.1

#: The regression uses the first coordinates of the smallest parameters: a factor of the loss scales each coordinate.
_PARAMETERS, _COORDINATES = 4, 256


def summed_gradients(optimizer: Any, parameters: Sequence[Any]) -> list[Tensor | None]:
    """The sums of clipped gradients, of sharded parameters the rows of this process; None before the first pass."""
    state = getattr(optimizer, "grad_state", None)  # of Opacus' optimizer for sharded parameters
    if state is None:
        return [getattr(p, "summed_grad", None) for p in parameters]
    return [local(state[p]["summed_grad"]) for p in parameters]


class SummedGradients:
    """Compares the sums of audited steps between calls: code outside of clipping may not change them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._parameters = optimizer, list(optimizer.params)
        self._left = TensorSnapshot()
        self._changed, self._compared = Tally(), 0

    @property
    def found(self) -> list[int]:
        return [self._compared, int(self._changed)]

    def keep(self, *, audited: bool) -> None:
        self._left.forget()
        if audited:
            self._left.keep(summed_gradients(self._optimizer, self._parameters))

    def compare(self, *, first: bool = False) -> None:
        """Compare the sums with those that were kept; the ``first`` call of an audited step finds an empty sum."""
        if not (first or self._left.exists):
            return
        sums = summed_gradients(self._optimizer, self._parameters)
        if self._left.exists:
            self._compared += 1
            self._changed.add(self._left.differ(sums))
        elif first and any(total is not None for total in sums):
            self._compared += 1
            self._changed.add(True)

    def forget(self) -> None:
        self._left.forget()


class Contributions:
    """Observes the per-sample gradients that Opacus' optimizer clips and adds.

    Attributes:
        norm_type: The half precision in which Opacus computed norms, or "".
        sum_type: The half precision in which Opacus computed sums, or "".
    """

    def __init__(self, optimizer: Any, clipping: str) -> None:
        """clipping: ``flat``, ``per-layer`` or ``adaptive``."""
        self._optimizer, self._clipping, self._parameters = optimizer, clipping, list(optimizer.params)
        self._smallest = sorted(self._parameters, key=lambda p: p.numel() or math.inf)[:_PARAMETERS]
        self.norm_type = ""
        self.sum_type = next((HALVES[p.dtype] for p in self._parameters if p.dtype in HALVES), "")

    def count(self) -> int:
        """The number of rows of this call, whose precision is noted."""
        for p in self._parameters:
            if (kind := rows_of(p)[0].dtype) in HALVES:
                self.norm_type = HALVES[kind]
        self.sum_type = product_type() or self.sum_type
        return sum(map(len, rows_of(self._parameters[0])))

    @torch.no_grad()
    def sampled_lengths(self) -> Tensor:
        """(b,) the norms before clipping, of some coordinates only."""
        rows = [torch.cat([_matrix(gradients) for gradients in rows_of(p)]) for p in self._smallest]
        columns = [matrix[:, :_COORDINATES].to(rows[0].device, torch.float64) for matrix in rows]
        lengths: Tensor = torch.linalg.vector_norm(torch.cat(columns, dim=1), dim=1)
        return lengths

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


def _matrix(gradients: Tensor) -> Tensor:
    """(b, coordinates); b may be 0."""
    return gradients.detach().flatten(1) if gradients.dim() > 1 else gradients.detach()[:, None]


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


class SizeScaling:
    """Regression of the lengths of per-sample gradients on the size b of the physical batch.

    If the loss is a mean and Opacus expects a sum, or the other way around, every length is wrong by a factor 1/b or b.
    The slope of log medians by log b is 0 for a matching loss, -1 for a mean in place of a sum and 1 for a sum in place
    of a mean. Two regressions use differences between consecutive steps, so that trends and the order of records
    cancel: of first batches, and of last batches relative to the first of the same step, at the same parameters.
    Weights are 1 / variance, also in the mean of both slopes; the variance of a median is proportional to 1/b.
    Differences of independent errors have correlation -1/2 with their neighbors, and so do differences of log b, so the
    variance of a slope is 3/2 of its value for ordinary least squares.

    Attributes:
        decided: Whether further steps would not change the conclusion.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bool, Scalar]] = []
        self._step: list[Any] = []  # [log b, log median, variance] of the first batch, and of the last relative to it
        self._before: list[Any] = []
        self._sums = np.zeros((2, 4))
        self.decided = False

    def add(self, lengths: Any, first: bool) -> None:
        """(b,) the lengths of a batch's per-sample gradients before clipping, and whether it is its step's first."""
        if len(lengths) > 1:
            middle = np.sort(lengths)[(len(lengths) - 1) // 2] if isinstance(lengths, np.ndarray) else lengths.median()
            self._waiting.append((len(lengths), first, middle))
        if len(self._waiting) >= _WAITING:
            self._read()

    @property
    def found(self) -> list[float] | None:
        self._read()
        return self._found()

    def _found(self) -> list[float] | None:
        pairs, xx, xy, yy = self._sums[(self._sums[:, 0] >= 8.0) & (self._sums[:, 1] > 0.0)].T
        if not len(pairs):
            return None
        weights = 1.0 / np.maximum(1e-12, 1.5 * (yy - xy * xy / xx) / pairs / xx)
        return [int(pairs.sum()), float((weights * xy / xx).sum() / weights.sum()), float(weights.sum() ** -0.5)]

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        medians = together([device_median for *_, device_median in waiting])
        for (size, first, _), median in zip(waiting, medians, strict=True):
            if first:
                for sums, now, before in zip(self._sums, self._step, self._before, strict=False):
                    (x, y, _), variance = now - before, now[2] + before[2]
                    if math.isfinite(y):
                        sums += np.array([variance, x * x, x * y, y * y]) / variance
                self._before, self._step = self._step, []
            batch = np.array([math.log(size), math.log(median) if 0.0 < median < math.inf else math.nan, 1.0 / size])
            self._step = [self._step[0], batch - self._step[0] * (1, 1, -1)] if self._step else [batch]
        regression = self._found()
        self.decided = regression is not None and regression[2] < _DECIDED
