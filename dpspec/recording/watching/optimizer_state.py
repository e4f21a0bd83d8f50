"""The inner optimizer: whether only its own steps change its state, and whether a step is the update of its class.

Copy and original have the same shapes, strides and device, so the same kernels run. Results in float32 and float64 may
still differ by two units in the last place of the longer term, and half precision must be equal in all bits. Fused
kernels round a coordinate differently at another memory address, so their tolerance is relative to the largest
coordinate. Fused updates in half precision are not recomputed, because this tolerance would be several percent.
"""

import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import Bits, Chances, Tally, readable_digest, require_plain
from dpspec.recording.ranks.shards import local

#: Options that the schedulers of torch add to each group.
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}

_NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)

#: Classes of this torch, unless the script replaced them by functions.
_KINDS: list[Any] = [getattr(torch.optim, name, None) for name in _NAMES]

#: The method ``step`` of each class without the decorators that call hooks.
STEPS: dict[type, Callable[[Any], Any]] = {kind: inspect.unwrap(kind.step) for kind in _KINDS if hasattr(kind, "step")}

#: Types of options that are used unchanged: their arithmetic runs no Python code.
_EXACT = {bool, int, float, str, type(None), *np.sctypeDict.values()}

#: All steps up to the second are recomputed, then step n with probability _SHARE / n.
_SHARE = 4.0


class OptimizerState:
    """Counts the steps that begin with another state than the last one left, or than the recording began with.

    Values that share memory are another state: the step changes one by the other.
    The state of parameters that the optimizer no longer holds is not compared: it moves nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._left, self._restated = Bits(), Tally()
        self.after_step()

    @property
    def restated(self) -> int:
        return int(self._restated)

    def before_step(self) -> None:
        """Raise ``TypeError`` if a tensor that the step reads is of the script's own class."""
        parameters, names, state = self._read()
        read = [one for one in state if isinstance(one, Tensor)]
        require_plain([*parameters, *[p.grad for p in parameters], *read])
        left, left_names = self._left, self._names
        if len(parameters) != len(self._parameters) or not all(map(operator.is_, parameters, self._parameters)):
            ends = accumulate(map(len, left_names))
            known = {id(p): (own, end) for p, own, end in zip(self._parameters, left_names, ends, strict=True)}
            held = [known.get(id(p), ((), 0)) for p in parameters]
            left_names = [own for own, _ in held]
            left = left.pick(place for own, end in held for place in range(end - len(own), end))
        self._restated.add(names != left_names or left.differ(state, apart=True))

    def after_step(self) -> None:
        self._parameters, self._names, state = self._read()
        self._left.keep(state)

    def _read(self) -> tuple[list[Tensor], list[tuple[Any, ...]], list[Any]]:
        """All parameters, the names of the values in the state of each, and these values."""
        parameters, names = list[Tensor](), list[tuple[Any, ...]]()
        for group in self._optimizer.param_groups:
            parameters += group["params"]
        # by identity, because the hash of a tensor is slow
        state = self._optimizer.state
        held: dict[int, Any] = {id(p): kept for p, kept in dict.items(state)}
        if type(self._optimizer) in STEPS and {type(state), *map(type, held.values())} - {defaultdict, dict}:
            raise TypeError("the optimizer's state is of the script's own class, whose code may run in a step")
        values: list[Any] = []
        for p in parameters:
            kept = held.get(id(p)) or {}
            names.append(tuple(kept))
            values += kept.values()
        return parameters, names, values


