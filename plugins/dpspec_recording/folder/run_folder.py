"""The folder of a recorded run, as untrusted input.

``run.json`` describes the run; ``steps.log`` and ``internal.log`` hold the public and the internal parts of steps. The
internal part is written first, so both files end at a complete step whenever the process is killed, and
``internal.log`` can be withheld. ``canaries.npz`` is internal too; its digest follows the end in ``steps.log``.
``states.log``, also internal, holds the states from which a later part may go on. ``weights.json`` has digests of the
model's tensors at the end. The end in ``steps.log`` names the files of the recording, with the digest of
``weights.json``.

The logs are journals of frames, readable up to the last complete one. A frame is its length (4 bytes, little-endian),
its kind (1 byte), its payload, and CRC-32 of these. Frames are written by one call, so a killed process leaves at most
one incomplete frame, which readers skip. Checksums find damage; the result of a check has the SHA-256 of the folder.
"""

import hashlib
import itertools
import json
import math
import os
import stat
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from dpspec import json_records
from dpspec.errors import RecordingError, UsageError
from dpspec.text import shortened
from dpspec_recording.folder.facts import Facts, read_facts
from dpspec_recording.folder.header import LONGEST as LONGEST_TEXT
from dpspec_recording.folder.header import MOST_BYTES, Header, read_header, texts
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.stated_fact import StatedFacts
from dpspec_recording.folder.step_record import InternalStep, PublicStep, SavedState
from dpspec_recording.folder.weights import WEIGHTS, Table, read_content, read_table, write_table

#: Largest size of a payload in bytes.
LONGEST = 1 << 22

_HEAD, _CHECKSUM = struct.Struct("<IB"), struct.Struct("<I")


@dataclass(frozen=True)
class Frame:
    """A frame: its kind and payload, and its number in the file from 1 on."""

    kind: int
    payload: bytes
    number: int


class JournalWriter:
    """Appends frames to a file."""

    def __init__(self, path: Path, *, new: bool = True) -> None:
        """new: whether the file must not exist; raises ``FileExistsError``."""
        create_flags = os.O_CREAT | os.O_EXCL if new else 0
        self._file = os.open(path, os.O_WRONLY | create_flags | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)

    def append(self, kind: int, *payloads: bytes) -> None:
        """Write frames by one call; raises ``ValueError`` if one is too long."""
        chunks = list[bytes]()
        for payload in payloads:
            if len(payload) > LONGEST:
                raise ValueError(f"a frame holds at most {LONGEST} bytes, got {len(payload)}")
            content = _HEAD.pack(len(payload), kind) + payload
            chunks += (content, _CHECKSUM.pack(zlib.crc32(content)))
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


def read_frames(path: Path) -> Iterator[Frame]:
    """The complete frames of a file; ``RecordingError`` that names file, frame and byte of a damaged one."""
    offset, number = 0, 1
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while True:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                length, kind = _HEAD.unpack(head)
                where = f"{path}: frame {number} at byte {offset}"
                if length > LONGEST:
                    raise RecordingError(f"{where}: a frame holds at most {LONGEST} bytes, this one claims {length}")
                if offset + _HEAD.size + length + _CHECKSUM.size > size:
                    return
                payload, checksum = file.read(length), file.read(_CHECKSUM.size)
                if checksum != _CHECKSUM.pack(zlib.crc32(head + payload)):
                    raise RecordingError(f"{where}: its checksum does not match: the file was changed; record again")
                offset += _HEAD.size + length + _CHECKSUM.size
                yield Frame(kind, payload, number)
                number += 1
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from error


#: The files of a folder.
MARK, STEPS, INTERNAL, CANARIES, STATES = "run.json", "steps.log", "internal.log", "canaries.npz", "states.log"

#: All files, in the order of their digest.
FILES = (MARK, STEPS, INTERNAL, CANARIES, STATES, WEIGHTS)

