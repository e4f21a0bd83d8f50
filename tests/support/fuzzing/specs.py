"""Specs: mutations of the repository's specs as text and as trees, and new ones generated from the schema."""

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fuzzing.chance import NUMBERS, TEXTS, junk, like, mutate_bytes, mutate_tree, places, write

SPECS = Path(__file__).parents[3] / "specs"
_DEEPEST = 12


@dataclass(frozen=True)
class Given:
    """The files and the values of ``--set`` of a command line."""

    files: Mapping[str, bytes]
    overrides: tuple[str, ...] = ()


class Specs:
    """``validate``, ``show`` and ``plan`` of an untrusted spec."""

    name = "specs"

    def warm(self, folder: Path) -> None:
        """Read the texts and trees of our specs, and the schema with all installed plugins."""
        import yaml

        from dpspec.language.blocks import bundle
        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog

        self._catalog = load_catalog()
        paths = sorted(SPECS.rglob("*.yaml"))
        self._texts = [path.read_bytes() for path in paths]
        valid = [path for path in paths if "invalid" not in path.parts]
        self._trees = [yaml.safe_load(path.read_text("utf-8")) for path in valid]
        self._resolved = [spec.to_json() for spec in load_specs(valid, self._catalog).specs]
        self._schema = json.loads(json.dumps(bundle(self._catalog)))["else"]
        for text in self._texts[:12]:
            self.feed(Given({"spec.yaml": text}), folder)

    def case(self, chance: random.Random) -> Given:
        """Return a text, a tree or a generated spec, sometimes with a parent, a matrix or overrides."""
        files = {"spec.yaml": self._document(chance)}
        if chance.randrange(6) == 0:
            files["parent.yaml"] = self._document(chance)
            files["spec.yaml"] = b"extends: parent.yaml\n" + files["spec.yaml"]
        overrides = tuple(self._override(chance) for _ in range(chance.choice((0, 0, 0, 1, 2))))
        return Given(files, overrides)

    def feed(self, case: Given, folder: Path) -> str:
        """Load, render diagnostics, show, check and plan, as the commands do."""
        from dpspec.engine.preparing.prepare import prepare
        from dpspec.errors import DpspecError
        from dpspec.language.diagnostics import render
        from dpspec.language.load import load_specs

        write(case.files, folder)
        loaded = load_specs([folder / "spec.yaml"], self._catalog, case.overrides)
        render(loaded.diagnostics, color=True, sources=loaded.sources)
        became = "loaded" if loaded.specs else "refused"
        for spec in loaded.specs:
            json.dumps(spec.to_json())
            try:
                prepared = prepare(spec, self._catalog)
            except DpspecError as error:
                render(getattr(error, "diagnostics", ()), color=False, sources=loaded.sources)
                continue
            render(prepared.diagnostics, color=False, sources=loaded.sources)
            if not any(d.severity == "error" for d in prepared.diagnostics):
                prepared.plan()
                became = "planned"
        return became

    def _document(self, chance: random.Random) -> bytes:
        kind = chance.randrange(6)
        if kind == 0:
            return mutate_bytes(chance, chance.choice(self._texts), chance.choice(self._texts))
        if kind == 1:
            return _dumped(mutate_tree(chance, chance.choice(self._trees)))
        if kind == 2:
            return _dumped(grow(chance, self._schema))
        return _dumped(self._crossed(chance))

    def _crossed(self, chance: random.Random) -> Any:
        """Return a valid spec with other numbers, another spec's block or local data, which reaches the plugins."""
        tree = copy.deepcopy(chance.choice(self._resolved))
        if chance.randrange(3) == 0:
            block = chance.choice(sorted(tree))
            tree[block] = copy.deepcopy(chance.choice(self._resolved).get(block, tree[block]))
        if isinstance(tree.get("data"), dict) and chance.randrange(2):
            tree["data"] = chance.choice(({"kind": "digits"}, {"kind": "declared", "records": 50}))
        leaves = [(holder, key) for holder, key in places(tree) if not isinstance(holder[key], dict | list | str)]
        for holder, key in chance.sample(leaves, min(len(leaves), chance.choice((0, 1, 1, 2, 3)))):
            holder[key] = like(chance, holder[key])
        return tree

    def _override(self, chance: random.Random) -> str:
        tree = chance.choice(self._trees)
        keys, node = [], tree
        while isinstance(node, Mapping) and node:
            keys.append(chance.choice(sorted(map(str, node))))
            node = node.get(keys[-1])
        return f"{'.'.join(keys)}={json.dumps(junk(chance))}" if chance.randrange(5) else chance.choice(TEXTS)


