"""Parameters between steps: their distance from the last step, and the parameters at which gradients are computed."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from dpspec.recording.fingerprints import Tally
from dpspec.recording.pending_step import Scalar
from dpspec.recording.ranks.shards import local

#: The distance of a parameter that became or was NaN, and of one in which only the sign of a zero changed.
_HUGE, _TINY = 1e300, 1e-30

#: Integers of the same size as a number.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Numbers that are subtracted at one time, in the processor's cache.
_CHUNK = 2**18

#: One in this number of further passes of a step compares values.
_FURTHER = 8

_Guarded = Callable[[Callable[[], None]], None]


class ParameterWatch:
    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._every: list[Tensor] = list(parameters)
        self._sharded = any(local(p) is not p for p in self._every)
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)
        # A copy of all bits: in the host's memory their bytes, which are compared fastest.
        self._bytes = [bytearray(_host_bits(p).tobytes()) for p in self._parameters] if self._on_host else []
        if self._on_host:
            self._last = [_tensor(kept, p) for p, kept in zip(self._parameters, self._bytes, strict=True)]
        else:
            self._last = [p.detach().clone() for p in self._parameters]

    @property
    def _parameters(self) -> list[Tensor]:
        """The parameters, of sharded ones the rows of this process, whose memory may be another than before."""
        return [local(p) for p in self._every] if self._sharded else self._every

    def same(self) -> bool:
        """Whether all parameters are in the host's memory and have the bits of the copy, signs of zeros included."""
        if not self._on_host:
            return False
        for p, q, kept in zip(self._parameters, self._last, self._bytes, strict=True):
            if p.dtype != q.dtype or p.shape != q.shape or kept != _host_bits(p):
                return False
        return True

    @torch.no_grad()
    def moved(self) -> Scalar:
        """The l2 distance of the parameters from the copy, 0 only if all bits are the same, and never NaN.

        Infinities and NaN that stayed do not count; if one appeared or disappeared the distance is huge.
        """
        return 0.0 if self.same() else self._distance()

    @torch.no_grad()
    def advance(self) -> Scalar:
        distance = self._distance()
        for p, q in zip(self._parameters, self._last, strict=True):
            q.copy_(p)
        return distance

    def _distance(self) -> Scalar:
        pairs = list(zip(self._parameters, self._last, strict=True))
        if not pairs:
            return 0.0
        if self._on_host and all(p.dtype in (torch.float32, torch.float64) for p, _ in pairs):
            square = 0.0
            with np.errstate(all="ignore"):
                for p, q in pairs:
                    now, then = p.detach().reshape(-1).numpy(), q.numpy().reshape(-1)
                    for start in range(0, len(now), _CHUNK):
                        moved = now[start : start + _CHUNK] - then[start : start + _CHUNK]
                        square += float(np.dot(moved, moved))
            if 0.0 < square < math.inf:
                return math.sqrt(square)
        device = self._last[0].device
        apart = torch.stack([torch.linalg.vector_norm(_difference(p, q)).to(device) for p, q in pairs])
        norm: Tensor = torch.linalg.vector_norm(apart.double())
        other = torch.stack([(_bits(p) != _bits(q)).any().to(device) for p, q in pairs])
        return torch.maximum(norm.nan_to_num(nan=_HUGE, posinf=_HUGE), other.any().double() * _TINY)


def _host_bits(p: Tensor) -> Any:
    """The bits of a tensor in the host's memory, as an array that shares its memory if this is contiguous."""
    p = p.detach()
    array = (p if p.dtype in (torch.float32, torch.float64) else _bits(p)).numpy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _tensor(kept: bytearray, p: Tensor) -> Tensor:
    """A tensor of the shape of ``p`` in given memory."""
    return torch.frombuffer(kept, dtype=p.dtype).view(p.shape) if kept else torch.empty_like(p)


def _difference(p: Tensor, q: Tensor) -> Tensor:
    same = (p == q) | (p.isnan() & q.isnan())
    return torch.where(same, torch.zeros((), dtype=p.dtype, device=p.device), p - q)


def _bits(value: Tensor) -> Tensor:
    value = value.detach()
    real = torch.view_as_real(value) if value.is_complex() else value
    return real.view(_BITS[real.element_size()])


class GradientParameters:
    """Counts the passes that compute gradients at other parameters than the last step left.

    It compares values at the first forward and the first backward pass of a step. At further passes it compares version
    counters and addresses, and values again if any of these changed or at one of eight passes at random.
    """

    def __init__(self, watch: ParameterWatch, parameters: Sequence[nn.Parameter]) -> None:
        """watch: keeps the parameters that the last step left. parameters: those that noise is added to."""
        self._watch, self._parameters = watch, list(parameters)
        self._random = random.SystemRandom()
        self._handles: list[Any] = []
        self._known: list[tuple[int, int]] | None = None
        self._other = Tally()
        self._passes = self._steps = self._unseen = 0
        self._kinds: set[str] = set()

    @property
    def found(self) -> list[int]:
        """[passes, passes at other parameters, steps, steps without a forward pass]."""
        return [self._passes, int(self._other), self._steps, self._unseen]

    def attach(self, model: nn.Module, guarded: _Guarded, compiled: nn.Module | None = None) -> None:
        """Add hooks. ``guarded`` keeps faults of the recorder from the training.

        compiled: the wrapper of the model, whose hooks run outside of compiled code.
        """
        inner = getattr(model, "_module", None)
        for module in (inner if isinstance(inner, nn.Module) else model, compiled):
            if module is not None:
                self._handles.append(module.register_forward_pre_hook(_ForwardHook(self, guarded)))
        if self._parameters:
            first: Any = self._parameters[0]
            self._handles.append(first.register_hook(lambda _: guarded(lambda: self.observe("backward"))))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def observe(self, kind: str) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        self._passes += 1
        now = [(p._version, p.data_ptr()) for p in map(local, self._parameters)]
        if kind in self._kinds and now == self._known and self._random.randrange(_FURTHER):
            return
        self._kinds.add(kind)
        self._known = now
        with torch._C._DisableFuncTorch():  # transforms of torch.func hide the memory of all tensors
            if not self._watch.same():
                self._other.add(self._watch.moved() > 0.0)

    def stepped(self) -> None:
        self._steps += 1
        self._unseen += "forward" not in self._kinds
        self._kinds.clear()


class _ForwardHook:
    def __init__(self, watch: GradientParameters, guarded: _Guarded) -> None:
        self._watch, self._guarded = watch, guarded

    def __call__(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or not module.training:
            return
        if torch.is_grad_enabled() or _is_recomputed_later():
            self._guarded(lambda: self._watch.observe("forward"))

    def __reduce__(self) -> Any:
        return no_hook, ()


def _is_recomputed_later() -> bool:
    """Whether a pass without gradients is one of ``torch.utils.checkpoint``, whose output enters the loss."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def no_hook() -> Callable[..., None]:
    return _ignore


def _ignore(*_: Any) -> None:
    """Replace the hook in copies of the model."""
