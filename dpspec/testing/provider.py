"""The suite of all providers: listed, light, described, with code that exists; and tests of purity."""

from __future__ import annotations

import inspect
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dpspec.contract import FrozenMap, Json, thaw
from dpspec.contract.catalog import Catalog, Offered
from dpspec.language.problems import cast, fill
from dpspec.registry.loader import FAMILIES, Registry, fragments, load_registry, resolve, use_project, used_project
from dpspec.registry.project import MODULE_PREFIX, project_files

T = TypeVar("T")

#: Prefixes of interpreter audit events that code without side effects does not raise.
_EVENTS = ("open", "os.", "shutil.", "socket.", "subprocess.", "tempfile.")
_watching: dict[int, list[str]] = {}


@cache
def _install_audit_hook() -> None:
    """Audit hooks are permanent, so one serves all threads."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _watching and event.startswith(_EVENTS):
            events = _watching.get(threading.get_ident())
            if events is not None:
                events.append(f"{event} {arguments[0]!r}" if arguments else event)

    sys.addaudithook(hook)


def _generators() -> dict[str, Any]:
    """The states of the global random generators, comparable by ``==``; torch's only if torch is imported."""
    import numpy as np

    states = {"random": random.getstate(), "numpy": pickle.dumps(np.random.get_state())}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().tolist()
    return states


def impurities(function: Callable[[], T]) -> tuple[T, list[str]]:
    """Call the function; return its result and a description of each side effect."""
    _install_audit_hook()
    before = _generators()
    events: list[str] = []
    _watching[threading.get_ident()] = events
    try:
        answer = function()
    finally:
        del _watching[threading.get_ident()]
    after = _generators()
    moved = [f"{_DRAWS} {name}" for name in before if before[name] != after[name]]
    return answer, moved + [f"it touches the outside: {event}" for event in events]


_DRAWS = "it draws from the global generator of"


def seeded(function: Callable[[], T]) -> T:
    """Call the function; fail if it draws from a global random generator."""
    answer, touched = impurities(function)
    drawn = [effect for effect in touched if effect.startswith(_DRAWS)]
    require(not drawn, "; ".join(drawn))
    return answer


_MARK = "modules found:"


def imported_by(statements: str, modules: Sequence[str]) -> list[str]:
    """Return the members of ``modules`` that the statements import; fail if they raise or print to stdout."""
    script = f"import sys\nsys.path[:] = {sys.path!r}\n{textwrap.dedent(statements)}"
    script += f"\nprint({_MARK!r}, *[m for m in {list(modules)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    require(done.returncode == 0, f"failed in a fresh interpreter:\n{done.stderr}")
    before, _, imported = done.stdout.rpartition(_MARK)
    require(not before, f"prints to stdout, which belongs to results: {before[:200]!r}")
    return imported.split()


def skip_project_file(module: str) -> None:
    """Skip a test of light imports for a file of a project, which may import torch."""
    if module.startswith(MODULE_PREFIX):
        raise unittest.SkipTest("a file of a project may import torch")


def require_light(reference: str, call: str, modules: Sequence[str], advice: str) -> None:
    """Fail if ``call``, an expression in ``found``, the object at ``reference``, imports one of the modules."""
    module, _, name = reference.partition(":")
    skip_project_file(module)
    heavy = imported_by(
        f"""
        import importlib
        from pathlib import Path
        from dpspec.contract import Facts, FrozenMap
        found = getattr(importlib.import_module({module!r}), {name!r})
        {call}
        """,
        modules,
    )
    require(not heavy, f"{name} imports {', '.join(heavy)}{advice}")


#: Modules that the import of a descriptor may not load.
HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "jsonschema", "yaml")


def require(ok: object, message: str) -> None:
    """Fail the running test with ``message`` unless ``ok``."""
    if not ok:
        raise AssertionError(message)


@cache
def _use_project_of(path: Path) -> None:
    """Load the plugins of the project of a test file, once: later calls touch no file."""
    use_project(project_files([path]))


