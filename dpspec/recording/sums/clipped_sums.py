"""The clipped sum of a step: the contribution of each record, and whether the sum consists of the contributions."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpspec.recording.fingerprints import Bits, Chances, Tally, require_plain
from dpspec.recording.pending_step import Scalar, together
from dpspec.recording.ranks.shards import local

#: Functions at the import of this module, and whether they are torch's own. ``Tensor.norm`` calls ``torch.norm``.
_FUNCTIONS = (torch.einsum, torch.norm, torch.Tensor.norm)
_OWN = all(Path(torch.__file__).parent in Path(one.__code__.co_filename).parents for one in _FUNCTIONS)

#: Types of numbers with eleven or eight significant bits.
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: Relative rounding errors of the types to which torch may round factors of float32 products.
_PRODUCTS = {"TF32": 2.0**-11, "bfloat16": 2.0**-8}

#: The first calls of ``clip_and_accumulate`` are recomputed, then call n with probability _FIRST / n.
_FIRST = 4

#: Medians that wait on the device before they are read.
_WAITING = 64


class _Mode(TorchFunctionMode):
    """Passes the observed functions of torch to an observer, also if the script replaced them."""

    def __init__(self, observe: Callable[..., Any]) -> None:
        super().__init__()
        self._observe = observe

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._observe(func, *args, **(kwargs or {})) if func in _FUNCTIONS else func(*args, **(kwargs or {}))


class Contributions:
    """Observes one call of ``clip_and_accumulate``, without changes to arguments or results, until :meth:`close`.

    Each sum is a call ``torch.einsum("i,i...", f, g)``. The norm of f_i g_i over all parameters is the contribution of
    record i. Norms of g from Opacus are reused, except in half precision, which rounds them to a percent.

    ``torch.einsum`` and ``torch.norm`` are replaced during the call, which is faster than a mode of torch. If the
    script replaced them, or ``Tensor.norm``, a mode observes the functions that theirs call.

    Attributes:
        norm_type: The half precision in which Opacus computed norms, or "".
        sum_type: The half precision in which Opacus computed sums, or "".
    """

    def __init__(self, kept: Iterable[Any]) -> None:
        """kept: the per-sample gradients of the parameters."""
        # The memory of these tensors is not reused during the call, so an address identifies a gradient.
        self._lasting = {g.data_ptr() for g in kept if isinstance(g, Tensor)}
        # Of each gradient that Opacus computed norms of: its address and size, its version and the norms.
        self._known: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._factors: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._fault: Exception | None = None
        self.norm_type, self.sum_type = "", ""
        self._thread = get_ident()
        self._mode: _Mode | None = None
        if _OWN and all(map(operator.is_, (torch.einsum, torch.norm, torch.Tensor.norm), _FUNCTIONS)):
            for name, function in zip(("einsum", "norm"), _FUNCTIONS, strict=False):
                setattr(torch, name, partial(self._observe, function))
        else:
            self._mode = _Mode(self._observe)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._mode is None:
            torch.einsum, torch.norm = _FUNCTIONS[:2]
        else:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _observe(self, func: Any, *args: Any, **options: Any) -> Any:
        result = func(*args, **options)
        if get_ident() == self._thread:
            try:
                if func is not _FUNCTIONS[0]:
                    of = args[0] if args else None
                    if isinstance(of, Tensor) and (of.data_ptr() in self._lasting or of.dtype in HALVES):
                        order = args[1] if len(args) > 1 else options.get("p", "fro")
                        if order == 2 and isinstance(result, Tensor):
                            self._norms(of, result)
                elif len(args) == 3 and args[0] == "i,i...":
                    factors, of = args[1:]
                    seen, norms = self._known.get((of.data_ptr(), of.numel()), (-1, None))
                    if norms is None or seen != of._version or len(norms) != len(of):
                        norms = _norms(of)
                    self._factors.append(factors)
                    self._lengths.append(norms.detach())
                    self.sum_type = HALVES.get(of.dtype, self.sum_type)
            except Exception as error:  # a fault of the recorder must not reach the training
                self._fault = error
        return result

    def records(self, parameters: int) -> int | None:
        """The number of contributions; None unless there was one sum for each of ``parameters``.

        Raises the recorder's fault if there was one.
        """
        if self._fault is not None:
            raise self._fault
        return len(self._lengths[0]) if parameters and len(self._lengths) == parameters else None

    def norms(self) -> tuple[Any, Any]:
        """(b,) the norm of each contribution, and of each gradient before clipping; arrays of float64 on a host."""
        device, shared = self._lengths[0].device, all(one is self._factors[0] for one in self._factors)
        if device.type == "cpu" and shared:
            every = np.array([one.float().numpy() for one in self._lengths], dtype=np.float64)
            whole = np.sqrt((every**2).sum(axis=0))
            return np.abs(self._factors[0].double().numpy()) * whole, whole
        lengths = torch.stack([one.to(device) for one in self._lengths]).double()
        factors = self._factors[0] if shared else torch.stack([one.to(device) for one in self._factors])
        return (factors.to(lengths) * lengths).square_().sum(0).sqrt_(), lengths.square_().sum(0).sqrt_()

    def _norms(self, of: Tensor, norms: Tensor) -> None:
        if of.dim() < 2 or norms.shape != of.shape[:1]:
            return
        if of.dtype in HALVES:
            self.norm_type = HALVES[of.dtype]
        else:
            self._known[of.data_ptr(), of.numel()] = of._version, norms


def _norms(gradients: Tensor) -> Tensor:
    gradients = gradients if gradients.dim() > 1 else gradients[:, None]
    exact = torch.float32 if gradients.dtype in HALVES else None
    norms: Tensor = torch.linalg.vector_norm(gradients.detach().flatten(1), dim=1, dtype=exact)
    return norms


def summed_gradients(optimizer: Any, parameters: Sequence[Any]) -> list[Tensor | None]:
    """The sums of clipped gradients, of sharded parameters the rows of this process; None before the first pass."""
    state = getattr(optimizer, "grad_state", None)  # of Opacus' optimizer for sharded parameters
    if state is None:
        return [getattr(p, "summed_grad", None) for p in parameters]
    return [local(state[p]["summed_grad"]) for p in parameters]


class SummedGradients:
    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._parameters = optimizer, list(optimizer.params)
        self._left = Bits()
        self._changed, self._compared = Tally(), 0

    @property
    def found(self) -> list[int]:
        return [self._compared, int(self._changed)]

    def keep(self) -> None:
        self._left.keep(summed_gradients(self._optimizer, self._parameters))

    def compare(self, sums: list[Tensor | None] | None = None) -> None:
        """Compare the sums with those that were kept. sums: the current ones, if they are known."""
        if sums is None:
            sums = summed_gradients(self._optimizer, self._parameters)
        if self._left.known or any(one is not None for one in sums):
            self._compared += 1  # Opacus adds in place: sums that share memory would add up
            self._changed.add(self._left.differ(sums, apart=True))

    def take(self) -> list[bytearray]:
        """The sums have their noise, and ``zero_grad`` removes them: return their copies."""
        copies = self._left.copies
        self._left.forget()
        return copies


class RecomputedSums:
    """Recomputes the clipped sum from the per-sample gradients at random calls of ``clip_and_accumulate``.

    Two float32 sums of b terms with lengths l_i differ by at most (16 + 4 sqrt(b)) u sum l_i in practice, where u =
    2^-23. A sum of b unrelated gradients is about sqrt(b) times shorter than sum l_i, so the smallest detected factor
    is about 1 + (16 sqrt(b) + 4 b) u: 1.00005 for b = 64. The recorder reports the largest of these limits.
    """

    def __init__(self, optimizer: Any, clipping: str) -> None:
        """clipping: ``flat``, ``per-layer`` or ``adaptive``."""
        self._optimizer, self._clipping, self._parameters = optimizer, clipping, list(optimizer.params)
        self._random = Chances()
        self._expected: list[tuple[Tensor, Tensor]] = []
        self._calls = self._recomputed = self._different = 0
        self._limit = 0.0

    @property
    def found(self) -> list[float]:
        return [self._calls, self._recomputed, self._different, min(self._limit, 1e9)]

    def expect(self) -> list[Any]:
        """A call begins: compute the sum that it must leave, if the call is chosen. Return the per-sample gradients."""
        self._calls += 1
        self._expected = []
        kept: list[Any] = [getattr(p, "grad_sample", None) for p in self._parameters]
        if list in map(type, kept):
            kept = [tensor for one in kept for tensor in (one if type(one) is list else [one])]
        require_plain(kept)
        if self._random.random() * self._calls < _FIRST:
            with torch.no_grad():
                self._expect()
        return kept

    def _expect(self) -> None:
        optimizer, parameters = self._optimizer, self._parameters
        gradients = [g.detach().flatten(1) if g.dim() > 1 else g.detach()[:, None] for g in optimizer.grad_samples]
        exact = [torch.float64 if g.dtype == torch.float64 else torch.float32 for g in gradients]
        norms = [torch.linalg.vector_norm(g, dim=1, dtype=kind) for g, kind in zip(gradients, exact, strict=True)]
        with torch.autocast(gradients[0].device.type, enabled=False):
            factors = clip_factors(optimizer, self._clipping, norms)
            for p, g, norm, factor in zip(parameters, gradients, norms, factors, strict=True):
                total = torch.mv(g.to(norm.dtype).t(), factor)
                room = (16.0 + 4.0 * math.sqrt(len(g))) * unit_of(g, p) * (factor * norm).sum()
                before = p.summed_grad
                if before is not None:
                    room = room + 4.0 * unit_of(g, p) * torch.linalg.vector_norm(before.detach().to(total))
                    total = total + before.detach().reshape(-1).to(total)
                self._expected.append((total, room))

    def compare(self) -> None:
        expected, self._expected = self._expected, []
        if not expected:
            return
        different, lengths, rooms = False, [], []
        with torch.no_grad():
            for p, (total, room) in zip(self._parameters, expected, strict=True):
                apart = float(torch.linalg.vector_norm(p.summed_grad.detach().reshape(-1).to(total) - total))
                lengths.append(float(torch.linalg.vector_norm(total)))
                rooms.append(float(room))
                different |= apart > rooms[-1]
        self._recomputed += 1
        self._different += different
        if math.hypot(*lengths) > 0.0:
            self._limit = max(self._limit, math.hypot(*rooms) / math.hypot(*lengths))


def clip_factors(optimizer: Any, clipping: str, norms: Sequence[Tensor]) -> list[Tensor]:
    """Opacus' clipping factors (b,) of each parameter, from the norms (b,) of its per-sample gradients."""
    if clipping == "per-layer":
        limits = [float(limit) for limit in optimizer.max_grad_norms]
        return [(limit / (norm + 1e-6)).clamp(max=1.0) for limit, norm in zip(limits, norms, strict=True)]
    whole = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), dim=0)
    factors = (float(optimizer.max_grad_norm) / (whole + 1e-6)).clamp(max=1.0)
    return [factors.to(norm) for norm in norms]


