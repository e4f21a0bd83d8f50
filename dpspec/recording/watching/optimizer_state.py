"""The inner optimizer: whether only its own steps change its state, and whether a step is the update of its class.

Copy and original have the same shapes, strides and device, so the same kernels run. Results in float32 and float64 may
still differ by two units in the last place of the longer term, and half precision must be equal in all bits. Fused
kernels round a coordinate differently at another memory address, so their tolerance is relative to the largest
coordinate. Fused updates in half precision are not recomputed, because this tolerance would be several percent.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpspec.recording.fingerprints import Tally, TensorSnapshot, any_event
from dpspec.recording.folder.probe_facts import UpdateFacts
from dpspec.recording.ranks.shards import local
from dpspec.recording.sums.centering import is_centered

_NAMES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)

#: The method ``step`` of each class of this torch, without the decorators that call hooks.
STEPS: dict[type, Callable[[Any], Any]] = {
    kind: inspect.unwrap(kind.step) for name in _NAMES if (kind := getattr(torch.optim, name, None)) is not None
}


def is_fresh(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has no state, or only Adagrad's before its first step."""
    if not isinstance(optimizer, torch.optim.Adagrad):
        return not optimizer.state
    first = {p: group["initial_accumulator_value"] for group in optimizer.param_groups for p in group["params"]}
    for p, state in optimizer.state.items():
        if p not in first or set(state) != {"step", "sum"} or float(state["step"]):
            return False
        total = local(state["sum"])
        total = torch.view_as_real(total.resolve_conj()) if total.is_complex() else total
        if not bool((total == first[p]).all()):
            return False
    return True


