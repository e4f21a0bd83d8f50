"""The options of an optimizer at each step, and the code that changed them.

An option is a number, a boolean or a word of a parameter group, such as ``lr`` or ``betas[0]``, or an option of the
private sum, such as ``clip_norm``. A change is accepted if a scheduler of torch or Opacus made it: its value before the
call is the last that was read, and the scheduler is known to set it. Schedulers are observed at their classes, which
get their own methods back at the end.
"""

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.fingerprints import digest
from dpspec.recording.folder.step_record import UNREAD, OptionChange
from dpspec.recording.recognized import is_registered
from dpspec.recording.watching.step_hooks import put_method

Value: TypeAlias = float | str | None

#: Keys of a parameter group that are not options.
_NO_OPTIONS = ("params", "param_names")

#: Types whose values cannot change in place.
_FIXED = frozenset((float, int, bool, str, type(None)))
_LISTS = frozenset((list, tuple))

#: Types of values that the recorder knows.
_KINDS = (float, int, bool, str, type(None), Tensor, nn.Parameter)

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

#: Relative distance of two epochs that count as equal.
_SAME = 1e-9


class OptionWatch:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        private: Callable[[], Mapping[str, Any]],
        guarded: Callable[[Callable[[], None]], None],
        objects: Callable[[], Sequence[Any]] | None = None,
    ) -> None:
        """Begin to observe.

        optimizer: the one that steps. private: returns the private sum's options; ``objects``, the values that they
        are read from. guarded: runs observations.
        """
        self._optimizer, self._private, self._private_objects = optimizer, private, objects
        self._last: dict[str, tuple[Value, ...]] | None = None
        # The objects that ``_last`` was read from: of the private sum under True, all under False.
        self._seen: dict[bool, list[Any] | None] = {}
        self._changed: dict[str, str] = {}
        self._places: dict[int, int] = {}
        self._named: dict[tuple[int, ...], str] = {}
        self._schedulers = SchedulerWatch(self._read_again, self._after_scheduler, guarded)

    def remove(self) -> None:
        self._schedulers.remove()

    def read(self, *, private: bool = False) -> None:
        seen, before = self._objects(private), self._seen.get(private)
        if before is not None and len(seen) == len(before) and all(map(operator.is_, seen, before)):
            return
        now = self._read() if self._last is None or not private else {**self._last, **self._read_private()}
        if self._last is None:
            self._changed = dict.fromkeys(now, START)
        elif self._note(now, frozenset(), UNKNOWN):
            self._seen.clear()
        self._last = now
        self._seen[private] = seen if self._are_fixed(private) else None

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
            self._note(now, sets, name)
            self._seen.clear()
            self._last = now

    def _note(self, now: Mapping[str, tuple[Value, ...]], sets: frozenset[str], by: str) -> bool:
        """Whether an option changed. It is marked as set by ``by`` unless other code changed it since the last step."""
        last, changed = self._last or {}, False
        for name in now.keys() | last.keys():
            if _bits(now.get(name, ())) != _bits(last.get(name, ())):
                changed = True
                known = name in sets and self._changed.get(name, by) != UNKNOWN
                self._changed[name] = self._changed.get(name, by) if known else UNKNOWN
        return changed

    def _groups(self, private: bool) -> Sequence[Mapping[str, Any]]:
        """The groups of the optimizer, none with ``private``."""
        groups = [] if private or self._optimizer is None else self._optimizer.param_groups
        plain = type(groups) is list and all(type(one) is dict and type(one["params"]) is list for one in groups)
        if not plain:
            raise TypeError("param_groups holds other classes than dict and list, whose code may run in a step")
        return groups

    def _objects(self, private: bool) -> list[Any]:
        """The objects that options are read from. None ends a list, so that no parameter changes its group unseen."""
        found: list[Any] = []
        of_sum = self._private_objects
        for options in self._groups(private) if of_sum else [*self._groups(private), self._private()]:
            found += options
            for value in options.values():
                if type(value) in _LISTS:
                    found += value
                    found.append(None)
                else:
                    found.append(value)
        return [*found, *of_sum()] if of_sum else found

    def _are_fixed(self, private: bool) -> bool:
        """Whether no object that options are read from can change in place."""
        for options in [*self._groups(private), self._private()]:
            for name, value in options.items():
                inside = value if type(value) in _LISTS else [value]
                if name not in _NO_OPTIONS and not _FIXED.issuperset(map(type, inside)):
                    return False
        return True

    @torch.no_grad()
    def _read(self) -> dict[str, tuple[Value, ...]]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        read = [dict(_flat({k: v for k, v in group.items() if k not in _NO_OPTIONS})) for group in groups]
        names = dict.fromkeys(name for group in read for name in group)
        found = {name: tuple(group.get(name) for group in read) for name in names}
        found["parameters"] = tuple(self._members(tuple(map(id, group["params"]))) for group in groups)
        return {**found, **self._read_private()}

    def _read_private(self) -> dict[str, tuple[Value, ...]]:
        return {name: tuple(one for _, one in _flat({name: value})) for name, value in self._private().items()}

    def _members(self, parameters: tuple[int, ...]) -> str:
        if parameters not in self._named:
            places = sorted(self._places.setdefault(one, len(self._places)) for one in parameters)
            self._named[parameters] = digest(places)[:16]
        return self._named[parameters]


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in options.items():
        if type(value) in (list, tuple):
            yield from _flat({f"{name}[{i}]": one for i, one in enumerate(value)})
        else:
            yield str(name)[:100], _plain(value)


