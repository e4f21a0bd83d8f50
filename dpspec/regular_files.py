"""Open untrusted files only if they are regular and of limited size.

Pipes, devices and files under ``/proc`` may block, be endless or contain secrets. This module imports only the standard
library.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

#: Flags that some systems lack: do not wait for a pipe, do not follow links, do not translate line ends.
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

#: Folders of virtual files, which hide their size.
_VIRTUAL = ("/proc/", "/sys/", "/dev/")


class NotRegularError(OSError):
    """A file is not regular, or too large."""


def open_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> BufferedReader:
    """Open a regular file of at most ``most`` bytes for reading. ``follow`` allows symbolic links.

    Raises ``NotRegularError`` for another kind of file, and ``OSError`` if it cannot be opened.
    """
    _require(os.stat(path) if follow else os.lstat(path), most)  # opening a device may have effects
    handle = os.open(path, os.O_RDONLY | _ALWAYS | (0 if follow else _NO_LINK))
    try:
        _require(os.fstat(handle), most)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """Read a regular file. Raises ``NotRegularError`` also for virtual files and if the content exceeds the size."""
    with open_regular(path, most, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size else b""
    if not size and os.path.realpath(path).startswith(_VIRTUAL):
        raise NotRegularError(errno.EINVAL, "not a regular file but a virtual file of the system")
    if content is None or len(content) > size:
        raise NotRegularError(errno.EINVAL, "contains more bytes than its size")
    return content


def read_text(path: Path, most: int) -> str:
    """Read a regular file in UTF-8. Raises like :func:`read_regular`, and ``UnicodeDecodeError``."""
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


#: Modes of folders and files: evidence has scores and inclusion bits of records.
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that do not exist, readable by their owner alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
    folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def open_private(file: Path) -> BinaryIO:
    """A new file for writing, readable by its owner alone; ``FileExistsError`` if it exists."""
    return open(file, "xb", opener=lambda name, flags: os.open(name, flags, _PRIVATE_FILE))