class AuditedUpdates:
    """Recomputes audited steps on copies of parameters, gradients, state and options, and compares the results.

    It also compares the state after an audited step with the state before the next one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Sequence[Tensor]) -> None:
        """trained: all parameters that the optimizer could move; parameters without a group must stay unchanged."""
        self._optimizer, self._trained = optimizer, list(trained)
        self._copy: torch.optim.Optimizer | None = None
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._before: list[Tensor] = []
        self._left: dict[int, tuple[tuple[str, ...], TensorSnapshot]] = {}
        self._restated = Tally()
        self._keep_state(True)
        self._audited = False
        self._steps = self._recomputed = self._different = self._failed = 0

    @property
    def kind(self) -> str:
        """The optimizer's class with its module; empty for classes whose updates are recomputed."""
        kind = type(self._optimizer)
        return "" if kind in STEPS else f"{kind.__module__}.{kind.__qualname__}"[:100]

    @property
    def facts(self) -> UpdateFacts | None:
        """What was recomputed.

        None for optimizers that are not recomputed: other classes, LBFGS, SparseAdam, and fused updates in half
        precision.
        """
        if type(self._optimizer) not in STEPS or self._fused_half():
            return None
        return UpdateFacts(
            steps=self._steps, recomputed=self._recomputed, different=self._different, failed=self._failed
        )

    @property
    def restated(self) -> int:
        """The number of steps that begin with another state than the audited step before left."""
        return int(self._restated)

    def before_step(self, *, audited: bool) -> None:
        self._steps += 1
        self._audited, self._copy, self._pairs = audited, None, []
        if self._left:
            self._compare_state()
        kind = type(self._optimizer)
        if not audited or kind not in STEPS or self._fused_half():
            return
        try:
            with torch.no_grad():
                self._copy = self._copied(kind)
        except Exception:
            self._failed += 1

    def after_step(self) -> None:
        self._keep_state(self._audited)
        again, self._copy = self._copy, None
        if again is None:
            return
        try:
            with torch.no_grad():
                edited = not all(_equal(local(p.grad), q.grad) for p, q in self._pairs)
                if edited and self._begin_centered():
                    edited = False
                STEPS[type(again)](again)
                if edited and not all(_close(local(p.grad), q.grad, q.grad, fused=False) for p, q in self._pairs):
                    self._failed += 1
                    return
                self._different += not self._same(again)
                self._recomputed += 1
        except Exception:
            self._failed += 1
        finally:
            self._pairs, self._before = [], []

    def _begin_centered(self) -> bool:
        """Give the copies the gradients of the step if these are centered ones of the copies (a hook's)."""
        with_gradients = [(local(p.grad), q) for p, q in self._pairs if p.grad is not None and q.grad is not None]
        centered = [gradient.detach().clone() for gradient, _ in with_gradients]
        before = [q.grad for _, q in with_gradients if q.grad is not None]
        if len(before) < len(self._pairs) or not is_centered(before, centered):
            return False
        for (_, q), gradient in zip(with_gradients, centered, strict=True):
            q.grad = gradient
        return True

    def _keep_state(self, keep: bool) -> None:
        self._left = {}
        for p, values in self._state() if keep else ():
            self._left[id(p)] = tuple(values), TensorSnapshot()
            self._left[id(p)][1].keep(values.values())

    def _compare_state(self) -> None:
        """Compare the state of all parameters with the kept one; empty if there was none."""
        empty = TensorSnapshot()
        empty.keep(())
        events: list[bool | Tensor] = []
        for p, values in self._state():
            names, snapshot = self._left.get(id(p), ((), empty))
            events += [names != tuple(values), snapshot.differ(values.values())]
        self._restated.add(any_event(events))

    def _state(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """All parameters with their state."""
        state = {id(p): values for p, values in self._optimizer.state.items()}  # the hash of a tensor is slow
        return [(p, state.get(id(p)) or {}) for group in self._optimizer.param_groups for p in group["params"]]

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
                entries = self._optimizer.state.get(p)
                if entries:
                    state[q] = {name: _plain(value) for name, value in entries.items()}
            options = {name: _plain(value) for name, value in group.items() if name not in ("params", "param_names")}
            groups.append({"params": copies, **options})
        again: torch.optim.Optimizer = kind(groups)
        again.state.clear()  # Adagrad makes it at once
        again.state.update(state)
        copied = {id(p) for p, _ in self._pairs}
        self._pairs += [(p, _parameter(p)) for p in self._trained if id(p) not in copied]
        self._before = [q.detach().clone() for _, q in self._pairs]
        return again

    def _same(self, again: torch.optim.Optimizer) -> bool:
        fused = any(group.get("fused") for group in again.param_groups)
        for (p, q), before in zip(self._pairs, self._before, strict=True):
            if not _close(local(p).detach(), q.detach(), before, fused=fused):
                return False
            entries = self._optimizer.state.get(p) or {}
            for name, expected in (again.state.get(q) or {}).items():
                executed = local(entries.get(name))
                if not isinstance(expected, Tensor):
                    if executed != expected:
                        return False
                elif not (isinstance(executed, Tensor) and _close(executed.detach(), expected, expected, fused=fused)):
                    return False
        return True


def _parameter(p: Tensor) -> Tensor:
    q: Tensor = local(p).detach().clone().requires_grad_(p.requires_grad)
    q.grad = None if p.grad is None else local(p.grad).detach().clone()
    return q


def _plain(value: Any) -> Any:
    """A copy of an option or a part of the state."""
    return local(value).detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def adds_in_place(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a step adds Nesterov's momentum to its gradients, as SGD's does for several tensors at once."""
    return type(optimizer) is torch.optim.SGD and any(
        group["nesterov"] and (group["foreach"] or (group["foreach"] is None and group["params"][0].is_cuda))
        for group in optimizer.param_groups
    )


def _equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return bool(torch.equal(left, right)) or bool(torch.allclose(left, right, rtol=0.0, atol=0.0, equal_nan=True))


def _close(executed: Tensor | None, expected: Tensor | None, before: Any, *, fused: bool) -> bool:
    """Equal up to two units in the last place of the longer end of the update; ``fused``: of the largest coordinate."""
    if executed is None or expected is None:
        return executed is expected
    if executed.shape != expected.shape or executed.dtype != expected.dtype:
        return False
    if _equal(executed, expected):
        return True
    if executed.dtype not in (torch.float32, torch.float64):
        return False
    tolerance = 2.0 * torch.finfo(executed.dtype).eps * torch.maximum(before.abs(), expected.abs())
    if fused and tolerance.numel():
        tolerance = 2.0 * tolerance.max()
    distance = (executed - expected).abs()
    return bool(((distance <= tolerance) | (executed == expected) | (executed.isnan() & expected.isnan())).all())
