"""Values of a running script by the names of its variables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter
from types import FrameType
from typing import Any

from dpspec.errors import UsageError


def named_values(names: Sequence[str]) -> list[Any]:
    """The values of variables of the functions that run now, from the innermost, or of the script.

    Args:
        names: Of variables, with attributes after dots.

    Raises:
        UsageError: No function has a variable of the name, or it has no such attribute.
    """
    return [_value(name) for name in names]


#: Packages whose functions call the recorder, and have variables of these names too.
_LIBRARIES = {"dpspec", "dpspec_recording", "opacus", "torch"}


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES


def _value(name: str) -> Any:
    variable, _, attribute = name.partition(".")
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (_is_library(frame) or variable not in frame.f_locals):
        frame = frame.f_back
    main = vars(sys.modules["__main__"])
    if frame is None and variable not in main:
        raise UsageError(f"--public-data {name}: no variable of the script has this name when the training begins")
    value = main[variable] if frame is None else frame.f_locals[variable]
    if not attribute:
        return value
    try:
        return attrgetter(attribute)(value)
    except AttributeError as error:
        raise UsageError(f"--public-data {name}: {error}") from None
