"""The first free number of a new folder, without an import of numpy: a script is still to begin."""

from pathlib import Path

_MOST = 1_000_000


def numbered(folder: Path) -> Path:
    """The folder, with ``{n}`` in its last part replaced by the first number from 1 that no file or folder has."""
    if "{n}" not in folder.name:
        return folder
    paths = (folder.with_name(folder.name.replace("{n}", str(number))) for number in range(1, _MOST))
    return next(path for path in paths if not path.exists())
