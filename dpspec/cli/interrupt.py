"""Handle Ctrl-C from the first line of the program to its last.

During an import ``KeyboardInterrupt`` may become another error, for example of a C extension. The signal is recorded:
any later error is an interruption. A signal that is ignored from the start (``nohup``) stays ignored. The program
imports this module first, so it has no slow imports.
"""

import signal
from types import FrameType

_heard = False


def listen() -> None:
    global _heard
    _heard = False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


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
