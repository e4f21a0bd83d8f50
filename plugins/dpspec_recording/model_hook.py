"""Hooks of modules and optimizers that scripts may copy and store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar


class ModelHook:
    """A hook that calls ``observe``. Copies and stored hooks do nothing."""

    _is_paused: ClassVar = False

    def __init__(self, observe: Callable[..., None]) -> None:
        self._observe = observe

    def __call__(self, *arguments: Any) -> None:
        """Observe a call, unless hooks are paused."""
        if not self._is_paused:
            self._observe(*arguments)

    @classmethod
    @contextlib.contextmanager
    def paused(cls) -> Iterator[None]:
        """No hook observes the calls of the recorder itself."""
        cls._is_paused = True
        try:
            yield
        finally:
            cls._is_paused = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelHook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


def suppressed(observe: Callable[..., None]) -> ModelHook:
    """The hook of a rule, whose exceptions never reach the training: an observation that fails is omitted."""

    def hook(*args: Any) -> None:
        try:  # at each call of a layer: suppress() takes longer
            observe(*args)
        except Exception:
            return

    return ModelHook(hook)
