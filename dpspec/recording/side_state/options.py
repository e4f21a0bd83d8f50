"""The options of an optimizer at each step, and what changed them.

An option is a number, a boolean or a word of a parameter group, such as ``lr`` or ``betas[0]``, or an option of the
private sum, such as ``clip_norm``. A change is accepted if a scheduler of torch or Opacus made it: its value before the
call is the one that was read last, and it is one of those that the scheduler sets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.folder.option_record import UNREAD, OptionChange
from dpspec.recording.side_state.digests import digest
from dpspec.recording.side_state.schedulers import SchedulerWatch

Value: TypeAlias = float | str | None

#: Keys of a parameter group that are no options.
_NO_OPTIONS = ("params", "param_names")

#: Types whose values cannot change in place.
_FIXED = frozenset((float, int, bool, str, type(None)))

#: Types of values that the recorder knows.
_KINDS = (float, int, bool, str, type(None), Tensor, nn.Parameter)

#: What an option was set by if not by a scheduler: before the first step, or by other code.
START, UNKNOWN = "start", ""


class OptionWatch:
    """Reads the options whenever they are about to be used, and writes down those that changed."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        private: Callable[[], Mapping[str, Any]],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """Begin to observe schedulers; options are read from the first :meth:`look` on.

        Args:
            optimizer: The one that steps, with its parameter groups.
            private: The options of the private sum, by name.
            guarded: As for :class:`SchedulerWatch`.
        """
        self._optimizer, self._private = optimizer, private
        self._last: dict[str, tuple[Value, ...]] | None = None
        # The objects that ``_last`` was read from: those of the private sum under True, all under False.
        self._seen: dict[bool, list[Any] | None] = {}
        self._changed: dict[str, str] = {}
        self._places: dict[int, int] = {}
        self._named: dict[tuple[int, ...], str] = {}
        self._schedulers = SchedulerWatch(self._before_scheduler, self._after_scheduler, guarded)

    def remove(self) -> None:
        """Observe no more."""
        self._schedulers.remove()

    def look(self, *, private: bool = False) -> None:
        """The options are about to be used. ``private``: only those of the private sum are."""
        seen = self._objects(private)
        if self._last is not None and _are_same(seen, self._seen.get(private)):
            return
        now = self._read() if self._last is None or not private else {**self._last, **self._read_private()}
        if self._last is None:
            self._changed = dict.fromkeys(now, START)
        elif self._note(now, frozenset(), UNKNOWN):
            self._seen.clear()
        self._last, self._seen[private] = now, seen

    def written(self) -> dict[str, OptionChange]:
        """What changed since the last call; at the first step all options."""
        changed, self._changed = self._changed, {}
        last = self._last or {}
        return {name: OptionChange(by, last.get(name, ())) for name, by in changed.items()}

    def _before_scheduler(self) -> None:
        if self._last is not None:
            self.look()

    def _after_scheduler(self, name: str, sets: frozenset[str]) -> None:
        if self._last is not None:
            now = self._read()
            self._note(now, sets, name)
            self._seen.clear()
            self._last = now

    def _note(self, now: Mapping[str, tuple[Value, ...]], sets: frozenset[str], by: str) -> bool:
        """Mark the options that changed: as set by a scheduler, unless other code has changed them since the last step.

        Returns whether one changed.
        """
        last, changed = self._last or {}, False
        for name in now.keys() | last.keys():
            if _bits(now.get(name, ())) != _bits(last.get(name, ())):
                changed = True
                known = name in sets and self._changed.get(name, by) != UNKNOWN
                self._changed[name] = self._changed.get(name, by) if known else UNKNOWN
        return changed

    def _objects(self, private: bool) -> list[Any] | None:
        """The objects that options are read from; None if one of them can change in place."""
        groups = [] if private or self._optimizer is None else self._optimizer.param_groups
        found: list[Any] = [one for group in groups for one in group["params"]]
        for options in (*groups, self._private()):
            for name, value in options.items():
                if name not in _NO_OPTIONS:
                    values = value if type(value) in (list, tuple) else (value,)
                    if not _FIXED.issuperset(map(type, values)):
                        return None
                    found += (name, len(values), *values)
        return found

    @torch.no_grad()
    def _read(self) -> dict[str, tuple[Value, ...]]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        read = [dict(_flat({k: v for k, v in group.items() if k not in _NO_OPTIONS})) for group in groups]
        names = dict.fromkeys(name for group in read for name in group)
        found = {name: tuple(group.get(name) for group in read) for name in names}
        found["parameters"] = tuple(self._members(tuple(map(id, group["params"]))) for group in groups)
        return {**found, **self._read_private()}

    def _read_private(self) -> dict[str, tuple[Value, ...]]:
        read = self._private()
        plain = {name: float(value) if isinstance(value, Real) else value for name, value in read.items()}
        return {name: tuple(one for _, one in _flat({name: value})) for name, value in plain.items()}

    def _members(self, parameters: tuple[int, ...]) -> str:
        """A word for the parameters of a group, whatever their order."""
        if parameters not in self._named:
            places = sorted(self._places.setdefault(one, len(self._places)) for one in parameters)
            self._named[parameters] = digest(places)[:16]
        return self._named[parameters]


def _are_same(now: list[Any] | None, before: list[Any] | None) -> bool:
    """Whether both are known and hold the same objects."""
    return now is not None and before is not None and len(now) == len(before) and all(map(operator.is_, now, before))


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in options.items():
        if type(value) in (list, tuple):
            yield from _flat({f"{name}[{i}]": one for i, one in enumerate(value)})
        else:
            yield str(name)[:100], _plain(value)


def _plain(value: Any) -> Value:
    """Return the written form of a value. A subclass of a number may compute anything when the optimizer uses it."""
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
