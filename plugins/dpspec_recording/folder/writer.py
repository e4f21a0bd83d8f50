"""The folder of a recording that is written: two logs that only grow, and the scores of canaries."""

import hashlib
import os
import secrets
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpspec.errors import UsageError
from dpspec_recording.folder.events import (
    FORMAT,
    LONGEST,
    End,
    Header,
    InternalStep,
    NotedFacts,
    PublicStep,
    SavedState,
    Scored,
    Script,
    Start,
    Stopped,
    encode,
)
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.weights import MOST_TENSORS, Table

#: The files of a folder, in the order of their digest.
PUBLIC, INTERNAL, CANARIES = "public.log", "internal.log", "canaries.npz"
FILES = (PUBLIC, INTERNAL, CANARIES)

#: Before each event: the length and the CRC-32 of its payload.
PREFIX = struct.Struct("<II")


class LogWriter:
    """Appends events to a file."""

    def __init__(self, path: Path, *, new: bool = True) -> None:
        """new: whether the file must not exist; raises ``FileExistsError``."""
        create_flags = os.O_CREAT | os.O_EXCL if new else 0
        self._file = os.open(path, os.O_WRONLY | create_flags | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)

    def append(self, *events: Any) -> None:
        """Write events by one call; raises ``ValueError`` if one is too long."""
        chunks = list[bytes]()
        for event in events:
            payload = encode(event)
            if len(payload) > LONGEST:
                raise ValueError(f"an event has at most {LONGEST} bytes, got {len(payload)}")
            chunks += (PREFIX.pack(len(payload), zlib.crc32(payload)), payload)
        whole = b"".join(chunks)
        written = os.write(self._file, whole)
        if written != len(whole):
            raise OSError(f"wrote {written} of {len(whole)} bytes")

    def is_at(self, path: Path) -> bool:
        """Whether the path still leads to this file: writes to a removed or renamed file succeed."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file))
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._file)


class RunWriter:
    """Writes the recording of one process. steps: their number."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Raises ``UsageError`` unless the folder is new or empty."""
        start = Start(format=FORMAT, recording=secrets.token_hex(8), header=header)
        if len(encode(start)) > LONGEST:
            raise UsageError(f"the model has too many or too long names of parameters: more than {LONGEST} bytes")
        folder = folder.absolute()  # a script may change the working directory
        try:
            folder.mkdir(parents=True, exist_ok=True)
            strange = next(iter(sorted(os.listdir(folder))), None)
            if strange is None:
                self._public = LogWriter(folder / PUBLIC)
        except FileExistsError:
            strange = PUBLIC if folder.is_dir() else ""
        except OSError as error:
            raise UsageError(f"cannot record into {folder}: {error.strerror or error}") from error
        if strange == "":
            raise UsageError(f"cannot record into {folder}: it is not a folder")
        if strange is not None:
            contents = "a recording, or another recorder writes there" if strange in (PUBLIC, INTERNAL) else strange
            raise UsageError(
                f"{folder} already holds {contents}: a run is recorded once. Give a new folder, such as runs/{{n}}, or "
                "overwrite=True to record again, or resume=True to continue the recording after a checkpoint"
            )
        self._folder, self.steps = folder, 0
        self._internal = LogWriter(folder / INTERNAL)
        self._internal.append(Start(format=FORMAT, recording=start.recording))
        self._public.append(start)

    def write(self, *steps: tuple[PublicStep, InternalStep]) -> None:
        """Write steps, the internal parts first."""
        self._internal.append(*(internal for _, internal in steps))
        self._public.append(*(public for public, _ in steps))
        self.steps += len(steps)

    def save(self, state: SavedState) -> None:
        """Note a state between two steps."""
        self._internal.append(state)

    def end(self, facts: NotedFacts, weights: Table | str = "") -> str:
        """Write the end.

        Args:
            facts: Of the whole training.
            weights: The digests of the model's tensors, or why this recording has no digests.

        Returns:
            Why the folder is incomplete: its files were removed or renamed.
        """
        if isinstance(weights, Mapping) and len(weights) > MOST_TENSORS:
            weights = f"the model has more than {MOST_TENSORS} tensors"
        logs = {PUBLIC: self._public, INTERNAL: self._internal}
        try:
            self._public.append(End(facts=facts, weights=weights if isinstance(weights, str) else dict(weights)))
            moved = [name for name, log in logs.items() if not log.is_at(self._folder / name)]
        finally:
            self.close()
        return f"{', '.join(moved)} was removed or renamed while the training ran" if moved else ""

    def fail(self, reason: str) -> None:
        """Note why the recording ends before the training; without values of the training."""
        try:
            self._internal.append(Stopped(reason=reason[:1000]))
        finally:
            self.close()

    def scored(self, content: bytes, *, canaries: int, final: bool) -> None:
        """Write the file of scores, and its digest after the end. Raises ``UsageError`` if there is such a file."""
        path = self._folder / CANARIES
        try:
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(content)
        except FileExistsError:
            raise UsageError(f"{path} is there already: canaries are scored once") from None
        digest = hashlib.sha256(content).hexdigest()
        self._append_to(PUBLIC, Scored(canaries=canaries, digest=digest, final=final))

    def fail_again(self, reason: str) -> None:
        """Note another reason after :meth:`fail`."""
        self._append_to(INTERNAL, Stopped(reason=reason[:1000]))

    def ran_in(self, script: ScriptFacts) -> None:
        """Note the script around the recording, after the end."""
        self._append_to(PUBLIC, Script(script=script))

    def _append_to(self, name: str, event: Any) -> None:
        log = LogWriter(self._folder / name, new=False)
        try:
            log.append(event)
        finally:
            log.close()

    def close(self) -> None:
        self._public.close()
        self._internal.close()
