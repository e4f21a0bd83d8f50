"""Hooks of modules and optimizers that scripts may copy and store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ModelHook:
    """A hook that calls ``observe``. Copies and stored hooks do nothing."""

    def __init__(self, observe: Callable[..., None]) -> None:
        self._observe = observe

    def __call__(self, *arguments: Any) -> None:
        """Observe a call."""
        self._observe(*arguments)

    def __deepcopy__(self, _: Any) -> ModelHook:
        return ModelHook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelHook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass
