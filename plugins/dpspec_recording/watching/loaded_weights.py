"""Weights that a script puts into the recorded model during the recording: loaded or earlier ones."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from dpspec_recording.model_hook import ModelHook
from dpspec_recording.watching.parameter_watch import ParameterWatch


class LoadedWeights:
    """Notes the steps before which weights were loaded that moved the parameters.

    Weights that are loaded before the first step of a training are its initial ones.

    Attributes:
        count: The number of these steps.
        returned: The number of other steps that begin with the weights of an earlier step, as copies put them back.
    """

    def __init__(self, watch: ParameterWatch, begin: Callable[[], None] | None) -> None:
        """Observe nothing yet.

        Args:
            watch: Of the parameters, as the last step left them.
            begin: Called when weights are loaded before the first step; None in a later part of a training, whose
                first part has the initial weights.
        """
        self._watch, self._begin = watch, begin
        self._is_loaded = False
        self.count = self.returned = 0

    def attach(self, module: nn.Module, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        """Observe a module until ``undo`` ends it."""
        hook = ModelHook(lambda *_: guarded(self._note))
        undo.callback(module.register_load_state_dict_post_hook(hook).remove)  # type: ignore[no-untyped-call]

    @property
    def is_pending(self) -> bool:
        """Whether loaded weights moved the parameters after the last step."""
        return self._is_loaded and bool(self._watch.moved())

    @property
    def is_returned(self) -> bool:
        """Whether weights of an earlier step were put back after the last step."""
        return not self._is_loaded and bool(self._watch.moved()) and self._watch.returned()

    def before_step(self, moved: Any) -> None:
        """A step begins. moved: whether the parameters moved since the last one."""
        self._begin = None
        if self._is_loaded:
            self._is_loaded = False
            self.count += bool(moved)
        elif bool(moved):
            self.returned += self._watch.returned()

    def _note(self) -> None:
        if self._begin is None:
            self._is_loaded = True
        else:
            self._begin()
