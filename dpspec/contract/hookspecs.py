"""The hooks of the entry-point group ``dpspec``. A plugin is a module that states ``DPSPEC_API = 1``.

A whole plugin::

    import dpspec.contract as dps

    DPSPEC_API = 1

    @dps.hookimpl
    def dpspec_datasets():
        yield dps.Dataset(kind="mine", summary="...", schema={...}, source="my_package.data:Mine")
"""

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
    """All hooks. Each is called once, when the registry is first needed, except ``dpspec_event``."""

    @hookspec
    def dpspec_mechanisms(self) -> Iterable[Mechanism]:  # type: ignore[empty-body]
        """Called when the catalog is built: the mechanisms that this plugin can audit."""

    @hookspec
    def dpspec_datasets(self) -> Iterable[Dataset]:  # type: ignore[empty-body]
        """Called when the catalog is built: the data kinds that ``data.kind`` can then name."""

    @hookspec
    def dpspec_models(self) -> Iterable[Model]:  # type: ignore[empty-body]
        """Called when the catalog is built: the architectures that ``model.kind`` can then name."""

    @hookspec
    def dpspec_backends(self) -> Iterable[Backend]:  # type: ignore[empty-body]
        """Called when the catalog is built: who can train, for ``training.backend`` to name."""

    @hookspec
    def dpspec_reporters(self) -> Iterable[Reporter]:  # type: ignore[empty-body]
        """Called when the catalog is built: formats that ``--report FORMAT=PATH`` can then name."""

    @hookspec
    def dpspec_executors(self) -> Iterable[Executor]:  # type: ignore[empty-body]
        """Called when the catalog is built: where trials can run, for ``--executor`` to name."""

    @hookspec
    def dpspec_attacks(self) -> Iterable[Canary | Score]:  # type: ignore[empty-body]
        """Called when the catalog is built: what ``audit.canary.kind`` and ``audit.score`` can then name."""

    @hookspec
    def dpspec_event(self, event: Event) -> None:
        """Called during a run, for each event. Observes only: an exception here is noted and ignored."""
