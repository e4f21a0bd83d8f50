"""The folder of a recording that is read, as untrusted input."""

import itertools
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from dpspec.errors import RecordingError, UsageError
from dpspec.text import shortened
from dpspec_recording.folder.events import (
    DIGESTS,
    DIRECTIONS,
    FIRST_FORMAT,
    FORMAT,
    LONGEST,
    End,
    Header,
    InternalStep,
    PublicStep,
    SavedState,
    Scored,
    Script,
    Start,
    Stopped,
    decode_format,
    decode_internal,
    decode_public,
    decode_start,
    decode_type,
)
from dpspec_recording.folder.facts import Facts, StatedFacts, read_facts
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.weights import Table
from dpspec_recording.folder.writer import CANARIES, FILES, INTERNAL, PREFIX, PUBLIC

#: The mark of a folder of formats before 21.
_OLD_MARK = "run.json"

#: The names of the types of steps and states.
_STEP, _STATE = "step", "state"

#: The order of the events in a public log after its start. Only steps are several.
_POSITIONS: Mapping[type, int] = {PublicStep: 1, End: 2, Scored: 3, Script: 4}

E = TypeVar("E")

#: Relative rounding of quartiles.
_ROUNDING = 1e-12

#: Smallest sampling rate above 0 that a recorder writes.
_LEAST_RATE = 1e-12


class Entry(NamedTuple):
    """The bytes of an event, and its place for a message."""

    payload: bytes
    where: str

    @property
    def type(self) -> str:
        """The name of its type."""
        name: str = decoded(decode_type, self).event
        return name


def read_log(path: Path) -> Iterator[Entry]:
    """The complete events of a file; ``RecordingError`` that names file, event and byte of a damaged one."""
    offset = 0
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for number in itertools.count(1):
                prefix = file.read(PREFIX.size)
                if len(prefix) < PREFIX.size:
                    return
                length, checksum = PREFIX.unpack(prefix)
                where = f"{path}: event {number} at byte {offset}"
                if length > LONGEST:
                    raise RecordingError(f"{where}: an event has at most {LONGEST} bytes, this one claims {length}")
                offset += PREFIX.size + length
                if offset > size:
                    return
                payload = file.read(length)
                if zlib.crc32(payload) != checksum:
                    raise RecordingError(f"{where}: its checksum does not match: the file was changed; record again")
                yield Entry(payload, where)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from error


def has_trained(path: Path, *, or_began: bool = False) -> bool:
    """Whether a log has a step, or why its recorder stopped; or ``or_began`` the state at the beginning."""
    entries = itertools.islice(read_log(path), 1, None) if path.exists() else ()
    return any(or_began or entry.type != _STATE for entry in entries)


def decoded(decode: Callable[[bytes], Any], entry: Entry) -> Any:
    """The event of these bytes; ``RecordingError`` with its place and the place of a wrong field."""
    try:
        return decode(entry.payload)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{entry.where}: {shortened(str(error), 200)}") from None


