"""The hooks of the entry-point group ``dpspec``. A plugin is a module that states ``DPSPEC_API = 1``."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from dpspec.contract.attacks import Canary, Score
from dpspec.contract.events import Event
from dpspec.contract.providers import Backend, Dataset, Executor, Mechanism, Model, Reporter

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
    def dpspec_event(self, event: Event) -> None:
        """Observe an event of a run. Exceptions are reported and ignored."""