#: Kinds of frames: a step, the end of a recording, the scores of canaries after it, a saved state, and
#: the reason for which the recorder stopped, after the last internal step; and the script around a recording, which
#: follows its end.
STEP, END, SCORED, STATE, FAULT, SCRIPT = 1, 2, 3, 4, 5, 6

#: The largest number of steps.
MOST_STEPS = 2**20

#: Largest size of the end frame in bytes.
_LONGEST_END = 1 << 20

#: Relative error of quartiles in single precision.
_ROUNDING = 1e-5

#: Smallest sampling rate above 0 that a recorder writes.
_LEAST_RATE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The scores of canaries. digest: SHA-256 of their file. final: whether they belong to the final recorded model, or
    to the recorded gradients."""

    canaries: int
    digest: str
    final: bool


@dataclass(frozen=True, kw_only=True)
class EndFiles:
    """The files of the recording at the end.

    names: of all files. weights: SHA-256 of ``weights.json``, "" without the file. reason: why it is missing.
    """

    names: tuple[str, ...]
    weights: str = ""
    reason: str = ""


#: The key of the end frame with the files; the other keys are facts.
_FILES_KEY = "files"


class RunWriter:
    def __init__(self, folder: Path, header: Header) -> None:
        """Raises ``UsageError`` unless the folder is new or empty."""
        content = header.write()
        if len(content) > MOST_BYTES:
            raise UsageError(f"the model has too many or too long names of parameters: more than {MOST_BYTES} bytes")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            strange = next(iter(sorted(os.listdir(folder))), None)
            if strange is None:
                _write_new(folder / MARK, content)
        except FileExistsError:
            strange = MARK if folder.is_dir() else ""
        except OSError as error:
            raise UsageError(f"cannot record into {folder}: {error.strerror or error}") from error
        if strange == "":
            raise UsageError(f"cannot record into {folder}: it is not a folder")
        if strange is not None:
            contents = (
                "a recording, or another recorder writes there" if strange in (MARK, STEPS, INTERNAL) else strange
            )
            raise UsageError(
                f"{folder} already holds {contents}: a run is recorded once. Give a new folder, such as runs/{{n}}, or "
                "overwrite=True to record again, or resume=True to continue the recording after a checkpoint"
            )
        self._folder = folder = folder.absolute()  # a script may change the working directory
        self._steps = JournalWriter(folder / STEPS)
        self._internal = JournalWriter(folder / INTERNAL)
        self._states = JournalWriter(folder / STATES)
        self.steps = 0

    def write(self, *steps: tuple[PublicStep, InternalStep]) -> None:
        self._internal.append(STEP, *(internal.encode() for _, internal in steps))
        self._steps.append(STEP, *(public.encode() for public, _ in steps))
        self.steps += len(steps)

    def save(self, state: SavedState) -> None:
        self._states.append(STATE, state.encode())

    def end(self, facts: Mapping[str, Any], weights: Table | str | None = None) -> str:
        """Write the end, and the digests of the model's tensors.

        Args:
            facts: Of the whole training.
            weights: None if this process has no whole model; a text says why the tensors have no digests.

        Returns:
            Why the folder is incomplete: its files were removed or renamed, or the weights could not be written.
        """
        digest, reason = "", weights if isinstance(weights, str) else ""
        try:
            if isinstance(weights, Mapping):
                content = write_table(weights)
                try:
                    _write_new(self._folder / WEIGHTS, content)
                    digest = hashlib.sha256(content).hexdigest()
                except OSError as error:
                    reason = f"{WEIGHTS} could not be written: {error.strerror or error}"
            names = (MARK, STEPS, INTERNAL, STATES, *([WEIGHTS] if digest else []))
            files = EndFiles(names=names, weights=digest, reason=reason)
            self._steps.append(END, json.dumps({**facts, _FILES_KEY: vars(files)}).encode("utf-8"))
            moved = [name for name, journal in self._journals().items() if not journal.is_at(self._folder / name)]
        finally:
            self.close()
        if moved:
            return f"{', '.join(moved)} was removed or renamed while the training ran"
        return reason

    def fail(self, reason: str) -> None:
        """Note why the recording ends before the training; without values of the training."""
        try:
            self._internal.append(FAULT, reason[:1000].encode("utf-8", "replace"))
        finally:
            self.close()

    def fail_again(self, reason: str) -> None:
        """Note another reason after :meth:`fail`."""
        internal = JournalWriter(self._folder / INTERNAL, new=False)
        try:
            internal.append(FAULT, reason[:1000].encode("utf-8", "replace"))
        finally:
            internal.close()

    def scored(self, content: bytes, *, canaries: int, final: bool) -> None:
        """Write the file of scores, and its digest after the end. Raises ``UsageError`` if there is such a file."""
        try:
            _write_new(self._folder / CANARIES, content)
        except FileExistsError:
            raise UsageError(f"{self._folder / CANARIES} is there already: canaries are scored once") from None
        scores_entry = {"canaries": canaries, "digest": hashlib.sha256(content).hexdigest(), "final": final}
        steps = JournalWriter(self._folder / STEPS, new=False)
        try:
            steps.append(SCORED, json.dumps(scores_entry).encode("utf-8"))
        finally:
            steps.close()

    def ran_in(self, script: ScriptFacts) -> None:
        """Note the script around the recording, after the end."""
        steps = JournalWriter(self._folder / STEPS, new=False)
        try:
            steps.append(SCRIPT, json.dumps(asdict(script)).encode("utf-8"))
        finally:
            steps.close()

    def _journals(self) -> dict[str, JournalWriter]:
        return {STEPS: self._steps, INTERNAL: self._internal, STATES: self._states}

    def close(self) -> None:
        for journal in self._journals().values():
            journal.close()


def _write_new(path: Path, content: bytes) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


@dataclass(frozen=True)
class RunFolder:
    """A run folder that is read; all methods check digests, and raise ``RecordingError`` that names the place.

    stated: the facts that it states.
    """

    path: Path
    header: Header
    stated: StatedFacts
    comparison: ClassVar[None] = None

    @property
    def ranks(self) -> "tuple[RunFolder]":
        return (self,)

    @classmethod
    def open(cls, path: Path, stated: StatedFacts) -> "RunFolder":
        """Open a folder that states these facts.

        Raises ``UsageError`` if it does not exist, ``RecordingError`` unless it holds a run.
        """
        if not path.is_dir():
            hint = "; check --history FILE reads the history of an accountant" if path.is_file() else ""
            if path.is_file() and path.suffix in (".yaml", ".yml"):
                hint = "; dpspec run audits a spec"
            raise UsageError(f"{path} is not a folder; dpspec.record writes one{hint}")
        if not os.path.lexists(path / MARK):
            raise RecordingError(f"{path}: not the folder of a recorded run: it has no {MARK}")
        for name in FILES:
            if os.path.lexists(path / name) and not stat.S_ISREG(os.lstat(path / name).st_mode):
                raise RecordingError(f"{path / name}: not a regular file")
        try:
            with (path / MARK).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise RecordingError(f"{path / MARK}: cannot be read: {error.strerror or error}") from error
        if len(content) > MOST_BYTES:
            raise RecordingError(f"{path / MARK}: longer than {MOST_BYTES} bytes")
        return cls(path, read_header(content, str(path / MARK)), stated)

    def steps(self) -> Iterator[PublicStep | Facts | Scored]:
        yield from self._public()

    def internal(self) -> Iterator[InternalStep]:
        if not (self.path / INTERNAL).exists():
            raise RecordingError(f"{self.path / INTERNAL}: missing; it was withheld")
        frames = self._frames(INTERNAL)
        for public in self._public():
            if not isinstance(public, PublicStep):
                return
            frame = next(frames, None)
            if frame is None or frame.kind != STEP:
                raise RecordingError(f"{self.path / INTERNAL}: step {public.step} of {STEPS} is missing")
            try:
                internal = InternalStep.decode(frame.payload)
                if internal.step != public.step:
                    raise ValueError(f"expected step {public.step}, found step {internal.step}")
                _require_sane_internal(internal)
            except ValueError as error:
                raise RecordingError(f"{self.path / INTERNAL}: frame {frame.number}: {error}") from None
            yield internal

    @property
    def ended(self) -> bool:
        """Whether the recording has an end."""
        return any(frame.kind == END for frame in self._frames(STEPS))

    def states(self) -> list[SavedState]:
        """The saved states in order, the first one of the start; none if the file was withheld."""
        saved_states = []
        for frame in self._frames(STATES):
            try:
                saved_states.append(SavedState.decode(frame.payload))
            except ValueError as error:
                raise RecordingError(f"{self.path / STATES}: frame {frame.number}: {error}") from None
        return saved_states

    def noted(self) -> tuple[int, Facts | None]:
        """The last facts with a saved state, and the number of steps that they cover."""
        for state in reversed(self.states()):
            if state.facts is not None:
                return state.step, read_facts(state.facts, str(self.path / STATES), self.stated)
        return 0, None

    @property
    def fault(self) -> str:
        """Why the recorder stopped before the training did; empty if it did not."""
        last = deque(self._frames(INTERNAL), maxlen=1)
        return last[0].payload.decode("utf-8", "replace") if last and last[0].kind == FAULT else ""

    @property
    def lost_files(self) -> tuple[str, ...]:
        """The names of files that the recorder wrote and the folder lacks, without ``internal.log``, which tests need.

        ``states.log`` is written from the beginning.
        """
        written = (STATES,) if self._files is None else (name for name in self._files.names if name in FILES)
        return tuple(name for name in written if name != INTERNAL and not (self.path / name).exists())

    @property
    def has_internal(self) -> bool:
        return (self.path / INTERNAL).exists()

    @property
    def has_canaries(self) -> bool:
        return (self.path / CANARIES).exists()

    @property
    def weights(self) -> Table | str:
        """The digests of the model at the end, or why the recording has none."""
        files = self._files
        if files is None or not files.weights:
            return (files is not None and files.reason) or f"the recording has no {WEIGHTS}"
        self._require_weights(files)
        table = read_table(self.path / WEIGHTS)
        return f"the recording has no {WEIGHTS}" if table is None else table

    @property
    def script(self) -> ScriptFacts | None:
        """The script around the recording; None if the recorder watched a block of it, or did not see its end."""
        payload = next((frame.payload for frame in self._frames(STEPS) if frame.kind == SCRIPT), None)
        if payload is None:
            return None
        where = f"{self.path / STEPS}: the script"
        try:
            script = json_records.read(ScriptFacts, _mapping(payload, where), where)
        except ValueError as error:
            raise RecordingError(str(error)) from None
        listed = (*script.before, *script.between, *script.after, *script.peers)
        if any(len(text) > LONGEST_TEXT for text in texts(tuple(tuple(vars(entry).values()) for entry in listed))):
            raise RecordingError(f"{where}: a text has more than {LONGEST_TEXT} characters")
        return script

    def _require_weights(self, files: EndFiles) -> None:
        content = read_content(self.path / WEIGHTS)
        if content is not None and hashlib.sha256(content).hexdigest() != files.weights:
            raise RecordingError(
                f"{self.path / WEIGHTS}: does not have the digest that {STEPS} states: it was changed; record again"
            )

    @property
    def _files(self) -> EndFiles | None:
        """The files that the end names; None without an end."""
        payload = next((frame.payload for frame in self._frames(STEPS) if frame.kind == END), None)
        return None if payload is None else self._end(payload, str(self.path / STEPS))[1]

    def _end(self, payload: bytes, where: str) -> tuple[Mapping[str, Any], EndFiles]:
        """The facts and the files of the end."""
        read = _mapping(payload, where)
        try:
            files = json_records.read(EndFiles, read.get(_FILES_KEY), f"{where}: {_FILES_KEY}")
        except ValueError as error:
            raise RecordingError(str(error)) from None
        facts = {name: value for name, value in read.items() if name != _FILES_KEY}
        return facts, replace(files, reason=shortened(files.reason, 200))

    def _public(self) -> Iterator[PublicStep | Facts | Scored]:
        ended, scored, is_last = False, False, False
        if not (self.path / STEPS).exists():
            raise RecordingError(f"{self.path / STEPS}: missing: a recording has this file from its beginning")
        for frame in self._frames(STEPS):
            where = f"{self.path / STEPS}: frame {frame.number}"
            if ended and frame.kind == SCRIPT and not is_last:
                is_last = True
                continue
            if ended and frame.kind == SCORED and not scored and not is_last:
                scored = True
                read = _mapping(frame.payload, where)
                try:
                    scored_fields = {name: read.get(name) for name in Scored.__dataclass_fields__}
                    scores = json_records.read(Scored, scored_fields, where)
                except ValueError as error:
                    raise RecordingError(str(error)) from None
                yield scores
                continue
            if ended:
                raise RecordingError(f"{where}: follows the end of the recording")
            if frame.kind == END:
                ended = True
                facts, files = self._end(frame.payload, where)
                self._require_weights(files)
                yield read_facts(facts, where, self.stated)
                continue
            if frame.kind != STEP:
                raise RecordingError(f"{where}: of kind {frame.kind}, which this version does not know")
            if frame.number > MOST_STEPS:
                raise RecordingError(f"{where}: a recording has at most {MOST_STEPS} steps")
            try:
                step = PublicStep.decode(frame.payload, len(self.header.layers), self.header.width)
                if step.step != frame.number:
                    raise ValueError(f"expected step {frame.number}, found step {step.step}")
                _require_sane(step)
            except ValueError as error:
                raise RecordingError(f"{where}: {error}") from None
            yield step

    def _frames(self, name: str) -> Iterator[Frame]:
        there = (self.path / name).exists()
        return read_frames(self.path / name) if there else iter(())


def _require_sane(step: PublicStep) -> None:
    for name in ("noise_multiplier", "clip_norm", "deviation", "told_noise", "noise_squares"):
        if getattr(step, name) < 0.0:
            raise ValueError(f"{name} must not be negative, got {getattr(step, name)}")
    if step.divisor <= 0.0:
        raise ValueError(f"divisor must be above 0, got {step.divisor}")
    if (step.layers < 0.0).any():
        raise ValueError(f"layers must not be negative, got {step.layers.min()}")
    for name in ("told_rate", "rate"):
        value = getattr(step, name)
        if value > 1.0:
            raise ValueError(f"{name} must be at most 1, got {value}")
        if not (math.isnan(value) or value == 0.0 or value >= _LEAST_RATE):
            raise ValueError(f"{name} must be 0 or at least {_LEAST_RATE:g}, got {value}")


def _require_sane_internal(step: InternalStep) -> None:
    quartiles = [norm for norm in (step.lower, step.middle, step.upper, step.largest) if not math.isnan(norm)]
    if any(norm < 0.0 for norm in (*quartiles, step.sum_norm)):
        raise ValueError("norms must not be negative")
    if any(below > above * (1.0 + _ROUNDING) for below, above in itertools.pairwise(quartiles)):
        raise ValueError("quartiles of norms must not fall")
    if not (math.isnan(step.outside) or step.outside in (0.0, 1.0)):
        raise ValueError(f"outside must be 0 or 1, got {step.outside}")


def _mapping(payload: bytes, where: str) -> Mapping[str, Any]:
    try:
        read = json.loads(payload) if len(payload) <= _LONGEST_END else None
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise RecordingError(f"{where}: the end is not a JSON mapping of at most {_LONGEST_END} bytes")
    return read
