"""The recording in a folder, and its removal."""

import re
import shutil
from pathlib import Path

from dpspec.errors import UsageError
from dpspec_recording.folder.writer import FILES, PUBLIC

#: Files of recordings in formats before 21.
_EARLIER_FILES = ("run.json", "steps.log", "states.log", "weights.json")

#: Folders of ranks and of later parts.
_FOLDERS = re.compile(r"(rank|part)-\d+")

#: Folders of the trainings of one script.
_TRAINING = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)


def the_recording(folder: Path) -> Path:
    """The folder of a recording: the given one, or the only one of a script's trainings in it, which have numbers.

    Raises:
        UsageError: The folder has the recordings of several trainings.
    """
    if not folder.is_dir() or (folder / PUBLIC).exists():
        return folder
    names = [entry.name for entry in folder.iterdir()]
    trainings = sorted((name for name in names if _TRAINING.fullmatch(name)), key=int)
    if len(trainings) > 1:
        raise UsageError(
            f"{folder} has the recordings of {len(trainings)} trainings, {', '.join(trainings[:9])}: name one, such as "
            f"{folder / trainings[0]}"
        )
    return folder / trainings[0] if trainings and set(names) == set(trainings) else folder


def remove_recording(folder: Path) -> None:
    """Remove a recording with its ranks and parts; ``UsageError`` if the folder has other files."""
    if not folder.exists():
        return
    entries = sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else [folder]
    if not entries:
        return
    is_part = {path: _FOLDERS.fullmatch(path.name) is not None and not path.is_symlink() for path in entries}
    strange = [path.name for path in entries if not is_part[path] and path.name not in (*FILES, *_EARLIER_FILES)]
    begun = any((folder / name).exists() for name in (PUBLIC, _EARLIER_FILES[0])) or any(is_part.values())
    if strange or not begun:
        raise UsageError(f"{folder}: overwrite=True removes recordings only, and {(strange or ['it'])[0]} is none")
    for path in entries:
        if is_part[path]:
            shutil.rmtree(path)
        else:
            path.unlink()
