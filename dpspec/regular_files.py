"""Files that others wrote: opened only where they are regular ones of a size that can be read, and never waited for.

Pipes and devices block or have no end, and so does what a system makes up, as under ``/proc``, though it calls itself a
regular file. The lowest layer: it imports nothing of dpspec, and nothing that takes time.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

#: Flags that not every system has: not to wait for the other end of a pipe, not to follow a link, bytes as they are.
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


#: Where systems make up files that hide their size.
_MADE_UP = ("/proc/", "/sys/", "/dev/")


class NotRegularError(OSError):
    """What a name leads to is no regular file, or one that is larger than may be read."""


def open_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> BufferedReader:
    """Open a regular file of at most ``most`` bytes for reading. ``follow``: through a link, too.

    Raises ``NotRegularError``, which says what it is instead, and ``OSError`` where it cannot be opened.
    """
    _require(os.stat(path) if follow else os.lstat(path), most)  # before opening: to open a device may do something
    handle = os.open(path, os.O_RDONLY | _ALWAYS | (0 if follow else _NO_LINK))
    try:
        _require(os.fstat(handle), most)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file. One that calls itself empty is not read: those do that a system makes up.

    Raises ``NotRegularError`` besides for those, and where a file holds more than its size says.
    """
    with open_regular(path, most, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size else b""
    if not size and os.path.realpath(path).startswith(_MADE_UP):
        raise NotRegularError(errno.EINVAL, "not a regular file but one that the system makes up")
    if content is None or len(content) > size:
        raise NotRegularError(errno.EINVAL, "holds more than its size says")
    return content


def read_text(path: Path, most: int) -> str:
    """The text of a regular file in UTF-8; raises as :func:`read_regular`, and ``UnicodeDecodeError``."""
    text = read_regular(path, most).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _require(about: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise NotRegularError(errno.EISDIR, "not a regular file but a folder")
    if stat.S_ISLNK(about.st_mode):
        raise NotRegularError(errno.ELOOP, "not a regular file but a link")
    if not stat.S_ISREG(about.st_mode):
        raise NotRegularError(errno.EINVAL, "not a regular file")
    if about.st_size > most:
        raise NotRegularError(
            errno.EFBIG, f"larger than {most >> 20} MiB" if most >> 20 else f"larger than {most} bytes"
        )
