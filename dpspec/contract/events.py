"""Events of a run, for progress bars, logs and plugins' observers (``dpspec_event``), and the hooks of plugins.

Hooks belong to the entry-point group ``dpspec``. A plugin is a module that states ``DPSPEC_API = 1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pluggy

from dpspec.contract.attacks import AttackMethod, Canary, Score
from dpspec.contract.commands import Command
from dpspec.contract.comparisons import Comparison
from dpspec.contract.noise import NoiseKind
from dpspec.contract.providers import Backend, Dataset, Executor, Loss, Mechanism, Model, Reporter
from dpspec.contract.rules import Rule
from dpspec.contract.sampling import SamplingKind

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
    """Progress of the current work; ``unit`` and ``records`` as in ``Context.progress``.

    ``overall`` is the finished fraction of the stage, the bounds or the trials of all audits; None if unknown.
    """

    audit: str
    what: str
    done: int
    total: int
    unit: str = ""
    records: float = 0.0
    overall: float | None = None


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

HOOK_API = 1
PROJECT = "dpspec"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DpspecHooks:
    """Hooks. dpspec calls each once, when it loads the installed plugins, and ``dpspec_event`` at each event."""

    @hookspec
    def dpspec_mechanisms(self) -> Iterable[Mechanism]:  # type: ignore[empty-body]
        """Mechanisms that this plugin can audit."""

    @hookspec
    def dpspec_datasets(self) -> Iterable[Dataset]:  # type: ignore[empty-body]
        """Data kinds for ``data.kind``."""

    @hookspec
    def dpspec_models(self) -> Iterable[Model]:  # type: ignore[empty-body]
        """Architectures for ``model.kind``."""

    @hookspec
    def dpspec_backends(self) -> Iterable[Backend]:  # type: ignore[empty-body]
        """Backends for ``training.backend``."""

    @hookspec
    def dpspec_reporters(self) -> Iterable[Reporter]:  # type: ignore[empty-body]
        """Formats for ``--report FORMAT=PATH``."""

    @hookspec
    def dpspec_executors(self) -> Iterable[Executor]:  # type: ignore[empty-body]
        """Executors of trials for ``--executor``."""

    @hookspec
    def dpspec_attacks(self) -> Iterable[Canary | Score]:  # type: ignore[empty-body]
        """Canaries and scores for ``audit.canary.kind`` and ``audit.score``."""

    @hookspec
    def dpspec_losses(self) -> Iterable[Loss]:  # type: ignore[empty-body]
        """Losses for ``training.loss``."""

    @hookspec
    def dpspec_sampling_schemes(self) -> Iterable[SamplingKind]:  # type: ignore[empty-body]
        """Sampling schemes for ``mechanism.sampling.scheme``, with sampler, moments, checks and theory."""

    @hookspec
    def dpspec_noises(self) -> Iterable[NoiseKind]:  # type: ignore[empty-body]
        """Distributions of noise for the ``releases`` of ``composition``, each a pair of output distributions."""

    @hookspec
    def dpspec_attack_methods(self) -> Iterable[AttackMethod]:  # type: ignore[empty-body]
        """Kinds of evidence with their tests and figures, for mechanisms that yield such evidence."""

    @hookspec
    def dpspec_comparisons(self) -> Iterable[Comparison]:  # type: ignore[empty-body]
        """Published formulas and baselines alongside the bounds of a mechanism, which decide no verdict."""

    @hookspec
    def dpspec_rules(self) -> Iterable[Rule]:  # type: ignore[empty-body]
        """Rules on recorded trainings, for ``dpspec check``."""

    @hookspec
    def dpspec_commands(self) -> Iterable[Command]:  # type: ignore[empty-body]
        """Commands of the program ``dpspec``."""

    @hookspec
    def dpspec_event(self, event: Event) -> None:
        """Observe an event of a run. Exceptions are reported and ignored."""
