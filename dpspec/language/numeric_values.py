"""Numbers of a spec that calibration may vary: dotted path, type, schema limits and current value."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpspec.accounting import LEAST_TRIED
from dpspec.contract import Json, Path, Spec, thaw
from dpspec.contract.catalog import Catalog
from dpspec.errors import UsageError
from dpspec.language import blocks
from dpspec.language.blocks import Plain
from dpspec.language.problems import is_valid
from dpspec.language.yaml_source import value_at
from dpspec.text import closest, did_you_mean, listed, quoted, shown

#: Upper limit if the schema gives none.
LARGEST = 1e12


@dataclass(frozen=True, kw_only=True)
class NumericKey:
    """``place`` as ``--set`` accepts it; ``value`` is the largest element of a list, None if the spec omits the key."""

    place: str
    path: Path
    integer: bool
    low: float
    high: float
    value: float | None

    def spelling(self, value: float) -> str:
        whole = self.integer or (float(value).is_integer() and abs(value) < 1e15)
        return str(int(value)) if whole else shown(float(value))


def numeric_key(spec: Spec, catalog: Catalog, dotted_path: str) -> NumericKey:
    keys = list(_keys(spec, catalog))
    numbers = [key.place for _, key in keys if key is not None]
    keys_by_path = {_by_id(spec, path): key for path, key in keys}
    keys_by_path = {
        **{dotted(path): key for path, key in keys},
        **keys_by_path,
    }  # as with --set, an id takes precedence
    key = keys_by_path.get(dotted_path)
    if key is not None:
        return key
    hint = f"numbers of this spec: {listed(given_numbers(spec, catalog))}"
    if dotted_path in keys_by_path:
        raise UsageError(f"{quoted(dotted_path)} is not a number; {hint}")
    suggestion = next((name for name in numbers if name.endswith(f".{dotted_path}")), None) or closest(
        dotted_path, numbers
    )
    raise UsageError(f"no key {quoted(dotted_path)} in spec {quoted(spec.name)}{did_you_mean(suggestion)} ({hint})")


def given_numbers(spec: Spec, catalog: Catalog) -> list[str]:
    """The places of the numbers that the spec has, without those in lists."""
    keys = (key for _, key in _keys(spec, catalog) if key is not None)
    return [key.place for key in keys if key.value is not None and isinstance(key.path[-1], str)]


def with_value(spec: Spec, key: NumericKey, value: float) -> dict[str, Json]:
    document: dict[str, Json] = spec.to_json()
    block = value_at(document, key.path[:-1])
    block[key.path[-1]] = int(value) if key.integer else float(value)
    return document


def _keys(spec: Spec, catalog: Catalog) -> Iterator[tuple[Path, NumericKey | None]]:
    """Paths of keys on which bounds may depend, with None if the key is not a number."""
    document = spec.to_json()
    mechanism, loss = catalog.mechanisms[spec.mechanism.kind].provider, spec.training.get("loss")
    schemas: dict[str, Plain] = {
        "mechanism": blocks.mechanism_block(mechanism),
        "threat_model": blocks.threat_model_block(mechanism),
        "data": blocks.kind_block("data", catalog.datasets[spec.data.kind].provider),
        "training": blocks.training_block(
            catalog.backends[spec.training.kind].provider,
            None if loss is None else catalog.losses[loss["kind"]].provider,
        ),
    }
    if spec.model is not None:
        schemas["model"] = blocks.kind_block("model", catalog.models[spec.model.kind].provider)
    open_blocks: list[tuple[Path, Plain, Json]] = [
        ((name,), schema, document[name]) for name, schema in schemas.items()
    ]
    for i, claim in enumerate(document["claims"]):
        open_blocks.append((("claims", i), blocks.claim_block(claim["kind"], mechanism), claim))
    for block, schema, value in open_blocks:
        for path, schema_parts, current in _below(block, [schema], value):
            yield path, _numeric(_by_id(spec, path), path, schema_parts, current)


def _below(path: Path, schemas: Sequence[Plain], value: Json) -> Iterator[tuple[Path, list[Plain], Json]]:
    schema_parts = [part for schema in schemas for part in _applying(schema, value)]
    inner: dict[str | int, list[Json]] = {}
    for part in schema_parts:
        if isinstance(value, list):
            for i in range(len(value)):
                inner.setdefault(i, []).append(part.get("items", {}))
        else:
            for name, schema in part.get("properties", {}).items():
                inner.setdefault(name, []).append(schema)
    for step, step_schemas in inner.items():
        if any(schema is False for schema in step_schemas):
            continue  # excluded by another key of the block
        usable = [schema for schema in step_schemas if isinstance(schema, Mapping)]
        current = value[int(step)] if isinstance(value, list) else value.get(step)
        yield (*path, step), [thaw(schema) for schema in usable], current
        if isinstance(current, dict | list):
            yield from _below((*path, step), [thaw(schema) for schema in usable], current)


def _applying(schema: Plain, value: Json) -> Iterator[Plain]:
    yield schema
    inner = list(schema.get("allOf", ()))
    if "if" in schema:
        inner.append(schema.get("then" if is_valid(schema["if"], value) else "else"))
    for part in inner:
        if isinstance(part, Mapping):
            yield from _applying(dict(part), value)


def _numeric(dotted_path: str, path: Path, schema_parts: Sequence[Plain], value: Json) -> NumericKey | None:
    if any("const" in part or "enum" in part for part in schema_parts):
        return None
    types = [
        {part["type"]} if isinstance(part["type"], str) else set(part["type"])
        for part in schema_parts
        if "type" in part
    ]
    if not types or not all(kinds & {"number", "integer"} for kinds in types):
        return None
    integer = not all("number" in kinds for kinds in types)
    if isinstance(value, list):
        value = max((item for item in value if isinstance(item, int | float)), default=None)
    low, high = 0.0, LARGEST
    for part in schema_parts:
        if "minimum" in part:
            low = max(low, math.ceil(part["minimum"]) if integer else part["minimum"])
        if "maximum" in part:
            high = min(high, math.floor(part["maximum"]) if integer else part["maximum"])
        if "exclusiveMinimum" in part:
            limit = part["exclusiveMinimum"]
            above = math.floor(limit) + 1 if integer else LEAST_TRIED if limit == 0 else math.nextafter(limit, math.inf)
            low = max(low, above)
        if "exclusiveMaximum" in part:
            limit = part["exclusiveMaximum"]
            high = min(high, math.ceil(limit) - 1 if integer else math.nextafter(limit, -math.inf))
    return NumericKey(path=path, place=dotted_path, integer=integer, low=float(low), high=float(high), value=value)


def _by_id(spec: Spec, path: Path) -> str:
    if path[0] == "claims":
        return dotted(("claims", spec.claims[int(path[1])].id, *path[2:]))
    return dotted(path)


def dotted(path: Path) -> str:
    return ".".join(str(step) for step in path)
