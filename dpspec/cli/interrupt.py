"""Handle Ctrl-C from the first line of the program to its last.

Python raises ``KeyboardInterrupt`` at any point. During an import it may become another error, for example of a C
extension; the signal is recorded, so that any later error is an interruption, not a bug. During the clean-up of an
object Python prints the exception and continues; the signal is then sent again. A signal that is ignored from the start
(``nohup``) stays ignored.

The program imports this module first, so it has no slow imports.
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
    global _heard
    _heard = False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _swallowed


def heard() -> bool:
    return _heard


def leave() -> None:
    """The default handler ends the process immediately, also with 130 in a shell."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _heard
    _heard = True
    raise KeyboardInterrupt


def _swallowed(lost: Any) -> None:
    """Send Ctrl-C again, print others."""

    def press_again(main: int) -> None:
        time.sleep(0.01)  # until the clean-up is over
        if hasattr(signal, "pthread_kill"):  # also ends a blocking call
            signal.pthread_kill(main, signal.SIGINT)
        else:
            _thread.interrupt_main()

    if _heard and isinstance(lost.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(press_again, (_thread.get_ident(),))
    else:
        sys.__unraisablehook__(lost)
