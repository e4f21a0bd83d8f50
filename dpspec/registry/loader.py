"""The catalog of all installed plugins, built once per process; a broken plugin is listed, never fatal.

>>> catalog = load_catalog()
>>> sorted(catalog.models)[:4]  # doctest: +SKIP
['cnn-small', 'lenet5', 'linear', 'logistic']

If two plugins offer the same kind, neither gets it: the meaning of a spec must not depend on the order of installation.
dpspec's own kinds are the exception; a foreign plugin cannot replace them. Uncontested kinds stay available.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pluggy

from dpspec.contract import HOOK_API, DpspecHooks
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.contract.events import PROJECT, Event
from dpspec.registry.descriptors import FAMILIES, Family, hook_problems, problems
from dpspec.registry.foreign_code import Failed, attempt, one_line, resolve

GROUP = "dpspec"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """An entry point: ``value`` names a module, or ``module:attribute``. Candidates sort by distribution, then name."""

    distribution: str
    version: str
    plugin: str
    value: str

    @property
    def id(self) -> str:
        return f"{normalise(self.distribution)}:{self.plugin}"

    def broken(self, reason: str, kinds: tuple[str, ...] = ()) -> BrokenPlugin:
        return BrokenPlugin(
            plugin=self.plugin, distribution=self.distribution, version=self.version, reason=reason, kinds=kinds
        )


def normalise(distribution: str) -> str:
    """The canonical spelling of a distribution's name: ``My_Plugin`` is ``my-plugin``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover() -> tuple[tuple[Candidate, ...], tuple[BrokenPlugin, ...]]:
    """Read the entry points of the group ``dpspec`` on ``sys.path``, without importing anything.

    Of two copies of a distribution the first on the path counts, as for imports.

    Returns:
        The candidates, sorted, and the distributions with unreadable entry points.
    """
    candidates: list[Candidate] = []
    broken: list[BrokenPlugin] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            declared = attempt(lambda d=distribution: d.read_text("entry_points.txt")) or ""  # type: ignore[misc]
        except Failed:
            continue  # a distribution without readable entry points offers nothing
        if f"[{GROUP}]" not in declared:
            continue
        name, version = (_metadata(distribution, key) for key in ("Name", "Version"))
        if normalise(name) in seen:
            continue
        seen.add(normalise(name))
        try:
            entries = attempt(lambda d=distribution: [e for e in d.entry_points if e.group == GROUP])  # type: ignore[misc]
        except Failed as failure:
            reason = f"its entry points cannot be read: {failure}"
            broken.append(BrokenPlugin(plugin="", distribution=name, version=version, reason=reason))
            continue
        candidates += [Candidate(distribution=name, version=version, plugin=e.name, value=e.value) for e in entries]
    return tuple(sorted(candidates)), tuple(broken)


def _metadata(distribution: importlib.metadata.Distribution, key: str) -> str:
    try:
        return attempt(lambda: str(distribution.metadata[key] or "?"))
    except Failed:
        return "?"  # damaged metadata


_OURS = "dpspec"


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The providers of one plugin, by the name of their family."""

    candidate: Candidate
    providers: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({family.key(p) for family in FAMILIES for p in self.providers.get(family.name, ())}))


def _table(family: Family, offers: Sequence[Offers], broken: list[BrokenPlugin]) -> Mapping[str, Offered]:
    """The providers of a family by kind; ``broken`` gains one entry per plugin that loses a kind in a conflict."""
    claimants: dict[str, list[tuple[Candidate, Any]]] = {}
    for offer in offers:
        for provider in offer.providers.get(family.name, ()):
            claimants.setdefault(family.key(provider), []).append((offer.candidate, provider))
    table: dict[str, Offered] = {}
    for kind, claims in sorted(claimants.items()):
        ours = [c for c in claims if normalise(c[0].distribution) == _OURS]
        holders = claims if len(claims) == 1 else ours if len(ours) == 1 else []
        for candidate, provider in holders:
            table[kind] = Offered(
                provider=provider,
                plugin=candidate.plugin,
                distribution=candidate.distribution,
                version=candidate.version,
            )
        held = [candidate for candidate, _ in holders]
        for candidate, _ in claims:
            if candidate not in held:
                others = held or [other for other, _ in claims if other != candidate]
                names = ", ".join(f"{c.distribution} {c.version} ({c.plugin})" for c in others)
                outcome = "which keeps it" if held else "so neither is used: uninstall one"
                reason = f"{family.name} {kind!r} is also offered by {names}, {outcome}"
                broken.append(candidate.broken(reason, (kind,)))
    return MappingProxyType(table)


__all__ = ["Registry", "build", "load_catalog", "load_registry", "notify", "resolve"]

_MOST_OFFERS = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry:
    """The loaded plugins and the catalog of their providers."""

    manager: pluggy.PluginManager
    catalog: Catalog

    def module(self, distribution: str, plugin: str) -> Any:
        """The plugin object behind an entry of the catalog, or None."""
        candidate = Candidate(distribution=distribution, version="", plugin=plugin, value="")
        return self.manager.get_plugin(candidate.id)


@functools.cache
def load_registry() -> Registry:
    return build(*discover())


def load_catalog() -> Catalog:
    """The catalog of all installed plugins, computed once per process."""
    return load_registry().catalog


def notify(event: Event) -> None:
    """Pass an event to all plugins that observe. A failing observer is logged once as a warning, and ignored."""
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
    """Load the candidates one by one; ``broken`` are plugins that cannot be read."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DpspecHooks)
    offers: list[Offers] = []
    failures = list(broken)
    for candidate in candidates:
        outcome = _load(candidate, manager)
        if isinstance(outcome, Offers):
            offers.append(outcome)
        else:
            failures.append(outcome)
    tables = {family.field: _table(family, offers, failures) for family in FAMILIES}
    failures.sort(key=lambda b: (normalise(b.distribution), b.plugin, b.reason))
    return Registry(manager, Catalog(**tables, broken=tuple(failures)))


