"""JSON Schemas of the blocks of a spec, and ``dpspec schema``: one schema of specs with all installed plugins.

The schema is JSON Schema 2020-12, uses only keywords that draft-07 shares, and contains no references. If a spec has
``extends`` or ``matrix``, no key is required, because the parent or the cells may supply it.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from dpspec.contract import Backend, Dataset, Json, Loss, Mechanism, Model, thaw
from dpspec.contract.attacks import USUAL, Canary, Score
from dpspec.contract.catalog import Catalog

#: Kind of the mechanism that publishes the best cell of a matrix, and kind of the claims about it.
SELECTION, CLAIM_KIND = "selection", "approx-dp"

#: Blocks of a cell that determine its privacy loss. All cells share the data block.
CELL_BLOCKS = ("mechanism", "model", "training", "threat_model")

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
    merged: Plain = {**a, **b}
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


def training_block(provider: Backend, loss: Loss | None = None) -> Plain:
    schema = combine(core("training"), provider.schema)
    schema["properties"]["backend"] = {"const": provider.kind}
    if loss is not None:
        schema["properties"]["loss"] = combine(schema["properties"]["loss"], loss.schema)
    schema["description"] = core("spec")["properties"]["training"]["description"]
    return schema


def threat_model_block(provider: Mechanism | None) -> Plain:
    return _core_block("threat_model", provider.schemas.threat_model if provider else None)


def audit_block(provider: Mechanism | None, canary: Canary | None = None, score: Score | None = None) -> Plain:
    schema = _core_block("audit", provider.schemas.audit if provider else None)
    properties = dict(schema["properties"])
    if score is not None and score.schema.get("properties"):
        properties["scoring"] = {**scoring_block(score.schema), "default": {}}
    if canary is not None:
        described = {"description": properties["canary"]["description"]}
        properties["canary"] = {**combine(properties["canary"], canary.schema), **described}
    return {**schema, "properties": properties}


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
    extra = set(provider.schemas.claims if provider else ()).difference(core("claim_kinds"))
    return [*core("claim_kinds"), *sorted(extra)]


def without_required(schema: Json, *, removable: bool = False) -> Json:
    """For a part of a block. ``removable`` allows null, with which a child removes its parent's value."""
    if not isinstance(schema, dict):
        return schema
    result: Plain = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties"):
            result[keyword] = {}
            for key, inner in value.items():
                part = result[keyword][key] = without_required(inner, removable=removable)
                if removable and isinstance(inner, dict) and "type" in inner:
                    kinds = [inner["type"]] if isinstance(inner["type"], str) else inner["type"]
                    part["type"] = [*kinds, "null"]
                if removable and isinstance(inner, dict) and "enum" in inner:
                    part["enum"] = [*inner["enum"], None]
        elif keyword in ("then", "else", "items", "additionalProperties"):
            result[keyword] = without_required(value, removable=removable)
        elif keyword in ("allOf", "anyOf"):
            result[keyword] = [without_required(part, removable=removable) for part in value]
        elif keyword != "required":
            result[keyword] = value
    return result


def _core_block(name: str, further: Mapping[str, Json] | None) -> Plain:
    schema = core(name) if further is None else combine(core(name), further)
    return {**schema, "description": core("spec")["properties"][name]["description"]}


def _provider_block(schema: Plain, kind: str, summary: str) -> Plain:
    # The parent schema describes ``kind``; here it only distinguishes the kinds.
    properties = {**schema["properties"], "kind": {"const": kind}}
    return {**schema, "description": summary, "properties": properties}


def bundle(catalog: Catalog) -> dict[str, Json]:
    whole = _spec_schema(catalog, mechanism_block)
    top = {key: whole[key] for key in ("title", "description", "type")}
    block_schemas = {key: value for key, value in whole.items() if key not in top}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "properties": {key: {"description": value["description"]} for key, value in whole["properties"].items()},
        "additionalProperties": False,
        "if": {"anyOf": [{"required": ["extends"]}, {"required": ["matrix"]}]},
        "then": without_required(block_schemas, removable=True),
        "else": block_schemas,
    }


def reference(catalog: Catalog) -> dict[str, Json]:
    """Without alternatives for parents, matrix and phases, for the reference pages."""
    return _spec_schema(catalog, partial(mechanism_block, phaseless=True))


def _spec_schema(catalog: Catalog, block_of_mechanism: Json) -> Plain:
    training = _by_kind("training", "backend", _providers(catalog.backends), _block_of_backend)
    del training["required"]
    backend = {**training["properties"]["backend"], "default": "native"}
    training["properties"] = {**core("training")["properties"], "backend": backend, "loss": _loss_schema(catalog)}
    for case in training.get("allOf", ()):
        if case["if"] == _has_value("backend", "native"):
            case["if"] = {"properties": {"backend": {"const": "native"}}}
    mechanisms = _providers(catalog.mechanisms)
    spec = core("spec")
    properties = {
        **spec["properties"],
        "mechanism": _by_kind("mechanism", "kind", mechanisms, block_of_mechanism),
        "data": _by_kind("data", "kind", _providers(catalog.datasets), partial(kind_block, "data")),
        "model": _by_kind("model", "kind", _providers(catalog.models), partial(kind_block, "model")),
        "training": training,
    }
    cases = []
    for provider in mechanisms.values():  # the conditions that a mechanism's kind imposes on the other blocks
        chosen = {"mechanism": {"type": "object", **_has_value("kind", provider.kind)}}
        imposed = {
            "threat_model": threat_model_block(provider),
            "audit": _audit_schema(provider, catalog),
            "claims": {"items": _claims_schema(provider)},
        }
        cases.append({"if": {"properties": chosen, "required": ["mechanism"]}, "then": {"properties": imposed}})
    return _with_cases({**spec, "properties": properties}, cases)


