"""JSON Schemas of the blocks of a spec: core's keys and the keys of the provider that the block's kind selects.

Validation and the schema for editors both use this module, so they agree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from dpspec.contract import Backend, Dataset, Json, Mechanism, Model, thaw
from dpspec.contract.attacks import Canary, Score

#: A schema as plain dicts; never changed in place.
Plain = dict[str, Any]

_FOLDER = FilePath(__file__).parent / "schemas" / "v1"
_CONDITION = ("if", "then", "else")


@functools.cache
def core(name: str) -> Plain:
    """``spec``, ``mechanism``, ``claim``, ..."""
    schema: Plain = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def combine(first: Mapping[str, Json], second: Mapping[str, Json]) -> Plain:
    """The keys and requirements of both; the keywords of the second take precedence."""
    a, b = thaw(first), thaw(second)
    merged: Plain = {**{k: v for k, v in a.items() if k not in _CONDITION}, **b}
    for keyword in _CONDITION:
        merged.pop(keyword, None)
    properties = dict(a.get("properties", {}))
    for key, schema in b.get("properties", {}).items():
        both = isinstance(schema, dict) and isinstance(properties.get(key), dict)
        properties[key] = combine(properties[key], schema) if both else schema
    conditions = [{k: s[k] for k in _CONDITION if k in s} for s in (a, b) if "if" in s]
    collected = [*a.get("allOf", []), *b.get("allOf", []), *conditions]
    required = list(dict.fromkeys([*a.get("required", []), *b.get("required", [])]))
    merged.update({"properties": properties} if properties else {})
    merged.update({"required": required} if required else {})
    merged.update({"allOf": collected} if collected else {})
    return merged


def mechanism_block(provider: Mechanism, *, phaseless: bool = False) -> Plain:
    """With phases, a required key may be in each phase instead; ``phaseless`` ignores phases."""
    schema = combine(core("mechanism"), provider.schemas.mechanism)
    if not provider.steps:
        return _provider_block(schema, provider.kind, provider.summary)
    iterative = thaw(core("iterative"))
    if phaseless:
        plain = {"properties": iterative["properties"], "required": iterative["else"]["required"]}
        plain["properties"]["phases"]["items"] = phase_block(provider)
        return _provider_block(combine(schema, plain), provider.kind, provider.summary)
    # Without phases, the block needs the required keys; with phases, each phase does.
    required = [key for key in schema["required"] if key != "kind"]
    iterative["else"]["required"] = [*iterative["else"]["required"], *required]
    schema["required"] = ["kind"]
    phase = without_required(phase_block(provider))
    phase["required"] = ["steps"]
    iterative["properties"]["phases"]["items"] = phase
    return _provider_block(combine(schema, iterative), provider.kind, provider.summary)


def phase_block(provider: Mechanism) -> Plain:
    """One phase merged with the block; ``kind`` is a key of the block only."""
    core_keys = core("iterative")["properties"]
    described = {"type": "object", "description": core_keys["phases"]["items"]["description"]}
    steps = {"properties": {"steps": core_keys["steps"]}, "required": ["steps"], "additionalProperties": False}
    return {**combine(steps, provider.schemas.mechanism), **described}


def kind_block(name: str, provider: Dataset | Model) -> Plain:
    return _provider_block(combine(core(name), provider.schema), provider.kind, provider.summary)


def training_block(provider: Backend | None) -> Plain:
    if provider is None:
        return core("training")
    schema = combine(core("training"), provider.schema)
    schema["properties"]["backend"] = {"const": provider.kind}
    schema["description"] = core("spec")["properties"]["training"]["description"]
    return schema


def threat_model_block(provider: Mechanism | None) -> Plain:
    return _core_block("threat_model", provider.schemas.threat_model if provider else None)


def audit_block(provider: Mechanism | None, canary: Canary | None = None, score: Score | None = None) -> Plain:
    schema = _core_block("audit", provider.schemas.audit if provider else None)
    if score is not None and score.schema.get("properties"):
        schema = {
            **schema,
            "properties": {**schema["properties"], "scoring": {**scoring_block(score.schema), "default": {}}},
        }
    if canary is None:
        return schema
    block = schema["properties"]["canary"]
    combined = {**combine(block, canary.schema), "description": block["description"]}
    return {**schema, "properties": {**schema["properties"], "canary": combined}}


def scoring_block(keys: Mapping[str, Json]) -> Plain:
    return {**thaw(keys), "description": "Options of the score."}


def claim_block(kind: str, provider: Mechanism | None) -> Plain:
    schema = combine(core("claim"), core("claim_kinds").get(kind, {}))
    further = provider.schemas.claims.get(kind) if provider else None
    if further is not None:
        own_words = schema.get("description")
        schema = combine(schema, further)
        schema["description"] = own_words or schema.get("description", "")
    schema["additionalProperties"] = False
    schema["properties"]["kind"] = {"const": kind}
    return schema


def known_claim_kinds(provider: Mechanism | None) -> list[str]:
    extra = [kind for kind in (provider.schemas.claims if provider else ()) if kind not in core("claim_kinds")]
    return [*core("claim_kinds"), *sorted(extra)]


def without_required(schema: Plain, *, removable: bool = False) -> Plain:
    """For a part of a block. ``removable`` allows null, with which a child removes its parent's value."""

    def inner(value: Json) -> Json:
        return without_required(value, removable=removable) if isinstance(value, dict) else value

    def of_property(value: Json) -> Json:
        result = inner(value)
        if removable and isinstance(value, dict) and "type" in value:
            kinds = [value["type"]] if isinstance(value["type"], str) else value["type"]
            result["type"] = [*kinds, "null"]
        if removable and isinstance(value, dict) and "enum" in value:
            result["enum"] = [*value["enum"], None]
        return result

    result: Plain = {}
    for keyword, value in schema.items():
        if keyword == "required":
            continue
        if keyword in ("properties", "patternProperties"):
            result[keyword] = {key: of_property(v) for key, v in value.items()}
        elif keyword in ("then", "else", "items", "additionalProperties"):
            result[keyword] = inner(value)
        elif keyword in ("allOf", "anyOf"):
            result[keyword] = [inner(v) for v in value]
        else:
            result[keyword] = value
    return result


def _core_block(name: str, further: Mapping[str, Json] | None) -> Plain:
    schema = core(name) if further is None else combine(core(name), further)
    return {**schema, "description": core("spec")["properties"][name]["description"]}


def _provider_block(schema: Plain, kind: str, summary: str) -> Plain:
    # The parent schema describes ``kind``; here it only distinguishes the kinds.
    properties = {**schema["properties"], "kind": {"const": kind}}
    return {**schema, "description": summary, "properties": properties}