@dataclass(frozen=True)
class RunFolder:
    """The recording of one process. Methods raise ``RecordingError`` that names the place of a damaged event.

    recording: the word that both logs have. stated: the facts that it states.
    """

    path: Path
    header: Header
    recording: str
    stated: StatedFacts

    @classmethod
    def open(cls, path: Path, stated: StatedFacts) -> "RunFolder":
        """Open a folder that states these facts.

        Raises ``UsageError`` if it does not exist, ``RecordingError`` unless it holds a recording of a known format.
        """
        if not path.is_dir():
            hint = "; check --history FILE reads the history of an accountant" if path.is_file() else ""
            if path.is_file() and path.suffix in (".yaml", ".yml"):
                hint = "; dpspec run audits a spec"
            raise UsageError(f"{path} is not a folder; dpspec.record writes one{hint}")
        if not os.path.lexists(path / PUBLIC):
            if os.path.lexists(path / _OLD_MARK):
                raise RecordingError(f"{path}: a recording of an earlier version of dpspec: record again")
            raise RecordingError(f"{path}: not the folder of a recorded run: it has no {PUBLIC}")
        for name in FILES:
            if os.path.lexists(path / name) and not stat.S_ISREG(os.lstat(path / name).st_mode):
                raise RecordingError(f"{path / name}: not a regular file")
        start, where = read_start(path / PUBLIC)
        header = start.header
        if header is None or (problem := header.problem()):
            raise RecordingError(f"{where}: {'it has no header' if header is None else problem}")
        return cls(path, header, start.recording, stated)

    def steps(self) -> Iterator[PublicStep | Facts | Scored]:
        """The public parts of all steps, then the facts of the end and the scores, if the recording has these."""
        step, last = 0, 0
        for entry in self._entries(PUBLIC):
            event = decoded(decode_public, entry)
            position = _POSITIONS[type(event)]
            if position < last or position == last > _POSITIONS[PublicStep] or last < _POSITIONS[End] < position:
                raise RecordingError(f"{entry.where}: an event of this type is not expected there")
            step, last = step + 1, position
            if isinstance(event, PublicStep):
                try:
                    _require_number(event.step, step)
                    _require_sizes(event, len(self.header.layers), self.header.width)
                    _require_sane(event)
                except ValueError as error:
                    raise RecordingError(f"{entry.where}: {error}") from None
                yield event
            elif isinstance(event, End):
                yield read_facts(event.facts, entry.where, self.stated)
            elif isinstance(event, Scored):
                yield event

    def internal(self) -> Iterator[InternalStep]:
        """The internal parts of the steps whose public part is complete."""
        if not self.has_internal:
            raise RecordingError(f"{self.path / INTERNAL}: missing; it was withheld")
        entries = self._entries(INTERNAL)
        steps = sum(entry.type == _STEP for entry in self._entries(PUBLIC))
        for step in range(1, steps + 1):
            for entry in entries:
                event = decoded(decode_internal, entry)
                if isinstance(event, InternalStep):
                    break
            else:
                raise RecordingError(f"{self.path / INTERNAL}: it has not step {step}, which {PUBLIC} has")
            try:
                _require_number(event.step, step)
                _require_sane_internal(event)
            except ValueError as error:
                raise RecordingError(f"{entry.where}: {error}") from None
            yield event

    @property
    def ended(self) -> bool:
        """Whether the recording has an end."""
        return self._last(End) is not None

    def states(self) -> list[SavedState]:
        """The saved states in order, the first one of the start; none if the internal log was withheld."""
        unknown = dict.fromkeys(DIGESTS, "")
        states = (event for event in self._noted if isinstance(event, SavedState))
        return [msgspec.structs.replace(state, digests=unknown | state.digests) for state in states]

    def noted(self) -> tuple[int, Facts | None]:
        """The last facts with a saved state, and the number of steps that they cover."""
        for state in reversed(self.states()):
            if state.facts is not None:
                where = f"{self.path / INTERNAL}: the state after step {state.step}"
                return state.step, read_facts(state.facts, where, self.stated)
        return 0, None

    @property
    def fault(self) -> str:
        """Why the recorder stopped before the training did; empty if it did not."""
        return next((event.reason for event in reversed(self._noted) if isinstance(event, Stopped)), "")

    @property
    def has_internal(self) -> bool:
        """Whether the internal log was not withheld."""
        return (self.path / INTERNAL).exists()

    @property
    def has_canaries(self) -> bool:
        """Whether the folder has scores."""
        return (self.path / CANARIES).exists()

    @property
    def weights(self) -> Table | str:
        """The digests of the model at the end, or why the recording has none."""
        end = self._last(End)
        weights = "" if end is None else end.weights
        return weights or "the recording has no digests of the model"

    @property
    def script(self) -> ScriptFacts | None:
        """The script around the recording; None if the recorder watched a block of it, or did not see its end."""
        event = self._last(Script)
        return None if event is None else event.script

    def _last(self, kind: type[E]) -> E | None:
        return next((event for event in self._after_steps if isinstance(event, kind)), None)

    @cached_property
    def _after_steps(self) -> list[Any]:
        entries = (entry for entry in self._entries(PUBLIC) if entry.type != _STEP)
        return [decoded(decode_public, entry) for entry in entries]

    @cached_property
    def _noted(self) -> list[Any]:
        entries = (entry for entry in self._entries(INTERNAL) if entry.type != _STEP) if self.has_internal else ()
        return [decoded(decode_internal, entry) for entry in entries]

    def _entries(self, name: str) -> Iterator[Entry]:
        """The entries after the start, which must be of this recording."""
        path = self.path / name
        if read_start(path)[0].recording != self.recording:
            raise RecordingError(f"{path}: of another recording than {self.path / PUBLIC}")
        return itertools.islice(read_log(path), 1, None)


def read_start(path: Path) -> tuple[Start, str]:
    """The first event of a log, and its place; ``RecordingError`` unless this version of dpspec reads its format."""
    entry = next(read_log(path), None)
    if entry is None:
        raise RecordingError(f"{path}: has no complete event, as if its recorder was killed at once: record again")
    version = decoded(decode_format, entry).format
    if not FIRST_FORMAT <= version <= FORMAT:
        raise RecordingError(f"{path}: format {version} is of another version of dpspec: use that one, or record again")
    start: Start = decoded(decode_start, entry)
    return start, entry.where


def _require_number(step: int, expected: int) -> None:
    if step != expected:
        raise ValueError(f"expected step {expected}, found step {step}")


def _require_sizes(step: PublicStep, layers: int, width: int) -> None:
    sizes = len(step.layers), len(step.directions)
    if sizes[0] not in (0, layers) or sizes[1] not in (0, width):
        raise ValueError(f"a step has {layers} layers and {width} directions, this one {sizes[0]} and {sizes[1]}")


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
    observed = step.rank
    if observed is not None and max(len(observed.own), len(observed.total), len(observed.noise)) > DIRECTIONS:
        raise ValueError(f"a rank observes at most {DIRECTIONS} directions")
