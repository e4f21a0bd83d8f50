"""What happens during a run: progress bars, logs and plugins' observers (``dpspec_event``) are fed by these alone."""

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
    """An invocation begins."""

    audits: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """One audit enters a stage: ``bound``, ``trials``, ``conclude``."""

    audit: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class TrialsPlanned:
    """How many trials an audit needs and how many the store already holds."""

    audit: str
    total: int
    stored: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progressed:
    """The current piece of work has come this far.

    unit: what is counted, in the plural, where its rate means something. records: how many records one of them takes.
    """

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
    """Something a person should know that changes no number: a corrupted record, mixed versions, a missing GPU."""

    audit: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """The invocation has ended; ``complete`` is false when trials are missing."""

    complete: bool


Event: TypeAlias = RunStarted | StageStarted | TrialsPlanned | Progressed | TrialFinished | Noticed | RunFinished
