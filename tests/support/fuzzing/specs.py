"""Specs: mutations of the repository's specs as text and as trees."""

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fuzzing.chance import TEXTS, junk, like, mutate_bytes, mutate_tree, places, write

SPECS = Path(__file__).parents[3] / "specs"


@dataclass(frozen=True)
class Given:
    files: Mapping[str, bytes]
    overrides: tuple[str, ...] = ()


class Specs:
    """``validate``, ``show`` and ``plan`` of an untrusted spec."""

    def warm(self, folder: Path) -> None:
        import yaml

        from dpspec.language.load import load_specs
        from dpspec.registry.loader import load_catalog

        self._catalog = load_catalog()
        paths = sorted(SPECS.rglob("*.yaml"))
        self._texts = [path.read_bytes() for path in paths]
        valid = [path for path in paths if "invalid" not in path.parts]
        self._trees = [yaml.safe_load(path.read_text("utf-8")) for path in valid]
        self._resolved = [spec.to_json() for spec in load_specs(valid, self._catalog).specs]
        for text in self._texts[:12]:
            self.feed(Given({"spec.yaml": text}), folder)

    def case(self, chance: random.Random) -> Given:
        """Return a text or a tree, sometimes with a parent or overrides."""
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
        kind = chance.randrange(5)
        if kind == 0:
            return mutate_bytes(chance, chance.choice(self._texts), chance.choice(self._texts))
        return _dumped(mutate_tree(chance, chance.choice(self._trees)) if kind == 1 else self._crossed(chance))

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
