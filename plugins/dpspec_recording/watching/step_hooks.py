"""Hooks of an optimizer's steps, and methods that the recorder wraps."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch


def attach_step_hooks(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None], undo: ExitStack
) -> None:
    """Call ``before`` and ``after`` at each step of an optimizer, until ``undo`` ends it.

    If ``step`` of a subclass calls the one of its base class, torch calls the hooks of both. Only the outer ones count.
    """
    #: An upper bound on those that began and have not ended: exceptions end some, and hooks may be attached within one.
    open_steps = 1

    def begin(*_: Any) -> None:
        nonlocal open_steps
        if open_steps != 0 and _is_nested(optimizer):
            open_steps += 1
            return
        open_steps = 1
        before()

    def end(*_: Any) -> None:
        nonlocal open_steps
        if open_steps != 1 and _is_nested(optimizer):
            open_steps -= 1
            return
        open_steps = 0
        after()

    undo.callback(optimizer.register_step_pre_hook(begin).remove)
    undo.callback(optimizer.register_step_post_hook(end).remove)


def _is_nested(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of the optimizer calls this one: the frames of all callers take longer than a small step."""
    wrapper = getattr(type(optimizer).step, "__code__", None)
    frame, steps = inspect.currentframe(), 0
    while frame is not None:
        if frame.f_code is wrapper:
            arguments = frame.f_locals.get("args", ())
            steps += bool(arguments) and arguments[0] is optimizer
        frame = frame.f_back
    return steps > 1


def put_method(holder: Any, name: str, method: Any) -> Callable[[], None]:
    """Replace a method of a class or an object; returns the function that undoes it unless other code replaced it too.

    Other code then calls this method, so it stays.
    """
    replaced, put = vars(holder).get(name), type.__setattr__ if isinstance(holder, type) else object.__setattr__
    put(holder, name, method)

    def undo() -> None:
        if vars(holder).get(name) is method:
            if replaced is None:
                object.__delattr__(holder, name)
            else:
                put(holder, name, replaced)

    return undo
