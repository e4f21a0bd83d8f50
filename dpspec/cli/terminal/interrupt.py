"""Ctrl-C, from the first line of the program to its last: one way to end, whatever the signal fell into.

Python raises ``KeyboardInterrupt`` wherever the program happens to be. In the middle of an import that may come out as
another error, of a C extension for instance; so the signal is remembered, and whatever ends the program after it is an
interruption, never a bug. Where it falls into the clean-up of an object, Python prints it and goes on: it is pressed
again then, and raised a moment later. A signal that was ignored from the start (``nohup``) stays ignored.

Imports nothing that takes time: it is what the program begins with.
"""

from __future__ import annotations

import _thread
import signal
import sys
import time
from types import FrameType

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

_heard = False


def listen() -> None:
    """From now on remember Ctrl-C, and raise ``KeyboardInterrupt`` as Python does."""
    global _heard
    _heard = False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _swallowed


def heard() -> bool:
    """Whether Ctrl-C was pressed since :func:`listen`."""
    return _heard


def leave() -> None:
    """Nothing is left to be told or kept: from now on Ctrl-C ends the process at once; a shell shows 130 for it too."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _heard
    _heard = True
    raise KeyboardInterrupt


def _swallowed(lost: Any) -> None:
    """What Python does with an exception that it cannot raise, unless it is Ctrl-C."""
    if _heard and isinstance(lost.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(_press_again, (_thread.get_ident(),))
    else:
        sys.__unraisablehook__(lost)


def _press_again(main: int) -> None:
    time.sleep(0.01)  # until the clean-up is over
    if hasattr(signal, "pthread_kill"):  # wakes it from whatever it waits for
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
