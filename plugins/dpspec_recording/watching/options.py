"""The options of an optimizer at each step, and the scheduler that changed them.

An option is a number, a boolean or a word of a parameter group, such as ``lr`` or ``betas[0]``, or an option of the
private sum, such as ``clip_norm``. A change is accepted if a scheduler of torch or Opacus made it that is known to set
the option. Schedulers are observed at their classes, which get their own methods back at the end.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from dpspec_recording.fingerprints import digest
from dpspec_recording.folder.events import OptionChange, OptionValue, Unread
from dpspec_recording.watching.step_hooks import put_method

#: Keys of a parameter group that are not options.
_NO_OPTIONS = ("params", "param_names")

#: Types of options, and of the elements of tuples, that no code changes in place.
_UNCHANGEABLE = frozenset({bool, int, float, str, tuple, type(None)})

#: The origins of an option other than a scheduler: before the first step, and other code.
START, UNKNOWN = "start", ""

#: The options that schedulers of each module set.
_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"})
_MOMENTUM = frozenset({"momentum", "betas[0]", "base_momentum", "max_momentum"})
_SETS = {
    "torch.optim.lr_scheduler": _RATES | _MOMENTUM,
    "torch.optim.swa_utils": _RATES,
    "opacus.schedulers.noise_scheduler": frozenset({"noise_multiplier"}),
    "opacus.schedulers.grad_clip_scheduler": frozenset({"clip_norm"}),
}


class OptionWatch:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        private: Callable[[], Mapping[str, Any]],
        guarded: Callable[[Callable[[], None]], None],
        accumulates: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin to observe.

        optimizer: the one that steps. private: returns the private sum's options. guarded: runs observations.
        accumulates: whether a physical batch came before, and further ones of its step follow. Their number depends
        on the records, so that schedulers which step between them are not fixed in advance.
        """
        self._optimizer, self._private = optimizer, private
        self._last: dict[str, tuple[OptionValue, ...]] | None = None
        self._raw: list[Any] | None = None
        self._changed: dict[str, str] = {}
        self._accumulates = accumulates
        self._schedulers = SchedulerWatch(self._read_again, self._after_scheduler, guarded)

    def remove(self) -> None:
        self._schedulers.remove()

    def read(self) -> None:
        raw = self._raw_values()
        if raw is not None and raw == self._raw:
            return
        now = self._read()
        if self._last is None:
            self._changed = dict.fromkeys(now, START)
        else:
            self._note(now, frozenset(), UNKNOWN)
        self._last, self._raw = now, raw

    def current(self) -> dict[str, OptionChange]:
        """All values, with the origin of a change since the last step; ``START`` without a change."""
        self._read_again()
        values = self._read() if self._last is None else self._last
        return {name: OptionChange(self._changed.get(name, START), value) for name, value in values.items()}

    def changes(self) -> dict[str, OptionChange]:
        changed, self._changed = self._changed, {}
        last = self._last or {}
        return {name: OptionChange(by, last.get(name, ())) for name, by in changed.items()}

    def _read_again(self) -> None:
        if self._last is not None:
            self.read()

    def _after_scheduler(self, name: str, sets: frozenset[str]) -> None:
        if self._last is not None:
            now = self._read()
            self._note(now, frozenset() if self._accumulates() else sets, name)
            self._last, self._raw = now, None

    def _note(self, now: Mapping[str, tuple[OptionValue, ...]], sets: frozenset[str], by: str) -> None:
        """Mark changed options as set by ``by`` unless other code changed them since the last step."""
        last = self._last or {}
        for name in now.keys() | last.keys():
            if repr(now.get(name)) != repr(last.get(name)):
                explained = name in sets and self._changed.get(name, by) != UNKNOWN
                self._changed[name] = self._changed.get(name, by) if explained else UNKNOWN

    def _groups(self) -> list[dict[str, Any]]:
        return [] if self._optimizer is None else self._optimizer.param_groups

    def _raw_values(self) -> list[Any] | None:
        """All values that options are read from; None if one may change in place."""
        raw: list[Any] = [*self._private().values()]
        for group in self._groups():
            values = {**group, "params": None, "param_names": None}
            raw += [len(group["params"]), *values, *values.values()]
        kinds = {*map(type, raw)}
        if tuple in kinds:
            kinds.update(*(map(type, value) for value in raw if type(value) is tuple))
        if kinds <= _UNCHANGEABLE:  # of almost all optimizers
            return raw
        return None if any(issubclass(kind, Tensor | list) for kind in kinds) else raw

    @torch.no_grad()
    def _read(self) -> dict[str, tuple[OptionValue, ...]]:
        read = [dict(_flat({k: v for k, v in group.items() if k not in _NO_OPTIONS})) for group in self._groups()]
        names = dict.fromkeys(name for group in read for name in group)
        options = {name: tuple(group.get(name) for group in read) for name in names}
        options["parameters"] = tuple(float(len(group["params"])) for group in self._groups())
        private = {name: tuple(value for _, value in _flat({name: value})) for name, value in self._private().items()}
        return {**options, **private}


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, OptionValue]]:
    for name, value in options.items():
        if type(value) in (list, tuple):
            yield from _flat({f"{name}[{i}]": element for i, element in enumerate(value)})
        else:
            yield str(name)[:100], _plain(value)


