"""Events of a run, for progress bars, logs and plugins' observers (``dpspec_event``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Event",
    "Noticed",
    "Progressed",
    "RunFinished",
    "RunStarted",
    "StageStarted",
    "TrialFinished",
    "TrialsPlanned",
]


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """An invocation starts."""

    audits: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """An audit enters the stage ``bound``, ``trials`` or ``conclude``."""

    audit: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class TrialsPlanned:
    """Numbers of required and stored trials of an audit."""

    audit: str
    total: int
    stored: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progressed:
    """Progress of the current work; ``unit`` and ``records`` as in ``Context.progress``."""

    audit: str
    what: str
    done: int
    total: int
    unit: str = ""
    records: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrialFinished:
    """One trial was trained, attacked and stored."""

    audit: str
    index: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Noticed:
    """A notice that does not change results: a corrupted record, mixed versions, a missing GPU."""

    audit: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """The invocation ended; ``complete`` is false if trials are missing."""

    complete: bool


Event: TypeAlias = RunStarted | StageStarted | TrialsPlanned | Progressed | TrialFinished | Noticed | RunFinished
