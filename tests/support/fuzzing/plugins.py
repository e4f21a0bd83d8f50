"""Plugins that are wrong in any way: what they offer, how they say it, and what their distribution's metadata says."""

from __future__ import annotations

import random
import sys
import types
from dataclasses import dataclass, fields
from email import message_from_bytes
from pathlib import Path
from typing import Any

from support.fuzzing.chance import TEXTS, junk, mutate_bytes, mutate_tree
from support.fuzzing.target import Target, write

MODULE = "fuzzed_plugin"
ENTRIES = b"[console_scripts]\nx = y:z\n\n[dpspec]\nfuzzed = fuzzed_plugin\nother = no_such_module:x.y [extra]\n"
METADATA = b"Metadata-Version: 2.1\nName: dpspec-fuzzed\nVersion: 1.0\nSummary: x\n\ntext\n"


@dataclass(frozen=True)
class Given:
    """A plugin's module as a mapping of names, and its distribution's metadata."""

    members: dict[str, Any]
    entries: bytes
    metadata: bytes


class Plugins(Target):
    """Loaded tolerantly: listed as broken with one line of reason, whatever it is, and the rest goes on working."""

    name = "plugins"

    def warm(self, folder: Path) -> None:
        """Our own descriptors, to change."""
        from dpspec.registry.loader import load_catalog

        catalog = load_catalog()
        self._providers = {
            "mechanisms": [o.provider for o in catalog.mechanisms.values()],
            "datasets": [o.provider for o in catalog.datasets.values()],
            "models": [o.provider for o in catalog.models.values()],
            "backends": [o.provider for o in catalog.backends.values()],
            "reporters": [o.provider for o in catalog.reporters.values()],
        }
        for seed in range(20):
            self.feed(self.case(random.Random(seed)), folder)

    def case(self, chance: random.Random) -> Given:
        """One or two families of descriptors with a few fields changed."""
        members: dict[str, Any] = {"DPSPEC_API": 1 if chance.randrange(12) else junk(chance)}
        for family in chance.sample(sorted(self._providers), chance.choice((1, 1, 2))):
            made = [self._changed(chance, family) for _ in range(chance.choice((1, 1, 2)))]
            name = f"dpspec_{family}" if chance.randrange(15) else f"dpspec_{chance.choice(TEXTS)}"
            members[name] = _hook(chance, made)
        entries = mutate_bytes(chance, ENTRIES) if chance.randrange(5) == 0 else ENTRIES
        metadata = mutate_bytes(chance, METADATA) if chance.randrange(5) == 0 else METADATA
        return Given(members, entries, metadata)

    def feed(self, case: Given, folder: Path) -> str:
        """Discover, load, list, and make the schema of what is left beside our own."""
        import json

        from dpspec.cli.commands.plugins import _as_json, _as_text
        from dpspec.language.bundle import bundle
        from dpspec.registry.loader import build, discover

        write({"site/dpspec_fuzzed-1.dist-info/entry_points.txt": case.entries}, folder)
        write({"site/dpspec_fuzzed-1.dist-info/METADATA": case.metadata}, folder)
        module = types.ModuleType(MODULE)
        for name, member in case.members.items():
            setattr(module, name, member)
        sys.modules[MODULE] = module
        sys.path.insert(0, str(folder / "site"))
        try:
            candidates, unreadable = discover()
            catalog = build(candidates, unreadable).catalog
        finally:
            sys.path.remove(str(folder / "site"))
            del sys.modules[MODULE]
        # What says that it is dpspec itself and comes first on the path is another copy of it, as imports have it.
        assert "group" in catalog.mechanisms or _claims_to_be_dpspec(case), "a foreign plugin took one of ours away"
        _as_json(catalog)
        for line in _as_text(catalog).splitlines():
            assert line.isprintable(), f"a broken plugin's reason reaches the terminal as {line!r}"
        theirs = [b for b in catalog.broken if b.distribution != "dpspec"]
        offered = {o.distribution for f in ("mechanisms", "datasets", "models") for o in getattr(catalog, f).values()}
        if offered - {"dpspec", "dpspec-faulty"}:
            json.dumps(bundle(catalog))
        return "broken" if theirs else "used"

    def _changed(self, chance: random.Random, family: str) -> Any:
        from dpspec.contract import thaw

        provider = chance.choice(self._providers[family])
        values = {f.name: getattr(provider, f.name) for f in fields(provider)}
        if chance.randrange(20) == 0:
            return junk(chance)
        key = "format" if family == "reporters" else "kind"
        values[key] = chance.choice((f"new-{chance.randrange(9)}", values[key], junk(chance)))
        name = chance.choice(sorted(values))
        if name == "schema":
            values[name] = mutate_tree(chance, thaw(values[name]))
        elif name == "schemas":
            block = chance.choice([f.name for f in fields(values[name])])
            parts = {f.name: getattr(values[name], f.name) for f in fields(values[name])}
            parts[block] = mutate_tree(chance, thaw(parts[block]))
            values[name] = type(values[name])(**parts)
        else:
            values[name] = chance.choice((junk(chance), frozenset({"approx-dp", 3}), frozenset(TEXTS), object()))
        return type(provider)(**values)


def _claims_to_be_dpspec(case: Given) -> bool:
    name = message_from_bytes(case.metadata)["Name"]
    return str(name).strip().lower() == "dpspec"


def _hook(chance: random.Random, made: list[Any]) -> Any:
    """A hook that yields, returns, raises, ends the program, or asks for what there is not."""
    import dpspec.contract as dps

    kind = chance.randrange(12)

    def raising() -> Any:
        raise chance_error

    chance_error = [RuntimeError("no\nlicence"), SystemExit(3), GeneratorExit(), RecursionError()][kind % 4]

    def asking(event: Any, more: Any) -> Any:
        return made

    def endless() -> Any:
        while True:
            yield made[0]

    chosen = {8: raising, 9: asking, 10: endless, 11: lambda: None}.get(kind, lambda: iter(made))
    return dps.hookimpl(chosen) if chance.randrange(15) else chosen
