"""Messages of the recorder during a training: warnings of Python, or lines if it records an unedited script.

Such a script may turn warnings into errors, which would end it, or end the rule that warns.
"""

import contextlib
import sys
import warnings

_LINES = [False]


def use_lines(on: bool) -> None:
    """Write lines to standard error in place of warnings from now on, or warnings again."""
    _LINES[0] = on


def say(text: str) -> None:
    """Write a line to standard error, without a consequence for the script."""
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)


def notice(text: str, category: type[Warning] = RuntimeWarning, *, stacklevel: int = 2) -> None:
    """Tell the user. stacklevel: of the warning, as for ``warnings.warn`` in the calling function."""
    if _LINES[0]:
        say(text)
    else:
        warnings.warn(text, category, stacklevel=stacklevel + 1)