def other_entries(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Digests of the entries of ``state_dict()`` other than values of options and the state of parameters, by name."""
    every = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = {}
    state: dict[Any, Any] = dict(optimizer.state)
    for key, value in state.items():
        if not (id(key) in every or isinstance(key, nn.Parameter)):
            found[f"optimizer.state[{key if isinstance(key, str) else type(key).__name__}]"] = readable_digest(value)
    for number, group in enumerate(optimizer.param_groups):
        for name in group.keys() - _OF_SCHEDULERS:
            value = readable_digest(group[name]) if name == "param_names" else ""
            found[f"optimizer.param_groups[{number}].{name}"] = value
    return found


def is_fresh(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has no state, or only Adagrad's before its first step."""
    if not isinstance(optimizer, torch.optim.Adagrad):
        return not optimizer.state
    first = {p: group["initial_accumulator_value"] for group in optimizer.param_groups for p in group["params"]}
    for p, kept in optimizer.state.items():
        if p not in first or set(kept) != {"step", "sum"} or float(kept["step"]):
            return False
        total = local(kept["sum"])
        total = torch.view_as_real(total.resolve_conj()) if total.is_complex() else total
        if not bool((total == first[p]).all()):
            return False
    return True


class RecomputedUpdates:
    """Recomputes steps on copies of parameters, gradients, state and options, and compares the results.

    Steps 1 and 2 are recomputed, then step n with probability 4 / n, by the operating system's randomness. The copy
    uses the classes of torch as of the import of this module, and plain numbers and tensors, so that hooks, replaced
    methods and custom types that change the update show as a difference.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Sequence[Tensor]) -> None:
        """trained: all parameters that the optimizer could move; parameters without a group must stay unchanged."""
        self._optimizer, self._trained = optimizer, list(trained)
        self._random = Chances()
        self._copy: torch.optim.Optimizer | None = None
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._before: list[Tensor] = []
        self._steps = self._recomputed = self._different = self._failed = 0

    @property
    def kind(self) -> str:
        """The optimizer's class with its module; empty for classes whose updates are recomputed."""
        kind = type(self._optimizer)
        return "" if kind in STEPS else f"{kind.__module__}.{kind.__qualname__}"[:100]

    @property
    def found(self) -> list[int] | None:
        """[steps, recomputed steps, steps with another result, steps that could not be recomputed].

        None for optimizers that are not recomputed: other classes, LBFGS, SparseAdam, and fused updates in half
        precision.
        """
        if type(self._optimizer) not in STEPS or self._fused_half():
            return None
        return [self._steps, self._recomputed, self._different, self._failed]

    def before_step(self) -> None:
        self._steps += 1
        self._copy, self._pairs = None, []
        kind = type(self._optimizer)
        chosen = self._steps <= 2 or self._random.random() * self._steps < _SHARE
        if not chosen or kind not in STEPS or self._fused_half():
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                self._copy = self._copied(kind)
        except Exception:
            self._failed += 1

    def after_step(self) -> None:
        copy, self._copy = self._copy, None
        if copy is None:
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                edited = not all(_equal(local(p.grad), q.grad) for p, q in self._pairs)
                STEPS[type(copy)](copy)
                if edited and not all(_close(local(p.grad), q.grad, q.grad, fused=False) for p, q in self._pairs):
                    self._failed += 1
                    return
                self._different += not self._same(copy)
                self._recomputed += 1
        except Exception:
            self._failed += 1
        finally:
            self._pairs, self._before = [], []

    def _fused_half(self) -> bool:
        halves = (torch.float16, torch.bfloat16)
        groups = self._optimizer.param_groups
        return any(group.get("fused") and any(p.dtype in halves for p in group["params"]) for group in groups)

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
        fused = any(group.get("fused") for group in copy.param_groups)
        for (p, q), before in zip(self._pairs, self._before, strict=True):
            if not _close(local(p).detach(), q.detach(), before, fused=fused):
                return False
            kept = dict.get(self._optimizer.state, p) or {}
            for name, expected in (copy.state.get(q) or {}).items():
                found = local(kept.get(name))
                if not isinstance(expected, Tensor):
                    if found != expected:
                        return False
                elif not (isinstance(found, Tensor) and _close(found.detach(), expected, expected, fused=fused)):
                    return False
        return True


def _parameter(p: Tensor) -> Tensor:
    q: Tensor = local(p).detach().clone().requires_grad_(p.requires_grad)
    q.grad = None if p.grad is None else local(p.grad).detach().clone()
    return q


def _plain(value: Any) -> Any:
    """The same value in a type whose arithmetic runs no code of the script."""
    if isinstance(value, Tensor):
        return local(value).detach().clone()
    if type(value) in _EXACT:
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"options and state must be numbers or tensors, got {type(value).__name__}")


def adds_in_place(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a step adds Nesterov's momentum to its gradients, as SGD's does for several tensors at once."""
    return type(optimizer) is torch.optim.SGD and any(
        group["nesterov"] and (group["foreach"] or (group["foreach"] is None and group["params"][0].is_cuda))
        for group in optimizer.param_groups
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(torch.equal(one, other)) or bool(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))


def _close(found: Tensor | None, expected: Tensor | None, before: Any, *, fused: bool) -> bool:
    """Equal up to two units in the last place of the longer end of the update; ``fused``: of the largest coordinate."""
    if found is None or expected is None:
        return found is expected
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if _equal(found, expected):
        return True
    if found.dtype not in (torch.float32, torch.float64):
        return False
    room = 2.0 * torch.finfo(found.dtype).eps * torch.maximum(before.abs(), expected.abs())
    if fused and room.numel():
        room = 2.0 * room.max()
    apart = (found - expected).abs()
    return bool(((apart <= room) | (found == expected) | (found.isnan() & expected.isnan())).all())
