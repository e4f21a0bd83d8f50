"""Weights that a script loads into the recorded model by ``load_state_dict`` during the recording."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from dpspec.recording.model_hook import ModelHook


class LoadedWeights:
    """Notes the steps before which weights were loaded that moved the parameters.

    Weights that are loaded before the first step of a training are its initial ones.

    Attributes:
        count: The number of these steps.
    """

    def __init__(self, moved: Callable[[], bool | Tensor], begin: Callable[[], None] | None) -> None:
        """Observe nothing yet.

        Args:
            moved: Returns whether the parameters moved since the last step.
            begin: Called when weights are loaded before the first step; None in a later part of a training, whose
                first part has the initial weights.
        """
        self._moved, self._begin = moved, begin
        self._is_loaded = False
        self.count = 0

    def attach(self, module: nn.Module, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        """Observe a module until ``undo`` ends it."""
        hook = ModelHook(lambda *_: guarded(self._note))
        undo.callback(module.register_load_state_dict_post_hook(hook).remove)  # type: ignore[no-untyped-call]

    @property
    def is_pending(self) -> bool:
        """Whether loaded weights moved the parameters after the last step."""
        return self._is_loaded and bool(self._moved())

    def before_step(self, moved: Any) -> None:
        """A step begins. moved: whether the parameters moved since the last one."""
        self._begin = None
        if self._is_loaded:
            self._is_loaded = False
            self.count += bool(moved)

    def _note(self) -> None:
        if self._begin is None:
            self._is_loaded = True
        else:
            self._begin()