def _load(candidate: Candidate, manager: pluggy.PluginManager) -> Offers | BrokenPlugin:
    """Import, check and register one plugin and call its hooks; on any error it is unregistered."""
    providers: dict[str, list[Any]] = {}
    registered = False
    try:
        plugin = attempt(lambda: _import(candidate))
        attempt(lambda: _register(plugin, candidate, manager))
        registered = True
        for hook in dict.fromkeys(family.hook for family in FAMILIES):
            for family, provider in _ask(candidate, manager, hook):
                providers.setdefault(family.name, []).append(provider)
    except Failed as failure:
        if registered:
            manager.unregister(name=candidate.id)
        return candidate.broken(str(failure), Offers(candidate=candidate, providers=providers).kinds)
    return Offers(candidate=candidate, providers=providers)


def _import(candidate: Candidate) -> Any:
    """Import the object of an entry point; raise :class:`Failed` if its API version is not supported."""
    module, _, attribute = candidate.value.partition("[")[0].strip().partition(":")
    plugin = importlib.import_module(module.strip())
    for name in filter(None, attribute.strip().split(".")):
        plugin = getattr(plugin, name)
    api = getattr(plugin, "DPSPEC_API", None)
    if api is None:
        raise Failed(f"DPSPEC_API is missing; this dpspec supports plugin API {HOOK_API}")
    if type(api) is not int or api != HOOK_API:
        raise Failed(f"plugin API {one_line(repr(api))} is not supported; this dpspec supports {HOOK_API}")
    return plugin


def _register(plugin: Any, candidate: Candidate, manager: pluggy.PluginManager) -> None:
    for name, other in manager.list_name_plugin():
        if other is plugin or name == candidate.id:
            raise Failed(f"{candidate.value} is already registered by {name}")
    if problems_of_hooks := list(hook_problems(plugin, manager)):
        raise Failed("; ".join(problems_of_hooks))
    try:
        manager.register(plugin, name=candidate.id)
    except BaseException:
        # Some versions of pluggy keep a plugin that failed its own checks.
        if manager.get_plugin(candidate.id) is plugin:
            manager.unregister(plugin)
        raise


def _ask(candidate: Candidate, manager: pluggy.PluginManager, hook: str) -> Iterator[tuple[Family, Any]]:
    """Yield the valid descriptors of a plugin's hook; raise :class:`Failed` at the first invalid one."""
    families = [family for family in FAMILIES if family.hook == hook]
    caller = getattr(manager.hook, hook)
    for implementation in caller.get_hookimpls():
        if implementation.plugin_name != candidate.id:
            continue
        try:
            offered = attempt(lambda i=implementation: _listed(i.function(), families))  # type: ignore[misc]
        except Failed as failure:
            raise Failed(f"{hook}: {failure}") from failure
        seen: set[tuple[str, str]] = set()
        for provider in offered:
            family = next((f for f in families if isinstance(provider, f.type)), None)
            if family is None:
                raise Failed(f"{hook} offers a {type(provider).__name__}, not a {_types(families)}")
            flaws = attempt(lambda p=provider, f=family: problems(p, f))  # type: ignore[misc]
            if flaws:
                raise Failed(one_line("; ".join(flaws)))
            if (family.name, family.key(provider)) in seen:
                raise Failed(f"{family.name} {family.key(provider)!r} is offered twice")
            seen.add((family.name, family.key(provider)))
            yield family, provider


def _types(families: Sequence[Family]) -> str:
    return " or ".join(family.type.__name__ for family in families)


def _listed(offered: Any, families: Sequence[Family]) -> list[Any]:
    if offered is None:
        raise Failed(f"it returns None; yield or return {_types(families)} objects")
    items = list(itertools.islice(offered, _MOST_OFFERS + 1))
    if len(items) > _MOST_OFFERS:
        raise Failed(f"it offers more than {_MOST_OFFERS} providers")
    return items


_MARK = "dpspec_plugin"


def mark(error: BaseException) -> None:
    """Write the distribution whose code raised an error into it: a traceback does not leave its process."""
    if distribution := raised_by(error):
        error.__dict__[_MARK] = distribution


def raised_by(error: BaseException) -> str:
    """The distribution of the plugin whose code raised an error; empty for dpspec's own code."""
    if marked := error.__dict__.get(_MARK):
        return str(marked)
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(name).partition(".")[0] for name in modules]
    catalog, offering = load_catalog(), {"dpspec": "dpspec"}
    for family in FAMILIES:
        for offered in getattr(catalog, family.field).values():
            reference = getattr(offered.provider, family.code)
            offering.setdefault(reference.partition(".")[0].partition(":")[0], offered.distribution)
    deepest = next((offering[package] for package in reversed(packages) if package in offering), "dpspec")
    return "" if deepest == "dpspec" else deepest
