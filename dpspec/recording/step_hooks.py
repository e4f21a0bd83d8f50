"""A look at an optimizer right before it steps and right after: other hooks come before the one and after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


class StepHooks:
    """``before`` is called after all other hooks of a step to come, ``after`` before all other hooks that follow it.

    Else what those hooks change (gradients, momentum) would pass for what the step itself did. Hooks that were put
    since the last step are passed over at the next one only.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._optimizer, self._look_before, self._look_after = optimizer, before, after
        self._before = optimizer.register_step_pre_hook(lambda *_: self._begin())
        self._after = optimizer.register_step_post_hook(lambda *_: self._end())
        self._move("_optimizer_step_post_hooks", self._after, last=False)

    def remove(self) -> None:
        """Look no more."""
        self._before.remove()
        self._after.remove()

    def _begin(self) -> None:
        self._look_before()
        # torch goes through the hooks before a step now, and order can only be changed among those after it
        self._move("_optimizer_step_post_hooks", self._after, last=False)

    def _end(self) -> None:
        self._look_after()
        self._move("_optimizer_step_pre_hooks", self._before, last=True)

    def _move(self, name: str, handle: Any, *, last: bool) -> None:
        """To an end of the optimizer's hooks; where they are kept in another way, or it is gone, nothing is moved."""
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            getattr(self._optimizer, name).move_to_end(handle.id, last=last)
