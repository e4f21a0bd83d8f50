"""``dpspec schema``: one JSON Schema of specs with all installed plugins, for editors and other tools.

The schema is JSON Schema 2020-12, uses only keywords that draft-07 shares, and contains no references. If a spec has
``extends`` or ``matrix``, no key is required, because the parent or the cells may supply it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dpspec.contract import Json, Mechanism, thaw
from dpspec.contract.attacks import USUAL
from dpspec.contract.catalog import Catalog
from dpspec.language.validating import blocks
from dpspec.language.validating.blocks import Plain

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def bundle(catalog: Catalog) -> dict[str, Json]:
    def mechanism_block(provider: Mechanism) -> Plain:
        schema = blocks.mechanism_block(provider)
        if provider.steps:  # phases may be a list, a table or a formula
            phases = schema["properties"]["phases"]
            either = {"description": phases["description"], "anyOf": [phases, blocks.core("schedule")]}
            schema["properties"] = {**schema["properties"], "phases": either}
        return schema

    whole = _spec_schema(catalog, mechanism_block)
    top = {key: whole[key] for key in ("title", "description", "type")}
    rest = {key: value for key, value in whole.items() if key not in top}
    return {
        "$schema": SCHEMA,
        **top,
        "properties": {key: {"description": value["description"]} for key, value in whole["properties"].items()},
        "additionalProperties": False,
        "if": {"anyOf": [{"required": ["extends"]}, {"required": ["matrix"]}]},
        "then": blocks.without_required(rest, removable=True),
        "else": rest,
    }


def reference(catalog: Catalog) -> dict[str, Json]:
    """Without alternatives for parents, matrix and phases, for the reference pages."""
    return _spec_schema(catalog, partial(blocks.mechanism_block, phaseless=True))


def _spec_schema(catalog: Catalog, mechanism_block: Json) -> Plain:
    training = _by_kind("training", "backend", _providers(catalog.backends), blocks.training_block)
    del training["required"]
    backend = {**training["properties"]["backend"], "default": "native"}
    training["properties"] = {**blocks.core("training")["properties"], "backend": backend}
    for case in training.get("allOf", ()):
        if case["if"] == _has_value("backend", "native"):
            case["if"] = {"properties": {"backend": {"const": "native"}}}
    mechanisms = _providers(catalog.mechanisms)
    spec = blocks.core("spec")
    properties = {
        **spec["properties"],
        "mechanism": _by_kind("mechanism", "kind", mechanisms, mechanism_block),
        "data": _by_kind("data", "kind", _providers(catalog.datasets), partial(blocks.kind_block, "data")),
        "model": _by_kind("model", "kind", _providers(catalog.models), partial(blocks.kind_block, "model")),
        "training": training,
    }
    cases = []
    for provider in mechanisms.values():  # the conditions that a mechanism's kind imposes on the other blocks
        chosen = {"mechanism": {"type": "object", **_has_value("kind", provider.kind)}}
        imposed = {
            "threat_model": blocks.threat_model_block(provider),
            "audit": _audit_schema(provider, catalog),
            "claims": {"items": _claims_schema(provider)},
        }
        cases.append({"if": {"properties": chosen, "required": ["mechanism"]}, "then": {"properties": imposed}})
    return _with_cases({**spec, "properties": properties}, cases)


def _providers(offers: Json) -> dict[str, Json]:
    return {kind: offers[kind].provider for kind in sorted(offers)}


def _by_kind(name: str, key: str, providers: dict[str, Json], block: Json) -> Plain:
    described = blocks.core(name)["properties"][key]["description"]
    summaries = "".join(f"\n{kind}: {provider.summary}" for kind, provider in providers.items())
    schema = {
        "type": "object",
        "description": blocks.core("spec")["properties"][name]["description"],
        "properties": {key: _choice(providers, described + summaries)},
        "required": [key],
    }
    cases = [
        {"if": _has_value(key, kind), "then": _without_description(block(provider))}
        for kind, provider in providers.items()
    ]
    return _with_cases(schema, cases)


def _audit_schema(provider: Mechanism, catalog: Catalog) -> Plain:
    canaries = {k: c for k, c in _providers(catalog.canaries).items() if c.space in provider.canaries}
    scores = _providers(catalog.scores) if provider.scores else {}
    schema = blocks.audit_block(provider)
    if canaries:
        block = schema["properties"]["canary"]
        usual = " and ".join(f"{USUAL[space]} in space {space}" for space in USUAL if space in provider.canaries)
        kind = _provider_choice(block["properties"]["kind"], canaries, f" Default: {usual}.")
        block = {**block, "properties": {**block["properties"], **_own_keys(canaries), "kind": kind}}
        schema = {**schema, "properties": {**schema["properties"], "canary": block}}
    if scores:
        chosen = {"score": _provider_choice(schema["properties"]["score"], scores)}
        if own := _own_keys(scores):
            chosen["scoring"] = blocks.scoring_block(
                {"type": "object", "properties": own, "additionalProperties": False}
            )
        schema = {**schema, "properties": {**schema["properties"], **chosen}}
    return schema


def _own_keys(providers: dict[str, Json]) -> Plain:
    """A key with different schemas accepts any value."""
    found: Plain = {}
    for provider in providers.values():
        for key, schema in thaw(provider.schema).get("properties", {}).items():
            same = found.get(key, schema) == schema
            found[key] = schema if same else {"description": schema.get("description", "")}
    return found


def _provider_choice(key: Plain, providers: dict[str, Json], usual: str = "") -> Plain:
    return _choice(providers, key["description"] + usual + "".join(f"\n{k}: {p.summary}" for k, p in providers.items()))


def _claims_schema(provider: Mechanism) -> Plain:
    kinds = [kind for kind in blocks.known_claim_kinds(provider) if kind in provider.claims]
    summaries = {kind: blocks.claim_block(kind, provider).get("description", "") for kind in kinds}
    described = "The kind of claim." + "".join(f"\n{kind}: {text}" for kind, text in summaries.items())
    cases = [
        {"if": _has_value("kind", kind), "then": _without_description(blocks.claim_block(kind, provider))}
        for kind in kinds
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