def _dumped(tree: Any) -> bytes:
    """Dump as JSON, which is YAML, without integers of more digits than Python prints."""
    try:
        return json.dumps(tree, indent=1).encode()
    except ValueError:
        return b"{}"


def grow(chance: random.Random, schema: Any, depth: int = 0) -> Any:
    """Return a value that nearly fits a schema, so that it reaches the checks of plugins."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return junk(chance)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get("anyOf") and "properties" not in schema:
        return grow(chance, {**schema, "anyOf": None, **chance.choice(schema["anyOf"])}, depth + 1)
    if "default" in schema and chance.randrange(3) == 0:
        return copy.deepcopy(schema["default"])  # the value is filled in later
    kinds: Sequence[str] = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type", "object")]
    return _grown(chance, schema, chance.choice(kinds), depth)


def _grown(chance: random.Random, schema: dict[str, Any], kind: str, depth: int) -> Any:
    if kind == "object":
        return _mapping(chance, schema, depth)
    if kind == "array":
        count = chance.randrange(schema.get("minItems", 0), min(schema.get("maxItems", 4), 4) + 1)
        return [grow(chance, schema.get("items"), depth + 1) for _ in range(count)]
    if kind in ("number", "integer"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1000))
        high = schema.get("maximum", schema.get("exclusiveMaximum", 1000))
        inside = chance.uniform(float(low), min(float(high), float(low) + 1000))
        found = chance.choice((low, high, inside, inside, inside, chance.choice(NUMBERS)))
        return int(found) if kind == "integer" else found
    if kind == "boolean":
        return chance.randrange(2) == 0
    return None if kind == "null" else chance.choice((*TEXTS, "a", "b", "x1"))


def _mapping(chance: random.Random, schema: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the required keys and some others, with the keys that the conditions then demand."""
    found: dict[str, Any] = {}
    _fill(chance, schema, found, depth)
    for part in schema.get("allOf") or ():
        if isinstance(part, dict) and "if" in part:
            part = part.get("then" if _holds(part["if"], found) else "else", {})
        if isinstance(part, dict):
            _fill(chance, part, found, depth)
    return found


def _fill(chance: random.Random, schema: dict[str, Any], found: dict[str, Any], depth: int) -> None:
    required = set(schema.get("required", ()))
    for key, part in (schema.get("properties") or {}).items():
        if not (key in required or (isinstance(part, dict) and ("const" in part or chance.randrange(2) == 0))):
            continue
        if key in found and isinstance(found[key], dict) and isinstance(part, dict):
            if isinstance(part.get("properties"), dict):
                _fill(chance, part, found[key], depth + 1)
                for inner in part.get("allOf") or ():
                    _fill(chance, inner, found[key], depth + 1)
        elif key not in found:
            found[key] = grow(chance, part, depth + 1)


def _holds(condition: Any, value: Any) -> bool:
    """Whether a value has the constants of a condition's properties."""
    if "const" in condition:
        return bool(value == condition["const"])
    if "enum" in condition:
        return value in condition["enum"]
    inner = condition.get("properties", {})
    if not isinstance(value, dict) or not set(condition.get("required", ())) <= set(value):
        return False
    return all(key not in value or _holds(part, value[key]) for key, part in inner.items())
