"""Updates of torch's optimizers, made again on copies by the methods of their classes.

Copy and original have the same shapes, strides and device, so the same kernels run. Results in float32 and float64 may
still differ by two units in the last place of the longer term, and half precision must be equal in all bits. Fused
kernels round a coordinate differently at another memory address, so their tolerance is relative to the largest
coordinate. Fused updates in half precision are not recomputed, because this tolerance would be several percent.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpspec_recording.shards import local
from dpspec_recording.watching import step_hooks
from dpspec_recording.watching.arrays import ReportedUpdates
from dpspec_recording.watching.centering import is_centered

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


class UpdateCopy:
    """A copy of an optimizer with its parameters, gradients, options and state, which makes the update of its class.

    Attributes:
        pairs: Each parameter with its copy.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, further: Sequence[Tensor]) -> None:
        """further: parameters that the optimizer does not have, and that must stay unchanged."""
        self._further, self.pairs = further, list[tuple[Tensor, Tensor]]()
        groups, state = [], {}
        for group in optimizer.param_groups:
            copies = []
            for p in group["params"]:
                q = _parameter(p)
                copies.append(q)
                self.pairs.append((p, q))
                entries = optimizer.state.get(p)
                if entries:
                    state[q] = {name: _plain(value) for name, value in entries.items()}
            options = {name: _plain(value) for name, value in group.items() if name not in ("params", "param_names")}
            groups.append({"params": copies, **options})
        self.optimizer: torch.optim.Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        self.optimizer.state.clear()  # Adagrad makes it at once
        self.optimizer.state.update(state)
        self.pairs += [(p, _parameter(p)) for p in further]
        self._before = [q.detach().clone() for _, q in self.pairs]

    def begins_again(self, gradients: Sequence[Tensor | None]) -> UpdateCopy:
        """Return a copy of this one, before its update, with other gradients and the parameters of this one."""
        again = UpdateCopy(self.optimizer, [q for _, q in self.pairs[len(self.pairs) - len(self._further) :]])
        for (_, q), gradient in zip(again.pairs, gradients, strict=True):
            q.grad = None if gradient is None else gradient.detach().clone()
        again.pairs = [(p, q) for (p, _), (_, q) in zip(self.pairs, again.pairs, strict=True)]
        return again

    def has_gradients(self, *, exactly: bool) -> bool:
        """Whether the gradients of all parameters and copies are equal, up to the rounding of an update."""
        pairs = [(local(p.grad), q.grad) for p, q in self.pairs]
        return all(_equal(p, q) if exactly else _close(p, q, q, fused=False) for p, q in pairs)

    def step(self) -> None:
        """Make the update."""
        STEPS[type(self.optimizer)](self.optimizer)

    def is_update_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the update gave the present parameters and state of the optimizer."""
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        for (p, q), before in zip(self.pairs, self._before, strict=True):
            if not _close(local(p).detach(), q.detach(), before, fused=fused):
                return False
            entries = optimizer.state.get(p) or {}
            for name, expected in (self.optimizer.state.get(q) or {}).items():
                executed = local(entries.get(name))
                if not isinstance(expected, Tensor):
                    if executed != expected:
                        return False
                elif not (isinstance(executed, Tensor) and _close(executed.detach(), expected, expected, fused=fused)):
                    return False
        return True


class AuditedUpdates:
    """Recomputes audited steps on copies of parameters, gradients, state and options, and compares the results.

    Attributes:
        kind: The optimizer's class with its module; empty for classes whose updates are recomputed.
        steps: The number of updates.
        recomputed: The number of recomputed updates.
        different: The number of recomputed updates with another result.
        failed: The number of audited updates that cannot be recomputed.
        hooks: The names of the script's hooks of the optimizer's step, at a step that changed its gradients.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Sequence[Tensor]) -> None:
        """trained: all parameters that the optimizer could move; parameters without a group must stay unchanged."""
        self._optimizer, self._trained = optimizer, list(trained)
        self._copy: UpdateCopy | None = None
        kind = type(optimizer)
        self.kind = "" if kind in STEPS else f"{kind.__module__}.{kind.__qualname__}"[:100]
        self.steps = self.recomputed = self.different = self.failed = 0
        self.hooks: list[str] = []

    @property
    def is_recomputed(self) -> bool:
        """Whether updates are recomputed: not of other classes, LBFGS, SparseAdam, or fused in half precision."""
        return type(self._optimizer) in STEPS and not self._is_fused_half()

    def before_step(self, *, audited: bool) -> None:
        self.steps += 1
        self._copy = None
        if not audited or not self.is_recomputed:
            return
        try:
            with torch.no_grad():
                has_group = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
                self._copy = UpdateCopy(self._optimizer, [p for p in self._trained if id(p) not in has_group])
        except Exception:
            self.failed += 1

    def after_step(self, *, compared: bool = False) -> None:
        """Compare the update.

        Args:
            compared: Whether the caller compares changes of the gradients within the step. Else only centered ones are
                recomputed.
        """
        copied, self._copy = self._copy, None
        if copied is None:
            return
        try:
            with torch.no_grad():
                self._compare_update(copied, compared)
        except Exception:
            self.failed += 1

    def _compare_update(self, copied: UpdateCopy, compared: bool) -> None:
        """Compare the update with the one from the gradients before it, or if a hook changed these, from its own."""
        edited = None
        if not copied.has_gradients(exactly=True):
            edited = copied.begins_again([local(p.grad) for p, _ in copied.pairs])
        copied.step()
        is_update = copied.is_update_of(self._optimizer)
        if edited is not None and not copied.has_gradients(exactly=False):  # the optimizer did not change them itself
            self.hooks = self.hooks or _step_hooks(self._optimizer)
            if not compared and not self._is_centered(copied, edited):
                self.failed += 1
                return
            edited.step()
            is_update = is_update or edited.is_update_of(self._optimizer)
            self.failed += not is_update
            self.recomputed += is_update
            return
        self.different += not is_update
        self.recomputed += 1

    @staticmethod
    def _is_centered(copied: UpdateCopy, edited: UpdateCopy) -> bool:
        """Whether the gradients of the step are centered ones of those before it (a hook's)."""
        gradients = [(q.grad, r.grad) for (_, q), (_, r) in zip(copied.pairs, edited.pairs, strict=True)]
        pairs = [(before, after) for before, after in gradients if before is not None and after is not None]
        return len(pairs) == len(gradients) and is_centered(*map(list, zip(*pairs, strict=True)))

    def _is_fused_half(self) -> bool:
        halves = (torch.float16, torch.bfloat16)
        groups = self._optimizer.param_groups
        return any(group.get("fused") and any(p.dtype in halves for p in group["params"]) for group in groups)


def recomputed_updates(optimizer: torch.optim.Optimizer, trained: Sequence[Tensor]) -> AuditedUpdates | ReportedUpdates:
    """The observer of an optimizer's updates: one that a loop over arrays reports repeats them itself.

    Args:
        optimizer: Torch's, or the one of arrays.
        trained: All parameters that it could move.
    """
    return optimizer if isinstance(optimizer, ReportedUpdates) else AuditedUpdates(optimizer, trained)


def _step_hooks(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of the functions that the script calls before and after the update."""
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    modules = [getattr(hook, "__module__", "") or "" for hook in hooks]
    return [
        str(getattr(hook, "__qualname__", type(hook).__qualname__)).rpartition("<locals>.")[2][:100]
        for hook, module in zip(hooks, modules, strict=True)
        if module != step_hooks.__name__
    ]


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
