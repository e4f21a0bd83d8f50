"""Validate descriptors of plugins without importing the code that they name, and import, call and blame that code.

Every error except Ctrl-C becomes one line of text: a plugin that calls ``sys.exit`` must not end the program.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, get_args

from dpspec.contract import CAPABILITIES, Assumption, Backend, Dataset, Executor, Mechanism, Model, Reporter
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.catalog import Offered
from dpspec.contract.findings import AssumptionStatus
from dpspec.errors import PluginError
from dpspec.text import plain, shortened

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


def is_foreign(offered: Offered) -> bool:
    return offered.distribution != "dpspec"


def made(offered: Offered, reference: str, what: str, *arguments: Any, **named: Any) -> Any:
    """Call the code under ``reference``. Raises ``PluginError`` if it cannot be called."""
    function = resolve(reference)
    if not callable(function):
        raise misbehaved(offered, f"{reference} ({what}) is a {type(function).__name__}, nothing to call")
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
    return f"{line} ({place})" if (place := _place(error)) else line


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
            found: Any = importlib.import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
            return found
    except Failed as failure:
        raise PluginError(f"cannot load {reference}: {failure}") from failure
