"""Validate, import and call the code of plugins; the catalog of all installed ones, built once per process.

Every error of a plugin except Ctrl-C becomes one line of text: a plugin that calls ``sys.exit`` must not end the
program. A broken plugin is listed, never fatal.

If two plugins offer the same kind, neither gets it: the meaning of a spec must not depend on the order of installation.
dpspec's own kinds are the exception; a foreign plugin cannot replace them. Uncontested kinds stay available.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import pluggy
from packaging.utils import canonicalize_name

from dpspec.contract import CAPABILITIES, Backend, Dataset, Executor, Loss, Mechanism, Model, Reporter, TrialProvider
from dpspec.contract.attacks import AttackMethod, Canary, EvidenceTest, Score, Statistic
from dpspec.contract.catalog import BrokenPlugin, Catalog, Offered
from dpspec.contract.commands import OWN_COMMANDS, Command
from dpspec.contract.comparisons import Comparison
from dpspec.contract.events import HOOK_API, PROJECT, DpspecHooks, Event
from dpspec.contract.findings import CONSTANTS, Assumption, AssumptionStatus
from dpspec.contract.fragments import use_noises, use_schemes
from dpspec.contract.noise import NoiseKind
from dpspec.contract.rules import Rule
from dpspec.contract.sampling import OPTIONS, OWN_SCHEMES, SamplingKind
from dpspec.errors import PluginError, UsageError
from dpspec.registry.project import ProjectFile, load_file
from dpspec.stats.attacks import methods
from dpspec.text import plain, shortened

_KIND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

#: Keys that no fragment may define. Core's other keys may be narrowed, such as ``adjacency`` to supported values.
CORE_KEYS: dict[str, frozenset[str]] = {
    "mechanism": frozenset({"kind"}),
    "comparison": frozenset({"kind", "steps", "phases"}),
    "steps": frozenset({"steps", "phases"}),
    "threat_model": frozenset(),
    "audit": frozenset(),
    "claims": frozenset({"id", "kind"}),
    "data": frozenset({"kind"}),
    "model": frozenset({"kind", "initial"}),
    "training": frozenset({"backend"}),
    "canary": frozenset({"space", "kind", "count", "spread", "every"}),
    "score": frozenset(),
    "loss": frozenset({"kind"}),
}


@dataclass(frozen=True)
class Family:
    """One of the families of providers, in ``field`` of the catalog.

    ``code``, ``key`` and ``optional`` are fields of the descriptor: its code, its kind, and more code or nothing.
    ``block`` owns the core keys that ``schema`` may not define.
    """

    name: str
    field: str
    hook: str
    type: type[Any]
    code: str
    key: str = "kind"
    block: str = ""
    optional: tuple[str, ...] = ()


def problems(provider: Any, family: Family) -> list[str]:
    """Describe the errors of one descriptor; empty if it is valid."""
    key = getattr(provider, family.key)
    if not isinstance(key, str) or not _KIND.fullmatch(key):
        return [f"{family.name} {key!r}: the name must be lower-case letters, digits and single hyphens"]
    return [f"{family.name} {key!r}: {problem}" for problem in _problems(provider, family)]


def _problems(provider: Any, family: Family) -> Iterator[str]:
    if isinstance(provider, TrialProvider):
        revision = provider.trial_revision
        if type(revision) is not int or revision < 1:
            yield f"trial_revision must be an integer of at least 1, got {revision!r}"
    references = {name: getattr(provider, name) for name in (family.code, *family.optional)}
    if isinstance(provider, Backend) and not isinstance(provider.constants, Assumption):
        references["constants"] = provider.constants
    for name, value in references.items():
        if (name == family.code or value != "") and not (isinstance(value, str) and _REFERENCE.fullmatch(value)):
            yield f"{name} must name code as 'package.module:Attribute', got {value!r}"
    for name, fragment in fragments(provider).items():
        block = family.block or name.split(".")[1]
        properties = fragment.get("properties") if isinstance(fragment, Mapping) else None
        if not isinstance(properties, Mapping) or fragment.get("type") != "object":
            yield f"{name} must be a JSON Schema with type 'object' and a mapping 'properties'"
            continue
        core = CORE_KEYS[block] | (CORE_KEYS["steps"] if block == "mechanism" and provider.steps else set())
        yield from (f"{name}.properties.{key}: this key belongs to core" for key in sorted(core & set(properties)))
    if isinstance(provider, Mechanism):
        for kind in sorted(set(provider.schemas.claims) - provider.claims):
            yield f"schemas.claims.{kind}: is not among its claims ({', '.join(sorted(provider.claims))})"
    if isinstance(provider, AttackMethod) and (bad := set(provider.statistics.values()) - set(get_args(Statistic))):
        yield f"statistics must be of type {', '.join(get_args(Statistic))}, got {bad.pop()!r}"
    if isinstance(provider, Command) and any(provider.name == command.name for command in OWN_COMMANDS):
        yield "dpspec has a command of this name"
    if isinstance(provider, SamplingKind):
        if provider.kind in OWN_SCHEMES:
            yield "dpspec has a sampling scheme of this name"
        if unknown_options := sorted({*provider.takes, *provider.may} - OPTIONS.keys()):
            yield f"unknown options {', '.join(unknown_options)} (valid: {', '.join(OPTIONS)})"
    if isinstance(provider, Backend):
        stated, statuses = provider.constants, get_args(AssumptionStatus)
        if isinstance(stated, Assumption):
            if stated.name != CONSTANTS:
                yield f"constants must be the assumption 'data-independent-hyperparameters', got {stated.name!r}"
            if stated.status not in statuses:
                yield f"constants: status must be one of {', '.join(statuses)}, got {stated.status!r}"
        if unknown := provider.capabilities - CAPABILITIES:
            names = ", ".join(repr(u) for u in sorted(map(str, unknown)))
            yield f"unknown capabilities {names} (valid: {', '.join(sorted(CAPABILITIES))})"


def fragments(provider: Any) -> dict[str, Any]:
    """The schema fragments of any descriptor, by their place in it."""
    if isinstance(provider, Mechanism):
        named = {f"schemas.{b}": getattr(provider.schemas, b) for b in ("mechanism", "threat_model", "audit")}
        return {**named, **{f"schemas.claims.{kind}": f for kind, f in provider.schemas.claims.items()}}
    return (
        {}
        if isinstance(provider, Reporter | Executor | Command | Rule | AttackMethod | SamplingKind | NoiseKind)
        else {"schema": provider.schema}
    )


#: All families, in the order in which their hooks are called.
FAMILIES: tuple[Family, ...] = (
    Family("mechanism", "mechanisms", "dpspec_mechanisms", Mechanism, "audit"),
    Family("dataset", "datasets", "dpspec_datasets", Dataset, "source", block="data"),
    Family("model", "models", "dpspec_models", Model, "factory", block="model"),
    Family(
        "backend",
        "backends",
        "dpspec_backends",
        Backend,
        "trainer",
        block="training",
        optional=("recording", "folders"),
    ),
    Family("reporter", "reporters", "dpspec_reporters", Reporter, "render", key="format"),
    Family("executor", "executors", "dpspec_executors", Executor, "pool"),
    Family("canary", "canaries", "dpspec_attacks", Canary, "make", block="canary", optional=("limit",)),
    Family("score", "scores", "dpspec_attacks", Score, "score", block="score"),
    Family("loss", "losses", "dpspec_losses", Loss, "function", block="loss"),
    Family("sampling scheme", "sampling_schemes", "dpspec_sampling_schemes", SamplingKind, "code"),
    Family("noise", "noises", "dpspec_noises", NoiseKind, "code"),
    Family(
        "comparison",
        "comparisons",
        "dpspec_comparisons",
        Comparison,
        "compare",
        key="name",
        block="comparison",
        optional=("check",),
    ),
    Family("attack method", "attack_methods", "dpspec_attack_methods", AttackMethod, "test"),
    Family("rule", "rules", "dpspec_rules", Rule, "code", key="name"),
    Family("command", "commands", "dpspec_commands", Command, "function", key="name"),
)


def is_foreign(offered: Offered) -> bool:
    return offered.is_foreign


def made(offered: Offered, reference: str, role: str, *arguments: Any, **named: Any) -> Any:
    """Call the code under ``reference``. Raises ``PluginError`` if it cannot be called."""
    function = resolve(reference)
    if not callable(function):
        raise misbehaved(offered, f"{reference} ({role}) is a {type(function).__name__}, nothing to call")
    return function(*arguments, **named)


def misbehaved(offered: Offered, how: str) -> PluginError:
    """The error that names a plugin and its mistake."""
    family = next((f for f in FAMILIES if isinstance(offered.provider, f.type)), None)
    kind = "provider" if family is None else f"{family.name} {getattr(offered.provider, family.key)!r}"
    advice = "tell its authors, or see `dpspec plugins --check`"
    return PluginError(one_line(f"{kind} of {offered.distribution} {offered.version}: {how}; {advice}"))


_LONGEST = 500


class Failed(Exception):  # noqa: N818 - the outcome of a call, never shown to users
    """Foreign code failed, for the reason in one line of text."""


@contextlib.contextmanager
def foreign_code(where: str = "") -> Iterator[None]:
    """Raise :class:`Failed` for any error of foreign code except Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, Failed):
        raise
    except BaseException as error:  # a plugin may raise SystemExit, or an exception of its own that skips Exception
        raise Failed(f"{where}{describe(error)}") from error


