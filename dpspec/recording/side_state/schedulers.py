"""Calls of the schedulers of torch and Opacus, observed at their classes.

``LRScheduler`` and the classes derived from it in torch, and Opacus' schedulers of noise and clip norm, get a ``step``
and an ``__init__`` that report each call. The classes get their own methods back when the last observer leaves.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from dpspec.recording.side_state.digests import digest
from dpspec.recording.watching.recognised import is_registered

#: The options that schedulers of each module set.
_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"})
_MOMENTUM = frozenset({"momentum", "betas[0]", "base_momentum", "max_momentum"})
_SETS = {
    "torch.optim.lr_scheduler": _RATES | _MOMENTUM,
    "torch.optim.swa_utils": _RATES,
    "opacus.schedulers.noise_scheduler": frozenset({"noise_multiplier"}),
    "opacus.schedulers.grad_clip_scheduler": frozenset({"clip_norm"}),
}

#: Two epochs that are this close, relatively, are the same.
_SAME = 1e-9


class SchedulerWatch:
    """Reports the beginning and the end of each call of a scheduler."""

    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[str, frozenset[str]], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """Begin to observe.

        Args:
            begin: Called before a scheduler changes anything.
            end: Called after it, with the class of the scheduler and the options that it is known to set: none if it
                is not one of torch or Opacus, reads a metric, or was changed between two of its steps.
            guarded: Runs all of this, so that a fault never reaches the training.
        """
        self._begin, self._end, self._guarded = begin, end, guarded
        self._left: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._spacings: WeakKeyDictionary[Any, tuple[float, float]] = WeakKeyDictionary()
        self._known = True
        _OBSERVED.add(self)

    def remove(self) -> None:
        """Observe no more."""
        _OBSERVED.remove(self)

    def called(self, scheduler: Any, epoch: Any) -> None:
        """A scheduler is about to make a step that no other scheduler asked for. ``epoch``: its argument, or None."""

        def look() -> None:
            self._begin()
            before = self._left.get(scheduler)
            self._known = before is None or before == _state(scheduler)
            self._known &= epoch is None or self._is_even(scheduler, epoch)

        self._guarded(look)

    def returned(self, scheduler: Any) -> None:
        """It has made its step."""

        def look() -> None:
            self._left[scheduler] = _state(scheduler)
            kind, known = type(scheduler), self._known and _is_public(scheduler)
            self._end(kind.__name__, _SETS[kind.__module__] if known else frozenset())

        self._guarded(look)

    def _is_even(self, scheduler: Any, epoch: Any) -> bool:
        """Whether the epochs that a scheduler gets are spaced by one over an integer, the same at each step."""
        if isinstance(epoch, bool) or not isinstance(epoch, int | float):
            return False
        last, spacing = self._spacings.get(scheduler, (float(getattr(scheduler, "last_epoch", 0)), 0.0))
        moved = float(epoch) - last
        self._spacings[scheduler] = float(epoch), spacing or moved
        if spacing:
            return math.isclose(moved, spacing, rel_tol=_SAME, abs_tol=_SAME * max(1.0, abs(epoch)))
        parts = 1.0 / moved if moved > 0.0 else 1.0
        return moved >= 0.0 and parts > 0.5 and math.isclose(parts, round(parts), rel_tol=1e-6)


def _is_public(scheduler: Any) -> bool:
    """Whether a scheduler, and each scheduler inside it, is one of torch or Opacus that reads no metric."""
    kind = type(scheduler)
    own = {"get_lr", "step", "_update_lr", "get_noise_multiplier", "get_max_grad_norm"}
    if kind.__module__ not in _SETS or kind.__name__ == "ReduceLROnPlateau" or own & vars(scheduler).keys():
        return False
    numbers = [value for value in vars(scheduler).values() if isinstance(value, float | int)]
    if not is_registered(kind) or any(type(value).__module__ not in ("builtins", "numpy") for value in numbers):
        return False
    made = [function for name in own if (function := getattr(kind, name, None)) is not None]
    inside = vars(scheduler).get("_schedulers", ())
    return all(function.__module__ in _SETS for function in made) and all(map(_is_public, inside))


def _state(scheduler: Any) -> str:
    """A digest of what the scheduler remembers, without the options that its optimizer holds."""
    try:
        return digest(vars(scheduler))
    except (TypeError, ValueError, RuntimeError):
        return ""


class _Observed:
    """The observers of this process, and the classes that report to them."""

    def __init__(self) -> None:
        self._observers: list[SchedulerWatch] = []
        self._undo: list[Callable[[], None]] = []
        self._depth = 0

    def add(self, observer: SchedulerWatch) -> None:
        if not self._observers:
            for name in _SETS:
                module = sys.modules.get(name)
                for kind in list(vars(module).values()) if module is not None else ():
                    if isinstance(kind, type) and kind.__module__ == name and hasattr(kind, "step"):
                        self._wrap(kind, "__init__")
                        self._wrap(kind, "step")
        self._observers.append(observer)

    def remove(self, observer: SchedulerWatch) -> None:
        self._observers.remove(observer)
        if not self._observers:
            for undo in reversed(self._undo):
                undo()
            self._undo = []

    def _wrap(self, kind: type, name: str) -> None:
        original = vars(kind).get(name)
        if original is None:
            return

        @functools.wraps(original)
        def reported(scheduler: Any, *args: Any, **options: Any) -> Any:
            outermost = self._depth == 0
            observers = list(self._observers) if outermost else []
            epoch = None if name == "__init__" else options.get("epoch", args[0] if args else None)
            for one in observers:
                one.called(scheduler, epoch)
            self._depth += 1
            try:
                result = original(scheduler, *args, **options)
            finally:
                self._depth -= 1
            for one in observers:
                one.returned(scheduler)
            return result

        setattr(kind, name, reported)

        def undo() -> None:
            if vars(kind).get(name) is reported:
                setattr(kind, name, original)

        self._undo.append(undo)


_OBSERVED = _Observed()
