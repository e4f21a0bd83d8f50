"""What every provider must fulfil, whatever it offers: it is listed, light, well described, and its code exists."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from dpspec.contract import FrozenMap, Json, thaw
from dpspec.contract.catalog import Catalog, Offered
from dpspec.language.validating.problems import cast, fill
from dpspec.registry.descriptors import FAMILIES, fragments
from dpspec.registry.loader import Registry, load_registry, resolve
from dpspec.testing.purity import imported_by

#: What an import of a descriptor must not drag in.
HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "jsonschema", "yaml")


def require(ok: object, message: str) -> None:
    """Fail the running test with ``message`` unless ``ok``."""
    if not ok:
        raise AssertionError(message)


class ProviderSuite:
    """The common part of all suites. Set ``kind`` to what the plugin offers."""

    kind: ClassVar[str]
    family: ClassVar[str]

    @classmethod
    def registry(cls) -> Registry:
        """The plugins to look in: all that are installed. Override it to look elsewhere."""
        return load_registry()

    @classmethod
    def catalog(cls) -> Catalog:
        """Everything that the registry offers."""
        return cls.registry().catalog

    @classmethod
    def offered(cls) -> Offered:
        """The provider under test; an assertion fails where it is not installed."""
        (family,) = [f for f in FAMILIES if f.name == cls.family]
        offers: Mapping[str, Offered] = getattr(cls.catalog(), family.field)
        broken = "; ".join(f"{b.distribution} {b.version} is broken: {b.reason}" for b in cls.catalog().broken)
        require(
            cls.kind in offers,
            f"no plugin offers {cls.family} {cls.kind!r} (installed: {', '.join(offers) or 'none'}). {broken}",
        )
        return offers[cls.kind]

    @classmethod
    def provider(cls) -> Any:
        """The descriptor under test."""
        return cls.offered().provider

    @classmethod
    def schema_fragments(cls) -> dict[str, Any]:
        """The descriptor's schema fragments, by the place where each stands."""
        return fragments(cls.provider())

    @classmethod
    def code(cls) -> Any:
        """What the descriptor names: an audit, a source, a factory or a trainer class."""
        provider = cls.provider()
        for field in ("audit", "source", "factory", "trainer", "render", "pool", "make", "score"):
            if hasattr(provider, field):
                return resolve(getattr(provider, field))
        raise AssertionError(f"a {cls.family} names no code")

    def test_nothing_of_the_plugin_is_broken(self) -> None:
        """The plugin is not listed as broken, not even for one kind in conflict with another plugin."""
        offered = self.offered()
        broken = [b.reason for b in self.catalog().broken if b.distribution == offered.distribution]
        require(not broken, f"plugin {offered.distribution} {offered.version} is broken: {'; '.join(broken)}")

    def test_importing_the_descriptor_is_light(self) -> None:
        """Importing the plugin and asking it what it offers imports nothing heavy and prints nothing."""
        offered = self.offered()
        plugin = self.registry().module(offered.distribution, offered.plugin)
        require(plugin is not None, f"{offered.distribution}:{offered.plugin} is not among the registry's plugins")
        module = plugin.__name__ if hasattr(plugin, "__file__") else type(plugin).__module__
        statements = f"""
            import importlib
            from dpspec.registry.descriptors import HOOKS
            plugin = importlib.import_module({module!r})
            for name in HOOKS:
                if name != "dpspec_event" and hasattr(plugin, name):
                    list(getattr(plugin, name)())
        """
        heavy = imported_by(statements, HEAVY)
        require(not heavy, f"importing {module} imports {', '.join(heavy)}; import them where they are used")

    def test_schemas_are_valid_and_every_property_is_described(self) -> None:
        """Fragments are valid in 2020-12 and draft-07, objects are closed, properties described, and defaults fit."""
        from jsonschema import Draft7Validator, Draft202012Validator
        from jsonschema.exceptions import SchemaError

        found: list[str] = []
        for name, fragment in self.schema_fragments().items():
            plain = thaw(fragment)
            found.extend(_open_or_undescribed(plain, name))
            for validator in (Draft7Validator, Draft202012Validator):
                try:
                    validator.check_schema(plain)
                except SchemaError as error:
                    found.append(f"{name}: {error.message}")
            for place, schema in _with_defaults(plain, name):
                errors = Draft202012Validator(schema).iter_errors(schema["default"])
                found.extend(f"{place}: its default {schema['default']!r} is invalid: {e.message}" for e in errors)
        require(not found, "\n".join(found))

    def test_the_descriptor_can_travel(self) -> None:
        """Trials run in other processes, and on other machines: the descriptor can be pickled."""
        try:
            pickle.dumps(self.provider())
        except Exception as error:
            raise AssertionError(
                f"{self.family} {self.kind!r} cannot be pickled, which other processes need: {error}"
            ) from error

    def test_the_code_it_names_exists(self) -> None:
        """The reference in the descriptor can be imported and called."""
        require(callable(self.code()), f"{self.family} {self.kind!r} names {self.code()!r}, which cannot be called")


def _open_or_undescribed(schema: Any, place: str) -> Iterator[str]:
    """Objects that accept unknown keys, and properties without a description."""
    if not isinstance(schema, Mapping):
        return
    if "properties" in schema and "additionalProperties" not in schema:
        yield f"{place}: accepts misspelled keys; set additionalProperties: false"
    for name, part in schema.get("properties", {}).items():
        if isinstance(part, Mapping) and not part.get("description"):
            yield f"{place}.properties.{name}: has no description"
        yield from _open_or_undescribed(part, f"{place}.properties.{name}")
    yield from _open_or_undescribed(schema.get("items"), f"{place}.items")


def _with_defaults(schema: Json, place: str) -> Iterable[tuple[str, dict[str, Json]]]:
    """Every part of a schema that has a default, with its place."""
    if not isinstance(schema, dict):
        return
    if "default" in schema:
        yield place, schema
    for key, part in schema.get("properties", {}).items():
        yield from _with_defaults(part, f"{place}.{key}")
    yield from _with_defaults(schema.get("items"), f"{place}.items")


def filled(fragment: Mapping[str, Json], options: Mapping[str, Json]) -> FrozenMap:
    """The options with the fragment's defaults filled in, as core does before a provider sees them."""
    schema = thaw(fragment)
    return FrozenMap(cast(schema, fill(schema, thaw(options))))