def _providers(offers: Json) -> dict[str, Json]:
    return {kind: offers[kind].provider for kind in sorted(offers)}


def _by_kind(name: str, key: str, providers: dict[str, Json], block: Json) -> Plain:
    described = core(name)["properties"][key]["description"] + _summaries(providers)
    schema = {
        "type": "object",
        "description": core("spec")["properties"][name]["description"],
        "properties": {key: _choice(providers, described)},
        "required": [key],
    }
    cases = [
        {"if": _has_value(key, kind), "then": _without_description(block(provider))}
        for kind, provider in providers.items()
    ]
    return _with_cases(schema, cases)


def _block_of_backend(provider: Backend) -> Plain:
    """The training block of a backend, without its loss: ``_loss_schema`` describes losses."""
    schema = training_block(provider)
    return {**schema, "properties": {**schema["properties"], "loss": {}}}


def _loss_schema(catalog: Catalog) -> Plain:
    """The schema of ``training.loss``: a name, or a map with the kind and its keys."""
    losses, block = _providers(catalog.losses), core("training")["properties"]["loss"]
    described = block["properties"]["kind"]["description"] + _summaries(losses)
    cases = []
    for kind, provider in losses.items():
        own_keys = _without_description(_provider_block(combine(block, provider.schema), kind, provider.summary))
        cases.append({"if": _has_value("kind", kind), "then": own_keys})
    options = {"type": "object", "properties": {"kind": _choice(losses, described)}, "required": ["kind"]}
    name = _without_description(_choice(losses, ""))
    return {"description": block["description"], "anyOf": [name, _with_cases(options, cases)]}


def _audit_schema(provider: Mechanism, catalog: Catalog) -> Plain:
    canaries = {k: c for k, c in _providers(catalog.canaries).items() if c.space in provider.canaries}
    scores = _providers(catalog.scores) if provider.scores else {}
    schema = audit_block(provider)
    properties = dict(schema["properties"])
    if canaries:
        block = properties["canary"]
        usual = " and ".join(f"{USUAL[space]} in space {space}" for space in USUAL if space in provider.canaries)
        kind = _choice(
            canaries, f"{block['properties']['kind']['description']} Default: {usual}.{_summaries(canaries)}"
        )
        properties["canary"] = {**block, "properties": {**block["properties"], **_own_keys(canaries), "kind": kind}}
    if scores:
        properties["score"] = _choice(scores, properties["score"]["description"] + _summaries(scores))
        if score_keys := _own_keys(scores):
            properties["scoring"] = scoring_block(
                {"type": "object", "properties": score_keys, "additionalProperties": False}
            )
    return {**schema, "properties": properties}


def _own_keys(providers: dict[str, Json]) -> Plain:
    """A key with different schemas accepts any value."""
    merged_keys: Plain = {}
    for provider in providers.values():
        for key, schema in thaw(provider.schema).get("properties", {}).items():
            same = merged_keys.get(key, schema) == schema
            merged_keys[key] = schema if same else {"description": schema.get("description", "")}
    return merged_keys


def _summaries(providers: dict[str, Json]) -> str:
    return "".join(f"\n{kind}: {provider.summary}" for kind, provider in providers.items())


def _claims_schema(provider: Mechanism) -> Plain:
    kinds = [kind for kind in known_claim_kinds(provider) if kind in provider.claims]
    summaries = {kind: claim_block(kind, provider).get("description", "") for kind in kinds}
    described = "The kind of claim." + "".join(f"\n{kind}: {text}" for kind, text in summaries.items())
    cases = [
        {"if": _has_value("kind", kind), "then": _without_description(claim_block(kind, provider))} for kind in kinds
    ]
    return _with_cases(
        {"type": "object", "properties": {"kind": _choice(kinds, described)}, "required": ["kind"]}, cases
    )


def _with_cases(schema: Plain, cases: list[Plain]) -> Plain:
    return {**schema, "allOf": cases} if cases else schema  # an empty allOf is invalid


def _has_value(key: str, value: str) -> Plain:
    return {"properties": {key: {"const": value}}, "required": [key]}


def _choice(values: Iterable[str], description: str) -> Plain:
    allowed = list(values)
    return {"type": "string", **({"enum": allowed} if allowed else {}), "description": description}


def _without_description(schema: Plain) -> Plain:
    """The description would hide the description of the selecting key."""
    return {key: value for key, value in schema.items() if key != "description"}
