"""A look at an optimizer right before it steps and right after: other hooks come before the one and after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


class StepHooks:
    """``before`` is called after all other hooks of a step to come, ``after`` before all other hooks that follow it.

    Else what those hooks change (gradients, momentum) would pass for what the step itself did. A script may register
    hooks between two steps: call :meth:`put_last` before a step, or read :attr:`ordered` after it.

    ordered: whether, at the last step, no other hook of the optimizer ran between ``before`` and ``after``.
    disordered: the number of steps for which this was not so.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._optimizer, self._look_before, self._look_after = optimizer, before, after
        self._before = optimizer.register_step_pre_hook(lambda *_: self._begin())
        self._after = optimizer.register_step_post_hook(lambda *_: self._end())
        self._move("_optimizer_step_post_hooks", self._after, last=False)
        self.ordered, self.disordered = True, 0

    def put_last(self) -> None:
        """Move ``before`` behind all other hooks. Call this before the optimizer runs its hooks."""
        self._move("_optimizer_step_pre_hooks", self._before, last=True)

    def remove(self) -> None:
        """Look no more."""
        self._before.remove()
        self._after.remove()

    def _begin(self) -> None:
        self.ordered = self._is_at("_optimizer_step_pre_hooks", self._before, -1)
        self._look_before()
        # torch goes through the hooks before a step now, and order can only be changed among those after it
        self._move("_optimizer_step_post_hooks", self._after, last=False)

    def _end(self) -> None:
        self.ordered = self.ordered and self._is_at("_optimizer_step_post_hooks", self._after, 0)
        self.disordered += not self.ordered
        self._look_after()
        self.put_last()

    def _move(self, name: str, handle: Any, *, last: bool) -> None:
        """To an end of the optimizer's hooks; where they are kept in another way, or it is gone, nothing is moved."""
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            getattr(self._optimizer, name).move_to_end(handle.id, last=last)

    def _is_at(self, name: str, handle: Any, place: int) -> bool:
        """Whether the hook has this place among the optimizer's hooks."""
        ids = list(getattr(self._optimizer, name, ()))
        return bool(ids) and ids[place] == handle.id
