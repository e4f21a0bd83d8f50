"""Validate descriptors and hooks of plugins when they load, without importing the code that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pluggy

from dpspec.contract import (
    CAPABILITIES,
    Assumption,
    Backend,
    Dataset,
    DpspecHooks,
    Executor,
    Mechanism,
    Model,
    Reporter,
)
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.diagnostics import ASSUMPTIONS
from dpspec.contract.findings import AssumptionStatus
from dpspec.text import closest, did_you_mean

#: The names of all hooks.
HOOKS = tuple(name for name in vars(DpspecHooks) if name.startswith("dpspec_"))


def hook_problems(plugin: object, manager: pluggy.PluginManager) -> Iterator[str]:
    """Describe the errors of a plugin's hooks that pluggy ignores: unknown, unmarked, a wrapper, or no hook."""
    has_hook, names = False, ", ".join(sorted(HOOKS))
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name in HOOKS and callable(getattr(plugin, name)):
                yield f"hook {name} is not marked with @dpspec.contract.hookimpl"
            continue
        has_hook = True
        hook = options.get("specname") or name
        if hook not in HOOKS:
            yield f"unknown hook {hook!r}{did_you_mean(closest(hook, HOOKS))} (hooks: {names})"
        elif options.get("wrapper") or options.get("hookwrapper"):
            yield f"hook {hook} is a wrapper; a plugin may not change what others offer"
    if not has_hook:
        yield f"no hook is implemented (hooks: {names})"


_KIND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

#: Keys that no fragment may define. Core's other keys may be narrowed, such as ``adjacency`` to supported values.
CORE_KEYS: dict[str, frozenset[str]] = {
    "mechanism": frozenset({"kind"}),
    "steps": frozenset({"steps", "phases"}),
    "threat_model": frozenset(),
    "audit": frozenset(),
    "claims": frozenset({"id", "kind"}),
    "data": frozenset({"kind"}),
    "model": frozenset({"kind", "initial"}),
    "training": frozenset({"backend"}),
    "canary": frozenset({"space", "kind", "count", "spread", "every"}),
    "score": frozenset(),
}


@dataclass(frozen=True)
class Family:
    """One of the eight families of providers.

    Attributes:
        field: The field of :class:`~dpspec.contract.catalog.Catalog`.
        code: The field of the descriptor that names its code.
        key: The field of the descriptor with its kind.
        block: The owner of the core keys that ``schema`` may not define; empty for descriptors without ``schema``.
        optional: Fields that name more code, or are empty.
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
    revision = getattr(provider, "trial_revision", 1)
    if type(revision) is not int or revision < 1:
        yield f"trial_revision must be an integer of at least 1, got {revision!r}"
    for name in (family.code, *family.optional):
        value = getattr(provider, name)
        if (name == family.code or value != "") and not (isinstance(value, str) and _REFERENCE.fullmatch(value)):
            yield f"{name} must name code as 'package.module:Attribute', got {value!r}"
    if family.block:
        yield from _fragment(provider.schema, "schema", family.block)
    if isinstance(provider, Mechanism):
        yield from _of_mechanism(provider)
    if isinstance(provider, Backend):
        yield from _of_backend(provider)


def _fragment(fragment: Any, name: str, *owners: str) -> Iterator[str]:
    properties = fragment.get("properties") if isinstance(fragment, Mapping) else None
    if not isinstance(properties, Mapping) or fragment.get("type") != "object":
        yield f"{name} must be a JSON Schema with type 'object' and a mapping 'properties'"
        return
    for key in sorted(k for owner in owners for k in CORE_KEYS[owner] if k in properties):
        yield f"{name}.properties.{key}: this key belongs to core"


def _of_mechanism(m: Mechanism) -> Iterator[str]:
    for block in ("mechanism", "threat_model", "audit"):
        owners = (block, "steps") if block == "mechanism" and m.steps else (block,)
        yield from _fragment(getattr(m.schemas, block), f"schemas.{block}", *owners)
    for kind, fragment in m.schemas.claims.items():
        if kind not in m.claims:
            yield f"schemas.claims.{kind}: is not among its claims ({', '.join(sorted(m.claims))})"
        yield from _fragment(fragment, f"schemas.claims.{kind}", "claims")


def _of_backend(b: Backend) -> Iterator[str]:
    if isinstance(b.constants, Assumption):
        if ASSUMPTIONS.get(b.constants.name, b.constants.name) != "data-independent-hyperparameters":
            yield f"constants must be the assumption 'data-independent-hyperparameters', got {b.constants.name!r}"
        statuses = get_args(AssumptionStatus)
        if b.constants.status not in statuses:
            yield f"constants: status must be one of {', '.join(statuses)}, got {b.constants.status!r}"
    elif b.constants and not _REFERENCE.fullmatch(b.constants):
        yield f"constants must name code as 'package.module:Attribute', got {b.constants!r}"
    if unknown := b.capabilities - CAPABILITIES:
        names = ", ".join(repr(u) for u in sorted(map(str, unknown)))
        yield f"unknown capabilities {names} (valid: {', '.join(sorted(CAPABILITIES))})"


def fragments(provider: Any) -> dict[str, Any]:
    """The schema fragments of any descriptor, by their place in it."""
    if isinstance(provider, Mechanism):
        named = {f"schemas.{b}": getattr(provider.schemas, b) for b in ("mechanism", "threat_model", "audit")}
        return {**named, **{f"schemas.claims.{kind}": f for kind, f in provider.schemas.claims.items()}}
    return {} if isinstance(provider, Reporter | Executor) else {"schema": provider.schema}


#: The eight families, in the order in which their hooks are called.
FAMILIES: tuple[Family, ...] = (
    Family("mechanism", "mechanisms", "dpspec_mechanisms", Mechanism, "audit"),
    Family("dataset", "datasets", "dpspec_datasets", Dataset, "source", block="data"),
    Family("model", "models", "dpspec_models", Model, "factory", block="model"),
    Family("backend", "backends", "dpspec_backends", Backend, "trainer", block="training", optional=("recording",)),
    Family("reporter", "reporters", "dpspec_reporters", Reporter, "render", key="format"),
    Family("executor", "executors", "dpspec_executors", Executor, "pool"),
    Family("canary", "canaries", "dpspec_attacks", Canary, "make", block="canary", optional=("limit",)),
    Family("score", "scores", "dpspec_attacks", Score, "score", block="score"),
)