def _plain(value: Any) -> OptionValue:
    """The written form of a value."""
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return float(value)
    if isinstance(value, str) and len(value) <= 60:
        return value
    if isinstance(value, Tensor | str | int):
        return f"{type(value).__name__} {digest(value)[:16]}"
    return Unread(type(value).__name__[:60])


class SchedulerWatch:
    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[str, frozenset[str]], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """Begin to observe.

        begin: called before a scheduler changes anything. end: called after it, with its class and the options that
        it sets: none if it is not one of torch or Opacus, or reads a metric. guarded: runs each observation.
        """
        self._begin, self._end, self._guarded = begin, end, guarded
        self._epochs: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._depth = 0
        self._undo: list[Callable[[], None]] = []
        for name in _SETS:
            module = sys.modules.get(name)
            for kind in list(vars(module).values()) if module is not None else ():
                if isinstance(kind, type) and kind.__module__ == name and hasattr(kind, "step"):
                    for method in {"__init__", "step"} & vars(kind).keys():
                        self._wrap(kind, method)

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def _wrap(self, kind: type, name: str) -> None:
        original = vars(kind)[name]

        @functools.wraps(original)
        def reported(scheduler: Any, *args: Any, **options: Any) -> Any:
            # only of a step that no other scheduler called, and not after the end
            observed = self._depth == 0 and bool(self._undo)
            if observed:
                self._guarded(self._begin)
            self._depth += 1
            try:
                result = original(scheduler, *args, **options)
            finally:
                self._depth -= 1
            if observed:
                epoch = None if name == "__init__" else options.get("epoch", args[0] if args else None)
                self._guarded(functools.partial(self._returned, scheduler, epoch))
            return result

        self._undo.append(put_method(kind, name, reported))

    def _returned(self, scheduler: Any, epoch: Any) -> None:
        kind, recognized = type(scheduler), _is_public(scheduler) and self._counts(scheduler, epoch)
        self._end(kind.__name__, _SETS.get(kind.__module__, frozenset()) if recognized else frozenset())

    def _counts(self, scheduler: Any, epoch: Any) -> bool:
        """Whether the argument of a step cannot be a metric: it is absent, or a number that never falls."""
        if epoch is None:
            return True
        if isinstance(epoch, bool) or not isinstance(epoch, int | float):
            return False
        before, self._epochs[scheduler] = self._epochs.get(scheduler, 0.0), float(epoch)
        return epoch >= before


def _is_public(scheduler: Any) -> bool:
    """Whether a scheduler, and each scheduler inside it, is one of torch or Opacus that reads no metric."""
    kind = type(scheduler)
    inside = vars(scheduler).get("_schedulers", ())
    return kind.__module__ in _SETS and kind.__name__ != "ReduceLROnPlateau" and all(map(_is_public, inside))