def unit_of(gradients: Tensor, parameter: Tensor) -> float:
    """The relative rounding error of one operation in the types of the sum and of matrix products."""
    units = [torch.finfo(kind).eps for kind in (gradients.dtype, parameter.dtype) if kind.is_floating_point]
    return max(_PRODUCTS.get(product_type(), 0.0), *units)


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
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bool, Scalar]] = []
        self._step: list[Any] = []  # [log b, log median, variance] of the first batch, and of the last relative to it
        self._before: list[Any] = []
        self._sums = np.zeros((2, 4))

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
        pairs, xx, xy, yy = self._sums[(self._sums[:, 0] >= 8.0) & (self._sums[:, 1] > 0.0)].T
        if not len(pairs):
            return None
        weights = 1.0 / np.maximum(1e-12, 1.5 * (yy - xy * xy / xx) / pairs / xx)
        return [int(pairs.sum()), float((weights * xy / xx).sum() / weights.sum()), float(weights.sum() ** -0.5)]

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for (size, first, _), median in zip(waiting, together([one for *_, one in waiting]), strict=True):
            if first:
                for sums, now, before in zip(self._sums, self._step, self._before, strict=False):
                    (x, y, _), variance = now - before, now[2] + before[2]
                    if math.isfinite(y):
                        sums += np.array([variance, x * x, x * y, y * y]) / variance
                self._before, self._step = self._step, []
            batch = np.array([math.log(size), math.log(median) if 0.0 < median < math.inf else math.nan, 1.0 / size])
            self._step = [self._step[0], batch - self._step[0] * (1, 1, -1)] if self._step else [batch]