def _plain(value: Any) -> Value:
    """The written form of a value. A subclass of a number may compute anything when the optimizer uses it."""
    if type(value).__module__ == "numpy" and isinstance(value, np.number | np.bool_):
        value = value.item()
    if type(value) not in _KINDS:
        return UNREAD + type(value).__name__[:60]
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return float(value)
    if isinstance(value, str) and len(value) <= 60:
        return value
    return f"{type(value).__name__} {digest(value)[:16]}"


def _bits(values: tuple[Value, ...]) -> tuple[str, ...]:
    """Equal for the same values, NaN and signs of zero included."""
    return tuple(map(repr, values))


class SchedulerWatch:
    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[str, frozenset[str]], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """Begin to observe.

        begin: called before a scheduler changes anything. end: called after it, with its class and the options that
        it sets: none if it is not one of torch or Opacus, reads a metric, or was changed between two of its steps.
        guarded: runs each observation.
        """
        self._begin, self._end, self._guarded = begin, end, guarded
        self._left: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._spacings: WeakKeyDictionary[Any, tuple[float, float]] = WeakKeyDictionary()
        self._known, self._unedited, self._depth = True, True, 0
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
                epoch = None if name == "__init__" else options.get("epoch", args[0] if args else None)
                self._guarded(functools.partial(self._called, scheduler, epoch))
            self._depth += 1
            try:
                result = original(scheduler, *args, **options)
            finally:
                self._depth -= 1
            if observed:
                self._guarded(functools.partial(self._returned, scheduler))
            return result

        self._undo.append(put_method(kind, name, reported))

    def _called(self, scheduler: Any, epoch: Any) -> None:
        self._begin()
        before = self._left.get(scheduler)
        self._unedited = before is None or before == _state(scheduler) != UNREAD
        self._known = self._unedited and (epoch is None or self._is_even(scheduler, epoch))

    def _returned(self, scheduler: Any) -> None:
        # a later step may use the edited value
        self._left[scheduler] = _state(scheduler) if self._unedited else UNREAD
        kind, known = type(scheduler), self._known and _is_public(scheduler)
        self._end(kind.__name__, _SETS[kind.__module__] if known else frozenset())

    def _is_even(self, scheduler: Any, epoch: Any) -> bool:
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
    try:
        return digest(vars(scheduler))
    except (TypeError, ValueError, RuntimeError):
        return UNREAD
