"""The update of torch's optimizers, recomputed at random steps on copies of parameters, gradients and state.

Code can run inside ``step()``: hooks, replaced methods, options and state of custom types. The recomputation uses the
classes of torch as they were when this module was imported, and options and state as plain numbers and tensors. So the
results differ if such code changes the update.

Steps 1 and 2 are recomputed, then step n with probability 4 / n. The choice comes from the system's randomness. Copy
and original have the same shapes, strides and device, so the same kernels run; results in float32 and float64 may still
differ by two units in the last place of the longer term, and half precision must be equal in all bits.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)

#: The method ``step`` of each class without the decorators that call hooks.
STEPS: dict[type, Callable[[Any], Any]] = {
    kind: inspect.unwrap(kind.step)
    for kind in (getattr(torch.optim, name, None) for name in _NAMES)
    if kind is not None
}

#: Types of options that are used as they are: their arithmetic runs no Python code.
_EXACT = {bool, int, float, str, type(None), *np.sctypeDict.values()}

#: All steps up to the second are recomputed, then step n with probability _SHARE / n.
_SHARE = 4.0


class RecomputedUpdates:
    """Compares parameters and state after a step with those of a second optimizer on copies."""

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Sequence[Tensor]) -> None:
        """trained: all parameters that the optimizer could move; those of no group must stay as they are."""
        self._optimizer, self._trained = optimizer, list(trained)
        self._random = random.SystemRandom()
        self._copy: torch.optim.Optimizer | None = None
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._before: list[Tensor] = []
        self._steps = self._recomputed = self._different = self._failed = 0

    @property
    def found(self) -> list[int] | None:
        """[steps, recomputed steps, steps with another result, steps that could not be recomputed].

        None for classes that are not recomputed: those of other libraries or of the script, LBFGS and SparseAdam.
        """
        if type(self._optimizer) not in STEPS:
            return None
        return [self._steps, self._recomputed, self._different, self._failed]

    @torch.no_grad()
    def copy(self) -> None:
        """The step begins: copy what it uses, if the step is chosen."""
        self._steps += 1
        self._copy, self._pairs = None, []
        kind = type(self._optimizer)
        if kind not in STEPS or (self._steps > 2 and self._random.random() * self._steps >= _SHARE):
            return
        try:
            with torch._C.DisableTorchFunctionSubclass():
                self._copy = self._copied(kind)
        except Exception:
            self._failed += 1

    @torch.no_grad()
    def compare(self) -> None:
        """The step is over: recompute it, and compare.

        A step whose gradients changed meanwhile cannot be recomputed: a closure may have computed them.
        """
        copy, self._copy = self._copy, None
        if copy is None:
            return
        try:
            with torch._C.DisableTorchFunctionSubclass():
                if not all(_equal(p.grad, q.grad) for p, q in self._pairs):
                    self._failed += 1
                    return
                STEPS[type(copy)](copy)
                same = self._same(copy)
        except Exception:
            self._failed += 1
            return
        self._recomputed += 1
        self._different += not same

    def _copied(self, kind: type) -> torch.optim.Optimizer:
        groups, state = [], {}
        for group in self._optimizer.param_groups:
            copies = []
            for p in group["params"]:
                q = _parameter(p)
                copies.append(q)
                self._pairs.append((p, q))
                kept = dict.get(self._optimizer.state, p)
                if kept:
                    state[q] = {name: _plain(value) for name, value in kept.items()}
            options = {name: _plain(value) for name, value in group.items() if name not in ("params", "param_names")}
            groups.append({"params": copies, **options})
        copy: torch.optim.Optimizer = kind(groups)
        copy.state.clear()
        copy.state.update(state)
        known = {id(p) for p, _ in self._pairs}
        self._pairs += [(p, _parameter(p)) for p in self._trained if id(p) not in known]
        self._before = [q.detach().clone() for _, q in self._pairs]
        return copy

    def _same(self, copy: torch.optim.Optimizer) -> bool:
        """Whether all parameters and their states are those of the copy."""
        for (p, q), before in zip(self._pairs, self._before, strict=True):
            if not _close(p.detach(), q.detach(), before):
                return False
            kept = dict.get(self._optimizer.state, p) or {}
            for name, expected in (copy.state.get(q) or {}).items():
                found = kept.get(name)
                if not isinstance(expected, Tensor):
                    if found != expected:
                        return False
                elif not (isinstance(found, Tensor) and _close(found.detach(), expected, expected)):
                    return False
        return True


def _parameter(p: Tensor) -> Tensor:
    q = p.detach().clone().requires_grad_(p.requires_grad)
    q.grad = None if p.grad is None else p.grad.detach().clone()
    return q


def _plain(value: Any) -> Any:
    """The same value in a type whose arithmetic runs no code of the script."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in _EXACT:
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"options and state must be numbers or tensors, got {type(value).__name__}")


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(torch.equal(one, other)) or bool(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))


def _close(found: Tensor, expected: Tensor, before: Tensor) -> bool:
    """Equal, or apart by two units in the last place of the longer of both ends of the update."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if _equal(found, expected):
        return True
    if found.dtype not in (torch.float32, torch.float64):
        return False
    room = 2.0 * torch.finfo(found.dtype).eps * torch.maximum(before.abs(), expected.abs())
    apart = (found - expected).abs()
    return bool(((apart <= room) | (found == expected) | (found.isnan() & expected.isnan())).all())
