"""The catalog of all installed plugins, built once per process; a broken plugin is listed, never fatal.

If two plugins offer the same kind, neither gets it: the meaning of a spec must not depend on the order of installation.
dpspec's own kinds are the exception; a foreign plugin cannot replace them. Uncontested kinds stay available.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import pluggy
from packaging.utils import canonicalize_name

from dpspec.contract import HOOK_API, DpspecHooks
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.contract.events import PROJECT, Event
from dpspec.registry.foreign_code import FAMILIES, Failed, foreign_code, one_line, problems

GROUP = "dpspec"

_OURS = "dpspec"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """An entry point: ``value`` names a module, or ``module:attribute``. Candidates sort by distribution, then name."""

    distribution: str
    version: str
    plugin: str
    value: str

    @property
    def id(self) -> str:
        return f"{canonicalize_name(self.distribution)}:{self.plugin}"

    def broken(self, reason: str, kinds: tuple[str, ...] = ()) -> BrokenPlugin:
        return BrokenPlugin(
            plugin=self.plugin, distribution=self.distribution, version=self.version, reason=reason, kinds=kinds
        )


#: The providers of one plugin by kind, by the name of their family.
Offers: TypeAlias = dict[str, dict[str, Any]]


def discover() -> tuple[tuple[Candidate, ...], tuple[BrokenPlugin, ...]]:
    """Read the entry points ``dpspec`` without imports; of two copies of a distribution the first counts."""
    candidates: list[Candidate] = []
    broken: list[BrokenPlugin] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = version = "?"
        try:
            with foreign_code():
                if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                    continue
                name, version = str(distribution.metadata["Name"]), str(distribution.metadata["Version"])
                entries = distribution.entry_points.select(group=GROUP)
        except Failed as failure:
            reason = f"its entry points cannot be read: {failure}"
            broken.append(BrokenPlugin(plugin="", distribution=name, version=version, reason=reason))
            continue
        if canonicalize_name(name) not in seen:
            seen.add(canonicalize_name(name))
            candidates += [Candidate(distribution=name, version=version, plugin=e.name, value=e.value) for e in entries]
    return tuple(sorted(candidates)), tuple(broken)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry:
    """The loaded plugins and the catalog of their providers."""

    manager: pluggy.PluginManager
    catalog: Catalog

    def module(self, distribution: str, plugin: str) -> Any:
        """The plugin object behind an entry of the catalog, or None."""
        return self.manager.get_plugin(f"{canonicalize_name(distribution)}:{plugin}")


@functools.cache
def load_registry() -> Registry:
    return build(*discover())


def load_catalog() -> Catalog:
    """The catalog of all installed plugins, computed once per process."""
    return load_registry().catalog


def notify(event: Event) -> None:
    """Pass an event to all plugins that observe. A failing observer is logged once as a warning, and ignored."""
    for caller in load_registry().manager.hook.dpspec_event.get_hookimpls():
        try:
            with foreign_code():
                caller.function(*([event] if "event" in caller.argnames else []))
        except Failed as failure:
            if caller.plugin_name not in _noted:
                _noted.add(caller.plugin_name)
                _log.warning("plugin %s: dpspec_event failed and is ignored: %s", caller.plugin_name, failure)


_noted: set[str] = set()


def build(candidates: Sequence[Candidate], broken: Sequence[BrokenPlugin] = ()) -> Registry:
    """Load the candidates one by one; ``broken`` are plugins that cannot be read."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DpspecHooks)
    loaded: list[tuple[Candidate, Offers]] = []
    failures = list(broken)
    for candidate in candidates:
        offers: Offers = {}
        try:
            _load(candidate, manager, offers)
        except Failed as failure:
            kinds = tuple(sorted(kind for offered in offers.values() for kind in offered))
            failures.append(candidate.broken(str(failure), kinds))
        else:
            loaded.append((candidate, offers))
    tables = {family.field: _table(family.name, loaded, failures) for family in FAMILIES}
    failures.sort(key=lambda b: (canonicalize_name(b.distribution), b.plugin, b.reason))
    return Registry(manager, Catalog(**tables, broken=tuple(failures)))


def _load(candidate: Candidate, manager: pluggy.PluginManager, offers: Offers) -> None:
    """Import, check and register one plugin, and add its providers to ``offers``; unregister it at the first error."""
    with foreign_code():
        plugin: Any = importlib.metadata.EntryPoint(candidate.plugin, candidate.value, GROUP).load()
        api = getattr(plugin, "DPSPEC_API", None)
        if api != HOOK_API:
            found = "DPSPEC_API is missing" if api is None else f"plugin API {one_line(repr(api))} is not supported"
            raise Failed(f"{found}; this dpspec supports {HOOK_API}")
        if manager.is_registered(plugin) or manager.has_plugin(candidate.id):
            raise Failed(f"{candidate.value} is already registered, or another entry point is named {candidate.plugin}")
    try:
        with foreign_code():
            manager.register(plugin, name=candidate.id)
            manager.check_pending()  # refuses unknown hooks
            if not manager.get_hookcallers(plugin):
                raise Failed("no hook is implemented: mark hooks with @dpspec.contract.hookimpl")
        for hook in dict.fromkeys(family.hook for family in FAMILIES):
            for implementation in getattr(manager.hook, hook).get_hookimpls():
                if implementation.plugin is plugin:
                    with foreign_code(f"{hook}: "):
                        for provider in implementation.function():
                            _add_offer(hook, provider, offers)
    except Failed:
        if manager.is_registered(plugin):
            manager.unregister(plugin)
        raise


def _add_offer(hook: str, provider: Any, offers: Offers) -> None:
    families = [family for family in FAMILIES if family.hook == hook]
    family = next((f for f in families if isinstance(provider, f.type)), None)
    if family is None:
        types = " or ".join(family.type.__name__ for family in families)
        raise Failed(f"{hook} offers a {type(provider).__name__}, not a {types}")
    if flaws := problems(provider, family):
        raise Failed(one_line("; ".join(flaws)))
    kind, known = getattr(provider, family.key), offers.setdefault(family.name, {})
    if kind in known:
        raise Failed(f"{family.name} {kind!r} is offered twice")
    known[kind] = provider


def _table(
    family: str, loaded: Sequence[tuple[Candidate, Offers]], broken: list[BrokenPlugin]
) -> Mapping[str, Offered]:
    """The providers of a family by kind; ``broken`` gains one entry per plugin that loses a kind in a conflict."""
    claimants: dict[str, list[tuple[Candidate, Any]]] = {}
    for candidate, offers in loaded:
        for kind, provider in offers.get(family, {}).items():
            claimants.setdefault(kind, []).append((candidate, provider))
    table: dict[str, Offered] = {}
    for kind, claims in sorted(claimants.items()):
        ours = [claim for claim in claims if canonicalize_name(claim[0].distribution) == _OURS]
        holders = claims if len(claims) == 1 else ours if len(ours) == 1 else []
        for c, provider in holders:
            table[kind] = Offered(provider=provider, plugin=c.plugin, distribution=c.distribution, version=c.version)
        held = [candidate for candidate, _ in holders]
        for candidate, _ in claims:
            if candidate not in held:
                others = held or [other for other, _ in claims if other != candidate]
                names = ", ".join(f"{c.distribution} {c.version} ({c.plugin})" for c in others)
                outcome = "which keeps it" if held else "so neither is used: uninstall one"
                reason = f"{family} {kind!r} is also offered by {names}, {outcome}"
                broken.append(candidate.broken(reason, (kind,)))
    return MappingProxyType(table)


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
