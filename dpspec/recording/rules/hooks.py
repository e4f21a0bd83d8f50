"""Hooks of rules, whose exceptions never reach the training."""

import contextlib
from collections.abc import Callable
from typing import Any

from dpspec.recording.model_hook import ModelHook


def suppressed(observe: Callable[..., None]) -> Callable[..., None]:
    """The hook without its exceptions: an observation that fails is omitted."""

    def hook(*args: Any) -> None:
        with contextlib.suppress(Exception):
            observe(*args)

    return ModelHook(hook)