def describe(error: BaseException) -> str:
    """One line, such as ``ImportError: no module named 'x' (dpspec_demo/__init__.py:3)``."""
    try:
        text = str(error)
    except Exception:  # an exception whose own text fails still deserves its name
        text = ""
    line = one_line(f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__)
    return f"{line} ({origin})" if (origin := _place(error)) else line


def one_line(text: str) -> str:
    """The text on one line of at most 500 characters, with invisible characters escaped."""
    return shortened(" ".join(plain(text).split()), _LONGEST)


def _place(error: BaseException) -> str:
    """File and line of the error; a syntax error has its own place."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f"{'/'.join(PurePath(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}"


def resolve(reference: str) -> object:
    """Import the code of a reference ``package.module:Attribute``; raise ``PluginError`` if that fails."""
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise PluginError(f"{reference!r} does not name code as 'package.module:Attribute'")

    try:
        with foreign_code():
            target: Any = importlib.import_module(module)
            for name in attribute.split("."):
                target = getattr(target, name)
            return target
    except Failed as failure:
        raise PluginError(f"cannot load {reference}: {failure}") from failure


GROUP = "dpspec"

_OURS = "dpspec"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """An entry point: ``value`` names a module, or ``module:attribute``. Candidates sort by distribution, then name.

    A file of a project has the digest of its ``code``, and its path instead of a distribution and a plugin.
    """

    distribution: str
    version: str
    plugin: str
    value: str
    code: str = ""

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
    distributions_read: set[str] = set()
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
        if canonicalize_name(name) not in distributions_read:
            distributions_read.add(canonicalize_name(name))
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


#: The files of the project that this process uses.
_project: tuple[ProjectFile, ...] = ()


def use_project(files: tuple[ProjectFile, ...]) -> None:
    """Offer the providers of these files, and of no other project, in addition to installed plugins.

    Raises:
        UsageError: A file cannot be imported, offers an invalid provider, or a kind that is already taken.
    """
    global _project
    _offer(_registry(files))
    _project = files


def used_project() -> tuple[ProjectFile, ...]:
    return _project


def load_registry() -> Registry:
    """The registry of installed plugins and of the used project, whose schemes and noises specs may then name."""
    registry = _registry(_project)
    _offer(registry)
    return registry


def _offer(registry: Registry) -> None:
    """Let specs name the sampling schemes and distributions of noise of these plugins, and of no others."""
    use_schemes({kind: offered.provider for kind, offered in registry.catalog.sampling_schemes.items()})
    use_noises({kind: offered.provider for kind, offered in registry.catalog.noises.items()})


@functools.cache
def _registry(files: tuple[ProjectFile, ...]) -> Registry:
    installed, broken = discover()
    of_project = [
        Candidate(distribution=f.name, version=f.digest[:12], plugin=f.name, value=load_file(f), code=f.digest)
        for f in files
    ]
    registry = build([*installed, *of_project], broken)
    names = {file.name: file for file in files}
    for plugin in registry.catalog.broken:
        if plugin.distribution in names:
            raise UsageError(f"{names[plugin.distribution].path}: {plugin.reason}")
    return registry


def load_catalog() -> Catalog:
    """The catalog of all installed plugins and of the used project, computed once per process and project."""
    return load_registry().catalog


def sign_off(catalog: Catalog, distributions: Sequence[str]) -> Catalog:
    """The catalog, with these distributions marked as signed off by the user.

    Raises:
        UsageError: No installed plugin or file of the project has such a name.
    """
    tables = {family.field: getattr(catalog, family.field) for family in FAMILIES}
    offering = {offered.distribution for table in tables.values() for offered in table.values() if offered.is_foreign}
    third_parties = {canonicalize_name(distribution) for distribution in offering}
    trusted = {canonicalize_name(name) for name in distributions}
    if unknown := sorted(name for name in distributions if canonicalize_name(name) not in third_parties):
        names = ", ".join(sorted(offering)) or "none"
        raise UsageError(f"trust: no plugin is of the distribution {unknown[0]!r} (third-party ones: {names})")
    signed: dict[str, Any] = {
        field: MappingProxyType(
            {
                kind: replace(offered, signed_off=canonicalize_name(offered.distribution) in trusted)
                for kind, offered in table.items()
            }
        )
        for field, table in tables.items()
    }
    return replace(catalog, **signed)


def find_method(kind: str) -> methods.Method | None:
    """The attack method of a third-party plugin whose evidence is of this kind; None if none offers it."""
    return _foreign_method(_project, kind)


@functools.cache
def _foreign_method(files: tuple[ProjectFile, ...], kind: str) -> methods.Method | None:
    offered = _registry(files).catalog.attack_methods.get(kind)
    if offered is None or not is_foreign(offered):
        return None
    try:
        with foreign_code():
            test = made(offered, offered.provider.test, "the test")
    except Failed as failure:
        raise misbehaved(offered, str(failure)) from failure
    if not isinstance(test, EvidenceTest):
        raise misbehaved(offered, f"{offered.provider.test} is not an EvidenceTest")
    return methods.Method(descriptor=offered.provider, test=test, origin=f"{offered.distribution} {offered.version}")


methods.search_plugins(find_method)


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
    tables["mechanisms"] = _extended(tables["mechanisms"], tables["comparisons"], failures)
    failures.sort(key=lambda b: (canonicalize_name(b.distribution), b.plugin, b.reason))
    return Registry(manager, Catalog(**tables, broken=tuple(failures)))


def _load(candidate: Candidate, manager: pluggy.PluginManager, offers: Offers) -> None:
    """Import, check and register one plugin, and add its providers to ``offers``; unregister it at the first error."""
    with foreign_code():
        plugin: Any = importlib.metadata.EntryPoint(candidate.plugin, candidate.value, GROUP).load()
        api = getattr(plugin, "DPSPEC_API", None)
        if api != HOOK_API:
            reason = "DPSPEC_API is missing" if api is None else f"plugin API {one_line(repr(api))} is not supported"
            raise Failed(f"{reason}; this dpspec supports {HOOK_API}")
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
    kind, offered_kinds = getattr(provider, family.key), offers.setdefault(family.name, {})
    if kind in offered_kinds:
        raise Failed(f"{family.name} {kind!r} is offered twice")
    offered_kinds[kind] = provider


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
            table[kind] = Offered(
                provider=provider, plugin=c.plugin, distribution=c.distribution, version=c.version, code=c.code
            )
        keepers = [candidate for candidate, _ in holders]
        for candidate, _ in claims:
            if candidate not in keepers:
                rivals = keepers or [rival for rival, _ in claims if rival != candidate]
                names = ", ".join(f"{c.distribution} {c.version} ({c.plugin})" for c in rivals)
                outcome = "which keeps it" if keepers else "so neither is used: uninstall one"
                reason = f"{family} {kind!r} is also offered by {names}, {outcome}"
                broken.append(candidate.broken(reason, (kind,)))
    return MappingProxyType(table)


def _extended(
    mechanisms: Mapping[str, Offered], comparisons: Mapping[str, Offered], broken: list[BrokenPlugin]
) -> Mapping[str, Offered]:
    """The mechanisms with their comparisons; ``broken`` gains one entry per comparison whose key is already taken."""
    table = dict(mechanisms)
    for name, offered in comparisons.items():
        comparison: Comparison = offered.provider
        mechanism = table.get(comparison.mechanism)
        if mechanism is None:
            continue
        schemas = mechanism.provider.schemas
        keys: Any = comparison.schema["properties"]
        if taken := sorted(keys.keys() & schemas.mechanism["properties"].keys()):
            reason = f"comparison {name!r}: mechanism {comparison.mechanism!r} already has the key {taken[0]!r}"
            broken.append(
                BrokenPlugin(
                    plugin=offered.plugin,
                    distribution=offered.distribution,
                    version=offered.version,
                    reason=reason,
                    kinds=(name,),
                )
            )
            continue
        properties = {**schemas.mechanism["properties"], **keys}
        provider = replace(
            mechanism.provider,
            schemas=replace(schemas, mechanism={**schemas.mechanism, "properties": properties}),
            assumptions=(*mechanism.provider.assumptions, *comparison.assumptions),
        )
        table[comparison.mechanism] = replace(
            mechanism, provider=provider, comparisons=(*mechanism.comparisons, offered)
        )
    return MappingProxyType(table)


_MARK = "dpspec_plugin"


def mark(error: BaseException, offered: Offered | None = None) -> None:
    """Write the distribution whose code raised an error into it: a traceback does not leave its process.

    ``offered`` is the provider that was called, if a foreign one is to blame for any error.
    """
    blamed = offered.distribution if offered is not None and is_foreign(offered) else ""
    if distribution := blamed or raised_by(error):
        error.__dict__[_MARK] = distribution


def raised_by(error: BaseException) -> str:
    """The distribution of the plugin whose code raised an error; empty for dpspec's own code."""
    if marked := error.__dict__.get(_MARK):
        return str(marked)
    catalog, offering = load_catalog(), {"dpspec": "dpspec"}
    for family in FAMILIES:
        for offered in getattr(catalog, family.field).values():
            reference = getattr(offered.provider, family.code)
            offering.setdefault(reference.partition(".")[0].partition(":")[0], offered.distribution)
    for frame in reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)]):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        project_names = (file.name for file in _project if file.includes(frame.f_code.co_filename))
        if distribution := offering.get(package) or next(project_names, ""):
            return "" if distribution == "dpspec" else distribution
    return ""
