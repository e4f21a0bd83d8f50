"""``dpspec schema``: one JSON Schema of specs with all installed plugins, for editors and other tools.

It speaks JSON Schema 2020-12 in keywords that draft-07 shares and holds no references. Where a spec extends a parent
or has a matrix, nothing is demanded of the file alone: the parent or the cells may give it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from dpspec.contract import Json, Mechanism, thaw
from dpspec.contract.attacks import USUAL
from dpspec.contract.catalog import Catalog
from dpspec.language.validating import blocks
from dpspec.language.validating.blocks import Plain

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def bundle(catalog: Catalog) -> dict[str, Json]:
    """The schema of everything that a spec may hold, given what is installed."""
    whole = _whole(catalog, _written)
    inherits = {"anyOf": [{"required": ["extends"]}, {"required": ["matrix"]}]}
    top = {key: whole[key] for key in ("title", "description", "type")}
    names = {key: {"description": value["description"]} for key, value in whole["properties"].items()}
    return {
        "$schema": SCHEMA,
        **top,
        "properties": names,
        "additionalProperties": False,
        "if": inherits,
        "then": blocks.relaxed({key: value for key, value in whole.items() if key not in top}, removable=True),
        "else": {key: value for key, value in whole.items() if key not in top},
    }


def reference(catalog: Catalog) -> dict[str, Json]:
    """The same without cases for parents, matrix and phases: what a page of reference is made from."""
    return _whole(catalog, functools.partial(blocks.mechanism_block, demanding=True))


def _written(provider: Mechanism) -> Plain:
    """The mechanism block as it may be written: its phases as a list, a table or a formula."""
    schema = blocks.mechanism_block(provider)
    if provider.steps:
        phases = schema["properties"]["phases"]
        either = {"description": phases["description"], "anyOf": [phases, blocks.core("schedule")]}
        schema["properties"] = {**schema["properties"], "phases": either}
    return schema


def _whole(catalog: Catalog, mechanism_block: Json) -> Plain:
    """The schema of a spec that has no parent."""
    schema = dict(blocks.core("spec"))
    mechanisms = _providers(catalog.mechanisms)
    properties = dict(schema["properties"])
    properties["mechanism"] = _by_kind("mechanism", "kind", mechanisms, mechanism_block)
    properties["data"] = _by_kind("data", "kind", _providers(catalog.datasets), blocks.data_block)
    properties["model"] = _by_kind("model", "kind", _providers(catalog.models), blocks.model_block)
    properties["training"] = _training(catalog)
    schema["properties"] = properties
    return _with_cases(schema, [_of_mechanism(provider, catalog) for provider in mechanisms.values()])


def _providers(offers: Json) -> dict[str, Json]:
    return {kind: offers[kind].provider for kind in sorted(offers)}


def _by_kind(name: str, key: str, providers: dict[str, Json], block: Json) -> Plain:
    """A block whose kind chooses among the schemas of its providers."""
    described = blocks.core(name)["properties"][key]["description"]
    summaries = "".join(f"\n{kind}: {provider.summary}" for kind, provider in providers.items())
    schema = {
        "type": "object",
        "description": blocks.core("spec")["properties"][name]["description"],
        "properties": {key: _choice(providers, described + summaries)},
        "required": [key],
    }
    cases = [
        {"if": _is(key, kind), "then": _without_description(block(provider))} for kind, provider in providers.items()
    ]
    return _with_cases(schema, cases)


def _training(catalog: Catalog) -> Plain:
    """The training block, whose backend may be left out: then it is the native one."""
    providers = _providers(catalog.backends)
    schema = _by_kind("training", "backend", providers, blocks.training_block)
    del schema["required"]
    core = blocks.core("training")["properties"]
    schema["properties"] = {**core, "backend": {**schema["properties"]["backend"], "default": "native"}}
    for case in schema.get("allOf", ()):
        if case["if"] == _is("backend", "native"):
            case["if"] = {"properties": {"backend": {"const": "native"}}}
    return schema


def _of_mechanism(provider: Mechanism, catalog: Catalog) -> Plain:
    """What a mechanism's kind decides about the other blocks."""
    return {
        "if": {
            "properties": {"mechanism": {"type": "object", **_is("kind", provider.kind)}},
            "required": ["mechanism"],
        },
        "then": {
            "properties": {
                "threat_model": blocks.threat_model_block(provider),
                "audit": _audit(provider, catalog),
                "claims": {"items": _claims(provider)},
            }
        },
    }


def _audit(provider: Mechanism, catalog: Catalog) -> Plain:
    """The audit block, with what plugins offer where the mechanism takes it: kinds with their keys, and scores."""
    canaries = {k: c for k, c in _providers(catalog.canaries).items() if c.space in provider.canaries}
    scores = _providers(catalog.scores) if provider.scores else {}
    schema = blocks.audit_block(provider)
    if canaries:
        planted = schema["properties"]["canary"]
        usual = " and ".join(f"{USUAL[space]} in space {space}" for space in USUAL if space in provider.canaries)
        kind = _offered(planted["properties"]["kind"], canaries, f" Left out: {usual}.")
        planted = {**planted, "properties": {**planted["properties"], **_own_keys(canaries), "kind": kind}}
        schema = {**schema, "properties": {**schema["properties"], "canary": planted}}
    if scores:
        chosen = {"score": _offered(schema["properties"]["score"], scores)}
        if own := _own_keys(scores):
            chosen["scoring"] = blocks.scoring({"type": "object", "properties": own, "additionalProperties": False})
        schema = {**schema, "properties": {**schema["properties"], **chosen}}
    return schema


def _own_keys(providers: dict[str, Json]) -> Plain:
    """The keys of all kinds of canaries, or of all scores; of one that they describe otherwise, nothing but that it
    exists is demanded."""
    found: Plain = {}
    for provider in providers.values():
        for key, schema in thaw(provider.schema).get("properties", {}).items():
            same = found.get(key, schema) == schema
            found[key] = schema if same else {"description": schema.get("description", "")}
    return found


def _offered(key: Plain, providers: dict[str, Json], usual: str = "") -> Plain:
    """A key that chooses among providers."""
    return _choice(providers, key["description"] + usual + "".join(f"\n{k}: {p.summary}" for k, p in providers.items()))


def _claims(provider: Mechanism) -> Plain:
    """One claim of any kind that the mechanism judges."""
    kinds = [kind for kind in blocks.known_claim_kinds(provider) if kind in provider.claims]
    summaries = {kind: blocks.claim_block(kind, provider).get("description", "") for kind in kinds}
    described = "What kind of statement this is." + "".join(f"\n{kind}: {text}" for kind, text in summaries.items())
    cases = [
        {"if": _is("kind", kind), "then": _without_description(blocks.claim_block(kind, provider))} for kind in kinds
    ]
    return _with_cases(
        {"type": "object", "properties": {"kind": _choice(kinds, described)}, "required": ["kind"]}, cases
    )


def _with_cases(schema: Plain, cases: list[Plain]) -> Plain:
    return {**schema, "allOf": cases} if cases else schema  # an empty allOf is no valid schema


def _is(key: str, value: str) -> Plain:
    return {"properties": {key: {"const": value}}, "required": [key]}


def _choice(values: Iterable[str], description: str) -> Plain:
    allowed = list(values)
    return {"type": "string", **({"enum": allowed} if allowed else {}), "description": description}


def _without_description(schema: Plain) -> Plain:
    """A claim's or block's own words would hide those of the key that chose it."""
    return {key: value for key, value in schema.items() if key != "description"}
