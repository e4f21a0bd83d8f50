"""Validate descriptors and hooks of plugins when they load, without importing the code that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dpspec.contract import CAPABILITIES, Assumption, Backend, Dataset, Executor, Mechanism, Model, Reporter
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.findings import AssumptionStatus

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
    """One of the eight families of providers, in ``field`` of the catalog.

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
    revision = getattr(provider, "trial_revision", 1)
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
    if isinstance(provider, Backend):
        stated, statuses = provider.constants, get_args(AssumptionStatus)
        if isinstance(stated, Assumption):
            if stated.name != "data-independent-hyperparameters":
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
