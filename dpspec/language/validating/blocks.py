"""The JSON Schema of each block of a spec: core's own keys and those of the provider that the block's kind chooses.

Validation and the bundle for editors both start here, so that they cannot disagree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from dpspec.contract import Backend, Dataset, Json, Mechanism, Model, thaw
from dpspec.contract.attacks import Canary, Score

#: A schema as plain dicts, safe to pick apart and put together; never changed in place.
Plain = dict[str, Any]

_FOLDER = FilePath(__file__).parent / "schemas" / "v1"
_CONDITION = ("if", "then", "else")


@functools.cache
def core(name: str) -> Plain:
    """One of core's own schemas: ``spec``, ``mechanism``, ``claim``, ..."""
    schema: Plain = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def claim_kinds() -> Plain:
    """Core's claim kinds, each with the schema of its own keys."""
    return core("claim_kinds")


def combine(first: Mapping[str, Json], second: Mapping[str, Json]) -> Plain:
    """One schema that has the keys of both and demands what either demands.

    The second refines the first where both describe a property: its keywords win, its properties are added.
    """
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


def mechanism_block(provider: Mechanism, *, demanding: bool = False) -> Plain:
    """The whole mechanism block. With ``phases``, what the block lacks may stand in each of them.

    demanding: leave that out, and demand what a block without phases must have.
    """
    schema = combine(core("mechanism"), provider.schemas.mechanism)
    if not provider.steps:
        return _named(schema, provider.kind, provider.summary)
    iterative = thaw(core("iterative"))
    if demanding:
        plain = {"properties": iterative["properties"], "required": iterative["else"]["required"]}
        plain["properties"]["phases"]["items"] = phase_block(provider)
        return _named(combine(schema, plain), provider.kind, provider.summary)
    # The block's own demands hold where there are no phases; with phases, each phase is held to them.
    demands = [key for key in schema["required"] if key != "kind"]
    iterative["else"]["required"] = [*iterative["else"]["required"], *demands]
    schema["required"] = ["kind"]
    phase = relaxed(phase_block(provider))
    phase["required"] = ["steps"]
    iterative["properties"]["phases"]["items"] = phase
    return _named(combine(schema, iterative), provider.kind, provider.summary)


def phase_block(provider: Mechanism) -> Plain:
    """One phase with the block's other keys filled in; ``kind`` belongs to the block alone."""
    core_keys = core("iterative")["properties"]
    described = {"type": "object", "description": core_keys["phases"]["items"]["description"]}
    steps = {"properties": {"steps": core_keys["steps"]}, "required": ["steps"], "additionalProperties": False}
    return {**combine(steps, provider.schemas.mechanism), **described}


def data_block(provider: Dataset) -> Plain:
    """The whole data block."""
    return _named(combine(core("data"), provider.schema), provider.kind, provider.summary)


def model_block(provider: Model) -> Plain:
    """The whole model block."""
    return _named(combine(core("model"), provider.schema), provider.kind, provider.summary)


def training_block(provider: Backend | None) -> Plain:
    """The whole training block; without a provider, core's keys only."""
    if provider is None:
        return core("training")
    schema = combine(core("training"), provider.schema)
    schema["properties"]["backend"] = {"const": provider.kind}
    schema["description"] = core("spec")["properties"]["training"]["description"]
    return schema


def threat_model_block(provider: Mechanism | None) -> Plain:
    """The whole threat model."""
    return _shared("threat_model", provider.schemas.threat_model if provider else None)


def audit_block(provider: Mechanism | None, canary: Canary | None = None, score: Score | None = None) -> Plain:
    """The whole audit block, with the keys of the kind of canary that it chooses, and those of the score."""
    schema = _shared("audit", provider.schemas.audit if provider else None)
    if score is not None and score.schema.get("properties"):
        schema = {**schema, "properties": {**schema["properties"], "scoring": {**scoring(score.schema), "default": {}}}}
    if canary is None:
        return schema
    planted = schema["properties"]["canary"]
    whole = {**combine(planted, canary.schema), "description": planted["description"]}
    return {**schema, "properties": {**schema["properties"], "canary": whole}}


def scoring(keys: Mapping[str, Json]) -> Plain:
    """The block of a score's own keys, from the schema of these."""
    return {**thaw(keys), "description": "The keys of the score's own: how it scores."}


def claim_block(kind: str, provider: Mechanism | None) -> Plain:
    """One claim of a kind."""
    schema = combine(core("claim"), claim_kinds().get(kind, {}))
    further = provider.schemas.claims.get(kind) if provider else None
    if further is not None:
        own_words = schema.get("description")
        schema = combine(schema, further)
        schema["description"] = own_words or schema.get("description", "")
    schema["additionalProperties"] = False
    schema["properties"]["kind"] = {"const": kind}
    return schema


def known_claim_kinds(provider: Mechanism | None) -> list[str]:
    """Core's claim kinds, then those that the mechanism brings."""
    extra = [kind for kind in (provider.schemas.claims if provider else ()) if kind not in claim_kinds()]
    return [*claim_kinds(), *sorted(extra)]


def relaxed(schema: Plain, *, removable: bool = False) -> Plain:
    """The same keys with nothing demanded: what a part of a block may hold. Conditions keep their ``if``.

    removable: each value may also be null, by which a child removes what its parent gives.
    """

    def inner(value: Json) -> Json:
        return relaxed(value, removable=removable) if isinstance(value, dict) else value

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


def _shared(name: str, further: Mapping[str, Json] | None) -> Plain:
    schema = core(name) if further is None else combine(core(name), further)
    return {**schema, "description": core("spec")["properties"][name]["description"]}


def _named(schema: Plain, kind: str, summary: str) -> Plain:
    # The key that chooses is described where it is chosen; here it is only told apart from other kinds.
    properties = {**schema["properties"], "kind": {"const": kind}}
    return {**schema, "description": summary, "properties": properties}
