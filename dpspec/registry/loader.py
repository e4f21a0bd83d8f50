"""The catalog of all installed plugins, built once per process; a broken plugin is listed, never fatal.

>>> catalog = load_catalog()
>>> sorted(catalog.models)[:4]  # doctest: +SKIP
['cnn-small', 'lenet5', 'linear', 'logistic']
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from dpspec.contract import HOOK_API, BrokenPlugin, Catalog, DpspecHooks, Event
from dpspec.contract.hookspecs import PROJECT
from dpspec.registry.conflicts import Offers, merge
from dpspec.registry.descriptors import FAMILIES, Family, problems
from dpspec.registry.discover import Candidate, discover
from dpspec.registry.guard import Failed, attempt, one_line
from dpspec.registry.hooks import hook_problems
from dpspec.registry.resolve import resolve

__all__ = ["Registry", "build", "load_catalog", "load_registry", "notify", "plugin_manager", "resolve"]

_MOST_OFFERS = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry:
    """The loaded plugins and what they offer."""

    manager: pluggy.PluginManager
    catalog: Catalog

    def module(self, distribution: str, plugin: str) -> Any:
        """The plugin object behind an entry of the catalog, or None."""
        candidate = Candidate(distribution=distribution, version="", plugin=plugin, value="")
        return self.manager.get_plugin(candidate.id)


@functools.cache
def load_registry() -> Registry:
    """The catalog together with the plugins behind it; computed at the first call."""
    candidates, unreadable = discover()
    return build(candidates, unreadable)


def load_catalog() -> Catalog:
    """Everything that the installed plugins offer; computed at the first call."""
    return load_registry().catalog


def plugin_manager() -> pluggy.PluginManager:
    """The plugin manager that holds the usable plugins; prefer :func:`load_catalog` and :func:`notify`."""
    return load_registry().manager


def notify(event: Event) -> None:
    """Show an event to all plugins that observe. A failing observer is logged once as a warning, and ignored."""
    for caller in load_registry().manager.hook.dpspec_event.get_hookimpls():
        arguments = [event] if "event" in caller.argnames else []
        try:
            attempt(lambda c=caller, a=arguments: c.function(*a))  # type: ignore[misc]
        except Failed as failure:
            if caller.plugin_name not in _noted:
                _noted.add(caller.plugin_name)
                _log.warning("plugin %s: dpspec_event failed and is ignored: %s", caller.plugin_name, failure)


_noted: set[str] = set()


def build(candidates: Sequence[Candidate], broken: Sequence[BrokenPlugin] = ()) -> Registry:
    """Load the candidates one by one; ``broken`` are those already known to be unusable."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DpspecHooks)
    offers: list[Offers] = []
    failures: list[BrokenPlugin] = list(broken)
    for candidate in candidates:
        outcome = _load(candidate, manager)
        if isinstance(outcome, Offers):
            offers.append(outcome)
        else:
            failures.append(outcome)
    return Registry(manager, merge(offers, failures))


def _load(candidate: Candidate, manager: pluggy.PluginManager) -> Offers | BrokenPlugin:
    """Import, check, register and ask one plugin; whatever fails, nothing of it stays registered."""
    providers: dict[str, list[Any]] = {}
    registered = False
    try:
        plugin = attempt(lambda: _import(candidate))
        attempt(lambda: _register(plugin, candidate, manager))
        registered = True
        for family in FAMILIES:
            providers[family.name] = []
            for provider in _ask(candidate, manager, family):
                providers[family.name].append(provider)
    except Failed as failure:
        if registered:
            manager.unregister(name=candidate.id)
        return candidate.broken(str(failure), Offers(candidate=candidate, providers=providers).kinds)
    return Offers(candidate=candidate, providers=providers)


def _import(candidate: Candidate) -> Any:
    """The module or object that the entry point names; raises :class:`Failed` where its API version is not ours."""
    module, _, attribute = candidate.value.partition("[")[0].strip().partition(":")
    plugin = importlib.import_module(module.strip())
    for name in filter(None, attribute.strip().split(".")):
        plugin = getattr(plugin, name)
    api = getattr(plugin, "DPSPEC_API", None)
    if api is None:
        raise Failed(f"it states no DPSPEC_API; this dpspec speaks {HOOK_API}")
    if type(api) is not int or api != HOOK_API:
        raise Failed(f"it speaks plugin API {one_line(repr(api))}; this dpspec speaks {HOOK_API}")
    return plugin


def _register(plugin: Any, candidate: Candidate, manager: pluggy.PluginManager) -> None:
    for name, other in manager.list_name_plugin():
        if other is plugin or name == candidate.id:
            raise Failed(f"{candidate.value} is already registered by {name}")
    if found := list(hook_problems(plugin, manager)):
        raise Failed("; ".join(found))
    try:
        manager.register(plugin, name=candidate.id)
    except BaseException:
        # Some versions of pluggy keep a plugin that failed its own checks.
        if manager.get_plugin(candidate.id) is plugin:
            manager.unregister(plugin)
        raise


def _ask(candidate: Candidate, manager: pluggy.PluginManager, family: Family) -> Iterator[Any]:
    """The valid descriptors that a plugin's hook offers, one by one; raises :class:`Failed` at the first bad one."""
    caller = getattr(manager.hook, family.hook)
    for implementation in caller.get_hookimpls():
        if implementation.plugin_name != candidate.id:
            continue
        try:
            offered = attempt(lambda i=implementation: _listed(i.function(), family))  # type: ignore[misc]
        except Failed as failure:
            raise Failed(f"{family.hook}: {failure}") from failure
        seen: set[str] = set()
        for provider in offered:
            found = attempt(lambda p=provider: problems(p, family))  # type: ignore[misc]
            if found:
                raise Failed(one_line("; ".join(found)))
            if family.key(provider) in seen:
                raise Failed(f"{family.name} {family.key(provider)!r} is offered twice")
            seen.add(family.key(provider))
            yield provider


def _listed(offered: Any, family: Family) -> list[Any]:
    if offered is None:
        raise Failed(f"it offers None; yield or return {family.type.__name__} objects")
    items = list(itertools.islice(offered, _MOST_OFFERS + 1))
    if len(items) > _MOST_OFFERS:
        raise Failed(f"it offers more than {_MOST_OFFERS} providers")
    return items