class ProviderSuite:
    """The common part of all suites. Set ``kind`` to the name of the provider."""

    kind: ClassVar[str]
    family: ClassVar[str]

    @classmethod
    def registry(cls) -> Registry:
        """All installed plugins, and the plugins of the project of the test file. Override it to test others."""
        if not used_project():
            _use_project_of(Path(inspect.getfile(cls)))
        return load_registry()

    @classmethod
    def catalog(cls) -> Catalog:
        """The providers of the registry."""
        return cls.registry().catalog

    @classmethod
    def offered(cls) -> Offered:
        """The provider under test; fails if it is not installed."""
        (family,) = [f for f in FAMILIES if f.name == cls.family]
        require(hasattr(cls, "kind"), f"set kind in {cls.__name__} to the name of the {cls.family}")
        offers: Mapping[str, Offered] = getattr(cls.catalog(), family.field)
        broken = "; ".join(f"{b.distribution} {b.version} is broken: {b.reason}" for b in cls.catalog().broken)
        installed = f"(installed: {', '.join(offers) or 'none'}). {broken}"
        require(cls.kind in offers, f"no plugin offers {cls.family} {cls.kind!r} {installed}")
        return offers[cls.kind]

    @classmethod
    def provider(cls) -> Any:
        """The descriptor under test."""
        return cls.offered().provider

    @classmethod
    def code(cls) -> Any:
        """The code that the descriptor names: an audit, a source, a factory or a trainer class."""
        (family,) = [f for f in FAMILIES if f.name == cls.family]
        return resolve(getattr(cls.provider(), family.code))

    def test_nothing_of_the_plugin_is_broken(self) -> None:
        """The plugin is not listed as broken, and none of its kinds is offered by another plugin."""
        offered = self.offered()
        broken = [b.reason for b in self.catalog().broken if b.distribution == offered.distribution]
        require(not broken, f"plugin {offered.distribution} {offered.version} is broken: {'; '.join(broken)}")

    def test_importing_the_descriptor_is_light(self) -> None:
        """Importing the plugin and calling its hooks imports nothing heavy and prints nothing."""
        offered = self.offered()
        plugin = self.registry().module(offered.distribution, offered.plugin)
        require(plugin is not None, f"{offered.distribution}:{offered.plugin} is not among the registry's plugins")
        module = plugin.__name__ if hasattr(plugin, "__file__") else type(plugin).__module__
        skip_project_file(module)
        statements = f"""
            import importlib
            from dpspec.registry.loader import FAMILIES
            plugin = importlib.import_module({module!r})
            for name in {{family.hook for family in FAMILIES}}:
                if hasattr(plugin, name):
                    list(getattr(plugin, name)())
        """
        heavy = imported_by(statements, HEAVY)
        require(not heavy, f"importing {module} imports {', '.join(heavy)}; import them in the functions that use them")

    def test_schemas_are_valid_and_every_property_is_described(self) -> None:
        """Fragments are valid in 2020-12 and draft-07, objects are closed, properties described, and defaults fit."""
        from jsonschema import Draft7Validator, Draft202012Validator
        from jsonschema.exceptions import SchemaError

        faults: list[str] = []
        for name, fragment in fragments(self.provider()).items():
            for validator in (Draft7Validator, Draft202012Validator):
                try:
                    validator.check_schema(thaw(fragment))
                except SchemaError as error:
                    faults.append(f"{name}: {error.message}")
            for path, schema in _parts(thaw(fragment), name):
                if "properties" in schema and "additionalProperties" not in schema:
                    faults.append(f"{path}: accepts misspelled keys; set additionalProperties: false")
                for key, part in schema.get("properties", {}).items():
                    if isinstance(part, Mapping) and not part.get("description"):
                        faults.append(f"{path}.properties.{key}: has no description")
                if "default" in schema:
                    short, default = path.replace(".properties.", "."), schema["default"]
                    errors = Draft202012Validator(schema).iter_errors(default)
                    faults.extend(f"{short}: its default {default!r} is invalid: {e.message}" for e in errors)
        require(not faults, "\n".join(faults))

    def test_the_descriptor_can_travel(self) -> None:
        """The descriptor can be pickled, for trials in other processes and on other machines."""
        name = f"{self.family} {self.kind!r}"
        try:
            pickle.dumps(self.provider())
        except Exception as error:
            raise AssertionError(f"{name} cannot be pickled, which other processes need: {error}") from error

    def test_the_code_it_names_exists(self) -> None:
        """The reference in the descriptor can be imported and called."""
        require(callable(self.code()), f"{self.family} {self.kind!r} names {self.code()!r}, which cannot be called")


def _parts(schema: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object of a schema with its place."""
    if isinstance(schema, Mapping):
        yield path, schema
        for name, part in schema.get("properties", {}).items():
            yield from _parts(part, f"{path}.properties.{name}")
        yield from _parts(schema.get("items"), f"{path}.items")


def filled(fragment: Mapping[str, Json], options: Mapping[str, Json]) -> FrozenMap:
    """The options with the fragment's defaults, as a provider receives them."""
    schema = thaw(fragment)
    return FrozenMap(cast(schema, fill(schema, thaw(options))))
