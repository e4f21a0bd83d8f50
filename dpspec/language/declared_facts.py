"""Read a file with facts about a training that no recording shows: a part of a spec, with the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpspec.contract import FrozenMap, Json
from dpspec.contract.spec import COLLECTION
from dpspec.errors import Diagnostic, has_errors
from dpspec.language.blocks import core
from dpspec.language.problems import problems
from dpspec.language.yaml_source import locate, origin, plain, read_file

#: Keys that change no verdict and no digest.
_KEYS = ("description", "system", "owner", "contact", "deployment")


@dataclass(frozen=True)
class DeclaredFacts:
    """The facts of a file, its errors with their locations, and its text."""

    facts: Mapping[str, Json] = FrozenMap()
    diagnostics: tuple[Diagnostic, ...] = ()
    text: str = ""


def read_declared_facts(path: Path) -> DeclaredFacts:
    """The facts of a YAML file; none if it has errors."""
    source = read_file(path)
    text = source.text or ""
    if source.root is None or has_errors(source.diagnostics):
        return DeclaredFacts(FrozenMap(), source.diagnostics, text)
    facts, spans = plain(source.root), origin(source.root)
    wrong = [locate(diagnostic, spans) for diagnostic in problems(_schema(), facts)]
    return DeclaredFacts(FrozenMap(facts if isinstance(facts, dict) and not wrong else {}), tuple(wrong), text)


def _schema() -> dict[str, Json]:
    keys, collection = core("spec")["properties"], core("data")["properties"][COLLECTION]
    data = {"type": "object", "properties": {COLLECTION: collection}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {**{key: keys[key] for key in _KEYS}, "data": data},
        "additionalProperties": False,
    }


def with_declared_facts(document: Mapping[str, Json], facts: Mapping[str, Json]) -> dict[str, Json]:
    """The document of a recorded run with the facts of a file."""
    data, stated = document["data"], facts.get("data")
    merged = {**(data if isinstance(data, Mapping) else {}), **(stated if isinstance(stated, Mapping) else {})}
    return {**document, **facts, "data": merged}
